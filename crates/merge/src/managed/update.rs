//! Managed fields of creates, updates and patches.

use super::conflict::Conflicts;
use super::entry::{Entry, FEW, Managers, Operation};
use super::{Context, Error, put_managed_fields, stripped, take_managed_fields};
use crate::fieldset::{PathElement, Set};
use crate::typed::{Comparison, TypeRef, compare_objects, reconcile};
use meta::{Map, Object, Value};
use std::collections::{HashMap, HashSet};

/// Updates `managedFields` of an object before it is written. `live` is `None` for a create; `new` is the object as it will be
/// stored and may carry `managedFields` of the client's: an empty list or one empty entry resets them, none or null keeps the live
/// ones, anything else that can be read replaces them (not through a subresource).
///
/// An object without managed fields gets none before the first apply. After a reset, the writer owns the fields that the same write changes. If
/// the object cannot be converted to an owner's version, there are no entries any more.
pub fn update(live: Option<&Object>, new: &mut Object, cx: &Context<'_>) {
    let given = take_managed_fields(new);
    let live_list = live.and_then(|l| l.metadata()?.get("managedFields"));
    let mine = cx.subresource.is_empty();
    let reset = mine && given.as_ref().is_some_and(is_reset);
    let raw = match given {
        _ if reset => None,
        Some(v) if mine && !is_nothing(&v) => Some(v),
        // Usually equal to the live ones: comparing is cheaper than copying.
        Some(v) if Some(&v) == live_list => Some(v),
        _ => live_list.cloned(),
    };
    let tracked = raw.as_ref().is_some_and(|v| !is_nothing(v));
    if live.is_some_and(|l| !l.uid().is_empty()) && !tracked && !reset {
        return;
    }
    let comparison = compare_objects(live, new, cx.type_ref()).exclude(cx.reset_fields);
    if comparison.is_empty() && raw.as_ref() == live_list {
        put_managed_fields(new, raw.unwrap_or_default());
        return;
    }
    let mut list = raw.unwrap_or_default();
    let mut managers = Managers::decode(&list).unwrap_or_else(|_| {
        list = live_list.cloned().unwrap_or_default();
        Managers::decode(&list).unwrap_or_default()
    });
    // Otherwise upstream leaves the owners as they are, rather than to write wrong ones.
    if follow(&mut managers, live, new, &comparison, cx).is_ok() {
        own(&mut managers, comparison, cx.manager, cx);
        managers.cap();
        let unchanged = |i| list.get_mut(i).map(Value::take).unwrap_or_default();
        put_managed_fields(new, managers.encode(unchanged));
    }
}

/// Like [`update`], for a subresource with a single field, as `spec.replicas` of `scale`. As upstream, a field without an owner stays without
/// one.
pub fn update_field(live: &Object, new: &mut Object, field: &[&str], cx: &Context<'_>) {
    let path: Vec<PathElement> = field.iter().map(|f| PathElement::field(f)).collect();
    let entries = live_fields(live);
    let owned = Managers::decode(entries).is_ok_and(|m| m.0.iter().any(|e| e.fields.has(&path)));
    if owned {
        update(Some(live), new, cx);
    } else {
        take_managed_fields(new);
        put_managed_fields(new, entries.clone());
    }
}

/// `metadata.managedFields`, null when there are none.
pub(super) fn live_fields(o: &Object) -> &Value {
    o.metadata().and_then(|m| m.get("managedFields")).unwrap_or(&Value::Null)
}

pub(super) fn is_nothing(v: &Value) -> bool {
    v.as_array().is_none_or(Vec::is_empty)
}

/// Whether the list requests a reset: it is empty, or has one empty entry.
fn is_reset(v: &Value) -> bool {
    match v.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([Value::Object(e)]) => e.values().all(Value::is_null),
        _ => false,
    }
}

/// Removes the fields that the write changed or removed from all entries (without the applier's). Returns the changed ones: the conflicts of an
/// apply. Drops empty entries and those of versions that do not exist.
pub(super) fn follow(
    managers: &mut Managers,
    old: Option<&Object>,
    new: &Object,
    comparison: &Comparison,
    cx: &Context<'_>,
) -> Result<Conflicts, Error> {
    let mut versions = Others { old, new, cx, known: HashMap::new() };
    let mut conflicts = Conflicts::default();
    let mut gone = vec![false; managers.0.len()];
    managers.0.sort_by(Entry::by_identity);
    for (i, e) in managers.0.iter_mut().enumerate() {
        let c = if e.api_version == cx.api_version {
            comparison
        } else {
            match versions.comparison(&e.api_version)? {
                Some(c) => c,
                None => {
                    gone[i] = true;
                    continue;
                }
            }
        };
        let touched = |s: &Set| e.fields.intersects(s);
        if touched(&c.added) || touched(&c.modified) {
            let lost = e.fields.intersection(&c.added).union(e.fields.intersection(&c.modified));
            e.set_fields(|s| s.difference(&lost));
            conflicts.add(e, lost);
        }
        if e.fields.intersects(&c.removed) {
            e.set_fields(|s| s.difference(&c.removed));
        }
        gone[i] = e.fields.is_empty();
    }
    let mut gone = gone.into_iter();
    managers.0.retain(|_| !gone.next().unwrap_or_default());
    Ok(conflicts)
}

