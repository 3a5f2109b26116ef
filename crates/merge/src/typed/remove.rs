//! Removal of fields.

use super::shape::{MAX_DEPTH, Shape, TypeRef, item_element};
use crate::fieldset::{PathElement, Set};
use meta::{Map, Value};

/// A copy without the fields of the set. A container that loses its last part becomes `null`, to distinguish it
/// from a removed one.
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
