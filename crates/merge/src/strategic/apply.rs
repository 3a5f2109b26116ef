//! Applies a patch to an object, or to another patch.

use super::list::{self, Kind};
use super::{DELETE_LIST, Error, Member, PATCH, RETAIN_KEYS, SET_ORDER};
use meta::{Map, Value};
use schema::Schema;
use std::collections::{HashMap, HashSet};

/// The target of a patch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Into {
    /// A live object: directives are executed and removed.
    Object,
    /// Another patch: directives are joined and kept.
    Patch,
}

/// Applies a strategic merge patch to an object. `schema` is the kind's; without one, lists are replaced.
pub fn apply(object: &mut Map<String, Value>, patch: Map<String, Value>, schema: Option<&Schema>) -> Result<(), Error> {
    let merged = merge_map(std::mem::take(object), patch, schema, Into::Object)?;
    *object = merged;
    Ok(())
}

pub(super) fn merge_map(
    mut original: Map<String, Value>,
    mut patch: Map<String, Value>,
    schema: Option<&Schema>,
    into: Into,
) -> Result<Map<String, Value>, Error> {
    if let Some(directive) = patch.remove(PATCH) {
        return match directive.as_str() {
            Some("replace") => Ok(patch),
            Some("delete") => Ok(Map::new()),
            _ => Err(Error::UnknownDirective { kind: list::text(&directive), map: Value::Object(patch).to_string() }),
        };
    }
    retain_keys(&mut original, &mut patch, into)?;
    set_orders(&mut original, &mut patch, schema, into)?;
    for (key, value) in patch {
        let (key, deletes) = match key.strip_prefix(DELETE_LIST) {
            Some(_) if into == Into::Patch => {
                original.insert(key, value);
                continue;
            }
            Some(rest) => (rest.strip_prefix('/').ok_or(Error::PrimitiveList)?.to_owned(), true),
            None => (key, false),
        };
        if value.is_null() {
            original.remove(&key);
            if into == Into::Patch {
                original.insert(key, Value::Null);
            }
            continue;
        }
        let same_kind = match original.get(&key) {
            Some(old) => std::mem::discriminant(old) == std::mem::discriminant(&value),
            None => false,
        };
        if !same_kind {
            if !deletes {
                match cleaned(value, into) {
                    Some(v) => _ = original.insert(key, v),
                    None => _ = original.remove(&key),
                }
            }
            continue;
        }
        let member = Member::new(schema, &key);
        let slot = original.entry(key).or_insert(Value::Null);
        *slot = match (slot.take(), value) {
            (Value::Object(_), Value::Object(new)) if member.replaces() => Value::Object(new),
            (Value::Object(old), Value::Object(new)) => Value::Object(merge_map(old, new, member.schema, into)?),
            (Value::Array(old), Value::Array(new)) if member.merges() || deletes => {
                Value::Array(merge_list(old, new, &member, deletes, into)?)
            }
            (_, new) => new,
        };
    }
    Ok(original)
}

/// The value of a patch for an absent field: in an object without nulls and directives.
fn cleaned(v: Value, into: Into) -> Option<Value> {
    match v {
        Value::Object(m) => {
            if m.contains_key(PATCH) {
                return None;
            }
            let keep = |k: &str| {
                into == Into::Patch || !(k == RETAIN_KEYS || k.starts_with(SET_ORDER) || k.starts_with(DELETE_LIST))
            };
            Some(Value::Object(
                m.into_iter()
                    .filter(|(k, v)| keep(k) && (into == Into::Patch || !v.is_null()))
                    .filter_map(|(k, v)| Some((k, cleaned(v, into)?)))
                    .collect(),
            ))
        }
        Value::Array(a) => Some(Value::Array(a.into_iter().filter_map(|v| cleaned(v, into)).collect())),
        v => Some(v),
    }
}

fn retain_keys(original: &mut Map<String, Value>, patch: &mut Map<String, Value>, into: Into) -> Result<(), Error> {
    let Some(keys) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    if into == Into::Patch {
        return match original.get(RETAIN_KEYS) {
            Some(old) if *old != keys => Err(Error::RetainKeys),
            _ => {
                original.insert(RETAIN_KEYS.to_owned(), keys);
                Ok(())
            }
        };
    }
    let Value::Array(keys) = keys else { return Err(Error::RetainKeys) };
    let names: HashSet<&str> = keys.iter().filter_map(Value::as_str).collect();
    let named = |k: &str| names.contains(k);
    let directive = |k: &str| k.starts_with(DELETE_LIST) || k.starts_with(SET_ORDER);
    if patch.iter().any(|(k, v)| !v.is_null() && !directive(k) && !named(k)) {
        return Err(Error::RetainKeys);
    }
    original.retain(|k, _| named(k));
    Ok(())
}

