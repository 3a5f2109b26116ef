//! Removal of fields.

use super::shape::{MAX_DEPTH, Shape, TypeRef, item_element};
use crate::fieldset::{PathElement, Set};
use meta::{Map, Value};

/// A copy without the fields of the set. An object that loses its last part stays, a list becomes `null`, to distinguish
/// it from a removed one until [`drop_emptied_lists`].
pub fn remove_items(v: &Value, set: &Set, t: TypeRef<'_>) -> Value {
    match remove(v, set, t, 0) {
        Value::Object(m) if m.is_empty() => Value::Null,
        other => other,
    }
}

/// Removes the members that became `null`: those that were `null` before stay.
pub fn drop_emptied_lists(v: &mut Value, before: &Value) {
    // Usually there are none.
    if has_null(v) {
        drop_from(v, Some(before).filter(|b| has_null(b)));
    }
}

fn drop_from(v: &mut Value, before: Option<&Value>) {
    match v {
        Value::Object(m) => m.retain(|k, child| {
            let before = before.and_then(|b| b.get(k));
            if child.is_null() {
                return before.is_some_and(Value::is_null);
            }
            drop_from(child, before);
            true
        }),
        // Items have no lasting place: a list that had `null` in some stays as it is.
        Value::Array(a) if !before.is_some_and(has_null) => a.iter_mut().for_each(|item| drop_from(item, None)),
        _ => {}
    }
}

fn has_null(v: &Value) -> bool {
    let inside = |v: &Value| v.is_null() || has_null(v);
    match v {
        Value::Object(m) => m.values().any(inside),
        Value::Array(a) => a.iter().any(inside),
        _ => false,
    }
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
            Value::Object(out)
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
