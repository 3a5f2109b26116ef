//! Custom resources through the generic path: issue 3, item 4.

mod conversions;
mod definitions;
mod objects;
mod rules;
mod serving;
mod validations;

use meta::Value;
use serde_json::json;
use std::time::Duration;
use testkit::{Answer, Cluster};

pub const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
pub const NAME: &str = "crontabs.stable.example.com";
pub const CRONTABS: &str = "/apis/stable.example.com/v1/namespaces/default/crontabs";

/// The definition of Kubernetes' own documentation, with more to it.
pub fn crontabs(schema: Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": NAME},
        "spec": {"group": "stable.example.com", "scope": "Namespaced",
            "names": {"plural": "crontabs", "singular": "crontab", "kind": "CronTab", "shortNames": ["ct"],
                "categories": ["all"]},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}})
}

pub fn spec(properties: Value) -> Value {
    json!({"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}})
}

pub fn crontab(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": {"name": name}, "spec": spec})
}

/// Waits until something is so; the server has until then in virtual time.
pub async fn until(cluster: &Cluster, path: &str, what: impl Fn(&Answer) -> bool) -> Answer {
    for _ in 0..2000 {
        let a = cluster.call("GET", path, Value::Null).await;
        if what(&a) {
            return a;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("{path} never became what it should: {}", cluster.call("GET", path, Value::Null).await.body);
}

pub fn condition(a: &Answer, ty: &str) -> String {
    let all = a.body["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let one = all.iter().find(|c| c["type"] == ty).and_then(|c| c["status"].as_str());
    one.unwrap_or_default().to_owned()
}

/// Makes a definition and waits until it is established.
pub async fn define(cluster: &Cluster, definition: Value) -> Answer {
    let name = definition["metadata"]["name"].as_str().unwrap().to_owned();
    let a = cluster.call("POST", DEFINITIONS, definition).await;
    assert_eq!(a.code, 201, "{}", a.body);
    until(cluster, &format!("{DEFINITIONS}/{name}"), |a| condition(a, "Established") == "True").await
}

pub async fn with(schema: Value) -> Cluster {
    let cluster = Cluster::start(3).await;
    define(&cluster, crontabs(schema)).await;
    cluster
}

/// The causes of a refusal: field and reason.
pub fn causes(a: &Answer) -> Vec<(String, String)> {
    let text = |c: &Value, k: &str| c[k].as_str().unwrap_or_default().to_owned();
    let all = a.body["details"]["causes"].as_array().cloned().unwrap_or_default();
    let mut out: Vec<_> = all.iter().map(|c| (text(c, "field"), text(c, "reason"))).collect();
    out.sort();
    out
}