/// Executes (or joins) `$setElementOrder/…` with the lists that they order, which are removed from the patch.
fn set_orders(
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
    schema: Option<&Schema>,
    into: Into,
) -> Result<(), Error> {
    let directives: Vec<String> = patch.keys().filter(|k| k.starts_with(SET_ORDER)).cloned().collect();
    for directive in directives {
        let Some(order) = patch.remove(&directive) else { continue };
        if into == Into::Patch {
            match original.get(&directive) {
                Some(old) if *old != order => return Err(Error::SetElementOrder),
                _ => _ = original.insert(directive.clone(), order.clone()),
            }
        }
        let Value::Array(order) = order else { return Err(Error::SetElementOrder) };
        let field =
            directive.strip_prefix(SET_ORDER).and_then(|r| r.strip_prefix('/')).ok_or(Error::SetElementOrder)?;
        let member = Member::new(schema, field);
        let key = member.merge_key();
        let as_list = |v: Option<Value>| match v {
            None => Ok(None),
            Some(Value::Array(a)) => Ok(Some(a)),
            Some(_) => Err(Error::SetElementOrder),
        };
        let live = as_list(original.get(field).cloned())?;
        let changes = as_list(patch.remove(field))?;
        validate_order(changes.as_deref().unwrap_or_default(), &order, key)?;
        let server_order = live.clone().unwrap_or_default();
        let kind = list::kind(&[&server_order, changes.as_deref().unwrap_or_default()])?;
        let merged = match (live, changes) {
            (None, None) => continue,
            (Some(live), None) => live,
            (None, Some(changes)) => match cleaned(Value::Array(changes), into) {
                Some(Value::Array(a)) => a,
                _ => Vec::new(),
            },
            (Some(live), Some(changes)) if member.merges() => merge_list(live, changes, &member, false, into)?,
            (Some(_), Some(changes)) => changes,
        };
        let key = if kind == Some(Kind::Objects) { key } else { None };
        let (ordered, server_only) = list::partition(merged, &order, key)?;
        let ordered = list::sort_by(ordered, &order, key)?;
        let server_only = list::sort_by(server_only, &server_order, key)?;
        let all = list::interleave(server_only, ordered, &server_order, key);
        original.insert(field.to_owned(), Value::Array(all));
    }
    Ok(())
}

/// The patch's items, deletions aside, must occur in the order's order.
fn validate_order(changes: &[Value], order: &[Value], key: Option<&str>) -> Result<(), Error> {
    if changes.is_empty() || order.is_empty() {
        return Ok(());
    }
    let mut order_left = order.iter();
    for item in changes.iter().filter(|i| i.get(PATCH).is_none()) {
        if let Some(k) = key {
            list::has_key(item, k)?;
        }
        let id = list::identity(item, key);
        if !order_left.any(|o| list::identity(o, key) == id) {
            let show = |l: &[Value]| Value::Array(l.to_vec()).to_string();
            return Err(Error::Order { patch: show(changes), order: show(order) });
        }
    }
    Ok(())
}

fn merge_list(
    mut original: Vec<Value>,
    patch: Vec<Value>,
    member: &Member<'_>,
    deletes: bool,
    into: Into,
) -> Result<Vec<Value>, Error> {
    let Some(kind) = list::kind(&[&original, &patch])? else { return Ok(original) };
    if kind == Kind::Scalars {
        if deletes && into == Into::Object {
            let gone: HashSet<&Value> = patch.iter().collect();
            original.retain(|v| !gone.contains(v));
            return Ok(original);
        }
        let order = original;
        let mut known = HashSet::with_capacity(order.len() + patch.len());
        let both: Vec<Value> = order.iter().chain(&patch).filter(|v| known.insert(*v)).cloned().collect();
        let (ordered, server_only) = list::partition(both, &patch, None)?;
        let ordered = list::sort_by(ordered, &patch, None)?;
        return Ok(list::interleave(server_only, ordered, &order, None));
    }
    let key = member.merge_key().ok_or(Error::UndeclaredKey)?;
    let (original, patch) = special_items(original, patch, key)?;
    let order = original.clone();
    let patch_order = patch.clone();
    let mut merged = original;
    // Later items can refer to added ones.
    let mut places: HashMap<Value, usize> = HashMap::with_capacity(merged.len());
    for (i, o) in merged.iter().enumerate() {
        if let Some(id) = o.get(key) {
            places.entry(id.clone()).or_insert(i);
        }
    }
    for item in patch {
        list::has_key(&item, key)?;
        let id = item.get(key).cloned().unwrap_or_default();
        let found = places.get(&id).copied();
        match (found, item) {
            (Some(i), Value::Object(new)) => {
                if let Value::Object(old) = merged[i].take() {
                    merged[i] = Value::Object(merge_map(old, new, member.items(), into)?);
                }
            }
            (_, item) => {
                if let Some(item) = cleaned(item, into) {
                    if item.get(key) == Some(&id) {
                        places.insert(id, merged.len());
                    }
                    merged.push(item);
                }
            }
        }
    }
    let (ordered, server_only) = list::partition(merged, &patch_order, Some(key))?;
    let ordered = list::sort_by(ordered, &patch_order, Some(key))?;
    let server_only = list::sort_by(server_only, &order, Some(key))?;
    Ok(list::interleave(server_only, ordered, &order, Some(key)))
}

/// Executes items that are directives: deletions, and `$patch: replace` for the whole list.
fn special_items(mut original: Vec<Value>, patch: Vec<Value>, key: &str) -> Result<(Vec<Value>, Vec<Value>), Error> {
    let mut plain = Vec::with_capacity(patch.len());
    let mut replace = false;
    let mut gone = HashSet::new();
    for item in patch {
        match item.get(PATCH).map(|d| d.as_str()) {
            None => plain.push(item),
            Some(Some("delete")) => {
                list::has_key(&item, key)?;
                gone.extend(item.get(key).cloned());
            }
            Some(Some("replace")) => replace = true,
            Some(Some("merge")) => return Err(Error::MergeList),
            Some(_) => {
                let kind = item.get(PATCH).map(list::text).unwrap_or_default();
                return Err(Error::UnknownDirective { kind, map: item.to_string() });
            }
        }
    }
    if !gone.is_empty() {
        original.retain(|o| !o.get(key).is_some_and(|id| gone.contains(id)));
    }
    Ok(if replace { (plain, Vec::new()) } else { (original, plain) })
}
