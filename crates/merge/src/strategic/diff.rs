//! Creates patches from documents, as kubectl.

use super::apply::{Into, merge_map};
use super::list::{self, Kind};
use super::{DELETE_LIST, Error, Member, PATCH, RETAIN_KEYS, SET_ORDER};
use meta::{Map, Value};
use schema::Schema;
use std::cmp::Ordering;

/// Whether a three-way merge may undo changes that others made to the fields it sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    /// Changes of others are overwritten.
    Yes,
    /// Such a change is [`Error::Conflict`].
    No,
}

#[derive(Clone, Copy)]
struct Options {
    orders: bool,
    changes: bool,
    deletions: bool,
    retain_keys: bool,
}

/// The patch that turns `original` into `modified`.
pub fn two_way(
    original: &Map<String, Value>,
    modified: &Map<String, Value>,
    schema: Option<&Schema>,
) -> Result<Map<String, Value>, Error> {
    diff_maps(original, modified, schema, Options { orders: true, changes: true, deletions: true, retain_keys: false })
}

/// The patch of `kubectl apply`: deletions are what `original` (the last applied configuration) has and `modified` (the new
/// one) has not; additions and changes are what `modified` has and `current` (live) has not or has otherwise.
pub fn three_way(
    original: &Map<String, Value>,
    modified: &Map<String, Value>,
    current: &Map<String, Value>,
    schema: Option<&Schema>,
    overwrite: Overwrite,
) -> Result<Map<String, Value>, Error> {
    let all = Options { orders: true, changes: true, deletions: true, retain_keys: false };
    let delta = diff_maps(current, modified, schema, Options { deletions: false, ..all })?;
    let deletions = diff_maps(original, modified, schema, Options { changes: false, ..all })?;
    let patch = merge_map(deletions, delta, schema, Into::Patch)?;
    if overwrite == Overwrite::No {
        let changes = diff_maps(original, current, schema, Options { orders: false, ..all })?;
        if maps_conflict(&patch, &changes, schema)? {
            let show = |m: Map<String, Value>| Value::Object(m).to_string();
            return Err(Error::Conflict { patch: show(patch), changes: show(changes) });
        }
    }
    Ok(patch)
}

fn diff_maps(
    original: &Map<String, Value>,
    modified: &Map<String, Value>,
    schema: Option<&Schema>,
    options: Options,
) -> Result<Map<String, Value>, Error> {
    let mut patch = Map::new();
    for (key, new) in modified {
        let Some(old) = original.get(key) else {
            if options.changes {
                patch.insert(key.clone(), new.clone());
            }
            continue;
        };
        let member = Member::new(schema, key);
        match (old, new) {
            // Sent even when nothing has changed, as upstream does.
            (Value::Object(_), Value::Object(_)) if member.replaces() => {
                if options.changes {
                    patch.insert(key.clone(), new.clone());
                }
            }
            (Value::Object(old), Value::Object(new)) => {
                let options = Options { retain_keys: member.retains_keys(), ..options };
                let sub = diff_maps(old, new, member.schema, options)?;
                if !sub.is_empty() {
                    patch.insert(key.clone(), Value::Object(sub));
                }
            }
            (Value::Array(old), Value::Array(new)) if member.merges() => {
                let options = Options { retain_keys: member.retains_keys(), ..options };
                let lists = diff_lists(old, new, &member, options)?;
                for (name, list) in [
                    (key.clone(), lists.changes),
                    (format!("{DELETE_LIST}/{key}"), lists.deletions),
                    (format!("{SET_ORDER}/{key}"), lists.order),
                ] {
                    if !list.is_empty() {
                        patch.insert(name, Value::Array(list));
                    }
                }
            }
            (old, new) => {
                if options.changes && old != new {
                    patch.insert(key.clone(), new.clone());
                }
            }
        }
    }
    if options.deletions {
        for key in original.keys().filter(|k| !modified.contains_key(*k)) {
            patch.insert(key.clone(), Value::Null);
        }
    }
    if options.retain_keys {
        let keys: Vec<Value> =
            modified.iter().filter(|(_, v)| !v.is_null()).map(|(k, _)| Value::from(k.as_str())).collect();
        let has_more = original.keys().any(|k| !modified.contains_key(k));
        if !keys.is_empty() && (!patch.is_empty() || has_more) {
            patch.insert(RETAIN_KEYS.to_owned(), Value::Array(keys));
        }
    }
    Ok(patch)
}

#[derive(Default)]
struct Lists {
    changes: Vec<Value>,
    deletions: Vec<Value>,
    order: Vec<Value>,
}

