//! Accessors for fields of typed values; an absent field reads as empty.

use meta::field::{BadValue, ErrorList};
use meta::{FieldPath, Map, Value};
use std::collections::HashSet;
use std::hash::Hash;

pub fn items<'a>(v: &'a Value, key: &str) -> &'a [Value] {
    v[key].as_array().map_or(&[], Vec::as_slice)
}

pub fn text<'a>(v: &'a Value, key: &str) -> &'a str {
    v[key].as_str().unwrap_or_default()
}

/// Returns for each item whether an equal item precedes it.
pub fn repeats<T: Eq + Hash>(all: impl IntoIterator<Item = T>) -> Vec<bool> {
    let mut known = HashSet::new();
    all.into_iter().map(|t| !known.insert(t)).collect()
}

pub fn is_set(v: &Value, key: &str) -> bool {
    !v[key].is_null()
}

/// Whether a field is set, also to an empty list or map, which typed reading removes. `path` is that of `v`.
pub fn is_sent(v: &Value, key: &str, path: &FieldPath) -> bool {
    is_set(v, key) || !schema::sent::at(&path.child(key).to_string()).is_null()
}

/// Formats a value of an API type for an error, as Go prints the server's internal struct. `path` is where it was sent.
pub fn shown(v: &Value, definition: &str, path: &FieldPath) -> BadValue {
    BadValue::formatted(&formatted(v, definition, path))
}

/// Like [`shown`], for a label selector, whose fields are in the order of the type.
pub fn shown_selector(v: &Value, path: &FieldPath) -> BadValue {
    shown(v, "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector", path)
}

/// Like [`shown`], for a list.
pub fn shown_list(list: &[Value], definition: &str, path: &FieldPath) -> BadValue {
    let each = list.iter().enumerate().map(|(i, v)| formatted(v, definition, &path.index(i)));
    BadValue::formatted(&format!("[{}]", each.collect::<Vec<_>>().join(",")))
}

/// Like [`shown`], for a field of the type, which may be absent.
pub fn shown_field(v: Option<&Value>, definition: &str, field: &str, path: &FieldPath) -> BadValue {
    BadValue::formatted(&match kinds::catalog().definitions.get(definition).and_then(|s| s.field(field)) {
        Some(f) => schema::go_format::show_field(v, f, path),
        None => v.cloned().unwrap_or_default().to_string(),
    })
}

/// Runs the rules of a delegated field; see `kinds/build/grammar.md`. `path` is that of `parent`.
pub fn delegated(parent: &Value, definition: &str, field: &str, path: &FieldPath, errors: &mut ErrorList) {
    if let Some(schema) = kinds::catalog().definitions.get(definition) {
        let none = Map::new();
        let parent = parent.as_object().unwrap_or(&none);
        schema::rules::validate_field(parent, schema, field, path, errors);
    }
}

fn formatted(v: &Value, definition: &str, path: &FieldPath) -> String {
    match kinds::catalog().definitions.get(definition) {
        Some(schema) => schema::go_format::show(v, schema, path),
        None => v.to_string(),
    }
}
