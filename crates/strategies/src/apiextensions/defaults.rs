//! Validation of schema defaults, which must be valid and pruned
//! (`k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting`).

use super::{definition, json_schema};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value};
use schema::structural::Work;

/// Validates all defaults of a schema.
pub fn validate(s: &Value, path: &FieldPath, errors: &mut ErrorList) {
    walk(s, path, &Work::new(), errors);
}

fn walk(s: &Value, path: &FieldPath, work: &Work, errors: &mut ErrorList) {
    if let Some(d) = s.get("default").filter(|d| !d.is_null()) {
        validate_default(s, d, &path.child("default"), work, errors);
    }
    if s["items"].is_object() {
        walk(&s["items"], &path.child("items"), work, errors);
    }
    for (k, p) in s["properties"].as_object().into_iter().flatten() {
        walk(p, &path.child("properties").key(k), work, errors);
    }
}

fn validate_default(s: &Value, default: &Value, path: &FieldPath, work: &Work, errors: &mut ErrorList) {
    if let Some(ty) = s["type"].as_str().filter(|t| !t.is_empty() && !json_schema::TYPES.contains(t)) {
        let have = match default {
            Value::Number(n) if n.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::Bool(_) => "boolean",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            _ => "object",
        };
        let why = format!(" in body must be of type {ty}: {have:?}");
        errors.push(FieldError::type_invalid(path, have, why));
        return;
    }
    let compiled = schema::structural::node(s, definition::metadata());
    let mut pruned = default.clone();
    match schema::typed(&mut pruned, &compiled) {
        Ok(found) if !found.unknown.is_empty() => {
            errors.push(FieldError::invalid(path, default, "must not have unknown fields"));
        }
        Ok(_) => {}
        Err(e) => errors.push(FieldError::invalid(path, default, format!("must result in valid metadata: {e}"))),
    }
    schema::structural::validate(default, None, &compiled, path, work, errors);
}
