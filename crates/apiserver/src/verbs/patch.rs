//! Patch: JSON, merge and strategic merge patches. Decoded once, and applied to the live object at each attempt.

use super::answer::written;
use super::decode::{
    DecodeError, check_custom_kind, check_name, internal, is_registered, take_namespace, to_typed, typed, warn,
};
use super::options::{FieldValidation, field_validation, preconditions, write_options};
use crate::Server;
use crate::admit::Admission;
use crate::body::Body;
use crate::call::Call;
use crate::content;
use http::Response;
use merge::managed::Force;
use merge::{json_patch, merge_patch, strategic};
use meta::status::Details;
use meta::{FieldError, FieldPath, GroupKind, GroupVersion, Gvk, Object, Status, Value};
use registry::{Conversions, Request, Sent, Target, Updated, WriteOptions};
use schema::Schema;
use std::sync::Arc;

const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const APPLY_CBOR: &str = "application/apply-patch+cbor";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// The patch types that the resource supports.
fn supported(call: &Call, request: &Request) -> Vec<&'static str> {
    let mut all = vec![JSON, MERGE, APPLY];
    if request.resource.bare_items {
        all.push(STRATEGIC);
    }
    if call.cbor {
        all.push(APPLY_CBOR);
    }
    all
}

/// Whether the request is server-side apply.
pub(super) fn is_apply(call: &Call) -> bool {
    call.media_type() == APPLY || call.cbor && call.media_type() == APPLY_CBOR
}

/// Errors for a patch of a type that the resource does not support. Those of built-in resources are known to their route.
pub(super) fn check_media(call: &Call, request: &Request) -> Result<(), Status> {
    let supported = supported(call, request);
    match supported.contains(&call.media_type()) {
        true => Ok(()),
        false if request.resource.bare_items => {
            Err(Status::unsupported_media_type("415: Unsupported Media Type").with_details(Details::default()))
        }
        false => Err(content::unsupported(&supported)),
    }
}

enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(meta::Map<String, Value>),
}

/// A decoded patch.
pub(super) struct SentPatch {
    patch: Patch,
    /// Warnings or errors of strict decoding.
    found: Vec<String>,
}

pub async fn patch(server: &Arc<Server>, call: &Call, request: Request) -> Result<Response<Body>, Status> {
    check_media(call, &request)?;
    if is_apply(call) {
        return apply_configuration(server, call, request).await;
    }
    let options = write_options(call)?;
    field_validation(call)?;
    // Only an object that exists is patched.
    let sent = read(call, &request);
    let kind = request.resource.kind.gvk();
    let change = |live: Option<&Object>, _: &_| {
        let Some(live) = live else {
            return Err(Status::not_found(&request.group_resource(), &request.name));
        };
        let sent = sent.as_ref().map_err(Clone::clone)?;
        let mut object = sent.onto(call, &request, &kind, &request.resource.kind.schema, live)?;
        take_namespace(&request, &mut object)?;
        Ok(Target::object(object))
    };
    let admit = Admission::new(server, call, &request, &options);
    let updated = server.registry.update(&request, &change, &preconditions(call), &options, &admit).await?;
    let code = if matches!(updated, Updated::Created(_)) { 201 } else { 200 };
    Ok(written(server, call, &request, code, &updated.into_written()))
}

impl SentPatch {
    /// Applies the patch to the live object and decodes the result as its kind.
    pub(super) fn onto(
        &self,
        call: &Call,
        request: &Request,
        kind: &Gvk,
        schema: &Schema,
        live: &Object,
    ) -> Result<Sent, Status> {
        let patched = apply(&self.patch, live, schema)?;
        self.check_kind(&patched, kind, request)?;
        typed(call, request, kind, patched, self.found.clone()).map_err(|e| match e {
            DecodeError::Other(s) => s,
            DecodeError::Mismatch { text, value } => {
                // The result of a strategic merge patch is converted, not decoded from text.
                let why = if matches!(self.patch, Patch::Strategic(_)) { value } else { text };
                let shown = match &self.patch {
                    Patch::Strategic(p) => schema::go_format::plain(&Value::Object(p.clone())),
                    // Only a rejected result is patched again as text, for its error message.
                    _ => {
                        let whole = Value::Object(apply(&self.patch, live, schema).unwrap_or_default());
                        codec::json::to_string(&whole, codec::json::Html::Escape)
                    }
                };
                let e = FieldError::invalid(&FieldPath::new("patch"), shown, why);
                Status::invalid(&GroupKind::default(), "", &[e])
            }
        })
    }

