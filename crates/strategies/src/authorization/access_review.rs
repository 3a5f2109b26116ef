//! The function that access reviews share.

use super::selectors;
use crate::read::shown;
use async_trait::async_trait;
use auth::{Attributes, Authorizer, Decision, User};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, GroupKind, Object, Status, Value};
use registry::{Env, Function, Request, WriteOptions};
use serde_json::json;
use std::sync::Arc;

/// The subject of a review.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// The caller.
    Caller,
    /// A user in the spec.
    Any,
    /// A user in the spec, for the review's namespace.
    Local,
}

pub struct AccessReview {
    pub authorizer: Arc<dyn Authorizer>,
    pub subject: Subject,
}

#[async_trait]
impl Function for AccessReview {
    async fn create(
        &self,
        _env: Env<'_>,
        request: &Request,
        mut o: Object,
        _: &WriteOptions,
    ) -> Result<Object, Status> {
        // Moved, not copied: the spec may be large.
        let spec = o.remove(&["spec"]).unwrap_or_default();
        let user = if self.subject == Subject::Caller { request.user.clone() } else { user_of(&spec) };
        let mut errors = Vec::new();
        self.validate(&o, &spec, &mut errors);
        if !errors.is_empty() {
            // Upstream takes the kind from the decoded object, which has none.
            let group = GroupKind { kind: String::new(), ..request.resource.group_kind() };
            return Err(Status::invalid(&group, "", &errors));
        }
        let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
        let text = |v: &Value, k: &str| v[k].as_str().unwrap_or_default().to_owned();
        if self.subject == Subject::Local && text(resource, "namespace") != request.namespace {
            let why = format!("spec.resourceAttributes.namespace must match namespace: {}", request.namespace);
            return Err(Status::bad_request(why));
        }
        let mut evaluation = Vec::new();
        let a = if path.is_object() {
            Attributes { user, verb: text(path, "verb"), path: text(path, "path"), ..Attributes::default() }
        } else {
            let (fields, read) = selectors::fields(&resource["fieldSelector"]);
            ignored("fieldSelector", read, fields.is_some(), &mut evaluation);
            let (labels, read) = selectors::labels(&resource["labelSelector"]);
            ignored("labelSelector", read, labels.is_some(), &mut evaluation);
            Attributes {
                user,
                verb: text(resource, "verb"),
                group: text(resource, "group"),
                version: text(resource, "version"),
                resource: text(resource, "resource"),
                subresource: text(resource, "subresource"),
                namespace: text(resource, "namespace"),
                name: text(resource, "name"),
                path: String::new(),
                fields,
                labels,
            }
        };
        let (allowed, denied, reason) = match self.authorizer.decide(&a).await {
            Decision::Allow(r) => (true, false, r),
            Decision::Deny(r) => (false, true, r),
            Decision::NoOpinion(r) => (false, false, r),
        };
        let mut status = json!({"allowed": allowed});
        if denied {
            status["denied"] = true.into();
        }
        if !reason.is_empty() {
            status["reason"] = reason.into();
        }
        if !evaluation.is_empty() {
            status["evaluationError"] = evaluation.join("; ").into();
        }
        if !spec.is_null() {
            o.set(&["spec"], spec);
        }
        o.set(&["status"], status);
        Ok(o)
    }
}

const PATH: &str = "io.k8s.api.authorization.v1.NonResourceAttributes";

impl AccessReview {
    fn validate(&self, o: &Object, spec: &Value, errors: &mut ErrorList) {
        let (at, local) = (FieldPath::new("spec"), self.subject == Subject::Local);
        let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
        if resource.is_object() && path.is_object() {
            let why = "cannot be specified in combination with resourceAttributes";
            let at = at.child("nonResourceAttributes");
            errors.push(FieldError::invalid(&at, shown(path, PATH, &at), why));
        }
        if !resource.is_object() && !path.is_object() {
            let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            errors.push(FieldError::invalid(&at.child("resourceAttributes"), Value::Null, why));
        }
        let has_value = |k: &str| match &spec[k] {
            Value::String(s) => !s.is_empty(),
            Value::Array(a) => !a.is_empty(),
            _ => false,
        };
        if self.subject != Subject::Caller && !has_value("user") && !has_value("groups") {
            errors.push(FieldError::invalid(&at.child("user"), "", "at least one of user or group must be specified"));
        }
        for (key, named) in [("fieldSelector", false), ("labelSelector", true)] {
            if resource[key].is_object() {
                selectors::validate(&resource[key], named, &at.child("resourceAttributes").child(key), errors);
            }
        }
        let mut metadata = o.metadata().cloned().unwrap_or_default();
        metadata.retain(|k, v| !v.is_null() && k != "managedFields" && !(local && k == "namespace"));
        if !metadata.is_empty() {
            errors.push(FieldError::invalid(&FieldPath::new("metadata"), metadata, "must be empty"));
        }
        if local && resource.is_object() && resource["namespace"].as_str().unwrap_or_default() != o.namespace() {
            let why = "must match metadata.namespace";
            let at = at.child("resourceAttributes").child("namespace");
            errors.push(FieldError::invalid(&at, resource["namespace"].as_str().unwrap_or_default(), why));
        }
        if local && path.is_object() {
            let why = "disallowed on this kind of request";
            let at = at.child("nonResourceAttributes");
            errors.push(FieldError::invalid(&at, shown(path, PATH, &at), why));
        }
    }
}

/// Tells of a selector that is not read, or not all of it.
fn ignored(key: &str, read: bool, partly: bool, out: &mut Vec<&'static str>) {
    out.extend(match (key, read, partly) {
        (_, true, _) => None,
        ("fieldSelector", false, true) => {
            Some("spec.resourceAttributes.fieldSelector partially ignored due to parse error")
        }
        ("fieldSelector", false, false) => Some("spec.resourceAttributes.fieldSelector ignored due to parse error"),
        (_, false, true) => Some("spec.resourceAttributes.labelSelector partially ignored due to parse error"),
        (_, false, false) => Some("spec.resourceAttributes.labelSelector ignored due to parse error"),
    });
}

fn user_of(spec: &Value) -> User {
    let list = |v: &Value| -> Vec<String> {
        v.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    User {
        name: spec["user"].as_str().unwrap_or_default().to_owned(),
        uid: spec["uid"].as_str().unwrap_or_default().to_owned(),
        groups: list(&spec["groups"]),
        extra: spec["extra"].as_object().into_iter().flatten().map(|(k, v)| (k.clone(), list(v))).collect(),
    }
}
