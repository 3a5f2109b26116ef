//! Pods that are evicted for pods of higher priority.

use crate::harness::Plane;
use client::DeleteOptions;
use meta::{Object, Value};
use serde_json::json;
use std::time::Duration;

impl Plane {
    pub async fn priorities(&self) {
        let policy = |name: &str| if name == "never" { "Never" } else { "PreemptLowerPriority" };
        for (name, value) in [("low", 1), ("medium", 100), ("high", 1000), ("never", 1000)] {
            let class = json!({"metadata": {"name": name}, "value": value, "preemptionPolicy": policy(name)});
            let a = self.cluster.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", class).await;
            assert_eq!(a.code, 201, "{}", a.body);
        }
        // Admission sees the classes.
        self.until("the classes", async || {
            let pod = json!({"metadata": {"name": "probe"}, "spec": {"priorityClassName": "high", "schedulerName": "none",
                "containers": [{"name": "c", "image": "i"}]}});
            let a = self.cluster.call("POST", "/api/v1/namespaces/default/pods?dryRun=All", pod).await;
            (a.code == 201).then_some(())
        })
        .await;
    }

    pub async fn pod_of(&self, name: &str, priority: &str, cpu: &str, more: Value) -> Object {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"priorityClassName": priority,
                "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]},
        });
        for (field, value) in more.as_object().into_iter().flatten() {
            pod["spec"][field] = value.clone();
        }
        self.create("pods", pod).await
    }

    pub async fn running(&self, name: &str) -> Object {
        self.until(&format!("{name} to run"), async || {
            let o = self.api("pods").get(name).await.unwrap();
            (o.str_at(&["status", "phase"]) == Some("Running")).then_some(o)
        })
        .await
    }

    async fn nominated(&self, name: &str, node: Option<&str>) {
        self.until(&format!("{name} to be nominated for {node:?}"), async || {
            let o = self.api("pods").get(name).await.unwrap();
            (o.str_at(&["status", "nominatedNodeName"]) == node).then_some(())
        })
        .await;
    }

    /// Keeps a deleted pod until it is let go.
    async fn hold(&self, name: &str) {
        self.patch("pods", name, json!({"metadata": {"finalizers": ["example.com/hold"]}})).await;
    }

    async fn let_go(&self, name: &str) {
        let patch = client::Patch::Merge(json!({"metadata": {"finalizers": null}}));
        self.api("pods").patch(name, &client::WriteOptions::default(), &patch).await.unwrap();
    }

    pub async fn is_deleting(&self, name: &str) -> bool {
        self.api("pods").get_opt(name).await.unwrap().is_none_or(|p| p.is_deleting())
    }
}

/// Clauses: Q03.victims, Q03.nominatedNodeName
#[tokio::test(start_paused = true)]
async fn a_pod_of_higher_priority_takes_the_place_of_the_lowest() {
    let p = Plane::start().await;
    p.priorities().await;
    p.node("a", "2").await;
    p.pod_of("low", "low", "1", json!({})).await;
    p.pod_of("medium", "medium", "1", json!({})).await;
    p.running("low").await;
    p.running("medium").await;
    p.hold("low").await;
    let high = p.pod_of("high", "high", "1", json!({})).await;
    let victim = p
        .until("the victim", async || {
            let o = p.api("pods").get("low").await.unwrap();
            o.is_deleting().then_some(o)
        })
        .await;
    let conditions = victim.at(&["status", "conditions"]).and_then(Value::as_array).cloned().unwrap_or_default();
    let disrupted = conditions.last().filter(|c| c["type"] == "DisruptionTarget").expect("the condition, as the last");
    assert_eq!((&disrupted["status"], &disrupted["reason"]), (&json!("True"), &json!("PreemptionByScheduler")));
    assert_eq!(disrupted["message"], "default-scheduler: preempting to accommodate a higher priority pod");
    p.nominated("high", Some("a")).await;
    p.waits_because("high", "0/1 nodes are available: 1 Insufficient cpu.").await;
    let text = format!("Preempted by pod {} on node a", high.uid());
    p.until("the event", async || {
        let events = p.list("events").await;
        events
            .iter()
            .any(|e| e.str_at(&["message"]) == Some(&text) && e.str_at(&["reason"]) == Some("Preempted"))
            .then_some(())
    })
    .await;
    p.let_go("low").await;
    p.running("high").await;
    p.nominated("high", None).await;
    assert!(!p.is_deleting("medium").await);
}

/// Clauses: Q04.Never
#[tokio::test(start_paused = true)]
async fn a_pod_that_may_not_preempt_waits() {
    let p = Plane::start().await;
    p.priorities().await;
    p.node("a", "1").await;
    p.pod_of("low", "low", "1", json!({})).await;
    p.running("low").await;
    p.pod_of("high", "never", "1", json!({})).await;
    p.waits_because("high", "preemption: not eligible due to preemptionPolicy=Never.").await;
    assert!(!p.is_deleting("low").await);
    p.api("pods").delete("low", &DeleteOptions::default()).await.unwrap();
    p.running("high").await;
}

/// The node whose pods no budget protects is chosen, although its victim has a higher priority.
///
/// Clauses: Q03.PDB, Q05.PDB
#[tokio::test(start_paused = true)]
async fn budgets_are_kept_where_that_is_possible() {
    let p = Plane::start().await;
    p.priorities().await;
    p.node("a", "1").await;
    p.node("b", "1").await;
    let on = |node: &str| json!({"nodeSelector": {"kubernetes.io/hostname": node}});
    for name in ["a", "b"] {
        p.patch("nodes", name, json!({"metadata": {"labels": {"kubernetes.io/hostname": name}}})).await;
    }
    p.pod_of("guarded", "low", "1", on("a")).await;
    p.pod_of("free", "medium", "1", on("b")).await;
    p.running("guarded").await;
    p.running("free").await;
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "guarded"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}});
    p.create("poddisruptionbudgets", budget).await;
    p.until("the budget", async || {
        let b = p.api("poddisruptionbudgets").get("guarded").await.unwrap();
        (b.int_at(&["status", "currentHealthy"]) == Some(1)).then_some(())
    })
    .await;
    p.pod_of("high", "high", "1", json!({})).await;
    p.running("high").await;
    assert!(p.is_deleting("free").await && !p.is_deleting("guarded").await);
    // Budgets are no promise.
    p.pod_of("second", "high", "1", json!({})).await;
    p.running("second").await;
    assert!(p.is_deleting("guarded").await);
}

/// Clauses: Q03.cleared, Q03.honoured
#[tokio::test(start_paused = true)]
async fn a_nomination_yields_to_a_higher_one_and_is_kept_from_lower_ones() {
    let p = Plane::start().await;
    p.priorities().await;
    p.node("a", "1").await;
    p.pod_of("victim", "low", "1", json!({})).await;
    p.running("victim").await;
    p.hold("victim").await;
    p.pod_of("medium", "medium", "1", json!({})).await;
    p.nominated("medium", Some("a")).await;
    p.pod_of("high", "high", "1", json!({})).await;
    p.nominated("high", Some("a")).await;
    p.nominated("medium", None).await;
    // The place that becomes free is for the pod of the highest priority.
    p.pod_of("small", "low", "500m", json!({})).await;
    p.let_go("victim").await;
    p.running("high").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    for name in ["medium", "small"] {
        let o = p.api("pods").get(name).await.unwrap();
        assert_eq!(o.str_at(&["spec", "nodeName"]), None, "{name}");
    }
}
