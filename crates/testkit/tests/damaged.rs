//! An object that cannot be read is an error for whoever wants it or a list with it, names it, and stops nobody else.
//! Clauses: K09.damaged
#![allow(clippy::unwrap_used)] // a broken setup is a failed test

use bytes::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;
use store::{Fault, Key, Memory, Transform, TransformError};
use testkit::{Answer, Cluster};

/// Opens everything but what is called `broken`; of what is called `truncated` only a part.
struct Broken;

impl Transform for Broken {
    fn seal(&self, _: &Key, plain: &Bytes) -> Result<Bytes, TransformError> {
        Ok(plain.clone())
    }

    fn open(&self, key: &Key, stored: &[u8]) -> Result<Bytes, TransformError> {
        match &*key.name {
            "broken" => {
                Err(TransformError { key: key.to_string(), reason: "it does not open".into(), fault: Fault::Value })
            }
            "truncated" => Ok(Bytes::copy_from_slice(&stored[..stored.len() * 2 / 3])),
            _ => Ok(Bytes::copy_from_slice(stored)),
        }
    }

    fn is_current(&self, _: &Key, _: &[u8]) -> bool {
        true
    }
}

fn secret(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}})
}

fn refused(answer: &Answer) {
    assert_eq!(answer.code, 500, "{}", answer.body);
    let message = answer.body["message"].as_str().unwrap();
    assert!(message.contains("unable to read secrets/default/broken: it does not open"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_does_not_open() {
    let memory = Memory::new();
    let all = "/api/v1/namespaces/default/secrets";
    let path = |name: &str| format!("{all}/{name}");
    let cluster = Cluster::start_on(1, memory.clone(), None).await;
    for name in ["broken", "good"] {
        assert_eq!(cluster.call("POST", all, secret(name)).await.code, 201);
    }
    drop(cluster);
    let cluster = Cluster::start_on(2, memory, Some(Arc::new(Broken))).await;
    let get = |path: String| {
        let cluster = &cluster;
        async move { cluster.call("GET", &path, Value::Null).await }
    };
    refused(&get(path("broken")).await);
    refused(&get(all.into()).await);
    refused(&get("/api/v1/secrets".into()).await);
    refused(&get(format!("{all}?watch=true")).await);
    assert_eq!(cluster.call("POST", all, secret("broken")).await.code, 409, "it is there");
    refused(&cluster.call("PUT", &path("broken"), secret("broken")).await);
    refused(&cluster.call("DELETE", &path("broken"), Value::Null).await);
    assert_eq!(get(path("good")).await.code, 200);
    assert_eq!(get("/api/v1/namespaces/golden/secrets".into()).await.code, 200);
    assert_eq!(get("/api/v1/namespaces/default/configmaps".into()).await.code, 200);
    assert_eq!(cluster.call("POST", all, secret("new")).await.code, 201);
    assert_eq!(cluster.call("DELETE", &path("good"), Value::Null).await.code, 200);
    // The others of a collection are deleted, and it can be deleted without being read.
    refused(&cluster.call("DELETE", all, Value::Null).await);
    assert_eq!(get(path("new")).await.code, 404);
    let without = format!("{}?ignoreStoreReadErrorWithClusterBreakingPotential=true", path("broken"));
    assert_eq!(cluster.call("DELETE", &without, Value::Null).await.code, 200);
    assert_eq!(get(all.into()).await.body["items"].as_array().map(Vec::len), Some(0));
}

/// A stored value of which the end is missing is an error that names the object: it is neither read as an empty object, nor
/// is a request admitted as if a quota, policy or range were absent.
#[tokio::test(start_paused = true)]
async fn a_truncated_value_is_an_error() {
    let memory = Memory::new();
    let cluster = Cluster::start_on(1, memory.clone(), None).await;
    let maps = |namespace: &str| format!("/api/v1/namespaces/{namespace}/configmaps");
    let map = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "truncated"},
        "spec": {"hard": {"configmaps": "100"}}});
    for namespace in ["limited", "other"] {
        let o = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        assert_eq!(cluster.call("POST", "/api/v1/namespaces", o).await.code, 201);
    }
    assert_eq!(cluster.call("POST", "/api/v1/namespaces/limited/resourcequotas", quota).await.code, 201);
    assert_eq!(cluster.call("POST", &maps("other"), map("truncated")).await.code, 201);
    drop(cluster);
    let cluster = Cluster::start_on(2, memory, Some(Arc::new(Broken))).await;
    let names = |answer: &Answer, key: &str| {
        // A watch that was opened reports it in an event.
        let status = answer.body.get("object").unwrap_or(&answer.body);
        let message = status["message"].as_str().unwrap_or_default();
        status["code"] == 500 && message.contains(&format!("unable to read {key}"))
    };
    let path = format!("{}/truncated", maps("other"));
    for (method, path, body) in [
        ("GET", path.clone(), Value::Null),
        ("GET", maps("other"), Value::Null),
        ("GET", format!("{}?watch=true&timeoutSeconds=1", maps("other")), Value::Null),
        ("PUT", path.clone(), map("truncated")),
        ("DELETE", path.clone(), Value::Null),
    ] {
        let answer = cluster.call(method, &path, body).await;
        assert!(names(&answer, "configmaps/other/truncated"), "{method} {path}: {} {}", answer.code, answer.body);
    }
    assert_eq!(cluster.call("POST", &maps("other"), map("new")).await.code, 201);
    let refused = cluster.call("POST", &maps("limited"), map("new")).await;
    assert!(names(&refused, "resourcequotas/limited/truncated"), "{} {}", refused.code, refused.body);
    let ignore = "?ignoreStoreReadErrorWithClusterBreakingPotential=true";
    let quota = format!("/api/v1/namespaces/limited/resourcequotas/truncated{ignore}");
    assert_eq!(cluster.call("DELETE", &quota, Value::Null).await.code, 200);
    assert_eq!(cluster.call("POST", &maps("limited"), map("new")).await.code, 201);
    assert_eq!(cluster.call("DELETE", &format!("{path}{ignore}"), Value::Null).await.code, 200);
}

