//! Duplicate items of lists that are sets or maps.

use crate::types::{ListType, Schema};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath};
use serde_json::{Map, Value};

/// Reports repeated items, at every depth (`k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype`).
pub fn duplicates(v: &Value, schema: &Schema, path: &FieldPath, errors: &mut ErrorList) {
    if !schema.custom {
        return;
    }
    match v {
        Value::Object(m) => {
            for (k, v) in m {
                if let Some(f) = schema.field(k) {
                    duplicates(v, &f.schema, &path.child(k), errors);
                } else if let Some(s) = schema.additional.as_deref() {
                    duplicates(v, s, &path.key(k), errors);
                }
            }
        }
        Value::Array(a) => {
            match &schema.list {
                ListType::Atomic => {}
                ListType::Set => repeated(a, path, errors),
                ListType::Map(keys) => {
                    if let Some((i, v)) = a.iter().enumerate().find(|(_, v)| !v.is_object() && !v.is_null()) {
                        let why = "must be an object for an array of list-type map";
                        errors.push(FieldError::invalid(&path.index(i), v, why));
                    } else {
                        let key = |v: &Value| -> Value {
                            let pairs = keys.iter().filter_map(|k| Some((k.to_string(), v.get(&**k)?.clone())));
                            pairs.collect::<Map<String, Value>>().into()
                        };
                        repeated(&a.iter().map(key).collect::<Vec<_>>(), path, errors);
                    }
                }
            }
            if let Some(items) = schema.items.as_deref() {
                a.iter().enumerate().for_each(|(i, v)| duplicates(v, items, &path.index(i), errors));
            }
        }
        _ => {}
    }
}

/// Reports each repeated value once, at its second index.
fn repeated(values: &[Value], path: &FieldPath, errors: &mut ErrorList) {
    let mut seen = std::collections::HashMap::new();
    for (i, v) in values.iter().enumerate() {
        let times: &mut usize = seen.entry(v.to_string()).or_default();
        *times += 1;
        if *times == 2 {
            errors.push(FieldError::duplicate(&path.index(i), v));
        }
    }
}
