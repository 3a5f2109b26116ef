//! DaemonSets in virtual time.

use crate::harness::Plane;
use client::{DeleteOptions, Propagation};
use meta::{Object, Value};
use serde_json::json;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

impl Plane {
    async fn daemon_set(&self, more: Value) -> Object {
        let mut set = json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "log", "namespace": "default"},
            "spec": {
                "selector": {"matchLabels": {"app": "log"}},
                "template": {
                    "metadata": {"labels": {"app": "log"}},
                    "spec": {"containers": [{"name": "c", "image": "log:1"}]},
                },
            },
        });
        for (k, v) in more.as_object().unwrap() {
            set["spec"][k] = v.clone();
        }
        self.create("daemonsets", set).await
    }

    /// The nodes of the set's pods, those that go left out.
    async fn daemon_nodes(&self) -> Vec<String> {
        let pods = self.list("pods").await;
        let live = pods.iter().filter(|p| !p.is_deleting());
        let mut nodes: Vec<_> = live.filter_map(|p| p.str_at(&["spec", "nodeName"]).map(str::to_owned)).collect();
        nodes.sort();
        nodes
    }

    async fn daemons_on(&self, expected: &[&str]) {
        self.until(&format!("pods on {expected:?}"), async || (self.daemon_nodes().await == expected).then_some(()))
            .await;
    }

    async fn daemon_counts(&self, expected: &[(&str, i64)]) -> Object {
        self.status_counts("daemonsets", "log", expected).await
    }

    async fn daemon_image(&self, image: &str) {
        let containers = json!([{"name": "c", "image": image}]);
        self.patch("daemonsets", "log", json!({"spec": {"template": {"spec": {"containers": containers}}}})).await;
    }
}

/// Clauses: C09.one-per-node, C09.node-added, C09.node-relabelled, C09.node-removed, C09.tolerations
#[tokio::test(start_paused = true)]
async fn pods_follow_the_nodes() {
    let p = Plane::start().await;
    for n in ["n1", "n2", "n3"] {
        p.node(n, "4").await;
    }
    p.daemon_set(json!({})).await;
    p.daemons_on(&["n1", "n2", "n3"]).await;
    p.daemon_counts(&[
        ("desiredNumberScheduled", 3),
        ("numberReady", 3),
        ("numberAvailable", 3),
        ("updatedNumberScheduled", 3),
    ])
    .await;
    p.node("n4", "4").await;
    p.daemons_on(&["n1", "n2", "n3", "n4"]).await;
    // A cordoned node keeps its pod and gets it again.
    p.patch("nodes", "n4", json!({"spec": {"unschedulable": true}})).await;
    let pods = p.list("pods").await;
    let on_n4 = pods.iter().find(|p| p.str_at(&["spec", "nodeName"]) == Some("n4")).unwrap();
    p.api("pods").delete(on_n4.name(), &DeleteOptions::uid(on_n4.uid())).await.unwrap();
    p.until("another pod on n4", async || {
        let pods = p.list("pods").await;
        pods.iter().any(|p| p.str_at(&["spec", "nodeName"]) == Some("n4") && p.uid() != on_n4.uid()).then_some(())
    })
    .await;
    // NoSchedule: the pod stays, and the node no longer counts. NoExecute: it goes.
    let taint = |effect: &str| json!({"spec": {"taints": [{"key": "k", "effect": effect}]}});
    p.patch("nodes", "n1", taint("NoSchedule")).await;
    p.daemon_counts(&[("desiredNumberScheduled", 3), ("numberMisscheduled", 1)]).await;
    p.patch("nodes", "n1", taint("NoExecute")).await;
    p.daemons_on(&["n2", "n3", "n4"]).await;
    p.patch("nodes", "n1", json!({"spec": {"taints": null}})).await;
    p.daemons_on(&["n1", "n2", "n3", "n4"]).await;
    // A selector for nodes.
    let selector = |v: Value| json!({"spec": {"template": {"spec": {"nodeSelector": v}}}});
    p.patch("daemonsets", "log", selector(json!({"disk": "ssd"}))).await;
    p.daemons_on(&[]).await;
    p.patch("nodes", "n2", json!({"metadata": {"labels": {"disk": "ssd"}}})).await;
    p.daemons_on(&["n2"]).await;
    p.patch("nodes", "n2", json!({"metadata": {"labels": {"disk": "hdd"}}})).await;
    p.daemons_on(&[]).await;
    p.patch("daemonsets", "log", selector(Value::Null)).await;
    p.daemons_on(&["n1", "n2", "n3", "n4"]).await;
    p.api("nodes").delete("n3", &DeleteOptions::default()).await.unwrap();
    p.daemons_on(&["n1", "n2", "n4"]).await;
    p.daemon_counts(&[("desiredNumberScheduled", 3), ("numberMisscheduled", 0)]).await;
}

