//! ReplicaSet.

use super::workload::Workload;
use crate::Config;
use crate::replicas::Counts;
use crate::table::Row;

pub fn row(_: &Config) -> Row {
    Row::stored(Workload::new("io.k8s.api.apps.v1.ReplicaSetSpec", &COUNTS))
}

const COUNTS: Counts = Counts {
    all: &[
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "terminatingReplicas",
        "observedGeneration",
    ],
    parts: &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"],
    ready: Some("cannot be greater than readyReplicas"),
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_create, check_status, check_update};
    use meta::Value;
    use serde_json::json;

    fn base() -> Value {
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "r"}, "spec": {
            "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]}}}})
    }

    fn workload() -> Workload {
        Workload::new("io.k8s.api.apps.v1.ReplicaSetSpec", &COUNTS)
    }

    /// Clauses: C01.selector
    #[test]
    fn validates_selector_and_template() {
        let labels = |value: &str| {
            format!(
                "spec.template.metadata.labels: Invalid value: {value}: `selector` does not match template `labels`"
            )
        };
        check_create(
            &workload(),
            &base(),
            &[
                ("", Value::Null, &[]),
                ("/spec/template/metadata/labels/c", json!("d"), &[]),
                ("/spec/template/metadata/labels/a", json!("c"), &[&labels("{\"a\":\"c\"}")]),
                (
                    "/spec/replicas",
                    json!(-1),
                    &["spec.replicas: Invalid value: -1: must be greater than or equal to 0"],
                ),
            ],
        );
        let immutable = "spec.selector: Invalid value: …: field is immutable";
        check_update(
            &workload(),
            &base(),
            &[
                ("/spec/replicas", json!(3), &[]),
                ("/spec/selector/matchLabels/c", json!("d"), &[&labels("{\"a\":\"b\"}"), immutable]),
            ],
        );
    }

    #[test]
    fn validates_the_status() {
        let mut old = base();
        old["status"] = json!({"replicas": 2, "readyReplicas": 1});
        let above = "cannot be greater than status.replicas";
        check_status(
            &workload(),
            &old,
            &[
                ("/status/availableReplicas", json!(1), &[]),
                (
                    "/status/fullyLabeledReplicas",
                    json!(3),
                    &[&format!("status.fullyLabeledReplicas: Invalid value: 3: {above}")],
                ),
                (
                    "/status/availableReplicas",
                    json!(2),
                    &["status.availableReplicas: Invalid value: 2: cannot be greater than readyReplicas"],
                ),
            ],
        );
    }
}
