//! Field and label selectors of a review, as query text (`rawSelector`) or requirements. Unreadable selectors are
//! reported and ignored: authorizers then grant less.

use crate::read::{items, text};
use meta::field::ErrorList;
use meta::selector::{FieldTerm, Operator, Requirement};
use meta::{FieldError, FieldPath, FieldSelector, LabelSelector, Value, names};

/// Maximum number of requirements of a selector, as in queries.
const MAX_REQUIREMENTS: usize = 1_000;

pub fn validate(v: &Value, labels: bool, at: &FieldPath, errors: &mut ErrorList) {
    let (raw, requirements) = (text(v, "rawSelector"), items(v, "requirements"));
    if !raw.is_empty() && !requirements.is_empty() {
        let why = "may not specified at the same time as requirements";
        errors.push(FieldError::invalid(&at.child("rawSelector"), raw, why));
    }
    if raw.is_empty() && requirements.is_empty() {
        let why = format!("when {at} is specified, requirements or rawSelector is required");
        errors.push(FieldError::required(&at.child("requirements"), &why));
    }
    if requirements.len() > MAX_REQUIREMENTS {
        errors.push(FieldError::too_many(&at.child("requirements"), requirements.len(), MAX_REQUIREMENTS));
        return;
    }
    for (i, r) in requirements.iter().enumerate() {
        let at = at.child("requirements").index(i);
        let key = text(r, "key");
        if labels {
            errors
                .extend(names::qualified_name(key).into_iter().map(|m| FieldError::invalid(&at.child("key"), key, m)));
            for (j, v) in items(r, "values").iter().filter_map(Value::as_str).enumerate() {
                let at = at.child("values").index(j);
                errors.extend(names::label_value(v).into_iter().map(|m| FieldError::invalid(&at, v, m)));
            }
        } else if key.is_empty() {
            errors.push(FieldError::required(&at.child("key"), "must be specified"));
        }
        match text(r, "operator") {
            "In" | "NotIn" if items(r, "values").is_empty() => {
                let why = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(FieldError::required(&at.child("values"), why));
            }
            "Exists" | "DoesNotExist" if !items(r, "values").is_empty() => {
                let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(FieldError::forbidden(&at.child("values"), why));
            }
            // Clients may know operators that this server does not.
            _ => {}
        }
    }
}

fn values(r: &Value) -> Vec<String> {
    items(r, "values").iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Returns the readable part of a field selector, and whether it is all of it.
pub fn fields(v: &Value) -> (Option<FieldSelector>, bool) {
    let raw = text(v, "rawSelector");
    if !raw.is_empty() {
        let parsed = FieldSelector::parse(raw).ok();
        let read = parsed.is_some();
        return (parsed, read);
    }
    let (mut terms, mut read) = (Vec::new(), true);
    for r in items(v, "requirements") {
        let (field, values) = (text(r, "key"), values(r));
        match (text(r, "operator"), &values[..]) {
            (operator @ ("In" | "NotIn"), [value]) => {
                terms.push(FieldTerm { field: field.into(), value: value.clone(), equal: operator == "In" });
            }
            _ => read = false,
        }
    }
    ((!terms.is_empty()).then_some(FieldSelector { terms }), read)
}

/// Returns the readable part of a label selector, and whether it is all of it.
pub fn labels(v: &Value) -> (Option<LabelSelector>, bool) {
    let raw = text(v, "rawSelector");
    if !raw.is_empty() {
        let parsed = LabelSelector::parse(raw).ok();
        let read = parsed.is_some();
        return (parsed, read);
    }
    let (mut requirements, mut read) = (Vec::new(), true);
    for r in items(v, "requirements") {
        let operator = match text(r, "operator") {
            "In" => Operator::In,
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            _ => {
                read = false;
                continue;
            }
        };
        let mut values = values(r);
        values.sort();
        requirements.push(Requirement { key: text(r, "key").into(), operator, values });
    }
    ((!requirements.is_empty()).then_some(LabelSelector { requirements, nothing: false }), read)
}