/// Clauses: C09.RollingUpdate, C09.maxUnavailable, C09.maxSurge, C09.rollback
#[tokio::test(start_paused = true)]
async fn updates_stay_within_their_budget() {
    for (strategy, least, most) in [
        (json!({"maxUnavailable": 1, "maxSurge": 0}), 3, 4),
        (json!({"maxUnavailable": "50%", "maxSurge": 0}), 2, 4),
        (json!({"maxUnavailable": 0, "maxSurge": 1}), 4, 5),
    ] {
        let p = Plane::start().await;
        for n in ["n1", "n2", "n3", "n4"] {
            p.node(n, "4").await;
        }
        p.daemon_set(json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": strategy}})).await;
        p.daemon_counts(&[("numberAvailable", 4)]).await;
        let first = p.list("controllerrevisions").await[0].name().to_owned();
        p.daemon_image("log:2").await;
        let (ready, all) = (RefCell::new(BTreeSet::new()), RefCell::new(BTreeSet::new()));
        p.until("the update", async || {
            let pods = p.list("pods").await;
            let live: Vec<_> = pods.iter().filter(|p| !p.is_deleting()).collect();
            let is_ready = |p: &&&Object| {
                let conditions = p.at(&["status", "conditions"]).and_then(Value::as_array);
                conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
            };
            let new = |p: &&&Object| p.at(&["spec", "containers"]).unwrap()[0]["image"] == "log:2";
            let n = live.iter().filter(is_ready).count();
            ready.borrow_mut().insert(n);
            all.borrow_mut().insert(live.len());
            (live.iter().filter(new).filter(is_ready).count() == 4 && pods.len() == 4).then_some(())
        })
        .await;
        let (ready, all) = (ready.into_inner(), all.into_inner());
        assert!(*ready.first().unwrap() >= least && *all.last().unwrap() <= most, "{strategy}: {ready:?} {all:?}");
        p.daemon_counts(&[("updatedNumberScheduled", 4), ("numberAvailable", 4), ("numberUnavailable", 0)]).await;
        p.daemon_image("log:1").await;
        p.daemon_counts(&[("updatedNumberScheduled", 4), ("numberAvailable", 4)]).await;
        let numbers: BTreeMap<String, i64> = p
            .list("controllerrevisions")
            .await
            .iter()
            .map(|r| (r.name().to_owned(), r.int_at(&["revision"]).unwrap()))
            .collect();
        assert_eq!((numbers.len(), numbers[&first]), (2, 3));
    }
}

/// Clauses: C09.OnDelete, C09.adoption
#[tokio::test(start_paused = true)]
async fn orphans_are_taken_over_and_replaced_when_deleted() {
    let p = Plane::start().await;
    p.node("n1", "4").await;
    p.node("n2", "4").await;
    let on_delete = json!({"updateStrategy": {"type": "OnDelete"}});
    p.daemon_set(on_delete.clone()).await;
    p.daemon_counts(&[("numberAvailable", 2)]).await;
    let before = p.list("pods").await;
    p.api("daemonsets").delete("log", &DeleteOptions::propagation(Propagation::Orphan)).await.unwrap();
    p.until("orphans", async || {
        let gone = p.api("daemonsets").get_opt("log").await.unwrap().is_none();
        (gone && p.list("pods").await.iter().all(|p| p.controller_of().is_none())).then_some(())
    })
    .await;
    p.daemon_set(on_delete).await;
    p.daemon_counts(&[("numberAvailable", 2), ("updatedNumberScheduled", 2)]).await;
    let after = p.list("pods").await;
    assert!(before.iter().zip(&after).all(|(a, b)| a.uid() == b.uid()), "no pod was restarted");
    assert_eq!(p.list("controllerrevisions").await.len(), 1);
    p.daemon_image("log:2").await;
    p.daemon_counts(&[("updatedNumberScheduled", 0), ("numberAvailable", 2)]).await;
    p.api("pods").delete(after[0].name(), &DeleteOptions::default()).await.unwrap();
    p.daemon_counts(&[("updatedNumberScheduled", 1), ("numberAvailable", 2)]).await;
}

/// A node that rejects its pod is not asked again and again.
#[tokio::test(start_paused = true)]
async fn failed_pods_are_replaced_ever_more_slowly() {
    let p = Plane::start().await;
    p.node("n1", "4").await;
    p.daemon_set(json!({})).await;
    p.daemon_counts(&[("numberAvailable", 1)]).await;
    let started = tokio::time::Instant::now();
    let mut replaced = 0;
    while started.elapsed().as_secs() < 60 {
        let pods = p.list("pods").await;
        if let Some(pod) = pods.iter().find(|p| p.str_at(&["status", "phase"]) == Some("Running") && !p.is_deleting()) {
            let failed = client::Patch::Strategic(json!({"status": {"phase": "Failed"}}));
            p.api("pods").patch_status(pod.name(), &client::WriteOptions::default(), &failed).await.unwrap();
            replaced += 1;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert!((4..=7).contains(&replaced), "{replaced}: after 1, 2, 4, … seconds");
}
