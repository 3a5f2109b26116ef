//! Removal of fields.

use super::shape::{MAX_DEPTH, Shape, TypeRef, item_element};
use crate::fieldset::{PathElement, Set};
use meta::{Map, Value};
use schema::Type;

/// A copy without the fields of the set. A container that loses its last part becomes `null`, to distinguish it
/// from a removed one until [`strip_nulls`] removes it.
pub fn remove_items(v: &Value, set: &Set, t: TypeRef<'_>) -> Value {
    remove(v, set, t, 0)
}

fn remove(v: &Value, set: &Set, t: TypeRef<'_>, depth: usize) -> Value {
    if set.is_empty() || depth > MAX_DEPTH {
        return v.clone();
    }
    match (Shape::read(t, v), v) {
        (Shape::Object, Value::Object(m)) => {
            let mut out = Map::new();
            for (k, child) in m {
                match set.field(k) {
                    Some(n) if n.member => {}
                    Some(n) => _ = out.insert(k.clone(), remove(child, &n.children, t.member(k), depth + 1)),
                    None => _ = out.insert(k.clone(), child.clone()),
                }
            }
            if out.is_empty() { Value::Null } else { Value::Object(out) }
        }
        (Shape::List(kind), Value::Array(a)) => {
            let node = |item: &Value| {
                let e: Option<PathElement> = item_element(item, kind, t.items()).ok();
                e.and_then(|e| set.node(&e))
            };
            let out: Vec<Value> = a
                .iter()
                .filter_map(|item| match node(item) {
                    Some(n) if n.member => None,
                    Some(n) => Some(remove(item, &n.children, t.items(), depth + 1)),
                    None => Some(item.clone()),
                })
                .collect();
            if out.is_empty() { Value::Null } else { Value::Array(out) }
        }
        _ => v.clone(),
    }
}

/// Removes `null` members that the schema defines as not nullable, as upstream's decoding does.
pub fn strip_nulls(v: &mut Value, t: TypeRef<'_>) {
    // Usually there are none, which needs no schema to see.
    if has_null(v) {
        strip(v, t, 0);
    }
}

fn has_null(v: &Value) -> bool {
    match v {
        Value::Null => true,
        Value::Object(m) => m.values().any(has_null),
        Value::Array(a) => a.iter().any(has_null),
        _ => false,
    }
}

fn strip(v: &mut Value, t: TypeRef<'_>, depth: usize) {
    let Some(s) = t.schema.filter(|_| depth <= MAX_DEPTH) else { return };
    match (s.ty, v) {
        (Type::Map | Type::Struct, Value::Object(m)) => {
            m.retain(|k, child| {
                let below = t.member(k);
                if child.is_null() {
                    return below.schema.is_none_or(|s| s.nullable);
                }
                strip(child, below, depth + 1);
                true
            });
        }
        (Type::Array, Value::Array(a)) => a.iter_mut().for_each(|item| strip(item, t.items(), depth + 1)),
        _ => {}
    }
}
