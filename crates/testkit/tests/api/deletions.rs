//! Graceful deletion (`rest.BeforeDelete`, `registry.Store.Delete`).

use crate::pods::{PODS, cluster, pod};
use crate::stream::Watch;
use serde_json::{Value, json};

/// A pod whose deletion needs no grace period is first shown with a period of zero, then removed; the response is its last state.
#[tokio::test(start_paused = true)]
async fn watchers_see_an_immediate_deletion_twice() {
    let c = cluster().await;
    // The node of the pod, its phase, the grace periods of the deletions, and those of the events.
    let cases: &[(&str, &str, &[&str], &[i64])] = &[
        ("", "Pending", &[""], &[0]),
        ("", "Pending", &["?gracePeriodSeconds=20"], &[0]),
        ("n", "Succeeded", &[""], &[0]),
        ("n", "Running", &["?gracePeriodSeconds=0"], &[0]),
        ("n", "Running", &["", "?gracePeriodSeconds=0"], &[30, 0]),
        ("n", "Running", &["", "?gracePeriodSeconds=-1", "", "?gracePeriodSeconds=0"], &[30, 1, 0]),
    ];
    for (at, (node, phase, deletions, periods)) in cases.iter().enumerate() {
        let (name, mut sent) = (format!("p{at}"), pod());
        sent["metadata"]["name"] = name.as_str().into();
        sent["spec"]["nodeName"] = (*node).into();
        let made = c.call("POST", PODS, sent).await;
        assert_eq!(made.code, 201, "{}", made.body);
        let path = format!("{PODS}/{name}");
        let status = json!({"status": {"phase": phase}}).to_string();
        let merge = Some("application/merge-patch+json");
        let made = c.send("PATCH", &format!("{path}/status"), merge, "application/json", status.into()).await.body;
        let from = made["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        let query = format!("{PODS}?watch=1&resourceVersion={from}&fieldSelector=metadata.name%3D{name}");
        let mut watch = Watch::start(&c, &query, "application/json").await.unwrap();
        let mut last = Value::Null;
        for query in *deletions {
            let a = c.call("DELETE", &format!("{path}{query}"), Value::Null).await;
            assert_eq!(a.code, 200, "{}", a.body);
            last = a.body;
        }
        let kinds = periods.iter().map(|p| ("MODIFIED", p)).chain(periods.last().map(|p| ("DELETED", p)));
        for (kind, period) in kinds {
            let (seen, o) = watch.event().await;
            let m = &o["metadata"];
            assert_eq!((&*seen, &m["deletionGracePeriodSeconds"]), (kind, &json!(period)), "case {at}: {o}");
            assert!(m["deletionTimestamp"].is_string(), "case {at}: {o}");
            let before = made["metadata"]["generation"].as_i64().unwrap();
            assert_eq!(m["generation"], before + 1, "case {at}: {o}");
            if kind == "DELETED" {
                assert_eq!(o, last, "case {at}: the response is the last state");
            }
        }
        assert_eq!(c.call("GET", &path, Value::Null).await.code, 404, "case {at}");
    }
}

/// A server that ended between both writes of an immediate deletion leaves a pod that any deletion removes.
#[tokio::test]
async fn an_interrupted_deletion_is_finished_by_the_next_one() {
    let c = cluster().await;
    let mut sent = pod();
    sent["metadata"]["finalizers"] = json!(["example.com/hold"]);
    assert_eq!(c.call("POST", PODS, sent).await.code, 201);
    let path = format!("{PODS}/p");
    let held = c.call("DELETE", &path, Value::Null).await;
    assert_eq!(held.body["metadata"]["deletionGracePeriodSeconds"], 0, "{}", held.body);
    let again = c.call("DELETE", &format!("{path}?gracePeriodSeconds=10"), Value::Null).await;
    assert_eq!(again.body, held.body);
    let key = store::Key::new("pods", "golden", "p");
    let mut stored: Value =
        serde_json::from_slice(&c.server.registry.store.snapshot().get(&key).unwrap().value).unwrap();
    stored["metadata"].as_object_mut().unwrap().remove("finalizers");
    let action = store::Action::Put(stored.to_string().into());
    c.server.registry.store.commit(vec![store::Op { key, expect: store::Expect::Any, action }]).await.unwrap();
    let done = c.call("DELETE", &format!("{path}?gracePeriodSeconds=10"), Value::Null).await;
    assert_eq!((done.code, &done.body["metadata"]["deletionGracePeriodSeconds"]), (200, &json!(0)), "{}", done.body);
    assert_eq!(c.call("GET", &path, Value::Null).await.code, 404);
}
