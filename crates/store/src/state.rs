//! The newest state in memory: an immutable ordered map per resource.
//!
//! Invariant: a published [`State`] never changes. A clone costs a few reference counts; a change copies only the path to the changed entry. The
//! map holds pointers to the entries, which hold their keys, so an object costs its entry, its name and about twelve bytes of map.

use crate::scope::Scope;
use crate::transform::{Damaged, TransformError};
use crate::{Entry, Key, Str};
use equivalent::{Comparable, Equivalent};
use imbl::{OrdMap, OrdSet};
use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

/// An entry, ordered by namespace and name.
#[derive(Clone)]
pub(crate) struct Slot(pub Arc<Entry>);

impl Slot {
    fn position(&self) -> (&str, &str) {
        (&self.0.key.namespace, &self.0.key.name)
    }
}

impl PartialEq for Slot {
    fn eq(&self, other: &Slot) -> bool {
        self.position() == other.position()
    }
}
impl Eq for Slot {}
impl PartialOrd for Slot {
    fn partial_cmp(&self, other: &Slot) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Slot {
    fn cmp(&self, other: &Slot) -> Ordering {
        self.position().cmp(&other.position())
    }
}

/// A namespace and name as a search key.
struct Place<'a>(&'a str, &'a str);

impl Equivalent<Slot> for Place<'_> {
    fn equivalent(&self, slot: &Slot) -> bool {
        (self.0, self.1) == slot.position()
    }
}
impl Comparable<Slot> for Place<'_> {
    fn compare(&self, slot: &Slot) -> Ordering {
        (self.0, self.1).cmp(&slot.position())
    }
}

/// The objects of one resource.
#[derive(Clone, Default)]
pub(crate) struct Table {
    entries: OrdSet<Slot>,
    /// How many objects each namespace has; its keys are the shared namespace strings of the entries.
    namespaces: OrdMap<Str, usize>,
}

impl Table {
    pub fn count(&self, namespace: Option<&str>) -> usize {
        match namespace {
            None => self.entries.len(),
            Some(namespace) => self.namespaces.get(namespace).copied().unwrap_or(0),
        }
    }

    /// The entries behind `after`, in order of namespace and name.
    pub fn range<'a>(
        &'a self,
        namespace: Option<&'a str>,
        after: Option<(&'a str, &'a str)>,
    ) -> impl Iterator<Item = &'a Arc<Entry>> + 'a {
        let first = namespace.unwrap_or("");
        let start = match after {
            // A start before the namespace is the start of the namespace.
            Some((ns, name)) if ns >= first => Bound::Excluded(Place(ns, name)),
            _ => Bound::Included(Place(first, "")),
        };
        self.entries
            .range::<_, Place<'_>>((start, Bound::Unbounded))
            .map(|slot| &slot.0)
            .take_while(move |entry| namespace.is_none_or(|n| &*entry.key.namespace == n))
    }
}

#[derive(Clone, Default)]
pub(crate) struct State {
    pub revision: u64,
    pub tables: OrdMap<Str, Table>,
    /// Objects that cannot be opened; nearly always empty. No key is in both maps.
    damaged: OrdMap<Key, Arc<Damaged>>,
}

impl State {
    /// A state of these entries, in any order, with distinct keys.
    pub fn new(revision: u64, entries: Vec<Arc<Entry>>, damaged: Vec<Damaged>) -> State {
        let damaged = damaged.into_iter().map(|it| (it.key.clone(), Arc::new(it))).collect();
        let mut state = State { revision, tables: OrdMap::new(), damaged };
        for run in entries.chunk_by(|a, b| a.key.resource == b.key.resource) {
            let table = state.tables.entry(run[0].key.resource.clone()).or_default();
            for entry in run {
                *table.namespaces.entry(entry.key.namespace.clone()).or_insert(0) += 1;
                table.entries.insert(Slot(entry.clone()));
            }
        }
        state
    }

    /// The table of the scope's resource, and the damaged objects of the scope.
    pub fn of_resource(&self, scope: &Scope) -> State {
        let table = self.tables.get_key_value(&*scope.resource);
        let tables = table.map(|(resource, table)| (resource.clone(), table.clone())).into_iter().collect();
        let damaged = self.damaged.iter().filter(|(key, _)| scope.contains(key));
        State { revision: self.revision, tables, damaged: damaged.map(|(key, it)| (key.clone(), it.clone())).collect() }
    }

