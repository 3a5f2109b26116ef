//! Differences between two objects.

use super::shape::{MAX_DEPTH, Shape, TypeRef, is_empty, item_element, list, object, same_item};
use crate::fieldset::{Node, PathElement, Set};
use meta::{Map, Object, Value};
use schema::ListType;
use std::collections::BTreeMap;

/// The paths that were added, removed or modified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Paths that only the new object has.
    pub added: Set,
    /// Paths with different values.
    pub modified: Set,
    /// Paths that only the old object has.
    pub removed: Set,
}

impl Comparison {
    /// Whether both objects are equal.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }

    /// Without some fields and everything below them.
    #[must_use]
    pub fn exclude(self, fields: &Set) -> Self {
        if fields.is_empty() {
            return self;
        }
        Self {
            added: self.added.recursive_difference(fields),
            modified: self.modified.recursive_difference(fields),
            removed: self.removed.recursive_difference(fields),
        }
    }
}

/// Compares two versions of an object; `None` for one that does not exist. An item that repeats in a list is compared with
/// its repetitions as one leaf.
pub fn compare(old: Option<&Value>, new: Option<&Value>, t: TypeRef<'_>) -> Comparison {
    let mut c = Parts::default();
    match (old, new) {
        (None, None) => {}
        (None, Some(v)) => c.added.nodes = whole(v, t, 0),
        (Some(v), None) => c.removed.nodes = whole(v, t, 0),
        (Some(a), Some(b)) => c = both(a, b, t, 0),
    }
    finish(c)
}

fn finish(p: Parts) -> Comparison {
    Comparison {
        added: Set::from_nodes(p.added.nodes),
        modified: Set::from_nodes(p.modified.nodes),
        removed: Set::from_nodes(p.removed.nodes),
    }
}

#[derive(Default)]
struct Part {
    member: bool,
    nodes: Vec<Node>,
}

impl Part {
    fn is_empty(&self) -> bool {
        !self.member && self.nodes.is_empty()
    }

    fn push(&mut self, element: &mut Option<PathElement>, more: bool, child: Self) {
        if child.is_empty() {
            return;
        }
        let e = if more { element.clone() } else { element.take() };
        if let Some(element) = e {
            self.nodes.push(Node { element, member: child.member, children: Set::from_nodes(child.nodes) });
        }
    }
}

#[derive(Default)]
struct Parts {
    added: Part,
    modified: Part,
    removed: Part,
}

impl Parts {
    fn modified() -> Self {
        Self { modified: Part { member: true, nodes: Vec::new() }, ..Self::default() }
    }

    fn push(&mut self, element: impl FnOnce() -> PathElement, child: Self) {
        let (a, m, r) = (!child.added.is_empty(), !child.modified.is_empty(), !child.removed.is_empty());
        if !(a || m || r) {
            return;
        }
        let mut e = Some(element());
        self.added.push(&mut e, m || r, child.added);
        self.modified.push(&mut e, r, child.modified);
        self.removed.push(&mut e, false, child.removed);
    }
}

/// All paths of a value that only one side has: containers are paths as well.
fn whole(v: &Value, t: TypeRef<'_>, depth: usize) -> Vec<Node> {
    if depth > MAX_DEPTH {
        return Vec::new();
    }
    let node =
        |element, v: &Value, t| Node { element, member: true, children: Set::from_nodes(whole(v, t, depth + 1)) };
    match (Shape::read(t, v), v) {
        (Shape::Object, Value::Object(m)) => {
            m.iter().map(|(k, c)| node(PathElement::field(k), c, t.member(k))).collect()
        }
        (Shape::List(kind), Value::Array(a)) => {
            let mut items: BTreeMap<PathElement, Option<&Value>> = BTreeMap::new();
            for v in a {
                if let Ok(e) = item_element(v, kind, t.items()) {
                    items.entry(e).and_modify(|known| *known = None).or_insert(Some(v));
                }
            }
            items
                .into_iter()
                .map(|(e, v)| match v {
                    Some(v) => node(e, v, t.items()),
                    None => Node { element: e, member: true, children: Set::new() },
                })
                .collect()
        }
        _ => Vec::new(),
    }
}

fn either(old: Option<&Value>, new: Option<&Value>, t: TypeRef<'_>, depth: usize) -> Parts {
    let one = |v| Part { member: true, nodes: whole(v, t, depth) };
    match (old, new) {
        (None, None) => Parts::default(),
        (None, Some(v)) => Parts { added: one(v), ..Parts::default() },
        (Some(v), None) => Parts { removed: one(v), ..Parts::default() },
        (Some(a), Some(b)) => both(a, b, t, depth),
    }
}

