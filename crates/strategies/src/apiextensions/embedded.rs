//! Validation of embedded objects (`x-kubernetes-embedded-resource`), which have kind, version and object metadata
//! (`pkg/apiserver/schema/objectmeta`).

use meta::field::ErrorList;
use meta::{FieldError, FieldPath, GroupVersion, Object, Value, names};
use schema::Schema;

const METADATA: &str = "metadata";

/// Whether a schema is that of an object with metadata.
fn is_object(s: &Schema) -> bool {
    s.custom && s.field(METADATA).is_some_and(|f| !f.schema.custom)
}

/// Whether a schema contains embedded objects.
pub fn any(s: &Schema) -> bool {
    let below = |s: &Schema| (s.custom && is_object(s)) || any(s);
    s.fields.iter().filter(|f| f.schema.custom).any(|f| below(&f.schema))
        || s.items.as_deref().is_some_and(below)
        || s.additional.as_deref().is_some_and(below)
}

/// Validates every embedded object below `v`, but not `v` itself.
pub fn validate(v: &Value, s: &Schema, at: &FieldPath, errors: &mut ErrorList) {
    let mut each = |v: &Value, s: &Schema, at: FieldPath| {
        if is_object(s) && v.is_object() {
            object(v, &at, errors);
        }
        validate(v, s, &at, errors);
    };
    match v {
        Value::Object(m) => {
            for (k, v) in m {
                match (s.field(k), s.additional.as_deref()) {
                    (Some(f), _) if f.schema.custom => each(v, &f.schema, at.child(k)),
                    (None, Some(s)) => each(v, s, at.key(k)),
                    _ => {}
                }
            }
        }
        Value::Array(a) => {
            let Some(s) = s.items.as_deref() else { return };
            a.iter().enumerate().for_each(|(i, v)| each(v, s, at.index(i)));
        }
        _ => {}
    }
}

fn object(v: &Value, at: &FieldPath, errors: &mut ErrorList) {
    for key in ["apiVersion", "kind"] {
        let at = at.child(key);
        match v[key].as_str() {
            None if v[key].is_null() => errors.push(FieldError::required(&at, "")),
            None => errors.push(FieldError::invalid(&at, &v[key], "must be a string")),
            Some("") => errors.push(FieldError::invalid(&at, "", "must not be empty")),
            Some(text) if key == "apiVersion" => {
                if GroupVersion::parse(text).is_none() {
                    errors.push(FieldError::invalid(&at, text, format!("unexpected GroupVersion string: {text}")));
                }
            }
            Some(kind) => {
                let wrong = names::dns_1035_label(&kind.to_lowercase());
                if !wrong.is_empty() {
                    let why = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
                    errors.push(FieldError::invalid(&at, kind, why));
                }
            }
        }
    }
    if v[METADATA].is_object()
        && let Some(o) = Object::from_value(v.clone())
    {
        registry::metadata::embedded(&o, &at.child(METADATA), errors);
    }
}
