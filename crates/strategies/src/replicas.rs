//! Validation of replica counts in the status of workloads (`ValidateReplicaSetStatus` and others).

use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};

/// The replica counts in the status of a kind.
pub struct Counts {
    /// Count fields, in order of validation. None may be negative.
    pub all: &'static [&'static str],
    /// Counts that may not exceed `replicas`.
    pub parts: &'static [&'static str],
    /// The error for `availableReplicas` above `readyReplicas`; `None` skips the check.
    pub ready: Option<&'static str>,
}

/// Checks that counts are not negative, partial counts do not exceed the total, and `collisionCount` never decreases.
pub fn status(o: &Object, old: &Object, counts: &Counts, errors: &mut ErrorList) {
    let number = |o: &Object, k: &str| o.int_at(&["status", k]).unwrap_or(0);
    let at = FieldPath::new("status");
    not_negative(o, counts.all, errors);
    let above = |k: &str, total: &str, why: &str, errors: &mut ErrorList| {
        if number(o, k) > number(o, total) {
            errors.push(FieldError::invalid(&at.child(k), number(o, k), why));
        }
    };
    for k in counts.parts {
        above(k, "replicas", "cannot be greater than status.replicas", errors);
    }
    if let Some(why) = counts.ready {
        above("availableReplicas", "readyReplicas", why, errors);
    }
    const COLLISIONS: [&str; 2] = ["status", "collisionCount"];
    let (now, was) = (o.at(&COLLISIONS).and_then(Value::as_i64), old.at(&COLLISIONS).and_then(Value::as_i64));
    if was.is_some_and(|w| now.is_none_or(|n| n < w)) {
        errors.push(FieldError::invalid(&at.child("collisionCount"), now.unwrap_or(0), "cannot be decremented"));
    }
}

/// Checks that these counts of the status are not negative.
pub fn not_negative(o: &Object, keys: &[&str], errors: &mut ErrorList) {
    for k in keys {
        if let Some(n) = o.int_at(&["status", k]).filter(|n| *n < 0) {
            let why = "must be greater than or equal to 0";
            errors.push(FieldError::invalid(&FieldPath::new("status").child(k), n, why));
        }
    }
}