fn both(a: &Value, b: &Value, t: TypeRef<'_>, depth: usize) -> Parts {
    // A null takes the other's shape.
    let shape = if b.is_null() { Shape::read(t, a) } else { Shape::read(t, b) };
    let fits = |v: &Value| match shape {
        Shape::Object => v.is_object() || v.is_null(),
        Shape::List(_) => v.is_array() || v.is_null(),
        Shape::Leaf => true,
    };
    if depth > MAX_DEPTH
        || matches!(shape, Shape::Leaf)
        || is_empty(Some(a)) && is_empty(Some(b))
        || !fits(a)
        || !fits(b)
    {
        return if equal(a, b) { Parts::default() } else { Parts::modified() };
    }
    if let Shape::List(kind) = shape {
        return lists(list(Some(a)), list(Some(b)), kind, t.items(), depth);
    }
    members(object(Some(a)), object(Some(b)), t, None, depth)
}

/// Compares the members of two objects, except one.
fn members(
    a: Option<&Map<String, Value>>,
    b: Option<&Map<String, Value>>,
    t: TypeRef<'_>,
    skip: Option<&str>,
    depth: usize,
) -> Parts {
    let mut parts = Parts::default();
    let (mut old, mut new) = (a.into_iter().flatten().peekable(), b.into_iter().flatten().peekable());
    loop {
        // Both are sorted.
        let (k, l, r) = match (old.peek(), new.peek()) {
            (None, None) => return parts,
            (Some((k, _)), Some((n, _))) if k == n => (*k, old.next().map(|e| e.1), new.next().map(|e| e.1)),
            (Some((k, _)), Some((n, _))) if k > n => (*n, None, new.next().map(|e| e.1)),
            (None, Some((n, _))) => (*n, None, new.next().map(|e| e.1)),
            (Some((k, _)), _) => (*k, old.next().map(|e| e.1), None),
        };
        if skip == Some(k.as_str()) {
            continue;
        }
        parts.push(|| PathElement::field(k), either(l, r, t.member(k), depth + 1));
    }
}

/// Compares two versions of an API object without `metadata.managedFields`. An object that does not exist is an empty one.
pub fn compare_objects(old: Option<&Object>, new: &Object, t: TypeRef<'_>) -> Comparison {
    const METADATA: &str = "metadata";
    let mut parts = members(old.map(|o| &o.0), Some(&new.0), t, Some(METADATA), 0);
    let (a, b) = (old.and_then(|o| o.0.get(METADATA)), new.0.get(METADATA));
    let inside = match (a, b) {
        (Some(Value::Object(a)), Some(Value::Object(b))) if !(a.is_empty() && b.is_empty()) => {
            members(Some(a), Some(b), t.member(METADATA), Some("managedFields"), 1)
        }
        (None, Some(Value::Object(b))) if !b.is_empty() => {
            let added = members(None, Some(b), t.member(METADATA), Some("managedFields"), 1).added;
            Parts { added: Part { member: true, ..added }, ..Parts::default() }
        }
        (a, b) => either(a, b, t.member(METADATA), 1),
    };
    parts.push(|| PathElement::field(METADATA), inside);
    finish(parts)
}

/// Equal as far as Kubernetes is concerned: numbers by value.
fn equal(a: &Value, b: &Value) -> bool {
    a == b || crate::fieldset::compare_values(a, b).is_eq()
}

fn lists(a: &[Value], b: &[Value], kind: &ListType, items: TypeRef<'_>, depth: usize) -> Parts {
    let mut parts = Parts::default();
    let same = |x: &Value, y: &Value| same_item(x, y, kind, items);
    let distinct = |l: &[Value]| l.iter().enumerate().all(|(i, x)| !l[..i].iter().any(|y| same(x, y)));
    // The usual case: the same items in the same order. No path element is made for an item that did not change.
    if a.len() == b.len() && a.len() <= 32 && a.iter().zip(b).all(|(x, y)| same(x, y)) && distinct(a) {
        for (x, y) in a.iter().zip(b) {
            let child = both(x, y, items, depth + 1);
            if let Ok(e) = item_element(y, kind, items) {
                parts.push(|| e, child);
            }
        }
        return parts;
    }
    let mut all: BTreeMap<PathElement, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
    for v in a {
        if let Ok(e) = item_element(v, kind, items) {
            all.entry(e).or_default().0.push(v);
        }
    }
    for v in b {
        if let Ok(e) = item_element(v, kind, items) {
            all.entry(e).or_default().1.push(v);
        }
    }
    let mark = || Part { member: true, nodes: Vec::new() };
    for (e, (old, new)) in all {
        let child = match (old.as_slice(), new.as_slice()) {
            ([] | [_], [] | [_]) => either(old.first().copied(), new.first().copied(), items, depth + 1),
            ([_, _, ..], [_, _, ..]) => {
                let unchanged = old.len() == new.len() && old.iter().zip(&new).all(|(x, y)| equal(x, y));
                if unchanged { Parts::default() } else { Parts::modified() }
            }
            // Repetitions were removed: the mark of repetition goes, the remaining item is added.
            ([_, _, ..], rest) => Parts { removed: mark(), ..either(None, rest.first().copied(), items, depth + 1) },
            (rest, _) => Parts { added: mark(), ..either(rest.first().copied(), None, items, depth + 1) },
        };
        parts.push(|| e, child);
    }
    parts
}
