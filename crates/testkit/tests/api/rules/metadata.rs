//! Metadata in updates: every update is checked as an object and as a change, and the kind's validation repeats some of it.

use crate::field_errors::check_errors;
use serde_json::{Value, json};
use testkit::Cluster;

const LABEL: &str = "metadata.labels: Invalid value: \"a b\": a valid label";
const FINALIZER: &str =
    "metadata.finalizers[0]: Invalid value: \"a\": name is neither a standard finalizer name nor is it fully qualified";
const GONE: &str = "metadata.deletionTimestamp: Invalid value: \"2026-01-01T00:00:00Z\": field is immutable";
const SEGMENT: &str = "metadata.generateName: Invalid value: \"a/b\": may not contain '/'";
const SUBDOMAIN: &str = "metadata.generateName: Invalid value: \"A\": a lowercase RFC 1123 subdomain";
const BOTH: &str = "metadata.generateName: Invalid value: \"a/b\": a lowercase RFC 1123 subdomain";
const GRACE: &str = "metadata.deletionGracePeriodSeconds: Invalid value: -1: field is immutable";

#[tokio::test]
async fn updates_repeat_the_checks_of_metadata() {
    let c = Cluster::start(1).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    for (path, name) in [(maps, "m"), (budgets, "b"), (quotas, "q")] {
        assert_eq!(c.call("POST", path, json!({"metadata": {"name": name}, "spec": {}})).await.code, 201);
    }
    let cases = |labels: &'static [&'static str],
                 finalizers: &'static [&'static str],
                 gone: &'static [&'static str],
                 grace: &'static [&'static str]| {
        vec![
            ("/metadata/labels", json!({"a": "a b"}), labels),
            ("/metadata/finalizers", json!(["a"]), finalizers),
            ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"), gone),
            ("/metadata/deletionGracePeriodSeconds", json!(-1), grace),
        ]
    };
    let body = |name: &str| json!({"metadata": {"name": name}});
    let twice = cases(&[LABEL; 4], &[FINALIZER; 2], &[GONE; 2], &[GRACE; 2]);
    check_errors(&c, "PUT", &format!("{maps}/m"), &body("m"), &twice).await;
    let once = cases(&[LABEL; 3], &[FINALIZER], &[GONE; 2], &[GRACE; 2]);
    check_errors(&c, "PUT", &format!("{quotas}/q"), &body("q"), &once).await;
    check_errors(&c, "PUT", &format!("{quotas}/q/status"), &body("q"), &once).await;
    let generic = cases(&[LABEL; 2], &[], &[GONE], &[GRACE]);
    let live = c.call("GET", &format!("{budgets}/b"), Value::Null).await.body;
    check_errors(&c, "PUT", &format!("{budgets}/b/status"), &live, &generic).await;
}

#[tokio::test]
async fn a_prefix_for_names_is_checked_by_kinds_that_validate_the_object_again() {
    let c = Cluster::start(1).await;
    let (maps, quotas) = ("/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/resourcequotas");
    for (path, name) in [(maps, "m"), (quotas, "q")] {
        assert_eq!(c.call("POST", path, json!({"metadata": {"name": name}, "spec": {}})).await.code, 201);
    }
    let prefix = |v: &str, errors: &'static [&'static str]| ("/metadata/generateName", json!(v), errors);
    let body = |name: &str| json!({"metadata": {"name": name}});
    check_errors(&c, "PUT", &format!("{quotas}/q"), &body("q"), &[prefix("A", &[]), prefix("a/b", &[SEGMENT])]).await;
    let cases = [prefix("A", &[SUBDOMAIN]), prefix("a/b", &[BOTH, SEGMENT])];
    check_errors(&c, "PUT", &format!("{maps}/m"), &body("m"), &cases).await;
}

#[tokio::test]
async fn status_updates_of_service_ranges_keep_metadata() {
    let c = Cluster::start(1).await;
    let ranges = "/apis/networking.k8s.io/v1/servicecidrs";
    let body = json!({"metadata": {"name": "r"}, "spec": {"cidrs": ["10.200.0.0/28"]}});
    assert_eq!(c.call("POST", ranges, body.clone()).await.code, 201);
    let mut labelled = body;
    labelled["metadata"]["labels"] = json!({"a": "a b"});
    let a = c.call("PUT", &format!("{ranges}/r/status"), labelled).await;
    assert_eq!((a.code, &a.body["metadata"]["labels"]), (200, &Value::Null), "{}", a.body);
}
