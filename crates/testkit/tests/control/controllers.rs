//! Replication controllers.

use crate::harness::Plane;
use serde_json::{Value, json};

/// Clauses: C02.defaults, C02.count, C02.adopt, C02.scale
#[tokio::test(start_paused = true)]
async fn a_replication_controller_keeps_its_count_with_defaults_from_the_template() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    let template =
        json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let orphan = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "before", "namespace": "default", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    p.create("pods", orphan).await;
    let made = p
        .create(
            "replicationcontrollers",
            json!({"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "web", "namespace": "default"},
                "spec": {"replicas": 3, "template": template}}),
        )
        .await;
    // Selector and labels are those of the template.
    let labels = json!({"app": "web"});
    assert_eq!((made.at(&["spec", "selector"]), made.at(&["metadata", "labels"])), (Some(&labels), Some(&labels)));
    let owned = async || {
        let all = p.list("pods").await;
        let own = all.into_iter().filter(|o| o.controller_of().is_some_and(|c| c.uid == made.uid()));
        own.map(|o| o.name().to_owned()).collect::<Vec<_>>()
    };
    p.until("three pods, the orphan among them", async || {
        let own = owned().await;
        (own.len() == 3 && own.iter().any(|n| n == "before")).then_some(())
    })
    .await;
    p.patch("replicationcontrollers", "web", json!({"spec": {"replicas": 1}})).await;
    p.until("one pod", async || (owned().await.len() == 1).then_some(())).await;
    let status = p.until("its status", async || {
        let all: Vec<Value> =
            p.list("replicationcontrollers").await.into_iter().map(meta::Object::into_value).collect();
        let status = all[0]["status"].clone();
        (status["readyReplicas"] == 1).then_some(status)
    });
    let status = status.await;
    assert_eq!((&status["replicas"], &status["availableReplicas"]), (&json!(1), &json!(1)), "{status}");
}
