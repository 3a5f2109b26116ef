//! Deployments and replica sets in virtual time: what upstream's controllers do at the edges.

use super::harness::Plane;
use meta::{Object, Value};
use serde_json::json;
use std::time::Duration;

impl Plane {
    /// Waits for an event with a reason whose message contains a text.
    pub async fn reported(&self, reason: &str, text: &str) -> Object {
        self.until(&format!("the event {reason}: {text}"), async || {
            let mut all = self.list("events").await;
            let is = |e: &Object| {
                e.str_at(&["reason"]) == Some(reason) && e.str_at(&["message"]).is_some_and(|m| m.contains(text))
            };
            all.iter().position(is).map(|i| all.swap_remove(i))
        })
        .await
    }

    async fn deployment_image(&self, deployment: &str, image: &str) {
        let spec = json!({"template": {"spec": {"containers": [{"name": "c", "image": image}]}}});
        self.patch("deployments", deployment, json!({"spec": spec})).await;
    }
}

fn condition(o: &Object, kind: &str) -> Value {
    let all = o.at(&["status", "conditions"]).and_then(Value::as_array);
    all.into_iter().flatten().find(|c| c["type"] == kind).cloned().unwrap_or_default()
}

/// A set that cannot be created is an event, and a condition of the deployment.
#[tokio::test(start_paused = true)]
async fn a_set_that_cannot_be_created_is_reported() {
    let p = Plane::start().await;
    let quota = json!({"metadata": {"name": "none"}, "spec": {"hard": {"count/replicasets.apps": "0"}}});
    let made = p.cluster.call("POST", "/api/v1/namespaces/default/resourcequotas", quota).await;
    assert_eq!(made.code, 201, "{}", made.body);
    p.until("the quota to count", async || {
        let q = p.cluster.call("GET", "/api/v1/namespaces/default/resourcequotas/none", Value::Null).await;
        q.body["status"]["used"]["count/replicasets.apps"].is_string().then_some(())
    })
    .await;
    p.deployment("web", 1, "i").await;
    p.reported("ReplicaSetCreateError", "Failed to create new replica set \"web-").await;
    let d = p.api("deployments").get("web").await.unwrap();
    let c = condition(&d, "Progressing");
    assert_eq!((&c["status"], &c["reason"]), (&json!("False"), &json!("ReplicaSetCreateError")));
    assert!(c["message"].as_str().unwrap().contains("exceeded quota: none"), "{c}");
}

