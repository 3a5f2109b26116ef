//! Deployment: update strategy.

use super::workload::{Workload, at_most_100_percent, count};
use crate::Config;
use crate::read::{delegated, shown, text};
use crate::replicas::Counts;
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value};
use serde_json::json;

pub fn row(_: &Config) -> Row {
    Row::stored(workload())
}

fn workload() -> Workload {
    Workload { empty_status: || json!({}), validate, ..Workload::new("io.k8s.api.apps.v1.DeploymentSpec", &COUNTS) }
}

const STRATEGY: &str = "io.k8s.api.apps.v1.DeploymentStrategy";

const COUNTS: Counts = Counts {
    all: &[
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
        "collisionCount",
    ],
    parts: &["updatedReplicas", "readyReplicas", "availableReplicas"],
    ready: Some("cannot be greater than readyReplicas"),
};

fn validate(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let strategy = &spec["strategy"];
    let at = path.child("strategy");
    let rolling = &strategy["rollingUpdate"];
    match text(strategy, "type") {
        "Recreate" if rolling.is_object() => {
            let why = "may not be specified when strategy `type` is 'Recreate'";
            errors.push(FieldError::forbidden(&at.child("rollingUpdate"), why));
        }
        "RollingUpdate" if !rolling.is_object() => {
            errors.push(FieldError::required(&at.child("rollingUpdate"), "this should be defaulted and never be nil"));
        }
        "RollingUpdate" => {
            delegated(strategy, STRATEGY, "rollingUpdate", &at, errors);
            let at = at.child("rollingUpdate");
            let (unavailable, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
            // Errors over both fields follow those of each.
            let (unavailable_at, last) = (at.child("maxUnavailable"), at.child("maxSurge"));
            if count(unavailable) == 0 && count(surge) == 0 {
                let why = "may not be 0 when `maxSurge` is 0";
                errors.push(FieldError::invalid(&unavailable_at, unavailable, why).ordered_at(&last));
            }
            at_most_100_percent(unavailable, &unavailable_at, &last, errors);
        }
        "Recreate" => {}
        _ => {
            let shown = shown(strategy, STRATEGY, &at);
            errors.push(FieldError::not_supported(&at, shown, &["Recreate", "RollingUpdate"]));
        }
    }
    let ready = spec["minReadySeconds"].as_i64().unwrap_or(0);
    if let Some(deadline) = spec["progressDeadlineSeconds"].as_i64()
        && deadline <= ready
    {
        let why = "must be greater than minReadySeconds";
        errors.push(FieldError::invalid(&path.child("progressDeadlineSeconds"), deadline, why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apps::workload::tests::base;
    use crate::testing::{check_create, check_status, check_update};
    use serde_json::json;

    #[test]
    fn validates_the_template_beside_a_valid_selector() {
        let mut base = base("Deployment");
        base["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = "Other".into();
        let pull = "spec.template.spec.containers[0].imagePullPolicy: Unsupported value: \"Other\"…";
        let operator =
            "spec.selector.matchExpressions[0].operator: Invalid value: \"Other\": not a valid selector operator";
        let selector = "spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b\"},\"matchExpressions\":…";
        check_create(
            &workload(),
            &base,
            &[
                ("", Value::Null, &[pull]),
                ("/spec/selector/matchExpressions", json!([{"key": "k", "operator": "Other"}]), &[operator, selector]),
            ],
        );
    }

    /// Clauses: C04.immutable-selector
    #[test]
    fn validates_strategy_selector_and_template() {
        let rolling = |r: Value| json!({"type": "RollingUpdate", "rollingUpdate": r});
        let path = "spec.strategy.rollingUpdate";
        let labels =
            "spec.template.metadata.labels: Invalid value: {\"a\":\"c\"}: `selector` does not match template `labels`";
        let policy = "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"";
        check_create(
            &workload(),
            &base("Deployment"),
            &[
                ("", Value::Null, &[]),
                ("/spec/strategy", json!({"type": "Recreate"}), &[]),
                (
                    "/spec/strategy",
                    json!({"type": "Recreate", "rollingUpdate": {}}),
                    &[&format!("{path}: Forbidden: may not be specified when strategy `type` is 'Recreate'")],
                ),
                (
                    "/spec/strategy",
                    rolling(json!({"maxUnavailable": 0, "maxSurge": "0%"})),
                    &[&format!("{path}.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0")],
                ),
                (
                    "/spec/strategy",
                    rolling(json!({"maxUnavailable": "101%", "maxSurge": 1})),
                    &[&format!("{path}.maxUnavailable: Invalid value: \"101%\": must not be greater than 100%")],
                ),
                (
                    "/spec/replicas",
                    json!(-1),
                    &["spec.replicas: Invalid value: -1: must be greater than or equal to 0"],
                ),
                (
                    "/spec/progressDeadlineSeconds",
                    json!(0),
                    &["spec.progressDeadlineSeconds: Invalid value: 0: must be greater than minReadySeconds"],
                ),
                (
                    "/spec/selector",
                    Value::Null,
                    &[
                        "spec.selector: Required value",
                        "spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`",
                    ],
                ),
                (
                    "/spec/selector",
                    json!({}),
                    &["spec.selector: Invalid value: {}: empty selector is invalid for deployment"],
                ),
                ("/spec/template/metadata/labels/a", json!("c"), &[labels]),
                ("/spec/template/spec/restartPolicy", json!("Never"), &[policy]),
                (
                    "/spec/template/spec/activeDeadlineSeconds",
                    json!(1),
                    &[
                        "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in ReplicaSet is not Supported",
                    ],
                ),
            ],
        );
        check_update(
            &workload(),
            &base("Deployment"),
            &[
                ("/spec/replicas", json!(3), &[]),
                (
                    "/spec/selector/matchLabels/c",
                    json!("d"),
                    &[
                        "spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`",
                        "spec.selector: Invalid value: …: field is immutable",
                    ],
                ),
            ],
        );
    }

    #[test]
    fn validates_the_status() {
        let mut old = base("Deployment");
        old["status"] = json!({"replicas": 2, "readyReplicas": 1, "collisionCount": 1});
        let above = "cannot be greater than status.replicas";
        check_status(
            &workload(),
            &old,
            &[
                ("/status/updatedReplicas", json!(2), &[]),
                ("/status/updatedReplicas", json!(3), &[&format!("status.updatedReplicas: Invalid value: 3: {above}")]),
                (
                    "/status/availableReplicas",
                    json!(2),
                    &["status.availableReplicas: Invalid value: 2: cannot be greater than readyReplicas"],
                ),
                (
                    "/status/replicas",
                    json!(-1),
                    &[
                        "status.replicas: Invalid value: -1: must be greater than or equal to 0",
                        &format!("status.updatedReplicas: Invalid value: 0: {above}"),
                        &format!("status.readyReplicas: Invalid value: 1: {above}"),
                        &format!("status.availableReplicas: Invalid value: 0: {above}"),
                    ],
                ),
                (
                    "/status/collisionCount",
                    json!(0),
                    &["status.collisionCount: Invalid value: 0: cannot be decremented"],
                ),
            ],
        );
    }
}
