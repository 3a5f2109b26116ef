//! What the controllers of many pods may say of how many there are (`ValidateReplicaSetStatus` and the like).

use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};

/// Counts of one kind of status.
pub struct Counts {
    /// What is counted, in the order in which it is looked at: none is below zero.
    pub all: &'static [&'static str],
    /// Parts of `replicas`.
    pub parts: &'static [&'static str],
    /// What is said of an available pod that is not ready, if it is.
    pub ready: Option<&'static str>,
}

/// Counts are not negative, parts are not more than the whole, and collisions are only ever added.
pub fn status(o: &Object, old: &Object, counts: &Counts, errors: &mut ErrorList) {
    let number = |o: &Object, k: &str| o.int_at(&["status", k]).unwrap_or(0);
    let at = FieldPath::new("status");
    not_negative(o, counts.all, errors);
    let above = |k: &str, whole: &str, why: &str, errors: &mut ErrorList| {
        if number(o, k) > number(o, whole) {
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

/// Counts in the status.
pub fn not_negative(o: &Object, keys: &[&str], errors: &mut ErrorList) {
    for k in keys {
        if let Some(n) = o.int_at(&["status", k]).filter(|n| *n < 0) {
            let why = "must be greater than or equal to 0";
            errors.push(FieldError::invalid(&FieldPath::new("status").child(k), n, why));
        }
    }
}
