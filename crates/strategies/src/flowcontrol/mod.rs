//! `flowcontrol.apiserver.k8s.io`: validation of status conditions and mandatory objects.

mod flow_schema;
mod priority_level_configuration;

use crate::read::{repeats, shown, text};
use ::flowcontrol::bootstrap::{Kind, MANDATORY, objects};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};

kinds! { flow_schema, priority_level_configuration }

const EXEMPT: &str = "exempt";

/// Validates the status of either kind: condition types are set and unique.
fn validate_status(o: &Object, _old: &Object, errors: &mut ErrorList) {
    let all = o.at(&["status", "conditions"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let again = repeats(all.iter().map(|c| text(c, "type")));
    for (i, c) in all.iter().enumerate() {
        let (kind, at) = (text(c, "type"), FieldPath::new("status.conditions").index(i).child("type"));
        if again[i] {
            errors.push(FieldError::duplicate(&at, kind));
        }
        if kind.is_empty() {
            errors.push(FieldError::required(&at, ""));
        }
    }
}

/// Returns the mandatory spec of an object with this name, if there is one.
fn mandatory(o: &Object, kind: Kind) -> Option<Value> {
    objects(MANDATORY, kind).into_iter().find(|m| m.name() == o.name()).and_then(|mut m| m.remove(&["spec"]))
}

/// Whether values are equal; empty lists equal absent ones.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            let keys = x.keys().chain(y.keys().filter(|k| !x.contains_key(*k)));
            keys.into_iter().all(|k| same(&a[k], &b[k]))
        }
        (Value::Null, Value::Array(l)) | (Value::Array(l), Value::Null) => l.is_empty(),
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(a, b)| same(a, b)),
        // Fields with defaults are set; other absent fields equal their zero value.
        (Value::Null, other) | (other, Value::Null) => other.is_null() || *other == false || *other == "",
        _ => a == b,
    }
}

fn unequal(o: &Object, but: &str, definition: &str, errors: &mut ErrorList) {
    let why = format!("spec of '{}'{but} must equal the fixed value", o.name());
    let at = FieldPath::new("spec");
    let value = shown(o.get("spec").unwrap_or(&Value::Null), definition, &at);
    errors.push(FieldError::invalid(&at, value, &why));
}