    /// Errors if the patch has made another kind of the object. A strategic merge patch cannot.
    fn check_kind(&self, patched: &meta::Map<String, Value>, kind: &Gvk, request: &Request) -> Result<(), Status> {
        if matches!(self.patch, Patch::Strategic(_)) {
            return Ok(());
        }
        if !request.resource.bare_items && *kind == request.resource.kind.gvk() {
            return check_custom_kind(patched, kind);
        }
        let mut have = gvk(patched);
        if have.kind.is_empty() {
            have.kind = kind.kind.clone();
        }
        if have.version.is_empty() && have.group.is_empty() {
            (have.group, have.version) = (kind.group.clone(), kind.version.clone());
        }
        let version = patched.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        let is_version = GroupVersion::parse(version).is_some();
        if have == *kind && is_version {
            return Ok(());
        }
        let why = match is_registered(&have) {
            _ if !is_version => format!("unexpected GroupVersion string: {version}"),
            true => format!("unable to decode {} into *{}.{}", as_go(&have), internal(&kind.group), kind.kind),
            false => {
                let (scheme, version) = (request.resource.strategy.scheme(), have.group_version().to_string());
                format!("no kind {:?} is registered for version {version:?} in scheme {scheme:?}", have.kind)
            }
        };
        let shown = codec::json::to_string(&Value::Object(patched.clone()), codec::json::Html::Escape);
        Err(Status::invalid(&GroupKind::default(), "", &[FieldError::invalid(&FieldPath::new("patch"), shown, why)]))
    }
}

/// What a document says it is: nothing if its version cannot be read.
fn gvk(document: &meta::Map<String, Value>) -> Gvk {
    let text = |k: &str| document.get(k).and_then(Value::as_str).unwrap_or_default();
    GroupVersion::parse(text("apiVersion")).map(|gv| gv.with_kind(text("kind").to_owned())).unwrap_or_default()
}

/// As Go prints it.
fn as_go(Gvk { group, version, kind }: &Gvk) -> String {
    format!("{group}/{version}, Kind={kind}")
}

/// The applied configuration, and its manager.
pub(super) struct Applied<'a> {
    pub configuration: Object,
    pub manager: &'a str,
    pub force: Force,
}

/// Decodes an applied configuration of a kind, and its options.
pub(super) fn applied<'a>(call: &'a Call, kind: &Gvk) -> Result<(WriteOptions, Applied<'a>), Status> {
    let options = write_options(call)?.untracked();
    let manager = call.query.get("fieldManager");
    let force = if call.query.is_true("force") { Force::Yes } else { Force::No };
    let sent =
        if call.media_type() == APPLY_CBOR { content::read_cbor(&call.body)? } else { content::yaml(&call.body)? };
    for why in &sent.duplicates {
        match field_validation(call)? {
            FieldValidation::Strict => return Err(Status::bad_request(format!("error strict decoding YAML: {why}"))),
            FieldValidation::Warn => warn(call, why),
            FieldValidation::Ignore => {}
        }
    }
    let map = match sent.value {
        Value::Object(map) => map,
        Value::Null => meta::Map::new(),
        other => {
            let why = format!("error unmarshaling JSON: while decoding JSON: {}", no_map(&other));
            return Err(Status::bad_request(format!("error decoding YAML: {why}")));
        }
    };
    let configuration = Object(map);
    let have = gvk(&configuration.0);
    if have != *kind {
        return Err(Status::bad_request(format!("invalid object type: {}", as_go(&have))));
    }
    Ok((options, Applied { configuration, manager, force }))
}

/// Server-side apply: creates or merges the object, and tracks field managers.
async fn apply_configuration(server: &Arc<Server>, call: &Call, request: Request) -> Result<Response<Body>, Status> {
    let kind = request.resource.kind.gvk();
    let (options, Applied { configuration, manager, force }) = applied(call, &kind)?;
    if call.target.subresource.is_empty() {
        authorize_create(server, call).await?;
    }
    let change = |live: Option<&Object>, conversions: &Conversions| {
        if live.is_none() && !request.subresource.is_empty() {
            return Err(Status::not_found(&request.group_resource(), &request.name));
        }
        let merged = server.registry.apply(&request, conversions, live, &configuration, manager, force);
        let merged = match merged.map_err(|e| e.status())? {
            Some(m) => m,
            None => live.cloned().unwrap_or_default(),
        };
        let mut object = to_typed(call, &request, &kind, merged.0, Vec::new())?;
        // The name is no field that a manager drops, but a new object has to have it.
        if live.is_some() && object.name().is_empty() {
            object.set_name(&request.name);
        }
        if live.is_none() && !object.uid().is_empty() {
            let uid = object.uid();
            let why =
                format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
            return Err(Status::conflict(&request.group_resource(), &request.name, &why));
        }
        check_name(&request, &object)?;
        take_namespace(&request, &mut object)?;
        Ok(match live {
            None => Target::Create(Box::new(object)),
            Some(_) => Target::object(object),
        })
    };
    let admit = Admission::new(server, call, &request, &options);
    let updated = server.registry.update(&request, &change, &preconditions(call), &options, &admit).await?;
    let code = if matches!(updated, Updated::Created(_)) { 201 } else { 200 };
    Ok(written(server, call, &request, code, &updated.into_written()))
}

