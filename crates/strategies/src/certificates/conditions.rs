//! Validation of the conditions of CertificateSigningRequests. Errors of stored objects do not block updates.

use crate::read::text;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};
use std::collections::HashSet;

/// Conditions that only the subresource `approval` adds.
const DECISIONS: [&str; 2] = ["Approved", "Denied"];
/// Conditions that can only be `True`, and cannot be removed.
const FINAL: [&str; 3] = ["Approved", "Denied", "Failed"];

fn conditions(o: &Object) -> &[Value] {
    o.at(&["status", "conditions"]).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn count(list: &[Value], kind: &str) -> usize {
    list.iter().filter(|c| text(c, "type") == kind).count()
}

fn repeats(list: &[Value]) -> bool {
    crate::read::repeats(list.iter().map(|c| text(c, "type"))).contains(&true)
}

pub fn validate(o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
    let before = old.map_or(&[][..], conditions);
    let has = |kind: &str| count(before, kind) > 0;
    let (both, repeated, nameless) = (DECISIONS.iter().all(|d| has(d)), repeats(before), has(""));
    let mut seen: HashSet<&str> = HashSet::new();
    for (i, c) in conditions(o).iter().enumerate() {
        let (kind, at) = (text(c, "type"), FieldPath::new("status.conditions").index(i));
        if kind.is_empty() && !nameless {
            errors.push(FieldError::required(&at.child("type"), ""));
        }
        let allowed: &[&str] = if FINAL.contains(&kind) { &["True"] } else { &["False", "True", "Unknown"] };
        match text(c, "status") {
            "" => errors.push(FieldError::required(&at.child("status"), "")),
            s if !allowed.contains(&s) => errors.push(FieldError::not_supported(&at.child("status"), s, allowed)),
            _ => {}
        }
        let other = DECISIONS.iter().find(|d| DECISIONS.contains(&kind) && **d != kind);
        if !both && other.is_some_and(|other| seen.contains(other)) {
            let why = "Approved and Denied conditions are mutually exclusive";
            errors.push(FieldError::invalid(&at.child("type"), kind, why));
        }
        if !repeated && seen.contains(&kind) {
            errors.push(FieldError::duplicate(&at.child("type"), kind));
        }
        seen.insert(kind);
    }
}

/// Rejects the removal of final conditions, and new decisions through other subresources than `approval`.
pub fn validate_update(subresource: &str, o: &Object, old: &Object, errors: &mut ErrorList) {
    let at = FieldPath::new("status.conditions");
    let (new, before) = (conditions(o), conditions(old));
    for kind in FINAL.iter().filter(|k| count(new, k) < count(before, k)) {
        errors.push(FieldError::forbidden(&at, &format!("updates may not remove a condition of type {kind:?}")));
    }
    for kind in DECISIONS.iter().filter(|k| subresource != "approval" && count(new, k) > count(before, k)) {
        errors.push(FieldError::forbidden(&at, &format!("updates may not add a condition of type {kind:?}")));
    }
}

/// Restores decisions that a status update changed.
pub fn keep_decisions(o: &mut Object, old: &Object) {
    let before = conditions(old);
    let mut new = conditions(o).to_vec();
    for kind in DECISIONS {
        if count(&new, kind) != count(before, kind) {
            continue;
        }
        let kept = before.iter().filter(|c| text(c, "type") == kind);
        for (c, kept) in new.iter_mut().filter(|c| text(c, "type") == kind).zip(kept) {
            *c = kept.clone();
        }
    }
    if !new.is_empty() {
        o.set(&["status", "conditions"], new);
    }
}

/// Sets absent update and transition times of conditions.
pub fn set_times(o: &mut Object, old: &Object, now: &str) {
    let mut new = conditions(o).to_vec();
    for c in &mut new {
        if text(c, "lastUpdateTime").is_empty() {
            c["lastUpdateTime"] = now.into();
        }
        if text(c, "lastTransitionTime").is_empty() {
            let dated = |b: &&Value| b["type"] == c["type"] && b["status"] == c["status"];
            let same = conditions(old).iter().filter(dated).find(|b| !text(b, "lastTransitionTime").is_empty());
            c["lastTransitionTime"] = same.map_or_else(|| now.into(), |b| b["lastTransitionTime"].clone());
        }
    }
    if !new.is_empty() {
        o.set(&["status", "conditions"], new);
    }
}
