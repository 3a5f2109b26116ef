//! Reviews of access.

use async_trait::async_trait;
use auth::{Attributes, Authorizer, Decision, User};
use meta::{Object, Status, Value};
use registry::{Env, Function, Request, WriteOptions};
use serde_json::json;
use std::sync::Arc;

pub struct AccessReview {
    pub authorizer: Arc<dyn Authorizer>,
    /// About the caller, not about a user in the spec.
    pub own: bool,
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
        let spec = o.get("spec").cloned().unwrap_or_default();
        let user = if self.own { request.user.clone() } else { user_of(&spec) };
        let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
        let text = |v: &Value, k: &str| v[k].as_str().unwrap_or_default().to_owned();
        if resource.is_object() == path.is_object() {
            return Err(Status::bad_request(
                "exactly one of nonResourceAttributes or resourceAttributes must be specified",
            ));
        }
        if !self.own && user.name.is_empty() && user.groups.is_empty() {
            return Err(Status::bad_request("at least one of user or group must be specified"));
        }
        let a = if path.is_object() {
            Attributes { user, verb: text(path, "verb"), path: text(path, "path"), ..Attributes::default() }
        } else {
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
            }
        };
        let (allowed, denied, reason) = match self.authorizer.authorize(&a) {
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
        o.set(&["status"], status);
        Ok(o)
    }
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

/// What the caller may do in a namespace, as far as the rules can be listed.
pub struct RulesReview {
    pub authorizer: Arc<dyn Authorizer>,
}

#[async_trait]
impl Function for RulesReview {
    async fn create(
        &self,
        _env: Env<'_>,
        request: &Request,
        mut o: Object,
        _: &WriteOptions,
    ) -> Result<Object, Status> {
        let namespace = o.str_at(&["spec", "namespace"]).unwrap_or_default().to_owned();
        let (mut resource, mut path) = (Vec::new(), Vec::new());
        for r in self.authorizer.rules(&request.user, &namespace) {
            if r.urls.is_empty() {
                let mut v = json!({"verbs": r.verbs, "apiGroups": r.groups, "resources": r.resources});
                if !r.names.is_empty() {
                    v["resourceNames"] = json!(r.names);
                }
                resource.push(v);
            } else {
                path.push(json!({"verbs": r.verbs, "nonResourceURLs": r.urls}));
            }
        }
        o.set(&["status"], json!({"resourceRules": resource, "nonResourceRules": path, "incomplete": false}));
        Ok(o)
    }
}
