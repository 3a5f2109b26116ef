//! PriorityClass.

use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object};

const POLICIES: [&str; 2] = ["Never", "PreemptLowerPriority"];
/// The highest value a user may give.
const VALUE_MAX: i64 = 1_000_000_000;

pub fn priority_class(o: &Object, errors: &mut ErrorList) {
    let system = o.name().starts_with("system-");
    let value = o.int_at(&["value"]).unwrap_or(0);
    if value > VALUE_MAX && !system {
        let why = format!("maximum allowed value of a user defined priority is {VALUE_MAX}");
        errors.push(FieldError::forbidden(&FieldPath::new("value"), &why));
    }
    let at = FieldPath::new("preemptionPolicy");
    match o.str_at(&["preemptionPolicy"]).unwrap_or_default() {
        "" => errors.push(FieldError::required(&at, "")),
        p if !POLICIES.contains(&p) => errors.push(FieldError::not_supported(&at, p, &POLICIES)),
        _ => {}
    }
}

/// What may not change need not be right as well.
pub fn priority_class_update(_o: &Object, _old: &Object, errors: &mut ErrorList) {
    errors.retain(|e| e.path != "preemptionPolicy" || e.body.contains("field is immutable"));
}
