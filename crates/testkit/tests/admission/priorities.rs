//! Priority classes of pods.

use crate::call;
use meta::Value;
use serde_json::json;
use testkit::Cluster;

const CLASSES: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";
const PODS: &str = "/api/v1/namespaces/default/pods";

async fn create(c: &Cluster, path: &str, body: Value) -> (u16, Value) {
    let (code, answer, _) = call(c, "POST", path, body).await;
    (code, answer)
}

async fn pod(c: &Cluster, name: &str, mut spec: Value) -> (u16, Value) {
    spec["containers"] = json!([{"name": "c", "image": "i"}]);
    create(c, PODS, json!({"metadata": {"name": name}, "spec": spec})).await
}

/// Clauses: Q01.resolved, Q01.unknown, Q01.deleted
#[tokio::test]
async fn a_class_gives_its_priority_at_creation_and_for_good() {
    let c = Cluster::start(1).await;
    let (code, made) = pod(&c, "plain", json!({})).await;
    let spec = |o: &Value| {
        let s = &o["spec"];
        (s["priorityClassName"].clone(), s["priority"].clone(), s["preemptionPolicy"].clone())
    };
    assert_eq!((code, spec(&made)), (201, (Value::Null, json!(0), json!("PreemptLowerPriority"))));
    let high = json!({"metadata": {"name": "high"}, "value": 1000, "preemptionPolicy": "Never"});
    assert_eq!(create(&c, CLASSES, high).await.0, 201);
    let (code, made) = pod(&c, "p", json!({"priorityClassName": "high"})).await;
    assert_eq!((code, spec(&made)), (201, (json!("high"), json!(1000), json!("Never"))));
    let (code, refused) = pod(&c, "q", json!({"priorityClassName": "absent"})).await;
    let message = "pods \"q\" is forbidden: no PriorityClass with name absent was found";
    assert_eq!((code, &refused["message"]), (403, &json!(message)));
    let (code, refused) = pod(&c, "r", json!({"priorityClassName": "high", "priority": 5})).await;
    let computed = "must not be provided in pod spec; priority admission controller computed 1000 from the given PriorityClass name";
    assert_eq!(code, 403);
    assert!(refused["message"].as_str().unwrap().ends_with(computed), "{refused}");
    // A deleted class leaves its pods alone.
    assert_eq!(call(&c, "DELETE", &format!("{CLASSES}/high"), Value::Null).await.0, 200);
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    let (code, patched, _) = call(&c, "PATCH", &format!("{PODS}/p"), labels).await;
    assert_eq!((code, spec(&patched)), (200, (json!("high"), json!(1000), json!("Never"))));
    assert_eq!(pod(&c, "s", json!({"priorityClassName": "high"})).await.0, 403);
}

/// Clauses: Q01.globalDefault, Q01.limits
#[tokio::test]
async fn one_class_may_be_the_default_and_values_have_a_limit() {
    let c = Cluster::start(1).await;
    let class = |name: &str, value: i64, default: bool| json!({"metadata": {"name": name}, "value": value, "globalDefault": default});
    assert_eq!(create(&c, CLASSES, class("normal", 10, true)).await.0, 201);
    let (code, refused) = create(&c, CLASSES, class("other", 20, true)).await;
    assert_eq!(code, 403, "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("Only one default can exist"), "{refused}");
    assert_eq!(create(&c, CLASSES, class("other", 20, false)).await.0, 201);
    let promote = json!({"globalDefault": true});
    assert_eq!(call(&c, "PATCH", &format!("{CLASSES}/other"), promote).await.0, 403);
    let (code, made) = pod(&c, "p", json!({})).await;
    assert_eq!(
        (code, &made["spec"]["priorityClassName"], &made["spec"]["priority"]),
        (201, &json!("normal"), &json!(10))
    );
    assert_eq!(create(&c, CLASSES, class("most", 1_000_000_000, false)).await.0, 201);
    assert_eq!(create(&c, CLASSES, class("more", 1_000_000_001, false)).await.0, 422);
    assert_eq!(create(&c, CLASSES, class("least", -2_147_483_648, false)).await.0, 201);
    // The value of a class does not change.
    let (code, refused, _) = call(&c, "PATCH", &format!("{CLASSES}/other"), json!({"value": 21})).await;
    assert_eq!((code, &refused["details"]["causes"][0]["field"]), (422, &json!("value")), "{refused}");
}
