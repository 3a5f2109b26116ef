//! Events: one object, written through two groups with rules of their own.

use crate::devices::{Case, check};
use serde_json::{Value, json};
use testkit::Cluster;

const OLD: &str = "/api/v1/namespaces/default/events";
const NEW: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

async fn patch(c: &Cluster, path: &str, body: Value) -> (u16, Value) {
    let media = Some("application/merge-patch+json");
    let a = c.send("PATCH", path, media, "application/json", body.to_string().into()).await;
    (a.code, a.body)
}

fn fields(body: &Value) -> Vec<&str> {
    body["details"]["causes"].as_array().into_iter().flatten().filter_map(|c| c["field"].as_str()).collect()
}

/// What an older client wrote can be labelled through the newer group, and says nothing else there.
#[tokio::test]
async fn an_old_event_is_patched_through_the_new_group() {
    let c = Cluster::start(1).await;
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"},
        "source": {"component": "kubelet"}, "count": 2, "firstTimestamp": "2026-01-01T00:00:00Z"});
    assert_eq!(c.call("POST", OLD, event).await.code, 201);
    let path = format!("{NEW}/e");
    let (code, body) = patch(&c, &path, json!({"metadata": {"labels": {"a": "b"}}})).await;
    assert_eq!(code, 200, "{body}");
    let (code, body) = patch(&c, &path, json!({"deprecatedCount": 3, "note": "n"})).await;
    assert_eq!((code, fields(&body)), (422, vec!["message", "count"]), "{body}");
    // The older group counts on.
    let (code, body) = patch(&c, &format!("{OLD}/e"), json!({"count": 3, "message": "n"})).await;
    assert_eq!((code, &body["count"]), (200, &json!(3)), "{body}");
}

#[tokio::test]
async fn new_events_have_required_and_no_deprecated_fields() {
    let c = Cluster::start(1).await;
    let event = json!({"metadata": {"name": "e"}, "regarding": {"kind": "Pod", "namespace": "default"}, "type": "Normal",
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "a.example.com/c", "reportingInstance": "i",
        "action": "A", "reason": "R", "note": "n"});
    let cases: Vec<Case> = vec![
        ("/eventTime", Value::Null, &["eventTime"]),
        ("/type", json!("Loud"), &["type"]),
        ("/action", json!(""), &["action"]),
        ("/deprecatedCount", json!(1), &["count"]),
        ("/deprecatedSource", json!({"component": "c"}), &["source"]),
        ("/deprecatedLastTimestamp", json!("2026-01-01T00:00:00Z"), &["lastTimestamp"]),
        ("/series", json!({"count": 1, "lastObservedTime": null}), &["series.count", "series.lastObservedTime"]),
    ];
    check(&c, "POST", NEW, &event, cases).await;
}

/// Both groups select by the same fields under names of their own; an event of the newer one has no source but who reports it.
#[tokio::test]
async fn events_are_selected_through_both_groups() {
    let c = Cluster::start(1).await;
    let new = json!({"metadata": {"name": "new"}, "regarding": {"kind": "Pod", "namespace": "default", "name": "p"}, "type": "Normal",
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "test-controller", "reportingInstance": "i",
        "action": "A", "reason": "R", "note": "n"});
    assert_eq!(c.call("POST", NEW, new).await.code, 201);
    let old = json!({"metadata": {"name": "old"}, "involvedObject": {"kind": "Node", "namespace": "default", "name": "n"},
        "source": {"component": "kubelet"}, "reason": "Old", "type": "Warning"});
    assert_eq!(c.call("POST", OLD, old).await.code, 201);
    for (base, selector, want) in [
        (OLD, "source=test-controller", "new"),
        (OLD, "source=kubelet", "old"),
        (OLD, "source!=kubelet", "new"),
        (OLD, "reportingComponent=test-controller", "new"),
        (NEW, "reportingController=test-controller", "new"),
        (NEW, "regarding.kind=Pod", "new"),
        (NEW, "regarding.name=n,type=Warning", "old"),
        (OLD, "involvedObject.kind=Pod,involvedObject.name=p", "new"),
        (OLD, "type=Warning", "old"),
        (NEW, "reason=Old", "old"),
    ] {
        let path = format!("{base}?fieldSelector={}", selector.replace('=', "%3D"));
        let list = c.call("GET", &path, Value::Null).await.body;
        let names: Vec<&str> =
            list["items"].as_array().into_iter().flatten().filter_map(|o| o["metadata"]["name"].as_str()).collect();
        assert_eq!(names, [want], "{selector}: {list}");
    }
}
