//! The request as sent in an `AdmissionReview` and as the variable `request` of expressions.

use crate::plugin::Review;
use meta::{Gvk, Gvr, Value};
use serde_json::json;

/// Everything but the objects. Omits empty fields as Go does.
pub(crate) fn request(resource: &Gvr, kind: &Gvk, review: &Review<'_>) -> Value {
    let a = review.attributes;
    let mut user = json!({"username": a.user.name});
    if !a.user.uid.is_empty() {
        user["uid"] = a.user.uid.clone().into();
    }
    if !a.user.groups.is_empty() {
        user["groups"] = a.user.groups.clone().into();
    }
    if !a.user.extra.is_empty() {
        user["extra"] = a.user.extra.iter().map(|(k, v)| (k.clone(), Value::from(v.clone()))).collect();
    }
    let named = |k: &Gvk| json!({"group": k.group, "version": k.version, "kind": k.kind});
    let mut request = json!({
        "kind": named(kind),
        "resource": {"group": resource.group, "version": resource.version, "resource": resource.resource},
        "requestKind": named(&review.kind),
        "requestResource": {"group": a.group, "version": a.version, "resource": a.resource},
        "operation": review.operation.as_str(),
        "userInfo": user,
        "dryRun": review.dry_run,
        "options": review.host.options(),
    });
    let name = review.name.to_owned();
    let optional = [
        ("subResource", &a.subresource),
        ("requestSubResource", &a.subresource),
        ("name", &name),
        ("namespace", &a.namespace),
    ];
    for (k, v) in optional {
        if !v.is_empty() {
            request[k] = v.clone().into();
        }
    }
    request
}
