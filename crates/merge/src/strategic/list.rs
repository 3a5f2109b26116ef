//! Orders and kinds of list items, shared by applying and by making patches.

use super::{Error, PATCH};
use meta::Value;
use std::collections::HashMap;

/// The kind of all items of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Objects,
    Scalars,
}

/// The kind of the items of lists that belong together; `None` when all are empty.
pub fn kind(lists: &[&[Value]]) -> Result<Option<Kind>, Error> {
    let mut seen: Option<std::mem::Discriminant<Value>> = None;
    let mut kind = None;
    for v in lists.iter().copied().flatten() {
        if v.is_array() {
            return Err(Error::ListOfLists);
        }
        let d = std::mem::discriminant(v);
        if seen.is_some_and(|s| s != d) {
            let all: Vec<&Value> = lists.iter().copied().flatten().collect();
            return Err(Error::MixedList(format!("{all:?}")));
        }
        seen = Some(d);
        kind = Some(if v.is_object() { Kind::Objects } else { Kind::Scalars });
    }
    Ok(kind)
}

/// What identifies an item: the value of its merge key, or the item itself.
pub fn identity<'a>(item: &'a Value, key: Option<&str>) -> Option<&'a Value> {
    match key {
        Some(k) => item.get(k),
        None => Some(item),
    }
}

pub fn has_key(item: &Value, key: &str) -> Result<(), Error> {
    if item.get(key).is_some() { Ok(()) } else { Err(Error::no_merge_key(item, key)) }
}

pub fn is_delete(item: &Value) -> bool {
    item.get(PATCH).and_then(Value::as_str) == Some("delete")
}

/// The indexes of a list's items by identity; the first one of equal items.
pub struct Positions<'a> {
    key: Option<&'a str>,
    places: HashMap<&'a Value, usize>,
}

impl<'a> Positions<'a> {
    pub fn new(order: &'a [Value], key: Option<&'a str>) -> Self {
        let mut places = HashMap::with_capacity(order.len());
        for (i, o) in order.iter().enumerate() {
            if let Some(id) = identity(o, key) {
                places.entry(id).or_insert(i);
            }
        }
        Self { key, places }
    }

    pub fn position(&self, item: &Value) -> Option<usize> {
        self.places.get(identity(item, self.key)?).copied()
    }
}

/// Sorts items by their position in `order`; deletions go to the end. Items that `order` lacks stay where they are relative
/// to their predecessor.
pub fn sort_by(items: Vec<Value>, order: &[Value], key: Option<&str>) -> Result<Vec<Value>, Error> {
    if let Some(k) = key {
        items.iter().chain(order).try_for_each(|i| has_key(i, k))?;
    }
    let positions = Positions::new(order, key);
    let (mut keep, deletions): (Vec<Value>, Vec<Value>) =
        items.into_iter().partition(|i| key.is_none() || !is_delete(i));
    let mut last = None;
    let mut ranked: Vec<(Option<usize>, Value)> = keep
        .drain(..)
        .map(|v| {
            last = positions.position(&v).or(last);
            (last, v)
        })
        .collect();
    ranked.sort_by_key(|r| r.0);
    Ok(ranked.into_iter().map(|r| r.1).chain(deletions).collect())
}

/// Splits a list into the items that `by` names and the others.
pub fn partition(items: Vec<Value>, by: &[Value], key: Option<&str>) -> Result<(Vec<Value>, Vec<Value>), Error> {
    if let Some(k) = key {
        items.iter().try_for_each(|i| has_key(i, k))?;
    }
    let positions = Positions::new(by, key);
    Ok(items.into_iter().partition(|i| positions.position(i).is_some()))
}

/// Interleaves items that only the server has with those that the patch orders: an item of the server goes before the first ordered item that
/// it preceded in the live list.
pub fn interleave(
    server_only: Vec<Value>,
    ordered: Vec<Value>,
    server_order: &[Value],
    key: Option<&str>,
) -> Vec<Value> {
    let mut out = Vec::with_capacity(server_only.len() + ordered.len());
    let positions = Positions::new(server_order, key);
    let (mut left, mut right) = (server_only.into_iter().peekable(), ordered.into_iter().peekable());
    loop {
        let take_left = match (left.peek(), right.peek()) {
            (None, None) => return out,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(l), Some(r)) => matches!((positions.position(l), positions.position(r)), (Some(l), Some(r)) if l < r),
        };
        out.extend(if take_left { left.next() } else { right.next() });
    }
}

/// A scalar's text, by which upstream sorts and compares.
pub fn text(v: &Value) -> String {
    match v {
        Value::String(s) => s.clone(),
        other => other.to_string(),
    }
}
