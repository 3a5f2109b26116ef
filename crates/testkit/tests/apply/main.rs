//! Server-side apply according to its documentation: every manifest and request there is sent unchanged, and the documented
//! results are checked.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod conflicts;
mod document;
mod dropped;
mod handover;
mod migration;
mod permissions;
mod reset;
mod topology;
mod tracked;
mod versions;

use serde_json::{Value, json};
use testkit::{Answer, Cluster};

pub const MAPS: &str = "/api/v1/namespaces/default/configmaps";
pub const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
pub const SERVICES: &str = "/api/v1/namespaces/default/services";

pub const APPLY: &str = "application/apply-patch+yaml";
pub const MERGE: &str = "application/merge-patch+json";
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub const JSON_PATCH: &str = "application/json-patch+json";

/// Sends a body as it is written.
pub async fn send(c: &Cluster, method: &str, path: &str, media: &str, body: &str) -> Answer {
    c.send(method, path, Some(media), "application/json", body.to_owned().into()).await
}

/// Applies a configuration that is written as YAML.
pub async fn apply(c: &Cluster, path: &str, manager: &str, body: &str) -> Answer {
    send(c, "PATCH", &format!("{path}?fieldManager={manager}"), APPLY, body).await
}

/// The same, and it must be taken.
pub async fn applied(c: &Cluster, path: &str, manager: &str, body: &str) -> Value {
    let a = apply(c, path, manager, body).await;
    assert!(matches!(a.code, 200 | 201), "{manager} applies {body}: {} {}", a.code, a.body);
    a.body
}

/// Applies a configuration and takes what others own.
pub async fn forced(c: &Cluster, path: &str, manager: &str, body: &str) -> Value {
    let a = send(c, "PATCH", &format!("{path}?fieldManager={manager}&force=true"), APPLY, body).await;
    assert!(matches!(a.code, 200 | 201), "{manager} applies {body}: {} {}", a.code, a.body);
    a.body
}

/// A write that must be taken.
pub async fn written(c: &Cluster, method: &str, path: &str, media: &str, body: &Value) -> Value {
    let a = send(c, method, path, media, &body.to_string()).await;
    assert!(matches!(a.code, 200 | 201), "{method} {path} {body}: {} {}", a.code, a.body);
    a.body
}

pub async fn read(c: &Cluster, path: &str) -> Value {
    let a = c.call("GET", path, Value::Null).await;
    assert_eq!(a.code, 200, "{path}: {}", a.body);
    a.body
}

pub fn entries(o: &Value) -> Vec<Value> {
    o["metadata"]["managedFields"].as_array().cloned().unwrap_or_default()
}

/// Who is written down as a manager: `name operation version [subresource]`, sorted.
pub fn managers(o: &Value) -> Vec<String> {
    let text = |e: &Value, k: &str| e[k].as_str().unwrap_or_default().to_owned();
    let mut all: Vec<String> = entries(o)
        .iter()
        .map(|e| {
            let words = ["manager", "operation", "apiVersion", "subresource"].map(|k| text(e, k));
            words.join(" ").trim_end().to_owned()
        })
        .collect();
    all.sort();
    all
}

/// The fields that a manager owns, of all its entries.
pub fn owned(o: &Value, manager: &str) -> Value {
    let mut of: Vec<Value> =
        entries(o).into_iter().filter(|e| e["manager"] == manager).map(|e| e["fieldsV1"].clone()).collect();
    assert!(of.len() <= 1, "{manager} has one entry: {}", o["metadata"]["managedFields"]);
    of.pop().unwrap_or(Value::Null)
}

/// The conflicts of a refusal, as (field, message), sorted; it must be one.
pub fn conflicts(a: &Answer) -> Vec<(String, String)> {
    assert_eq!((a.code, &a.body["reason"]), (409, &json!("Conflict")), "{}", a.body);
    let text = |c: &Value, k: &str| c[k].as_str().unwrap_or_default().to_owned();
    let causes = a.body["details"]["causes"].as_array().cloned().unwrap_or_default();
    assert!(causes.iter().all(|c| c["reason"] == "FieldManagerConflict"), "{}", a.body);
    let mut all: Vec<_> = causes.iter().map(|c| (text(c, "field"), text(c, "message"))).collect();
    all.sort();
    all
}

pub fn conflict(field: &str, with: &str) -> (String, String) {
    (field.to_owned(), format!("conflict with {with}"))
}

/// A map of the name `m`, as YAML.
pub fn map(data: &str) -> String {
    format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: m}}, data: {{{data}}}}}")
}
