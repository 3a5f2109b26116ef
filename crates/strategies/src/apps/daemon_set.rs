//! DaemonSet: update strategy, and template generation.

use super::workload::{Workload, at_most_100_percent, count};
use crate::Config;
use crate::read::{delegated, shown, text};
use crate::replicas::Counts;
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};
use serde_json::json;

pub fn row(_: &Config) -> Row {
    Row::stored(workload())
}

fn workload() -> Workload {
    Workload {
        empty_status,
        default,
        prepare_for_update,
        validate,
        ..Workload::new("io.k8s.api.apps.v1.DaemonSetSpec", &COUNTS)
    }
}

const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

const STRATEGY: &str = "io.k8s.api.apps.v1.DaemonSetUpdateStrategy";

const COUNTS: Counts = Counts {
    all: &[
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "observedGeneration",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
        "collisionCount",
    ],
    parts: &[],
    ready: None,
};

fn empty_status() -> Value {
    json!({"currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0, "numberReady": 0})
}

fn default(o: &mut Object) {
    if o.annotation(TEMPLATE_GENERATION).is_none() {
        o.set_annotation(TEMPLATE_GENERATION, "1");
    }
}

fn prepare_for_update(o: &mut Object, old: &Object) {
    let template = |o: &Object| o.at(&["spec", "template"]).cloned();
    let was: i64 = old.annotation(TEMPLATE_GENERATION).and_then(|n| n.parse().ok()).unwrap_or(0);
    let now = was + i64::from(template(o) != template(old));
    o.set_annotation(TEMPLATE_GENERATION, &now.to_string());
}

fn validate(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let strategy = &spec["updateStrategy"];
    let at = path.child("updateStrategy");
    match text(strategy, "type") {
        "OnDelete" => {}
        "RollingUpdate" if !strategy["rollingUpdate"].is_object() => {
            errors.push(FieldError::required(&at.child("rollingUpdate"), ""));
        }
        "RollingUpdate" => {
            delegated(strategy, STRATEGY, "rollingUpdate", &at, errors);
            let at = at.child("rollingUpdate");
            let rolling = &strategy["rollingUpdate"];
            let (most, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
            let (most_at, last) = (at.child("maxUnavailable"), at.child("maxSurge"));
            at_most_100_percent(most, &most_at, &last, errors);
            at_most_100_percent(surge, &last, &last, errors);
            match (count(most), count(surge)) {
                (0, 0) => {
                    let e = FieldError::required(&most_at, "cannot be 0 when maxSurge is 0");
                    errors.push(e.ordered_at(&last));
                }
                (0, _) | (_, 0) => {}
                _ => {
                    let why = "may not be set when maxUnavailable is non-zero";
                    errors.push(FieldError::invalid(&last, surge, why));
                }
            }
        }
        _ => {
            let shown = shown(strategy, STRATEGY, &at);
            errors.push(FieldError::not_supported(&at, shown, &["RollingUpdate", "OnDelete"]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apps::workload::tests::base;
    use crate::testing::{check_create, check_status};

    #[test]
    fn validates_the_update_strategy_and_the_status() {
        let rolling = |r: Value| json!({"type": "RollingUpdate", "rollingUpdate": r});
        let path = "spec.updateStrategy.rollingUpdate";
        check_create(
            &workload(),
            &base("DaemonSet"),
            &[
                ("", Value::Null, &[]),
                ("/spec/updateStrategy", json!({"type": "OnDelete"}), &[]),
                ("/spec/updateStrategy", json!({"type": "OnDelete", "rollingUpdate": {"maxUnavailable": "x"}}), &[]),
                (
                    "/spec/updateStrategy",
                    rolling(json!({"maxUnavailable": 0, "maxSurge": -1})),
                    &[&format!("{path}.maxSurge: Invalid value: -1: must be greater than or equal to 0")],
                ),
                ("/spec/updateStrategy", rolling(json!({"maxUnavailable": 0, "maxSurge": 1})), &[]),
                (
                    "/spec/updateStrategy",
                    rolling(json!({"maxUnavailable": 0, "maxSurge": 0})),
                    &[&format!("{path}.maxUnavailable: Required value: cannot be 0 when maxSurge is 0")],
                ),
                (
                    "/spec/updateStrategy",
                    rolling(json!({"maxUnavailable": 1, "maxSurge": 1})),
                    &[&format!("{path}.maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero")],
                ),
                (
                    "/spec/updateStrategy",
                    rolling(json!({"maxUnavailable": "101%", "maxSurge": 0})),
                    &[&format!("{path}.maxUnavailable: Invalid value: \"101%\": must not be greater than 100%")],
                ),
                (
                    "/spec/updateStrategy",
                    rolling(json!({"maxUnavailable": "11111111111111111111%", "maxSurge": 1})),
                    &[
                        &format!(
                            "{path}.maxUnavailable: Invalid value: \"11111111111111111111%\": must not be greater than 100%"
                        ),
                        &format!("{path}.maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero"),
                    ],
                ),
                (
                    "/spec/updateStrategy",
                    json!({"type": "Other"}),
                    &["spec.updateStrategy: Unsupported value: …: supported values: \"RollingUpdate\", \"OnDelete\""],
                ),
            ],
        );
        let mut old = base("DaemonSet");
        old["status"] = empty_status();
        old["status"]["collisionCount"] = 2.into();
        check_status(
            &workload(),
            &old,
            &[
                (
                    "/status/numberReady",
                    json!(-1),
                    &["status.numberReady: Invalid value: -1: must be greater than or equal to 0"],
                ),
                (
                    "/status/collisionCount",
                    json!(1),
                    &["status.collisionCount: Invalid value: 1: cannot be decremented"],
                ),
            ],
        );
    }

    #[test]
    fn counts_template_generations() {
        let mut old = Object::from_value(base("DaemonSet")).expect("an object");
        default(&mut old);
        let mut new = old.clone();
        prepare_for_update(&mut new, &old);
        assert_eq!(new.annotation(TEMPLATE_GENERATION), Some("1"));
        new.set(&["spec", "template", "metadata", "labels", "c"], "d");
        prepare_for_update(&mut new, &old);
        assert_eq!(new.annotation(TEMPLATE_GENERATION), Some("2"));
    }
}
