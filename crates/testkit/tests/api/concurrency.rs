//! Concurrent requests: disruption budgets that are not exceeded, watches of future revisions,
//! objects that need not be read again.

use crate::stream::Watch;
use meta::{Gvr, Object, Status};
use registry::{AdmitAll, Preconditions, Request, Target, Updated, WriteOptions};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::Cluster;

const POD: &str = "/api/v1/namespaces/default/pods";
const BUDGET: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";

async fn running_pod(c: &Cluster, name: &str) {
    let spec = json!({"containers": [{"name": "c", "image": "i"}], "nodeName": "n"});
    let pod = json!({"metadata": {"name": name, "labels": {"app": "a"}}, "spec": spec});
    assert_eq!(c.call("POST", POD, pod).await.code, 201);
    let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    patch(c, &format!("{POD}/{name}/status"), json!({"status": status})).await;
}

async fn patch(c: &Cluster, path: &str, body: Value) -> Value {
    let media = Some("application/merge-patch+json");
    let a = c.send("PATCH", path, media, "application/json", body.to_string().into()).await;
    assert_eq!(a.code, 200, "{path}: {}", a.body);
    a.body
}

/// Clauses: P16.eviction
#[tokio::test]
async fn an_eviction_charges_the_disruption_budget() {
    let c = Cluster::start(1).await;
    for p in ["a", "b", "c"] {
        running_pod(&c, p).await;
    }
    let budget = json!({"metadata": {"name": "b"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "a"}}}});
    assert_eq!(c.call("POST", BUDGET, budget).await.code, 201);
    let evict = async |p: &str, more: Value| {
        let body =
            json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": p}, "deleteOptions": more});
        c.call("POST", &format!("{POD}/{p}/eviction"), body).await
    };
    // Nobody has looked at the budget yet.
    let a = evict("a", Value::Null).await;
    assert_eq!((a.code, &a.body["details"]["retryAfterSeconds"]), (429, &json!(10)));
    let status = json!({"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 3, "desiredHealthy": 2,
        "expectedPods": 3});
    patch(&c, &format!("{BUDGET}/b/status"), json!({"status": status})).await;
    assert_eq!(evict("a", json!({"dryRun": ["All"]})).await.code, 201);
    // Both at once: only one disruption is there.
    let (a, b) = tokio::join!(evict("a", Value::Null), evict("b", Value::Null));
    let mut codes = [a.code, b.code];
    codes.sort_unstable();
    assert_eq!(codes, [201, 429]);
    let refused = if a.code == 429 { a } else { b };
    let cause = &refused.body["details"]["causes"][0];
    assert_eq!(cause["reason"], "DisruptionBudget");
    assert_eq!(cause["message"], "The disruption budget b needs 2 healthy pods and has 3 currently");
    let after = c.call("GET", &format!("{BUDGET}/b"), Value::Null).await.body;
    assert_eq!(after["status"]["disruptionsAllowed"], 0);
    assert_eq!(after["status"]["disruptedPods"].as_object().map(serde_json::Map::len), Some(1));
    assert_eq!(after["status"]["conditions"][0]["reason"], "InsufficientPods");
    // A pod that does not serve is no loss.
    let status = json!({"conditions": [{"type": "Ready", "status": "False"}]});
    patch(&c, &format!("{POD}/c/status"), json!({"status": status})).await;
    assert_eq!(evict("c", Value::Null).await.code, 201);
}

