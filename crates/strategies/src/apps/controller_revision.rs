//! ControllerRevision: immutable data.

use crate::Config;
use crate::plain::Ruled;
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};

pub fn row(_: &Config) -> Row {
    Row::stored(rules())
}

fn rules() -> Ruled {
    Ruled::new(|_, _| {}).with_since(validate_since).with_update(validate_update)
}

fn validate_since(o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
    let why = match o.get("data") {
        None | Some(Value::Null) => "data is mandatory",
        Some(Value::Object(_)) => return,
        Some(_) => "data must be a valid JSON object",
    };
    if old.is_none() {
        errors.push(FieldError::required(&FieldPath::new("data"), why));
    }
}

fn validate_update(o: &Object, old: &Object, errors: &mut ErrorList) {
    if o.get("data") != old.get("data") {
        let value = o.get("data").cloned().unwrap_or_default();
        errors.push(FieldError::invalid(&FieldPath::new("data"), value, "field is immutable"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_create, check_update};
    use serde_json::json;

    #[test]
    fn validates_data() {
        let strategy = rules();
        let base = json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 1, "data": {"a": 1}});
        let no_object = "data: Required value: data must be a valid JSON object";
        check_create(
            &strategy,
            &base,
            &[
                ("/data", json!({}), &[]),
                ("/data", Value::Null, &["data: Required value: data is mandatory"]),
                ("/data", json!("x"), &[no_object]),
                ("/data", json!([]), &[no_object]),
            ],
        );
        check_update(
            &strategy,
            &base,
            &[
                ("/data", json!({"a": 2}), &["data: Invalid value: {\"a\":2}: field is immutable"]),
                ("/data", Value::Null, &["data: Invalid value: null: field is immutable"]),
                ("/revision", json!(-1), &["revision: Invalid value: -1: must be greater than or equal to 0"]),
            ],
        );
    }
}
