//! Looks up stored objects for admission plugins and other server components.

use crate::Server;
use admission::{FoundObject, Labels, Lookup, ReadScope};
use meta::{Gvk, Gvr, LabelSelector, Object, Status};
use quick_cache::sync::Cache;
use registry::{Registry, Resource};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use store::{Entry, Key};
use stored::encode::Unreadable;
use stored::in_place::{self, Lane};
use stored::{amount, encode};

/// The stored size of the named object in bytes; none if it does not exist.
pub(crate) fn stored_size(server: &Server, row: &Resource, namespace: &str, name: &str) -> Option<usize> {
    let key = row.key(namespace, name).filter(|_| !name.is_empty())?;
    Some(server.registry.store.snapshot().get(&key)?.value.len())
}

/// Looks up objects in the store.
pub struct Stored<'a> {
    pub registry: &'a Registry,
    pub decoded: &'a Decoded,
}

/// Decoded objects by revision: namespaces, service accounts and classes rarely change, and every create reads them.
pub struct Decoded(Cache<Key, (u64, Arc<Object>)>);

impl Default for Decoded {
    fn default() -> Self {
        Self(Cache::new(DECODED_MAX))
    }
}

/// How many are cached.
const DECODED_MAX: usize = 4096;
/// Larger objects, in stored bytes, are not cached.
const DECODED_SIZE: usize = 4096;

/// Decodes an object for a plugin. A large one exceeds the estimate ([`Lookup::bytes`]), and must not block other
/// requests.
fn decode(entry: &Entry) -> Result<Object, Unreadable> {
    in_place::run(Lane::Objects, entry.value.len(), || encode::decode(entry))
}

impl Decoded {
    fn get(&self, entry: &Entry) -> Result<Arc<Object>, Unreadable> {
        if entry.value.len() > DECODED_SIZE {
            return decode(entry).map(Arc::new);
        }
        if let Some((_, object)) = self.0.get(&entry.key).filter(|(revision, _)| *revision == entry.revision) {
            return Ok(object);
        }
        let object = Arc::new(encode::decode(entry)?);
        self.0.insert(entry.key.clone(), (entry.revision, object.clone()));
        Ok(object)
    }
}

impl Lookup for Stored<'_> {
    fn bytes(&self, group: &str, resource: &str, namespace: Option<&str>, which: ReadScope<'_>) -> usize {
        let rows = self.registry.rows();
        let Some(row) = rows.stored(group, resource) else { return 0 };
        let Some((stored, _)) = row.stored() else { return 0 };
        let snapshot = self.registry.store.snapshot();
        match which {
            ReadScope::All => amount::all(&snapshot, stored, namespace),
            ReadScope::One => amount::largest(&snapshot, stored, namespace),
            ReadScope::Named(name) => {
                let key = row.key(namespace.unwrap_or_default(), name);
                key.and_then(|k| snapshot.get(&k)).map_or(0, |e| e.value.len())
            }
        }
    }

    fn resource(&self, kind: &Gvk) -> Option<(Gvr, bool)> {
        self.registry.rows().kind(kind).map(|r| (r.kind.gvr(), r.kind.namespaced))
    }

    fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Result<Option<Arc<Object>>, Status> {
        let rows = self.registry.rows();
        let Some(key) = rows.stored(group, resource).and_then(|r| r.key(namespace, name)) else { return Ok(None) };
        let entry = self.registry.find(&key)?;
        Ok(entry.map(|e| self.decoded.get(&e)).transpose()?)
    }

    fn labels(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Labels> {
        let rows = self.registry.rows();
        let key = rows.stored(group, resource)?.key(namespace, name)?;
        let entry = self.registry.store.snapshot().get(&key)?;
        Some(Labels::from_sorted(entry.index().labels.clone()))
    }

    fn list(
        &self,
        group: &str,
        resource: &str,
        namespace: Option<&str>,
    ) -> Box<dyn Iterator<Item = Result<Object, Status>> + Send + '_> {
        let rows = self.registry.rows();
        let Some(name) = rows.stored(group, resource).and_then(|r| r.stored().map(|(n, _)| n.clone())) else {
            return Box::new(std::iter::empty());
        };
        let snapshot = self.registry.store.snapshot();
        let damaged = registry::check_readable(&snapshot, &name, namespace).err().map(Err);
        let entries: Vec<_> = snapshot.range(&name, namespace, None).cloned().collect();
        Box::new(damaged.into_iter().chain(entries.into_iter().map(|e| Ok(decode(&e)?))))
    }

    fn find(&self, group: &str, resource: &str, namespace: &str, selector: &LabelSelector) -> Vec<FoundObject> {
        let rows = self.registry.rows();
        let Some(name) = rows.stored(group, resource).and_then(|r| r.stored().map(|(n, _)| n.clone())) else {
            return Vec::new();
        };
        let namespace = Some(namespace).filter(|n| !n.is_empty());
        let chosen = |e: &Arc<Entry>| {
            let labels = &e.index().labels;
            selector.matches(|k| labels.iter().find(|(l, _)| **l == *k).map(|(_, v)| &**v))
        };
        let snapshot = self.registry.store.snapshot();
        let all = snapshot.range(&name, namespace, None).filter(|e| chosen(e));
        all.map(|e| FoundObject { name: e.key.name.to_string(), size: e.value.len() }).collect()
    }

    fn fingerprint(&self, group: &str, resource: &str) -> u64 {
        let rows = self.registry.rows();
        let Some((name, _)) = rows.stored(group, resource).and_then(|r| r.stored()) else { return 0 };
        let snapshot = self.registry.store.snapshot();
        // Every request asks this of several resources, most of which are empty.
        if !snapshot.has_any(name) {
            return 0;
        }
        let entries = snapshot.range(name, None, None).map(|e| (&*e.key.name, e.revision));
        let damaged = snapshot.all_damaged(name, None).map(|d| (&*d.key.name, d.revision));
        let mut hash = DefaultHasher::new();
        entries.chain(damaged).for_each(|e| e.hash(&mut hash));
        hash.finish().max(1)
    }
}
