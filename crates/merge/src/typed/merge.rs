//! Merges a configuration into an object.

use super::shape::{MAX_DEPTH, Shape, TypeRef, is_empty, item_element, list};
use crate::fieldset::PathElement;
use meta::{Map, Object, Value};
use schema::ListType;
use std::collections::{BTreeMap, BTreeSet};

/// Merges both values; those of the configuration win. Items of associative lists keep the configuration's order;
/// the object's other items stay where they were among them.
pub fn merge(live: &Value, config: &Value, t: TypeRef<'_>) -> Value {
    merged(live, config, t, 0)
}

/// [`merge`] of two API objects, without the live `metadata.managedFields`.
pub fn merge_objects(live: &Object, config: &Object, t: TypeRef<'_>) -> Object {
    const METADATA: &str = "metadata";
    const MANAGED_FIELDS: &str = "managedFields";
    let mut out = members(&live.0, &config.0, t, 0, Some(METADATA));
    let below = t.member(METADATA);
    let mut metadata = match (live.0.get(METADATA), config.0.get(METADATA)) {
        (Some(Value::Object(l)), Some(Value::Object(c))) if !l.is_empty() && !c.is_empty() => {
            Value::Object(members(l, c, below, 1, Some(MANAGED_FIELDS)))
        }
        (Some(l), Some(c)) => merged(l, c, below, 1),
        (Some(one), None) | (None, Some(one)) => one.clone(),
        (None, None) => return Object(out),
    };
    if let Value::Object(m) = &mut metadata {
        m.remove(MANAGED_FIELDS);
    }
    out.insert(METADATA.to_owned(), metadata);
    Object(out)
}

fn merged(live: &Value, config: &Value, t: TypeRef<'_>, depth: usize) -> Value {
    if depth > MAX_DEPTH || is_empty(Some(live)) || is_empty(Some(config)) && !config.is_null() {
        // An empty configuration sets nothing, and keeps the live value.
        let keeps = is_empty(Some(config)) && !is_empty(Some(live));
        let container = !matches!(Shape::read(t, config), Shape::Leaf);
        return if keeps && container { live.clone() } else { config.clone() };
    }
    match (Shape::read(t, config), live, config) {
        (Shape::Object, Value::Object(l), Value::Object(c)) => Value::Object(members(l, c, t, depth, None)),
        (Shape::List(kind), Value::Array(_), Value::Array(_)) => {
            Value::Array(lists(list(Some(live)), list(Some(config)), kind, t.items(), depth))
        }
        // A null container in the configuration is an empty one.
        (_, l, Value::Null) if !matches!(Shape::read(t, l), Shape::Leaf) => l.clone(),
        _ => config.clone(),
    }
}

/// Merges the members of two objects, except one.
fn members(
    live: &Map<String, Value>,
    config: &Map<String, Value>,
    t: TypeRef<'_>,
    depth: usize,
    skip: Option<&str>,
) -> Map<String, Value> {
    let (mut old, mut new) = (live.iter().peekable(), config.iter().peekable());
    let next = || loop {
        // Both are sorted.
        let (k, v) = match (old.peek(), new.peek()) {
            (None, None) => return None,
            (Some((k, _)), Some((n, _))) if k == n => {
                let ((k, l), (_, c)) = (old.next()?, new.next()?);
                if Some(k.as_str()) == skip {
                    continue;
                }
                return Some((k.clone(), merged(l, c, t.member(k), depth + 1)));
            }
            (Some((k, _)), Some((n, _))) if k > n => new.next()?,
            (None, Some(_)) => new.next()?,
            (Some(_), _) => old.next()?,
        };
        if Some(k.as_str()) != skip {
            return Some((k.clone(), v.clone()));
        }
    };
    std::iter::from_fn(next).collect()
}

fn lists(live: &[Value], config: &[Value], kind: &ListType, items: TypeRef<'_>, depth: usize) -> Vec<Value> {
    let elements = |l: &[Value]| -> Vec<(PathElement, usize)> {
        l.iter().enumerate().filter_map(|(i, v)| Some((item_element(v, kind, items).ok()?, i))).collect()
    };
    let (left, right) = (elements(live), elements(config));
    let in_config: BTreeMap<&PathElement, usize> = right.iter().map(|(e, i)| (e, *i)).collect();
    // Items that repeat in the live object are not merged with, only replaced.
    let mut in_live: BTreeMap<&PathElement, Option<usize>> = BTreeMap::new();
    for (e, i) in &left {
        in_live.entry(e).and_modify(|known| *known = None).or_insert(Some(*i));
    }
    let mut shared = right.iter().map(|(e, _)| e).filter(|e| in_live.contains_key(e));
    let mut next_shared = shared.next();
    let mut taken: BTreeSet<&PathElement> = BTreeSet::new();
    let combine = |e: &PathElement, i: usize| match in_live.get(e).copied().flatten() {
        Some(l) => merged(&live[l], &config[i], items, depth + 1),
        None => config[i].clone(),
    };
    let mut out = Vec::with_capacity(left.len().max(right.len()));
    let (mut l, mut r) = (0, 0);
    while l < left.len() || r < right.len() {
        if let (Some((le, _)), Some((re, ri))) = (left.get(l), right.get(r)) {
            if le == re {
                taken.insert(re);
                out.push(combine(re, *ri));
                (l, r) = (l + 1, r + 1);
                next_shared = shared.next();
                continue;
            }
            // An item of both that comes later in the configuration.
            if in_config.contains_key(le) && next_shared.is_some_and(|n| n != le) {
                l += 1;
                continue;
            }
        }
        if let Some((le, li)) = left.get(l) {
            if !in_config.contains_key(le) {
                out.push(live[*li].clone());
                l += 1;
                continue;
            }
            if taken.contains(le) {
                l += 1;
            }
        }
        if let Some((re, ri)) = right.get(r) {
            taken.insert(re);
            out.push(combine(re, *ri));
            r += 1;
            if next_shared == Some(re) {
                next_shared = shared.next();
            }
        }
    }
    out
}