/// Applying or updating a missing object creates it, which requires the permission `create`.
pub(super) async fn authorize_create(server: &Arc<Server>, call: &Call) -> Result<(), Status> {
    let mut a = (*call.attributes).clone();
    a.verb = "create".into();
    if exists(server, call) || server.authorizer.decide(&a).await.allowed() {
        return Ok(());
    }
    Err(crate::authorize::forbidden(&a, ""))
}

fn exists(server: &Arc<Server>, call: &Call) -> bool {
    let rows = server.registry.rows();
    let row = call
        .target
        .group_version
        .as_ref()
        .and_then(|gv| rows.resource(&gv.with_resource(call.target.resource.clone())));
    let key = row.and_then(|r| r.key(&call.target.namespace, &call.target.name));
    key.is_some_and(|k| server.registry.store.snapshot().get(&k).is_some())
}

/// Decodes a patch by its media type.
pub(super) fn read(call: &Call, request: &Request) -> Result<SentPatch, Status> {
    let media = call.media_type();
    let strict = field_validation(call)? != FieldValidation::Ignore;
    let sent = match media {
        JSON | MERGE if strict => content::json_said(&call.body, DECODING)?,
        JSON | MERGE | STRATEGIC => content::json_said(&call.body, "")?,
        _ => return Err(content::unsupported(&supported(call, request))),
    };
    let mut found: Vec<String> = sent.duplicates.iter().map(|d| format!("duplicate field {d:?}")).collect();
    let patch = match (media, sent.value) {
        (JSON, v) => {
            let patch = json_patch::Patch::decode(v).map_err(|e| e.status())?;
            if strict {
                patch.check_members().map_err(|e| e.status())?;
                found.extend(patch.unknown_members().iter().map(|m| format!("unknown field {m:?}")));
                found.iter_mut().for_each(|f| f.insert_str(0, "json patch "));
            }
            Patch::Json(patch.written(&call.body))
        }
        (MERGE, v @ (Value::Array(_) | Value::Bool(_) | Value::Number(_) | Value::String(_))) if strict => {
            return Err(Status::bad_request(format!("{DECODING}{}", no_map(&v))));
        }
        (MERGE, v) => Patch::Merge(v),
        _ if !request.resource.bare_items => return Err(content::unsupported(&supported(call, request))),
        // Go makes integers of such floats.
        (_, mut v @ Value::Object(_)) => {
            content::round_floats(&mut v);
            object(v).map(Patch::Strategic)?
        }
        (_, Value::Null) => Patch::Strategic(meta::Map::new()),
        (_, v) => return Err(Status::bad_request(no_map(&v))),
    };
    Ok(SentPatch { patch, found })
}

/// Prefix of the errors of strict decoding.
const DECODING: &str = "error decoding patch: ";

/// The error for a patch that is not an object.
fn no_map(v: &Value) -> String {
    format!("json: cannot unmarshal {} into Go value of type map[string]interface {{}}", schema::typed::have(v))
}

/// Returns the patched document, not yet typed.
fn apply(patch: &Patch, live: &Object, schema: &Schema) -> Result<meta::Map<String, Value>, Status> {
    match patch {
        Patch::Json(p) => {
            let mut doc = live.clone().into_value();
            p.clone().apply(&mut doc).map_err(|e| e.status())?;
            object(doc)
        }
        Patch::Merge(p) => {
            let mut doc = live.clone().into_value();
            merge_patch::apply(&mut doc, p.clone()).map_err(|e| Status::bad_request(e.to_string()))?;
            object(doc)
        }
        Patch::Strategic(p) => {
            let mut doc = live.0.clone();
            strategic::apply(&mut doc, p.clone(), Some(schema)).map_err(|e| e.status())?;
            Ok(doc)
        }
    }
}

fn object(v: Value) -> Result<meta::Map<String, Value>, Status> {
    match v {
        Value::Object(m) => Ok(m),
        _ => Err(Status::bad_request("the patched document is no object")),
    }
}
