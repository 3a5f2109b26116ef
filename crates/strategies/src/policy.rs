//! PodDisruptionBudgets: one bound, and counts that are none below zero.

use crate::conditions;
use crate::read::shown;
use crate::replicas::not_negative;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};

const BOUNDS: [&str; 2] = ["minAvailable", "maxUnavailable"];

pub fn disruption_budget(o: &Object, errors: &mut ErrorList) {
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

pub fn disruption_budget_status(o: &Object, _old: &Object, errors: &mut ErrorList) {
    let all = o.at(&["status", "conditions"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    conditions::validate(all, &FieldPath::new("status.conditions"), errors);
    not_negative(o, &["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"], errors);
}
