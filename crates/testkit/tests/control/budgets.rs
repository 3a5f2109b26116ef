//! Disruption budgets and evictions in virtual time.

use crate::harness::Plane;
use client::DeleteOptions;
use meta::{Object, Value};
use serde_json::json;
use std::time::Duration;

impl Plane {
    async fn budget(&self, spec: Value) -> Object {
        let mut spec = spec;
        if spec.get("selector").is_none() {
            spec["selector"] = json!({"matchLabels": {"app": "web"}});
        }
        self.create(
            "poddisruptionbudgets",
            json!({
                "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
                "metadata": {"name": "web", "namespace": "default"}, "spec": spec,
            }),
        )
        .await
    }

    /// Waits until the budget's status is `(expectedPods, desiredHealthy, currentHealthy, disruptionsAllowed)`.
    async fn allows(&self, expected: (i64, i64, i64, i64)) -> Object {
        self.until(&format!("{expected:?}"), async || {
            let b = self.api("poddisruptionbudgets").get("web").await.unwrap();
            let n = |k: &str| b.int_at(&["status", k]).unwrap_or(-1);
            let got = (n("expectedPods"), n("desiredHealthy"), n("currentHealthy"), n("disruptionsAllowed"));
            (got == expected && n("observedGeneration") == b.generation()).then_some(b)
        })
        .await
    }

    /// The reason of the condition `DisruptionAllowed`.
    async fn disruption_reason(&self, reason: &str) -> Object {
        self.until(reason, async || {
            let b = self.api("poddisruptionbudgets").get("web").await.unwrap();
            let c = b.at(&["status", "conditions"]).and_then(Value::as_array).cloned().unwrap_or_default();
            c.iter().any(|c| c["reason"] == reason).then_some(b)
        })
        .await
    }
}

/// Clauses: P16.minAvailable, P16.percentages, P16.eviction
#[tokio::test(start_paused = true)]
async fn evictions_keep_to_the_budget() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    p.deployment("web", 3, "web:1").await;
    p.rolled_out("web").await;
    p.budget(json!({"minAvailable": 2})).await;
    let b = p.allows((3, 2, 3, 1)).await;
    assert_eq!(b.at(&["status", "conditions"]).unwrap()[0]["reason"], "SufficientPods");
    let pods = p.list("pods").await;
    let api = p.api("pods");
    api.evict(pods[0].name(), &DeleteOptions::default()).await.unwrap();
    let evicted = api.get(pods[0].name()).await.unwrap();
    let conditions = evicted.at(&["status", "conditions"]).unwrap().as_array().unwrap();
    let why = conditions.iter().find(|c| c["type"] == "DisruptionTarget").unwrap();
    assert_eq!((evicted.is_deleting(), &why["reason"]), (true, &json!("EvictionByEvictionAPI")));
    let refused = api.evict(pods[1].name(), &DeleteOptions::default()).await.unwrap_err();
    assert_eq!(refused.status().unwrap().code, 429, "{refused}");
    // The replacement is ready.
    p.allows((3, 2, 3, 1)).await;
    api.evict(pods[1].name(), &DeleteOptions::default()).await.unwrap();
    p.allows((3, 2, 3, 1)).await;
    // A percentage counts what the deployment wants, not the pods that there are.
    p.patch("poddisruptionbudgets", "web", json!({"spec": {"minAvailable": "50%"}})).await;
    p.allows((3, 2, 3, 1)).await;
    p.patch("deployments", "web", json!({"spec": {"replicas": 5}})).await;
    p.allows((5, 3, 5, 2)).await;
    // Two budgets: an error without a reason.
    let selector = json!({"matchLabels": {"app": "web"}});
    let second = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "second", "namespace": "default"},
        "spec": {"minAvailable": 0, "selector": selector}});
    p.create("poddisruptionbudgets", second).await;
    let refused = api.evict(p.list("pods").await[0].name(), &DeleteOptions::default()).await.unwrap_err();
    let status = refused.status().unwrap();
    assert_eq!((status.code, status.reason.as_str()), (500, ""));
    assert!(status.message.starts_with("This pod has more than one PodDisruptionBudget"), "{refused}");
}

/// Clauses: P16.maxUnavailable, P16.unmanaged-pods
#[tokio::test(start_paused = true)]
async fn pods_that_cannot_be_counted_are_not_evicted() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    p.budget(json!({"maxUnavailable": 1})).await;
    p.allows((0, 0, 0, 0)).await;
    let pod = |name: &str, owner: Value| {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}, "ownerReferences": owner},
            "spec": {"containers": [{"name": "c", "image": "web:1"}]}})
    };
    p.create("pods", pod("alone", json!([]))).await;
    p.allows((0, 0, 1, 0)).await;
    let events = p.list("events").await;
    let text = |e: &Object| e.str_at(&["message"]).unwrap_or_default().to_owned();
    let unmanaged = events.iter().find(|e| e.str_at(&["reason"]) == Some("UnmanagedPods")).unwrap();
    assert!(
        text(unmanaged).contains("&LabelSelector{MatchLabels:map[string]string{app: web,},"),
        "{}",
        text(unmanaged)
    );
    // An owner without a size.
    let job = p
        .create(
            "configmaps",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "o", "namespace": "default"}}),
        )
        .await;
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": job.uid(), "controller": true}]);
    p.create("pods", pod("odd", owner)).await;
    let b = p.disruption_reason("SyncFailed").await;
    let why = &b.at(&["status", "conditions"]).unwrap()[0]["message"];
    assert_eq!(why, "configmaps does not implement the scale subresource");
    p.api("pods").delete("odd", &DeleteOptions::default()).await.unwrap();
    p.disruption_reason("InsufficientPods").await;
}

/// A pod that was to be deleted and stays loses its condition, and counts again.
#[tokio::test(start_paused = true)]
async fn stale_disruptions_are_taken_back() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    p.deployment("web", 2, "web:1").await;
    p.rolled_out("web").await;
    p.budget(json!({"minAvailable": 1})).await;
    p.allows((2, 1, 2, 1)).await;
    let pod = p.list("pods").await.remove(0);
    let now = meta::time::format(meta::Clock::now(&*p.cluster.clock));
    let mark = json!({"status": {"disruptedPods": {pod.name(): now}}});
    let (write, patch) = (client::WriteOptions::default(), client::Patch::Merge(mark));
    p.api("poddisruptionbudgets").patch_status("web", &write, &patch).await.unwrap();
    let condition = json!([{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "lastTransitionTime": now}]);
    let patch = client::Patch::Strategic(json!({"status": {"conditions": condition}}));
    p.api("pods").patch_status(pod.name(), &write, &patch).await.unwrap();
    p.allows((2, 1, 1, 0)).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    p.allows((2, 1, 1, 0)).await;
    let b = p.allows((2, 1, 2, 1)).await;
    assert!(b.at(&["status", "disruptedPods"]).is_none());
    p.until("the condition to be taken back", async || {
        let pod = p.api("pods").get(pod.name()).await.unwrap();
        let all = pod.at(&["status", "conditions"]).and_then(Value::as_array).cloned().unwrap_or_default();
        all.iter().any(|c| c["type"] == "DisruptionTarget" && c["status"] == "False").then_some(())
    })
    .await;
}