    pub fn table(&self, resource: &str) -> Option<&Table> {
        self.tables.get(resource)
    }

    pub fn resources(&self) -> impl Iterator<Item = &Str> {
        self.tables.keys()
    }

    pub fn len(&self) -> usize {
        self.tables.values().map(|table| table.entries.len()).sum()
    }

    pub fn get(&self, key: &Key) -> Option<&Arc<Entry>> {
        let table = self.tables.get(&*key.resource)?;
        table.entries.get(&Place(&key.namespace, &key.name)).map(|slot| &slot.0)
    }

    /// The revision that wrote the value of a key, whether it can be opened or not.
    pub fn written(&self, key: &Key) -> Option<u64> {
        self.get(key).map(|entry| entry.revision).or_else(|| Some(self.damaged(key)?.revision))
    }

    pub fn damaged(&self, key: &Key) -> Option<&Arc<Damaged>> {
        if self.damaged.is_empty() { None } else { self.damaged.get(key) }
    }

    /// The damaged objects of a resource, in one namespace or all.
    pub fn all_damaged<'a>(
        &'a self,
        resource: &'a str,
        namespace: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Arc<Damaged>> + 'a {
        let mine = move |key: &Key| {
            *key.resource == *resource && namespace.is_none_or(|namespace| *key.namespace == *namespace)
        };
        self.damaged.iter().filter(move |(key, _)| mine(key)).map(|(_, damaged)| damaged)
    }

    pub fn has_any(&self, resource: &str) -> bool {
        self.table(resource).is_some_and(|table| !table.entries.is_empty())
            || !self.damaged.is_empty() && self.all_damaged(resource, None).next().is_some()
    }

    pub fn every_damaged(&self) -> impl Iterator<Item = &Arc<Damaged>> {
        self.damaged.values()
    }

    /// Removes a damaged object that was replaced or deleted.
    pub fn mend(&mut self, key: &Key) -> Option<Arc<Damaged>> {
        if self.damaged.is_empty() { None } else { self.damaged.remove(key) }
    }

    /// Adds a decoded version. Errors if the fault is not the value's own.
    pub fn take(
        &mut self,
        key: &Key,
        revision: u64,
        opened: Result<Arc<Entry>, TransformError>,
    ) -> Result<(), TransformError> {
        match opened {
            Ok(entry) => {
                self.mend(key);
                self.put(entry);
            }
            Err(error) => {
                let damaged = Damaged::new(key, revision, error)?;
                self.remove(key);
                self.damaged.insert(key.clone(), Arc::new(damaged));
            }
        }
        Ok(())
    }

    /// The key with strings shared with the state, so that equal strings are one allocation.
    pub fn shared(&self, key: &Key) -> Key {
        if let Some(entry) = self.get(key) {
            return entry.key.clone();
        }
        let mut shared = key.clone();
        if let Some((resource, table)) = self.tables.get_key_value(&*key.resource) {
            shared.resource = resource.clone();
            if let Some((namespace, _)) = table.namespaces.get_key_value(&*key.namespace) {
                shared.namespace = namespace.clone();
            }
        }
        shared
    }

    pub fn put(&mut self, entry: Arc<Entry>) {
        let table = self.tables.entry(entry.key.resource.clone()).or_default();
        let namespace = entry.key.namespace.clone();
        if table.entries.insert(Slot(entry)).is_none() {
            *table.namespaces.entry(namespace).or_insert(0) += 1;
        }
    }

    pub fn remove(&mut self, key: &Key) -> Option<Arc<Entry>> {
        let table = self.tables.get_mut(&*key.resource)?;
        let slot = table.entries.remove(&Place(&key.namespace, &key.name))?;
        let left = table.namespaces.get(&*key.namespace).copied().unwrap_or(1) - 1;
        if left == 0 {
            table.namespaces.remove(&*key.namespace);
        } else {
            table.namespaces.insert(slot.0.key.namespace.clone(), left);
        }
        if table.entries.is_empty() {
            self.tables.remove(&*key.resource);
        }
        Some(slot.0)
    }
}