/// A webhook configuration or policy that cannot be read rejects what it may match, and can itself still be deleted.
#[tokio::test(start_paused = true)]
async fn an_unreadable_admission_configuration_can_be_deleted() {
    const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
    let memory = Memory::new();
    let cluster = Cluster::start_on(1, memory.clone(), None).await;
    let hook = json!({"name": "a.example.com", "clientConfig": {"url": "https://127.0.0.1:1"}, "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "failurePolicy": "Ignore", "rules": []});
    let configuration = json!({"metadata": {"name": "truncated"}, "webhooks": [hook]});
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]});
    let policy = json!({"metadata": {"name": "truncated"}, "spec": {"matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "true"}]}});
    let binding =
        json!({"metadata": {"name": "truncated"}, "spec": {"policyName": "truncated", "validationActions": ["Deny"]}});
    let resources = [
        ("validatingwebhookconfigurations", configuration.clone()),
        ("mutatingwebhookconfigurations", configuration),
        ("validatingadmissionpolicybindings", binding),
        ("validatingadmissionpolicies", policy),
    ];
    for (resource, o) in &resources {
        let made = cluster.call("POST", &format!("{GROUP}/{resource}"), o.clone()).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
    drop(cluster);
    let cluster = Cluster::start_on(2, memory, Some(Arc::new(Broken))).await;
    let map =
        || cluster.call("POST", "/api/v1/namespaces/default/configmaps", json!({"metadata": {"generateName": "m"}}));
    for (resource, _) in resources {
        let made = map().await;
        // A policy without a binding decides nothing.
        let expected = if resource == "validatingadmissionpolicies" { 201 } else { 500 };
        assert_eq!(made.code, expected, "{resource}: {}", made.body);
        let path = format!("{GROUP}/{resource}/truncated?ignoreStoreReadErrorWithClusterBreakingPotential=true");
        let deleted = cluster.call("DELETE", &path, Value::Null).await;
        assert_eq!(deleted.code, 200, "{resource}: {}", deleted.body);
    }
    assert_eq!(map().await.code, 201);
}
