//! PodDisruptionBudget: one bound, and counts that are not negative.

use crate::Config;
use crate::conditions;
use crate::plain::Ruled;
use crate::read::shown;
use crate::replicas::not_negative;
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};
use registry::NameRule;

pub fn row(_: &Config) -> Row {
    Row::stored(Ruled::new(validate).with_status(validate_status).named(NameRule::PathSegment))
}

const BOUNDS: [&str; 2] = ["minAvailable", "maxUnavailable"];

fn validate(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let at = FieldPath::new("spec");
    if BOUNDS.iter().all(|k| !spec[*k].is_null()) {
        let shown = shown(spec, "io.k8s.api.policy.v1.PodDisruptionBudgetSpec", &at);
        errors.push(FieldError::invalid(&at, shown, "minAvailable and maxUnavailable cannot be both set"));
    }
    for k in BOUNDS {
        let share = spec[k].as_str().and_then(|s| s.strip_suffix('%')).and_then(|n| n.parse::<u64>().ok());
        if share.is_some_and(|n| n > 100) {
            errors.push(FieldError::invalid(&at.child(k), &spec[k], "must not be greater than 100%"));
        }
    }
}

fn validate_status(o: &Object, _old: &Object, errors: &mut ErrorList) {
    let all = o.at(&["status", "conditions"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    conditions::validate(all, &FieldPath::new("status.conditions"), errors);
    not_negative(o, &["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"], errors);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_create, check_status};
    use serde_json::json;

    #[test]
    fn validates_bounds_and_status() {
        let base =
            json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": {}});
        let above = "Invalid value: \"101%\": must not be greater than 100%";
        check_create(
            &Ruled::new(validate),
            &base,
            &[
                ("/spec/minAvailable", json!("100%"), &[]),
                ("/spec/minAvailable", json!("101%"), &[&format!("spec.minAvailable: {above}")]),
                ("/spec/maxUnavailable", json!("101%"), &[&format!("spec.maxUnavailable: {above}")]),
                (
                    "/spec/minAvailable",
                    json!(-1),
                    &["spec.minAvailable: Invalid value: -1: must be greater than or equal to 0"],
                ),
                (
                    "/spec/minAvailable",
                    json!("a"),
                    &[
                        "spec.minAvailable: Invalid value: \"a\": a valid percent string must be a numeric string followed by an ending '%'…",
                    ],
                ),
                (
                    "/spec",
                    json!({"minAvailable": 1, "maxUnavailable": 1}),
                    &["spec: Invalid value: …: minAvailable and maxUnavailable cannot be both set"],
                ),
                (
                    "/spec/unhealthyPodEvictionPolicy",
                    json!("Other"),
                    &[
                        r#"spec.unhealthyPodEvictionPolicy: Unsupported value: "Other": supported values: "AlwaysAllow", "IfHealthyBudget""#,
                    ],
                ),
            ],
        );
        let condition = json!([{"type": "A", "status": "True", "reason": "", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        check_status(
            &Ruled::new(validate).with_status(validate_status),
            &base,
            &[
                (
                    "/status/disruptionsAllowed",
                    json!(-1),
                    &["status.disruptionsAllowed: Invalid value: -1: must be greater than or equal to 0"],
                ),
                ("/status/conditions", condition, &["status.conditions[0].reason: Required value"]),
            ],
        );
    }
}
