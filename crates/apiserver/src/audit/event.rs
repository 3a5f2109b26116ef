//! An audit event (`audit.k8s.io/v1`), with fields in upstream's order.

use super::policy::Level;
use crate::Body;
use crate::content;
use auth::{Attributes, User};
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, Response};
use meta::Value;
use serde::Serialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Maximum length of a user agent; longer ones are truncated.
const MAX_AGENT: usize = 1024;
/// The annotation of a truncated event.
const TRUNCATED: &str = "audit.k8s.io/truncated";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Event {
    kind: &'static str,
    api_version: &'static str,
    pub level: &'static str,
    #[serde(rename = "auditID")]
    id: String,
    pub stage: &'static str,
    #[serde(rename = "requestURI")]
    uri: String,
    verb: String,
    user: AuditUser,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impersonated_user: Option<AuditUser>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authentication_metadata: Option<AuthenticationMetadata>,
    #[serde(rename = "sourceIPs", skip_serializing_if = "Vec::is_empty")]
    source_ips: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    user_agent: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_ref: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_status: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_object: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_object: Option<Box<RawValue>>,
    request_received_timestamp: String,
    pub stage_timestamp: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// The impersonation constraint.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AuthenticationMetadata {
    pub impersonation_constraint: String,
}

#[derive(Serialize)]
pub(super) struct AuditUser {
    #[serde(skip_serializing_if = "String::is_empty")]
    username: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    groups: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra: BTreeMap<String, Vec<String>>,
}

impl From<&User> for AuditUser {
    fn from(u: &User) -> Self {
        Self { username: u.name.clone(), uid: u.uid.clone(), groups: u.groups.clone(), extra: u.extra.clone() }
    }
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Reference {
    #[serde(skip_serializing_if = "String::is_empty")]
    resource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    uid: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    api_group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    api_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    resource_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    subresource: String,
}

impl Event {
    pub fn new(level: Level, id: &str, received: String, parts: &Parts, a: &Attributes, peer: Option<IpAddr>) -> Self {
        let text = |name| parts.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let agent = text(USER_AGENT);
        let user_agent = match agent.get(..MAX_AGENT) {
            Some(start) if agent.len() > MAX_AGENT => format!("{start}...TRUNCATED"),
            _ => agent.to_owned(),
        };
        let object_ref = (!a.resource.is_empty()).then(|| Reference {
            resource: a.resource.clone(),
            namespace: a.namespace.clone(),
            name: a.name.clone(),
            api_group: a.group.clone(),
            api_version: a.version.clone(),
            subresource: a.subresource.clone(),
            ..Reference::default()
        });
        Self {
            kind: "Event",
            api_version: "audit.k8s.io/v1",
            level: level.as_str(),
            id: id.to_owned(),
            stage: "",
            uri: parts.uri.path_and_query().map_or("/", |p| p.as_str()).to_owned(),
            verb: a.verb.clone(),
            user: AuditUser::from(&a.user),
            impersonated_user: None,
            authentication_metadata: None,
            source_ips: source_ips(&parts.headers, peer),
            user_agent,
            object_ref,
            response_status: None,
            request_object: None,
            response_object: None,
            stage_timestamp: received.clone(),
            request_received_timestamp: received,
            annotations: BTreeMap::new(),
        }
    }

    /// Sets the object reference from the request's object.
    pub fn name_object(&mut self, object: &Value) {
        let Some(r) = &mut self.object_ref else { return };
        let m = &object["metadata"];
        for (field, key) in [
            (&mut r.namespace, "namespace"),
            (&mut r.name, "name"),
            (&mut r.uid, "uid"),
            (&mut r.resource_version, "resourceVersion"),
        ] {
            if field.is_empty() {
                m[key].as_str().unwrap_or_default().clone_into(field);
            }
        }
    }

    /// Encodes the event as one line.
    pub fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }

    /// Encodes the event without its objects, annotated as truncated.
    pub fn line_without_objects(&mut self) -> Vec<u8> {
        let objects = (self.request_object.take(), self.response_object.take());
        let marked = !self.annotations.contains_key(TRUNCATED);
        if marked {
            self.annotations.insert(TRUNCATED.into(), "true".into());
        }
        let line = self.line();
        (self.request_object, self.response_object) = objects;
        if marked {
            self.annotations.remove(TRUNCATED);
        }
        line
    }
}

/// Source IPs of a request: clients may forge all but the last.
fn source_ips(headers: &HeaderMap, peer: Option<IpAddr>) -> Vec<String> {
    let all = |name: &str| -> Vec<IpAddr> {
        let values = headers.get_all(name).iter().filter_map(|v| v.to_str().ok());
        values.flat_map(|v| v.split(',')).filter_map(|a| a.trim().parse().ok()).collect()
    };
    let mut ips = all("x-forwarded-for");
    if let Some(real) = all("x-real-ip").first().filter(|r| !ips.contains(r)) {
        ips.push(*real);
    }
    if let Some(peer) = peer.filter(|p| ips.last() != Some(p)) {
        ips.push(peer);
    }
    ips.iter().map(ToString::to_string).collect()
}

/// Decodes a document of any encoding; none if it is invalid.
pub(super) fn read(media: &str, body: &[u8]) -> Option<Value> {
    // A patch is JSON whatever its media type, except for apply.
    let media = match media {
        "application/apply-patch+yaml" => "application/yaml",
        m if m.ends_with("+json") => "application/json",
        m => m,
    };
    content::read(media, body, true).ok().map(|s| s.value)
}

pub(super) fn raw(mut v: Value, without_managed_fields: bool) -> Option<Box<RawValue>> {
    if without_managed_fields {
        drop_managed_fields(&mut v);
    }
    RawValue::from_string(v.to_string()).ok()
}

fn drop_managed_fields(v: &mut Value) {
    let strip = |v: &mut Value| {
        if let Some(m) = v.get_mut("metadata").and_then(Value::as_object_mut) {
            m.remove("managedFields");
        }
    };
    strip(v);
    for i in v.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
        strip(i);
    }
    for r in v.get_mut("rows").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(o) = r.get_mut("object") {
            strip(o);
        }
    }
}

/// The document of a complete response.
pub(super) fn answer(response: &Response<Body>) -> Option<Value> {
    let body = response.body().whole()?;
    let media = response.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    read(media.split(';').next().unwrap_or_default(), &body)
}

/// The response status at every level: the code, and the fields of a `Status`.
pub(super) fn status(code: u16, object: Option<&Value>) -> Value {
    let mut v = serde_json::json!({"metadata": {}});
    if let Some(s) = object.filter(|s| s["kind"] == "Status") {
        for key in ["status", "message", "reason", "details"] {
            if !s[key].is_null() {
                v[key] = s[key].clone();
            }
        }
    }
    v["code"] = code.into();
    v
}
