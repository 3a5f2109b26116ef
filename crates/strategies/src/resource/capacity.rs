//! Validation of device capacities and request policies.

use crate::read::{is_set, items};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Quantity, Value};

const VALUES_MAX: usize = 10;

fn quantity(v: &Value) -> Option<Quantity> {
    v.as_str().and_then(|s| Quantity::parse(s).ok())
}

/// Validates a capacity; `shared` is whether several claims may share the device.
pub fn capacity(c: &Value, shared: bool, at: &FieldPath, errors: &mut ErrorList) {
    let policy = &c["requestPolicy"];
    if policy.is_null() {
        return;
    }
    let at = at.child("requestPolicy");
    if !shared {
        errors.push(FieldError::forbidden(&at, "allowMultipleAllocations must be true"));
        return;
    }
    let Some(value) = quantity(&c["value"]) else { return };
    let (values, range) = (items(policy, "validValues"), &policy["validRange"]);
    let usual = quantity(&policy["default"]);
    let missing = |name: &str| FieldError::required(&at.child("default"), &format!("required when {name} is defined"));
    match (values.is_empty(), range.is_null(), usual) {
        (false, false, _) => {
            let why = "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at the same time";
            errors.push(FieldError::forbidden(&at, why));
        }
        (false, true, None) => errors.push(missing("validValues")),
        (true, false, None) => errors.push(missing("validRange")),
        (false, true, Some(usual)) => valid_values(values, usual, value, &at.child("validValues"), errors),
        (true, false, Some(usual)) => valid_range(range, usual, value, &at.child("validRange"), errors),
        (true, true, _) => {}
    }
}

fn valid_values(values: &[Value], usual: Quantity, value: Quantity, at: &FieldPath, errors: &mut ErrorList) {
    let all: Vec<Quantity> = values.iter().filter_map(quantity).collect();
    for (i, _) in all.windows(2).enumerate().filter(|(_, w)| w[0] > w[1]) {
        let why = "values must be sorted in ascending order";
        errors.push(FieldError::invalid(&at.index(i + 1), all[i + 1].to_string(), why));
    }
    if all.len() > VALUES_MAX {
        errors.push(FieldError::too_many(at, all.len(), VALUES_MAX));
    } else {
        for (i, q) in all.iter().enumerate().filter(|(_, q)| **q > value) {
            let why = format!("option is larger than capacity value: {value}");
            errors.push(FieldError::invalid(&at.index(i), q.to_string(), why));
        }
        let whole: Vec<i64> = all.iter().map(Quantity::value).collect();
        for (i, n) in whole.iter().enumerate().filter(|(i, n)| whole[..*i].contains(n)) {
            errors.push(FieldError::duplicate(&at.index(i), n.to_string()));
        }
    }
    if !all.contains(&usual) {
        let why = "default value is not valid according to the requestPolicy";
        errors.push(FieldError::invalid(at, usual.to_string(), why));
    }
}

fn valid_range(range: &Value, usual: Quantity, value: Quantity, at: &FieldPath, errors: &mut ErrorList) {
    let Some(min) = quantity(&range["min"]) else {
        errors.push(FieldError::required(&at.child("min"), "required when validRange is defined"));
        return;
    };
    let mut wrong = |field: &str, q: Quantity, why: String| {
        errors.push(FieldError::invalid(&at.child(field), q.to_string(), why));
    };
    if min > value {
        wrong("min", min, format!("min is larger than capacity value: {value}"));
    }
    if usual < min {
        wrong("min", usual, format!("default is less than min: {min}"));
    }
    let max = quantity(&range["max"]);
    if let Some(max) = max {
        if min > max {
            wrong("max", min, format!("min is larger than max: {max}"));
        }
        if max > value {
            wrong("max", max, format!("max is larger than capacity value: {value}"));
        }
        if usual > max {
            wrong("max", usual, format!("default is more than max: {max}"));
        }
    }
    let Some(step) = quantity(&range["step"]).filter(|_| is_set(range, "step")) else { return };
    if step.sign() <= 0 {
        wrong("step", step, "must be greater than zero".to_owned());
        return;
    }
    let first = min + step;
    if first > value {
        wrong("step", step, format!("one step {first} is larger than capacity value: {value}"));
    }
    for q in [Some(usual), max].into_iter().flatten() {
        if q.value().saturating_sub(min.value()) % step.value() != 0 {
            wrong("step", q, format!("value is not a multiple of a given step ({step}) from ({min})"));
        }
    }
}
