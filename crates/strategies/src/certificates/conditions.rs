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
            errors.push(FieldError::invalid(&FieldPath::new("status.conditions"), kind, why));
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn request(conditions: &[(&str, &str)]) -> Object {
        let all: Vec<Value> = conditions.iter().map(|(t, s)| json!({"type": t, "status": s})).collect();
        Object::from_value(json!({"status": {"conditions": all}})).expect("an object")
    }

    fn texts(errors: &ErrorList) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn validates_conditions() {
        let check = |new: &[(&str, &str)], old: Option<&[(&str, &str)]>, expected: &[&str]| {
            let mut errors = ErrorList::new();
            validate(&request(new), old.map(request).as_ref(), &mut errors);
            assert_eq!(texts(&errors), expected, "{new:?}");
        };
        let exclusive =
            "status.conditions: Invalid value: \"Denied\": Approved and Denied conditions are mutually exclusive";
        check(&[("Approved", "True")], None, &[]);
        check(
            &[("Approved", "False")],
            None,
            &["status.conditions[0].status: Unsupported value: \"False\": supported values: \"True\""],
        );
        check(&[("Approved", "True"), ("Denied", "True")], None, &[exclusive]);
        check(&[("Approved", "True"), ("Denied", "True")], Some(&[("Approved", "True"), ("Denied", "True")]), &[]);
        check(&[("A", "True"), ("A", "False")], None, &["status.conditions[1].type: Duplicate value: \"A\""]);
        check(
            &[("", "")],
            None,
            &["status.conditions[0].type: Required value", "status.conditions[0].status: Required value"],
        );
    }

    #[test]
    fn only_approval_adds_decisions_and_none_is_removed() {
        let check = |subresource: &str, new: &[(&str, &str)], old: &[(&str, &str)], expected: &[&str]| {
            let mut errors = ErrorList::new();
            validate_update(subresource, &request(new), &request(old), &mut errors);
            assert_eq!(texts(&errors), expected, "{subresource} {new:?}");
        };
        let add = "status.conditions: Forbidden: updates may not add a condition of type \"Approved\"";
        let remove = "status.conditions: Forbidden: updates may not remove a condition of type \"Failed\"";
        check("approval", &[("Approved", "True")], &[], &[]);
        check("status", &[("Approved", "True")], &[], &[add]);
        check("status", &[("Failed", "True")], &[], &[]);
        check("approval", &[], &[("Failed", "True")], &[remove]);
    }

    #[test]
    fn sets_absent_times() {
        let mut new = request(&[("Approved", "True"), ("A", "True")]);
        let mut old = request(&[("A", "True")]);
        old.set(&["status", "conditions"], json!([{"type": "A", "status": "True", "lastTransitionTime": "t0"}]));
        set_times(&mut new, &old, "t1");
        let times: Vec<&str> = conditions(&new).iter().map(|c| text(c, "lastTransitionTime")).collect();
        assert_eq!(times, ["t1", "t0"]);
    }
}