/// Clauses: A10.watch
#[tokio::test(start_paused = true)]
async fn a_watch_of_the_future_waits_for_it() {
    let c = Cluster::start(1).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let from = c.call("POST", maps, json!({"metadata": {"name": "now"}})).await.body;
    let now: u64 = from["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    let path = format!("{maps}?watch=1&resourceVersion={}", now + 2);
    let mut w = Watch::start(&c, &path, "application/json").await.unwrap();
    for name in ["a", "b", "c", "d"] {
        assert_eq!(c.call("POST", maps, json!({"metadata": {"name": name}})).await.code, 201);
    }
    let (kind, o) = w.event().await;
    assert_eq!((kind.as_str(), &o["metadata"]["name"]), ("ADDED", &json!("c")), "what is not later is not told");
}

/// Clauses: A10.watch
#[tokio::test]
async fn shutdown_fails_readiness_and_ends_watches() {
    let c = Cluster::start(1).await;
    let text = async |path: &str| {
        let a = c.call("GET", path, Value::Null).await;
        (a.code, a.body.as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(text("/readyz").await, (200, "ok".into()));
    assert_eq!(text("/livez/ping").await, (200, "ok".into()));
    assert_eq!(text("/readyz/etcd").await.0, 200);
    assert_eq!(text("/readyz/nothing").await.0, 404);
    let mut w = Watch::start(&c, "/api/v1/pods?watch=1", "application/json").await.unwrap();
    c.server.end();
    assert_eq!(w.next().await, None, "a clean end");
    let (code, message) = text("/readyz").await;
    assert!(code == 500 && message.contains("[+]ping ok\n") && message.contains("[-]shutdown failed"), "{message}");
    assert!(message.ends_with("readyz check failed\n"), "{message}");
    let (code, message) = text("/readyz?verbose&exclude=shutdown&exclude=moon").await;
    assert_eq!(code, 200, "{message}");
    assert!(
        message.contains(
            "[+]shutdown excluded: ok\nwarn: some health checks cannot be excluded: no matches for \"moon\"\n"
        )
    );
    assert_eq!(text("/livez").await.0, 200, "it lives still");
}

/// Clauses: A05.status
#[tokio::test]
async fn a_status_may_carry_labels_where_upstream_lets_it() {
    let c = Cluster::start(1).await;
    let labels = json!({"metadata": {"labels": {"zone": "z"}, "annotations": {"a": "b"}}});
    assert_eq!(c.call("POST", "/api/v1/nodes", json!({"metadata": {"name": "n"}})).await.code, 201);
    let n = patch(&c, "/api/v1/nodes/n/status", labels.clone()).await;
    assert_eq!(n["metadata"]["labels"]["zone"], "z");
    let pods = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": pods});
    let path = "/apis/apps/v1/namespaces/default/deployments";
    assert_eq!(c.call("POST", path, json!({"metadata": {"name": "d"}, "spec": spec})).await.code, 201);
    let d = patch(&c, &format!("{path}/d/status"), labels.clone()).await;
    assert_eq!((&d["metadata"]["labels"], &d["metadata"]["annotations"]["a"]), (&Value::Null, &json!("b")));
    let path = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
    let flow = json!({"metadata": {"name": "f"}, "spec": {"priorityLevelConfiguration": {"name": "exempt"}}});
    assert_eq!(c.call("POST", path, flow).await.code, 201);
    let f = patch(&c, &format!("{path}/f/status"), labels).await;
    assert_eq!((&f["metadata"]["labels"], &f["metadata"]["annotations"]), (&Value::Null, &Value::Null));
}

/// A change of what was changed a moment ago is given the very object that the former one wrote; later, one that was read from the
/// store and is equal to it.
#[tokio::test(start_paused = true)]
async fn recently_written_objects_are_not_read_again() {
    let c = Cluster::start(1).await;
    let map = json!({"metadata": {"name": "m"}, "data": {"a": "1"}});
    assert_eq!(c.call("POST", "/api/v1/namespaces/default/configmaps", map).await.code, 201);
    let registry = &c.server.registry;
    let gvr = Gvr { group: "".into(), version: "v1".into(), resource: "configmaps".into() };
    let request = Request::own(registry.rows().resource(&gvr).unwrap().clone(), "", "default", "m");
    // Writes a value; gives where the object lay that was changed, and what was written.
    let write = async |value: &str| {
        let seen = Mutex::new((0_usize, None));
        let change = |live: Option<&Object>, _: &_| -> Result<Target, Status> {
            let live = live.unwrap();
            *seen.lock().unwrap() = (std::ptr::from_ref(live).addr(), Some(live.clone()));
            let mut new = live.clone();
            new.set_label("value", value);
            Ok(Target::object(new))
        };
        let (options, any) = (WriteOptions::by("test"), Preconditions::default());
        let Updated::Changed(written) = registry.update(&request, &change, &any, &options, &AdmitAll).await.unwrap()
        else {
            panic!("nothing was changed");
        };
        (seen.into_inner().unwrap(), written.object)
    };
    let (_, first) = write("1").await;
    let ((place, _), second) = write("2").await;
    assert_eq!(place, Arc::as_ptr(&first).addr(), "it was read again");
    // Another object's write shows that some time has passed.
    tokio::time::advance(Duration::from_secs(60)).await;
    let other = json!({"metadata": {"name": "other"}});
    assert_eq!(c.call("POST", "/api/v1/namespaces/default/configmaps", other).await.code, 201);
    patch(&c, "/api/v1/namespaces/default/configmaps/other", json!({"data": {"a": "2"}})).await;
    let ((place, live), _) = write("3").await;
    assert_ne!(place, Arc::as_ptr(&second).addr(), "it is kept for ever");
    assert_eq!(live.unwrap(), *second);
}
