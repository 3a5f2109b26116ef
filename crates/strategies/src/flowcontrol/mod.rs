//! `flowcontrol.apiserver.k8s.io`: what a level and a schema may say, and that the mandatory ones say what they must.

mod flow_schema;
mod priority_level_configuration;

use crate::read::{repeats, shown, text};
use ::flowcontrol::bootstrap::{Kind, MANDATORY, objects};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};

kinds! { flow_schema, priority_level_configuration }

const EXEMPT: &str = "exempt";

/// Of either kind: conditions have a type, each another.
fn validate_status(o: &Object, _old: &Object, errors: &mut ErrorList) {
    let all = o.at(&["status", "conditions"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let again = repeats(all.iter().map(|c| text(c, "type")));
    for (i, c) in all.iter().enumerate() {
        let (kind, at) = (text(c, "type"), FieldPath::new("status.conditions").index(i).child("type"));
        if again[i] {
            errors.push(FieldError::duplicate(&at, kind));
        }
        if kind.is_empty() {
            errors.push(FieldError::required(&at, "must not be empty"));
        }
    }
}

/// What the server itself says of an object with this name.
fn mandatory(o: &Object, kind: Kind) -> Option<Value> {
    objects(MANDATORY, kind).into_iter().find(|m| m.name() == o.name()).and_then(|mut m| m.remove(&["spec"]))
}

/// Equal, where nothing is as good as an empty list.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            let keys = x.keys().chain(y.keys().filter(|k| !x.contains_key(*k)));
            keys.into_iter().all(|k| same(&a[k], &b[k]))
        }
        (Value::Null, Value::Array(l)) | (Value::Array(l), Value::Null) => l.is_empty(),
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(a, b)| same(a, b)),
        // What has a default is there, and what is not, is nothing.
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