/// Comparisons of the two objects by version, each computed once.
struct Others<'a> {
    old: Option<&'a Object>,
    new: &'a Object,
    cx: &'a Context<'a>,
    known: HashMap<String, Option<Comparison>>,
}

impl Others<'_> {
    fn comparison(&mut self, version: &str) -> Result<Option<&Comparison>, Error> {
        if !self.known.contains_key(version) {
            let c = self.make(version).map_err(Error::Convert)?;
            self.known.insert(version.to_owned(), c);
        }
        Ok(self.known.get(version).and_then(Option::as_ref))
    }

    fn make(&self, version: &str) -> Result<Option<Comparison>, String> {
        let versions = self.cx.versions;
        let Some(new) = versions.convert(self.new, version)? else { return Ok(None) };
        let old = match self.old {
            Some(o) => match versions.convert(o, version)? {
                Some(o) => Some(o),
                None => return Ok(None),
            },
            None => None,
        };
        let t = TypeRef::new(versions.schema(version));
        Ok(Some(compare_objects(old.as_ref(), &new, t).exclude(self.cx.reset_fields)))
    }
}

/// Adds the fields that the write added or modified to a manager.
pub(super) fn own(managers: &mut Managers, comparison: Comparison, manager: &str, cx: &Context<'_>) {
    let fields = comparison.modified.union(comparison.added).difference(stripped());
    if fields.is_empty() {
        return;
    }
    let mut entry = Entry::new(manager, Operation::Update, cx.api_version, cx.subresource);
    match managers.0.iter_mut().find(|e| e.same_manager(&entry)) {
        Some(old) => {
            old.set_fields(|s| s.union(fields));
            old.set_time(cx.time);
        }
        None => {
            entry.fields = fields;
            entry.set_time(cx.time);
            managers.0.push(entry);
        }
    }
}

/// Adapts entries to fields that have become atomic since they were written.
pub(super) fn adapt(managers: &mut Managers, cx: &Context<'_>) {
    for e in &mut managers.0 {
        let schema = if e.api_version == cx.api_version { cx.schema } else { cx.versions.schema(&e.api_version) };
        if let Some(s) = reconcile(&e.fields, TypeRef::new(schema)) {
            e.set_fields(|_| s);
        }
    }
}

/// Whether two objects differ only in the times of managed fields: such a write changes nothing.
pub fn same_but_for_times(a: &Object, b: &Object) -> bool {
    fn entries(o: &Object) -> &[Value] {
        live_fields(o).as_array().map_or(&[], Vec::as_slice)
    }
    if !same_without_entries(a, b) {
        return false;
    }
    let (x, y) = (entries(a), entries(b));
    let same = |e: &Value, f: &Value| match (e, f) {
        (Value::Object(e), Value::Object(f)) => same_but(e, f, "time"),
        _ => e == f,
    };
    if x == y || x.len() != y.len() {
        return x == y;
    }
    // The order of entries depends on their times.
    if x.len() <= FEW {
        return x.iter().all(|e| y.iter().any(|f| same(e, f)));
    }
    let timeless = |e: &Value| {
        let mut e = e.clone();
        e.as_object_mut().map(|m| m.remove("time"));
        e
    };
    let known: HashSet<Value> = y.iter().map(timeless).collect();
    x.iter().all(|e| known.contains(&timeless(e)))
}

/// Whether two objects are equal except for managed fields.
pub(super) fn same_without_entries(a: &Object, b: &Object) -> bool {
    // Usually the content differs, and little of the metadata.
    same_but(&a.0, &b.0, "metadata")
        && match (a.metadata(), b.metadata()) {
            (Some(m), Some(n)) => same_but(m, n, "managedFields"),
            (None, None) => true,
            _ => false,
        }
}

/// Whether two maps are equal except for one member.
fn same_but(a: &Map<String, Value>, b: &Map<String, Value>, key: &str) -> bool {
    // Both are sorted.
    a.iter().filter(|(k, _)| *k != key).eq(b.iter().filter(|(k, _)| *k != key))
}