/// The name of a deployment may be as long as a name can be; those of its set and pods are cut.
#[tokio::test(start_paused = true)]
async fn long_names_are_cut() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    let name = "x".repeat(253);
    let mut d =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "default"}});
    d["spec"] = json!({"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": {
        "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}});
    p.create("deployments", d).await;
    p.rolled_out(&name).await;
    let sets = p.list("replicasets").await;
    assert_eq!((sets.len(), sets[0].name().len()), (1, 253));
}

/// The annotation of the former rollback request returns a deployment to an earlier revision, and goes.
#[tokio::test(start_paused = true)]
async fn an_annotation_rolls_back() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    let image = async || {
        let d = p.rolled_out("web").await;
        d.at(&["spec", "template", "spec", "containers"]).unwrap()[0]["image"].as_str().unwrap().to_owned()
    };
    p.deployment("web", 1, "i:1").await;
    p.rolled_out("web").await;
    p.deployment_image("web", "i:2").await;
    p.rolled_out("web").await;
    let annotate = |to: &str| json!({"metadata": {"annotations": {"deprecated.deployment.rollback.to": to}}});
    p.patch("deployments", "web", annotate("0")).await;
    p.reported("DeploymentRollback", "Rolled back deployment \"web\" to revision 1").await;
    assert_eq!(image().await, "i:1");
    p.patch("deployments", "web", annotate("9")).await;
    p.reported("DeploymentRollbackRevisionNotFound", "Unable to find the revision to rollback to.").await;
    let d = p.rolled_out("web").await;
    assert_eq!(d.annotation("deprecated.deployment.rollback.to"), None);
    assert_eq!(d.annotation("deployment.kubernetes.io/revision"), Some("3"));
}

/// A deployment scaled in mid-rollout distributes the difference over its sets; their annotations say by how much.
/// Clauses: C06
#[tokio::test(start_paused = true)]
async fn scaling_in_mid_rollout_is_proportional() {
    let p = Plane::start().await;
    p.node("n1", "40").await;
    p.deployment("web", 10, "good").await;
    p.patch(
        "deployments",
        "web",
        json!({"spec": {"strategy": {"rollingUpdate": {"maxSurge": 3, "maxUnavailable": 2}}}}),
    )
    .await;
    p.rolled_out("web").await;
    p.break_image("bad");
    p.deployment_image("web", "bad").await;
    let sizes = async || {
        let mut sets = p.list("replicasets").await;
        sets.sort_by_key(|s| s.annotation("deployment.kubernetes.io/revision").unwrap().to_owned());
        sets.iter().map(|s| s.int_at(&["spec", "replicas"]).unwrap()).collect::<Vec<_>>()
    };
    p.until("the rollout to stop", async || (sizes().await == [8, 5]).then_some(())).await;
    p.patch("deployments", "web", json!({"spec": {"replicas": 15}})).await;
    p.until("the sets to grow", async || (sizes().await == [11, 7]).then_some(())).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(sizes().await, [11, 7], "nothing more until pods become available");
    let d = p.api("deployments").get("web").await.unwrap();
    let n = |k: &str| d.int_at(&["status", k]).unwrap_or(0);
    assert_eq!((n("replicas"), n("unavailableReplicas"), n("terminatingReplicas")), (18, 7, 0));
    for s in p.list("replicasets").await {
        let annotation = |k: &str| s.annotation(&format!("deployment.kubernetes.io/{k}")).map(str::to_owned);
        assert_eq!(
            (annotation("desired-replicas"), annotation("max-replicas")),
            (Some("15".into()), Some("18".into()))
        );
    }
}

/// A set of the same name that replaces another at once waits for nothing that concerned the first.
#[tokio::test(start_paused = true)]
async fn a_replaced_set_begins_at_once() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "s", "namespace": "default"},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"a": "b"}}, "template": {
            "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let mut large = set.clone();
    large["spec"]["replicas"] = 300.into();
    p.create("replicasets", large).await;
    // It is deleted while its pods are being created.
    while p.list("pods").await.is_empty() {
        tokio::task::yield_now().await;
    }
    let options = client::DeleteOptions::propagation(client::Propagation::Background);
    p.api("replicasets").delete("s", &options).await.unwrap();
    p.create("replicasets", set).await;
    let begun = tokio::time::Instant::now();
    p.status_counts("replicasets", "s", &[("replicas", 3), ("readyReplicas", 3)]).await;
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

/// Two deployments with one selector each keep to their own sets and pods.
#[tokio::test(start_paused = true)]
async fn deployments_with_one_selector_do_not_disturb_each_other() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    for (name, image) in [("one", "i:1"), ("two", "i:2")] {
        p.create(
            "deployments",
            json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "both"}}, "template": {
                "metadata": {"labels": {"app": "both"}}, "spec": {"containers": [{"name": "c", "image": image}]}}}}),
        )
        .await;
    }
    p.rolled_out("one").await;
    p.rolled_out("two").await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!((p.list("replicasets").await.len(), p.list("pods").await.len()), (2, 4));
    p.api("deployments")
        .delete("one", &client::DeleteOptions::propagation(client::Propagation::Background))
        .await
        .unwrap();
    p.until("the pods of the first to go", async || (p.list("pods").await.len() == 2).then_some(())).await;
    p.rolled_out("two").await;
}