fn diff_lists(original: &[Value], modified: &[Value], member: &Member<'_>, options: Options) -> Result<Lists, Error> {
    if original.is_empty() {
        let changes = if options.changes { modified.to_vec() } else { Vec::new() };
        return Ok(Lists { changes, ..Lists::default() });
    }
    if list::kind(&[original, modified])? == Some(Kind::Scalars) {
        let (changes, deletions) = diff_scalars(original, modified, options);
        let changes = list::sort_by(changes, modified, None)?;
        let ordered =
            options.orders && (options.deletions && !deletions.is_empty() || options.changes && original != modified);
        let order = if ordered { modified.to_vec() } else { Vec::new() };
        return Ok(Lists { changes, deletions, order });
    }
    let key = member.merge_key().ok_or(Error::UndeclaredKey)?;
    let (changes, deletions) = diff_objects(original, modified, key, member.items(), options)?;
    let mut changes = list::sort_by(changes, modified, Some(key))?;
    changes.extend(deletions);
    let same_order =
        original.len() == modified.len() && original.iter().zip(modified).all(|(a, b)| a.get(key) == b.get(key));
    let ordered = options.orders
        && (options.changes && (!changes.is_empty() || !same_order) || options.deletions && !changes.is_empty());
    let order = if ordered {
        modified
            .iter()
            .map(|m| {
                let mut only_key = Map::new();
                only_key.insert(key.to_owned(), m.get(key).cloned().unwrap_or_default());
                Value::Object(only_key)
            })
            .collect()
    } else {
        Vec::new()
    };
    Ok(Lists { changes, deletions: Vec::new(), order })
}

fn diff_scalars(original: &[Value], modified: &[Value], options: Options) -> (Vec<Value>, Vec<Value>) {
    let sorted = |l: &[Value]| {
        let mut l: Vec<(String, Value)> = l.iter().map(|v| (list::text(v), v.clone())).collect();
        l.sort_by(|a, b| a.0.cmp(&b.0));
        l
    };
    let (old, new) = (sorted(original), sorted(modified));
    let (mut added, mut deleted) = (Vec::new(), Vec::new());
    let (mut i, mut j) = (0, 0);
    while i < old.len() || j < new.len() {
        let order = match (old.get(i), new.get(j)) {
            (Some(a), Some(b)) => a.0.cmp(&b.0),
            (Some(_), None) => Ordering::Less,
            _ => Ordering::Greater,
        };
        match order {
            Ordering::Equal => (i, j) = (i + 1, j + 1),
            Ordering::Less => {
                if options.deletions && deleted.last() != Some(&old[i].1) {
                    deleted.push(old[i].1.clone());
                }
                i += 1;
            }
            Ordering::Greater => {
                if options.changes {
                    added.push(new[j].1.clone());
                }
                j += 1;
            }
        }
    }
    (added, deleted)
}

fn diff_objects(
    original: &[Value],
    modified: &[Value],
    key: &str,
    items: Option<&Schema>,
    options: Options,
) -> Result<(Vec<Value>, Vec<Value>), Error> {
    let (mut changes, mut deletions) = (Vec::new(), Vec::new());
    original.iter().chain(modified).try_for_each(|i| list::has_key(i, key))?;
    let (old_positions, new_positions) =
        (list::Positions::new(original, Some(key)), list::Positions::new(modified, Some(key)));
    for new in modified {
        match (old_positions.position(new).and_then(|i| original.get(i)), new) {
            (Some(Value::Object(old)), Value::Object(new)) => {
                let mut sub = diff_maps(old, new, items, options)?;
                if !sub.is_empty() {
                    sub.insert(key.to_owned(), new.get(key).cloned().unwrap_or_default());
                    changes.push(Value::Object(sub));
                }
            }
            _ if options.changes => changes.push(new.clone()),
            _ => {}
        }
    }
    if options.deletions {
        let mut gone: Vec<&Value> = original.iter().filter(|o| new_positions.position(o).is_none()).collect();
        gone.sort_by_key(|o| o.get(key).map(list::text));
        for o in gone {
            let mut d = Map::new();
            d.insert(key.to_owned(), o.get(key).cloned().unwrap_or_default());
            d.insert(PATCH.to_owned(), Value::from("delete"));
            deletions.push(Value::Object(d));
        }
    }
    Ok((changes, deletions))
}

fn maps_conflict(a: &Map<String, Value>, b: &Map<String, Value>, schema: Option<&Schema>) -> Result<bool, Error> {
    if a.get(PATCH) != b.get(PATCH) {
        return Ok(true);
    }
    for (key, left) in a.iter().filter(|(k, _)| *k != PATCH && *k != RETAIN_KEYS) {
        let Some(right) = b.get(key) else { continue };
        if values_conflict(left, right, &Member::new(schema, key))? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn values_conflict(a: &Value, b: &Value, member: &Member<'_>) -> Result<bool, Error> {
    let plain = |schema| Member { schema, patch: None };
    Ok(match (a, b) {
        (Value::Object(a), Value::Object(b)) => maps_conflict(a, b, member.schema)?,
        (Value::Array(a), Value::Array(b)) => {
            let kind = list::kind(&[a, b])?;
            if member.merges() {
                // Merged scalars cannot conflict.
                let Some((Kind::Objects, key)) = kind.zip(member.merge_key()) else { return Ok(false) };
                for left in a {
                    for right in b.iter().filter(|r| r.get(key) == left.get(key)) {
                        if values_conflict(left, right, &plain(member.items()))? {
                            return Ok(true);
                        }
                    }
                }
                return Ok(false);
            }
            if a.len() != b.len() {
                return Ok(true);
            }
            if kind != Some(Kind::Objects) {
                let sorted = |l: &[Value]| {
                    let mut l: Vec<String> = l.iter().map(list::text).collect();
                    l.sort();
                    l
                };
                return Ok(sorted(a) != sorted(b));
            }
            for (left, right) in a.iter().zip(b) {
                if values_conflict(left, right, &plain(member.items()))? {
                    return Ok(true);
                }
            }
            false
        }
        (a, b) => a != b,
    })
}
