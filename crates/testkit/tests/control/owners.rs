//! Owners that are in the wrong place, block, or are left out: the garbage collector in virtual time.

use super::harness::Plane;
use client::{DeleteOptions, Propagation};
use meta::{Object, Value};
use serde_json::json;
use std::time::Duration;

impl Plane {
    async fn config_map(&self, name: &str, owners: Value) -> Object {
        self.create(
            "configmaps",
            json!({"metadata": {"name": name, "namespace": "default", "ownerReferences": owners}}),
        )
        .await
    }

    async fn exists(&self, name: &str) -> bool {
        self.api("configmaps").get_opt(name).await.unwrap().is_some()
    }

    async fn owned_gone(&self, name: &str) {
        self.until(&format!("{name} to go"), async || (!self.exists(name).await).then_some(())).await;
    }
}

fn owner(o: &Object, blocks: bool) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "name": o.name(), "uid": o.uid(), "blockOwnerDeletion": blocks})
}

/// An owner in another namespace does not count: it is reported, and the object is deleted. A cluster-scoped object with an owner in a
/// namespace is reported and left alone.
#[tokio::test(start_paused = true)]
async fn owners_in_other_namespaces_are_reported() {
    let p = Plane::start().await;
    for ns in ["a"] {
        assert_eq!(p.cluster.call("POST", "/api/v1/namespaces", json!({"metadata": {"name": ns}})).await.code, 201);
    }
    let made = p.cluster.call("POST", "/api/v1/namespaces/a/configmaps", json!({"metadata": {"name": "far"}})).await;
    let uid = made.body["metadata"]["uid"].as_str().unwrap().to_owned();
    let far = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "far", "uid": uid}]);
    tokio::time::sleep(Duration::from_secs(5)).await;
    p.config_map("dependent", far.clone()).await;
    let text = |namespace: &str| {
        format!(
            "ownerRef [v1/ConfigMap, namespace: {namespace}, name: far, uid: {uid}] does not exist in namespace \"{namespace}\""
        )
    };
    let event = p.reported("OwnerRefInvalidNamespace", &text("default")).await;
    assert_eq!(event.str_at(&["involvedObject", "name"]), Some("dependent"));
    p.owned_gone("dependent").await;
    let volume = json!({"metadata": {"name": "v", "ownerReferences": far}, "spec": {"capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}});
    assert_eq!(p.cluster.call("POST", "/api/v1/persistentvolumes", volume).await.code, 201);
    p.reported("OwnerRefInvalidNamespace", &text("")).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(p.cluster.call("GET", "/api/v1/persistentvolumes/v", Value::Null).await.code, 200);
}

/// An owner that is deleted in the foreground waits for the dependents that block it, and only for those.
#[tokio::test(start_paused = true)]
async fn only_blocking_dependents_hold_their_owner() {
    let p = Plane::start().await;
    let a = p.config_map("owner", json!([])).await;
    let held = json!({"metadata": {"name": "blocks", "namespace": "default", "finalizers": ["example.com/keep"],
        "ownerReferences": [owner(&a, true)]}});
    p.create("configmaps", held).await;
    let mut loose = json!({"metadata": {"name": "loose", "namespace": "default", "finalizers": ["example.com/keep"]}});
    loose["metadata"]["ownerReferences"] = json!([owner(&a, false)]);
    p.create("configmaps", loose).await;
    p.config_map("plain", json!([owner(&a, true)])).await;
    p.api("configmaps").delete("owner", &DeleteOptions::propagation(Propagation::Foreground)).await.unwrap();
    p.owned_gone("plain").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    for (name, deleting) in [("owner", true), ("blocks", true), ("loose", true)] {
        assert_eq!(p.api("configmaps").get(name).await.unwrap().is_deleting(), deleting, "{name}");
    }
    p.patch("configmaps", "blocks", json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/keep"]}}))
        .await;
    p.owned_gone("owner").await;
    assert!(p.exists("loose").await);
}

/// A dependent with another owner that stays loses the reference to the one that goes; orphans keep none.
#[tokio::test(start_paused = true)]
async fn references_to_owners_that_go_are_removed() {
    let p = Plane::start().await;
    let (a, b) = (p.config_map("a", json!([])).await, p.config_map("b", json!([])).await);
    p.config_map("both", json!([owner(&a, true), owner(&b, true)])).await;
    p.config_map("orphan", json!([owner(&b, true)])).await;
    p.api("configmaps").delete("a", &DeleteOptions::propagation(Propagation::Foreground)).await.unwrap();
    p.owned_gone("a").await;
    let owners = async |name: &str| -> Vec<String> {
        let o = p.api("configmaps").get(name).await.unwrap();
        o.owner_references().map(|r| r.name.to_owned()).collect()
    };
    assert_eq!(owners("both").await, ["b"]);
    p.api("configmaps").delete("b", &DeleteOptions::propagation(Propagation::Orphan)).await.unwrap();
    p.owned_gone("b").await;
    assert_eq!((owners("both").await.len(), owners("orphan").await.len()), (0, 0));
}

/// Objects that own each other go together in the foreground, and an object that owns itself goes.
#[tokio::test(start_paused = true)]
async fn rings_of_owners_go() {
    let p = Plane::start().await;
    let a = p.config_map("a", json!([])).await;
    let b = p.config_map("b", json!([owner(&a, true)])).await;
    let c = p.config_map("c", json!([owner(&b, true)])).await;
    p.patch("configmaps", "a", json!({"metadata": {"ownerReferences": [owner(&c, true)]}})).await;
    let own = p.config_map("self", json!([])).await;
    p.patch("configmaps", "self", json!({"metadata": {"ownerReferences": [owner(&own, false)]}})).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    for name in ["a", "b", "c", "self"] {
        assert!(p.exists(name).await, "{name}: its owner exists");
    }
    for name in ["a", "self"] {
        p.api("configmaps").delete(name, &DeleteOptions::propagation(Propagation::Foreground)).await.unwrap();
    }
    for name in ["a", "b", "c", "self"] {
        p.owned_gone(name).await;
    }
}
