//! The fields that an object has, and sets of fields seen through a schema.

use super::shape::{MAX_DEPTH, Shape, TypeRef, item_element};
use crate::fieldset::{Node, PathElement, Set};
use meta::{Map, Object, Value};
use schema::{Schema, Type};
use std::collections::BTreeMap;

/// The paths that an applied configuration claims: leaves, keys of maps and items of lists, but no structs.
pub fn field_set(v: &Value, t: TypeRef<'_>) -> Set {
    Set::from_nodes(collect(v, t, 0).1)
}

/// [`field_set`] of an API object.
pub fn field_set_of_object(o: &Object, t: TypeRef<'_>) -> Set {
    Set::from_nodes(members(&o.0, t, 0))
}

/// Whether the value itself is claimed, and the paths below.
fn collect(v: &Value, t: TypeRef<'_>, depth: usize) -> (bool, Vec<Node>) {
    if depth > MAX_DEPTH {
        return (true, Vec::new());
    }
    match (Shape::read(t, v), v) {
        (Shape::Object, Value::Object(m)) => (false, members(m, t, depth)),
        (Shape::List(kind), Value::Array(a)) => {
            let mut items: BTreeMap<PathElement, Option<&Value>> = BTreeMap::new();
            for v in a {
                if let Ok(e) = item_element(v, kind, t.items()) {
                    items.entry(e).and_modify(|known| *known = None).or_insert(Some(v));
                }
            }
            let nodes = items
                .into_iter()
                .map(|(element, v)| {
                    let below = v.map(|v| collect(v, t.items(), depth + 1).1).unwrap_or_default();
                    Node { element, member: true, children: Set::from_nodes(below) }
                })
                .collect();
            (false, nodes)
        }
        // A null where a container belongs claims nothing by itself; its parent decides.
        (_, Value::Null) if t.schema.is_some_and(|s| matches!(s.ty, Type::Array | Type::Map | Type::Struct)) => {
            (t.atomic || !t.granular && t.schema.is_some_and(|s| s.atomic), Vec::new())
        }
        _ => (true, Vec::new()),
    }
}

fn members(m: &Map<String, Value>, t: TypeRef<'_>, depth: usize) -> Vec<Node> {
    m.iter()
        .map(|(k, c)| {
            let (below, declared) = t.declared(k);
            let (member, below) = collect(c, below, depth + 1);
            let nothing = c.is_null() || c.as_object().is_some_and(Map::is_empty);
            Node {
                element: PathElement::field(k),
                member: member || nothing || !declared,
                children: Set::from_nodes(below),
            }
        })
        .collect()
}

/// The set together with all declared fields on the way to its paths.
pub fn ensure_named(set: Set, t: TypeRef<'_>) -> Set {
    let nodes = set
        .nodes()
        .iter()
        .map(|n| {
            let (below, declared) = match &n.element {
                PathElement::Field(name) => t.declared(name),
                _ => (t.items(), false),
            };
            let named = declared && !n.children.is_empty();
            Node {
                element: n.element.clone(),
                member: n.member || named,
                children: ensure_named(n.children.clone(), below),
            }
        })
        .collect();
    Set::from_nodes(nodes)
}

/// The set after fields that it knows as granular became atomic: whoever owned a part owns the whole. `None` when nothing
/// changes.
pub fn reconcile(set: &Set, t: TypeRef<'_>) -> Option<Set> {
    // Usually nothing changes: the set is copied only if something does.
    cuts_atomic(set, t).then(|| without_cuts(set, t))
}

fn below<'a>(n: &Node, t: TypeRef<'a>) -> TypeRef<'a> {
    match &n.element {
        PathElement::Field(name) => t.member(name),
        _ => t.items(),
    }
}

/// Whether the set has paths below atomic values.
fn cuts_atomic(set: &Set, t: TypeRef<'_>) -> bool {
    t.schema.is_some()
        && set.nodes().iter().filter(|n| !n.children.is_empty()).any(|n| {
            let t = below(n, t);
            is_atomic(t) || cuts_atomic(&n.children, t)
        })
}

fn without_cuts(set: &Set, t: TypeRef<'_>) -> Set {
    let whole = |n: &Node| {
        let t = below(n, t);
        if n.children.is_empty() || t.schema.is_none() && !t.atomic {
            n.clone()
        } else if is_atomic(t) {
            Node { element: n.element.clone(), member: true, children: Set::new() }
        } else {
            Node { element: n.element.clone(), member: n.member, children: without_cuts(&n.children, t) }
        }
    };
    Set::from_nodes(set.nodes().iter().map(whole).collect())
}

fn is_atomic(t: TypeRef<'_>) -> bool {
    let by_schema = |s: &Schema| match s.ty {
        Type::Array => s.list == schema::ListType::Atomic,
        Type::Map | Type::Struct | Type::Raw => s.atomic,
        _ => false,
    };
    t.atomic || !t.granular && t.schema.is_some_and(by_schema)
}
