//! Orders and kinds of list items, shared by applying and by making patches.

use super::{Error, PATCH};
use meta::Value;

/// What all items of a list are.
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

/// What tells an item from another: its merge key's value, or the item itself.
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

fn position(order: &[Value], item: &Value, key: Option<&str>) -> Option<usize> {
    let id = identity(item, key)?;
    order.iter().position(|o| identity(o, key) == Some(id))
}

/// Sorts items by their place in `order`; deletions go to the end. Items that `order` lacks stay where they are relative
/// to their predecessor.
pub fn sort_by(items: Vec<Value>, order: &[Value], key: Option<&str>) -> Result<Vec<Value>, Error> {
    if let Some(k) = key {
        items.iter().chain(order).try_for_each(|i| has_key(i, k))?;
    }
    let (mut keep, deletions): (Vec<Value>, Vec<Value>) =
        items.into_iter().partition(|i| key.is_none() || !is_delete(i));
    let mut last = None;
    let mut ranked: Vec<(Option<usize>, Value)> = keep
        .drain(..)
        .map(|v| {
            last = position(order, &v, key).or(last);
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
    Ok(items.into_iter().partition(|i| position(by, i, key).is_some()))
}

/// Interleaves what only the server has with what the patch orders: an item of the server goes before the first ordered
/// item that it stood before in the live list.
pub fn interleave(
    server_only: Vec<Value>,
    ordered: Vec<Value>,
    server_order: &[Value],
    key: Option<&str>,
) -> Vec<Value> {
    let mut out = Vec::with_capacity(server_only.len() + ordered.len());
    let (mut left, mut right) = (server_only.into_iter().peekable(), ordered.into_iter().peekable());
    loop {
        let take_left = match (left.peek(), right.peek()) {
            (None, None) => return out,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(l), Some(r)) => {
                matches!((position(server_order, l, key), position(server_order, r, key)), (Some(l), Some(r)) if l < r)
            }
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
