//! Validation of pod failure policies.

use crate::read::{items, repeats, text};
use meta::field::{BadValue, ErrorList};
use meta::{FieldError, FieldPath, Value};

const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];
const OPERATORS: [&str; 2] = ["In", "NotIn"];
const STATUSES: [&str; 3] = ["False", "True", "Unknown"];
const RULES_MAX: usize = 20;
const CODES_MAX: usize = 255;
const CONDITIONS_MAX: usize = 20;

pub fn validate(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let containers: Vec<&str> = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| items(&spec["template"]["spec"], list))
        .map(|c| text(c, "name"))
        .collect();
    let rules = items(&spec["podFailurePolicy"], "rules");
    let at = path.child("rules");
    if rules.len() > RULES_MAX {
        errors.push(FieldError::too_many(&at, rules.len(), RULES_MAX));
    }
    for (i, r) in rules.iter().enumerate() {
        rule(r, spec, &at.index(i), &containers, errors);
    }
}

/// Checks that a value is set and supported.
fn chosen(v: &str, of: &[&str], at: &FieldPath, errors: &mut ErrorList) {
    if v.is_empty() {
        let list: Vec<String> = of.iter().map(|s| format!("{s:?}")).collect();
        errors.push(FieldError::required(at, &format!("valid values: [{}]", list.join(" "))));
    } else if !of.contains(&v) {
        errors.push(FieldError::not_supported(at, v, of));
    }
}

fn rule(r: &Value, spec: &Value, at: &FieldPath, containers: &[&str], errors: &mut ErrorList) {
    let action = text(r, "action");
    chosen(action, &ACTIONS, &at.child("action"), errors);
    if action == "FailIndex" && spec["backoffLimitPerIndex"].is_null() {
        let why = "requires the backoffLimitPerIndex to be set";
        errors.push(FieldError::invalid(&at.child("action"), action, why));
    }
    let codes = &r["onExitCodes"];
    let conditions = items(r, "onPodConditions");
    if codes.is_object() {
        exit_codes(codes, &at.child("onExitCodes"), containers, errors);
    }
    if conditions.len() > CONDITIONS_MAX {
        errors.push(FieldError::too_many(&at.child("onPodConditions"), conditions.len(), CONDITIONS_MAX));
    }
    for (i, c) in conditions.iter().enumerate() {
        let at = at.child("onPodConditions").index(i);
        chosen(text(c, "status"), &STATUSES, &at.child("status"), errors);
    }
    match (codes.is_object(), conditions.is_empty()) {
        (true, false) => {
            let why = "specifying both OnExitCodes and OnPodConditions is not supported";
            errors.push(FieldError::invalid(at, BadValue::Omitted, why));
        }
        (false, true) => {
            let why = "specifying one of OnExitCodes and OnPodConditions is required";
            errors.push(FieldError::invalid(at, BadValue::Omitted, why));
        }
        _ => {}
    }
}

fn exit_codes(codes: &Value, at: &FieldPath, containers: &[&str], errors: &mut ErrorList) {
    let operator = text(codes, "operator");
    chosen(operator, &OPERATORS, &at.child("operator"), errors);
    if let Some(name) = codes["containerName"].as_str()
        && !containers.contains(&name)
    {
        let why = "must be one of the container or initContainer names in the pod template";
        errors.push(FieldError::invalid(&at.child("containerName"), name, why));
    }
    let at = at.child("values");
    let values: Vec<i64> = items(codes, "values").iter().filter_map(Value::as_i64).collect();
    if values.is_empty() {
        errors.push(FieldError::invalid(&at, &codes["values"], "at least one value is required"));
    } else if values.len() > CODES_MAX {
        errors.push(FieldError::too_many(&at, values.len(), CODES_MAX));
    }
    let again = repeats(&values);
    for (i, v) in values.iter().enumerate() {
        if operator == "In" && *v == 0 {
            errors.push(FieldError::invalid(&at.index(i), *v, "must not be 0 for the In operator"));
        }
        if again[i] {
            errors.push(FieldError::duplicate(&at.index(i), *v));
        }
    }
    if values.windows(2).any(|w| w[0] > w[1]) {
        errors.push(FieldError::invalid(&at, &codes["values"], "must be ordered"));
    }
}
