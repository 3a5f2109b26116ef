//! Small controllers: claims of ephemeral volumes, and annotations of nodes.

use crate::harness::Plane;
use client::DeleteOptions;
use serde_json::json;

/// Clauses: C14.ephemeral-volumes
#[tokio::test(start_paused = true)]
async fn ephemeral_volumes_have_claims_that_go_with_their_pod() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    let claim = |name: &str| {
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "default"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})
    };
    p.create("persistentvolumeclaims", claim("p-taken")).await;
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": claim("")["spec"]});
    let volume = |name: &str| json!({"name": name, "ephemeral": {"volumeClaimTemplate": template}});
    p.create(
        "pods",
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "i"}], "volumes": [volume("scratch"), volume("taken")]}}),
    )
    .await;
    let made = p.until("the claim", async || p.api("persistentvolumeclaims").get_opt("p-scratch").await.unwrap()).await;
    assert_eq!((made.label("a"), made.controller_of().unwrap().name), (Some("b"), "p"));
    p.until("an event about the other's claim", async || {
        let why = "ephemeral volume taken: PVC default/p-taken was not created for pod default/p (pod is not owner)";
        p.list("events").await.iter().any(|e| e.str_at(&["message"]) == Some(why)).then_some(())
    })
    .await;
    // It comes again while the pod is there.
    p.patch("persistentvolumeclaims", "p-scratch", json!({"metadata": {"finalizers": null}})).await;
    p.api("persistentvolumeclaims").delete("p-scratch", &DeleteOptions::default()).await.unwrap();
    p.until("another claim", async || {
        let claim = p.api("persistentvolumeclaims").get_opt("p-scratch").await.unwrap()?;
        (claim.uid() != made.uid()).then_some(())
    })
    .await;
    p.api("pods").delete("p", &DeleteOptions::default()).await.unwrap();
    p.until("the claim to go", async || {
        let names: Vec<_> = p.list("persistentvolumeclaims").await.iter().map(|c| c.name().to_owned()).collect();
        (names == ["p-taken"]).then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn nodes_say_how_long_kubelets_may_cache() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    p.until("the annotation", async || {
        let node = p.api("nodes").get("n1").await.unwrap();
        (node.annotation("node.alpha.kubernetes.io/ttl") == Some("0")).then_some(())
    })
    .await;
}

/// Clauses: C14.tolerationSeconds, C14.taint-eviction
#[tokio::test(start_paused = true)]
async fn pods_leave_tainted_nodes_when_their_toleration_ends() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    let pod = |name: &str, seconds: i64| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [{"name": "c", "image": "i"}], "tolerations": [
                {"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}]}})
    };
    p.create("pods", pod("short", 30)).await;
    p.create("pods", pod("long", 300)).await;
    let bound = async || p.list("pods").await.iter().all(|p| p.str_at(&["spec", "nodeName"]).is_some()).then_some(());
    p.until("both to be bound", bound).await;
    p.patch("nodes", "n1", json!({"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}})).await;
    let started = tokio::time::Instant::now();
    p.until("one to go", async || (p.list("pods").await.len() == 1).then_some(())).await;
    let after = started.elapsed().as_secs();
    assert!((29..=35).contains(&after), "{after}");
    p.patch("nodes", "n1", json!({"spec": {"taints": null}})).await;
    let event = |text: &str| {
        let text = text.to_owned();
        let p = &p;
        async move {
            let events = p.list("events").await;
            let found = events.into_iter().find(|e| e.str_at(&["message"]) == Some(&*text))?;
            assert_eq!(found.str_at(&["reason"]), Some("TaintManagerEviction"));
            assert_eq!(found.str_at(&["source", "component"]), Some("taint-eviction-controller"));
            Some(())
        }
    };
    p.until("an event", async || event("Marking for deletion Pod default/short").await).await;
    p.until("an event", async || event("Cancelling deletion of Pod default/long").await).await;
    tokio::time::sleep(std::time::Duration::from_secs(600)).await;
    assert_eq!(p.list("pods").await.len(), 1);
}
