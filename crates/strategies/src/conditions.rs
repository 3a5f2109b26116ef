//! Validation of `metav1.Condition` (`k8s.io/apimachinery/pkg/apis/meta/v1/validation`), for the kinds that validate
//! their conditions.

use crate::read::{is_set, repeats, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value, names};

const MESSAGE_MAX: usize = 32 * 1024;
const REASON_MAX: usize = 1024;
const REASON: &str = "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";

pub fn validate(conditions: &[Value], path: &FieldPath, errors: &mut ErrorList) {
    let again = repeats(conditions.iter().map(|c| text(c, "type")));
    for (i, c) in conditions.iter().enumerate() {
        let at = path.index(i);
        let (kind, status, reason) = (text(c, "type"), text(c, "status"), text(c, "reason"));
        if again[i] {
            errors.push(FieldError::duplicate(&at.child("type"), kind));
        }
        let bad = names::qualified_name(kind);
        errors.extend(bad.into_iter().map(|m| FieldError::invalid(&at.child("type"), kind, m)));
        if !matches!(status, "True" | "False" | "Unknown") {
            errors.push(FieldError::not_supported(&at.child("status"), status, &["False", "True", "Unknown"]));
        }
        if c["observedGeneration"].as_i64().is_some_and(|n| n < 0) {
            let why = "must be greater than or equal to zero";
            errors.push(FieldError::invalid(&at.child("observedGeneration"), &c["observedGeneration"], why));
        }
        if !is_set(c, "lastTransitionTime") {
            errors.push(FieldError::required(&at.child("lastTransitionTime"), ""));
        }
        let at_reason = at.child("reason");
        if reason.is_empty() {
            errors.push(FieldError::required(&at_reason, ""));
        } else if !is_reason(reason) {
            errors.push(FieldError::invalid(&at_reason, reason, REASON));
        }
        if reason.len() > REASON_MAX {
            errors.push(FieldError::too_long(&at_reason, REASON_MAX));
        }
        if text(c, "message").len() > MESSAGE_MAX {
            errors.push(FieldError::too_long(&at.child("message"), MESSAGE_MAX));
        }
    }
}

fn is_reason(s: &str) -> bool {
    let b = s.as_bytes();
    let inner = |c: &u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b',' | b':');
    b.first().is_some_and(u8::is_ascii_alphabetic)
        && b.iter().all(inner)
        && b.last().is_some_and(|c| c.is_ascii_alphanumeric() || *c == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn validates_conditions() {
        let check = |changes: Value, expected: &[&str]| {
            let mut c = json!({"type": "A", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
            changes.as_object().into_iter().flatten().for_each(|(k, v)| c[k] = v.clone());
            let mut errors = ErrorList::new();
            validate(&[c], &FieldPath::new("c"), &mut errors);
            let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(errors, expected, "{changes}");
        };
        check(json!({}), &[]);
        check(
            json!({"type": ""}),
            &[
                "c[0].type: Invalid value: \"\": name part must be non-empty",
                "c[0].type: Invalid value: \"\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
            ],
        );
        check(
            json!({"status": "a"}),
            &[r#"c[0].status: Unsupported value: "a": supported values: "False", "True", "Unknown""#],
        );
        check(
            json!({"observedGeneration": -1}),
            &["c[0].observedGeneration: Invalid value: -1: must be greater than or equal to zero"],
        );
        check(json!({"lastTransitionTime": null}), &["c[0].lastTransitionTime: Required value"]);
        check(json!({"reason": ""}), &["c[0].reason: Required value"]);
        check(json!({"reason": "9"}), &[&format!("c[0].reason: Invalid value: \"9\": {REASON}")]);
        check(json!({"reason": "a".repeat(1025)}), &["c[0].reason: Too long: may not be more than 1024 bytes"]);
        let mut errors = ErrorList::new();
        let c = json!({"type": "A", "status": "True", "reason": "R", "lastTransitionTime": "t"});
        validate(&[c.clone(), c], &FieldPath::new("c"), &mut errors);
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), ["c[1].type: Duplicate value: \"A\""]);
    }
}
