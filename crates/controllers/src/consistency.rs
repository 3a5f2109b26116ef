//! Whether a controller's caches show what it wrote (upstream `util/consistency`).
//!
//! A controller that decides on a cache without its own writes repeats them. [`Writes`] remembers them while the controller runs; a
//! controller that was started again, and remembers nothing, compares its caches with the server ([`Known`]).

use crate::context::Error;
use client::informer::View;
use client::{Api, Change, Entry, Informer, Key, ListOptions};
use meta::{LabelSelector, Object};
use parking_lot::Mutex;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The last write of each object: its UID and resource version.
#[derive(Default)]
pub struct Writes(Mutex<BTreeMap<Key, (String, u64)>>);

impl Writes {
    pub fn written(&self, key: &Key, object: &Object) {
        self.0.lock().insert(key.clone(), (object.uid().to_owned(), version(object.resource_version())));
    }

    /// Whether the cached object is older than the last write of it.
    pub fn is_stale(&self, key: &Key, uid: &str, resource_version: &str) -> bool {
        self.0.lock().get(key).is_some_and(|(written, at)| written == uid && version(resource_version) < *at)
    }

    pub fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }
}

/// The newest revision at which a controller wrote dependents of each owner, such as the replica sets of a deployment.
#[derive(Default)]
pub struct DependentWrites(Mutex<BTreeMap<Key, u64>>);

impl DependentWrites {
    /// Notes a dependent of `owner` as the server returned it.
    pub fn written(&self, owner: &Key, dependent: &Object) {
        let mut all = self.0.lock();
        let newest = all.entry(owner.clone()).or_default();
        *newest = version(dependent.resource_version()).max(*newest);
    }

    /// Whether a cache of the dependents shows all writes.
    pub fn are_shown<V: View>(&self, owner: &Key, cache: &Informer<V>) -> bool {
        self.0.lock().get(owner).is_none_or(|newest| *newest <= cache.revision())
    }

    /// Removes a deleted owner.
    pub fn forget(&self, owner: &Key) {
        self.0.lock().remove(owner);
    }
}

fn version(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

/// Objects for which the caches show what was done before the controller began, by UID.
///
/// A controller that was started again does not remember what it created and deleted, and would repeat what its caches lack.
#[derive(Default)]
pub struct Known {
    began: AtomicBool,
    objects: Mutex<BTreeSet<Arc<str>>>,
}

impl Known {
    /// Objects that are created from now on have no earlier writes. To be called with each reconcile, before which caches are filled.
    pub fn begin(&self) {
        self.began.store(true, Ordering::Relaxed);
    }

    /// Notes a change of an object.
    pub fn observe<V>(&self, change: &Change<V>) {
        let uid = &change.latest().meta.uid;
        if change.new.is_none() {
            self.objects.lock().remove(uid);
        } else if change.old.is_none() && self.began.load(Ordering::Relaxed) {
            self.objects.lock().insert(uid.clone());
        }
    }

    /// Whether the caches were found to show the current dependents of an object.
    pub fn has(&self, object: &Object) -> bool {
        self.objects.lock().contains(object.uid())
    }

    /// Whether the cache shows the current dependents of an object, which `selector` matches. Compares it with the server until it did so
    /// once. What was read from the cache before may be older.
    pub async fn is_current<V>(
        &self,
        object: &Object,
        selector: &LabelSelector,
        dependents: &Api<Object>,
        cache: &Informer<V>,
    ) -> Result<bool, Error>
    where
        V: View,
    {
        if self.has(object) {
            return Ok(true);
        }
        let cached: Vec<Arc<Entry<V>>> = {
            let cache = cache.cache();
            let matching = cache.in_namespace(object.namespace()).filter(|p| selector.matches(|k| p.meta.label(k)));
            matching.cloned().collect()
        };
        let cached = cached.iter().map(|p| (&*p.meta.name, p.meta.resource_version.as_str()));
        let current = is_current(dependents, object.namespace(), selector, cached).await?;
        if current {
            self.objects.lock().insert(object.uid().into());
        }
        Ok(current)
    }
}

/// How long to wait for a cache that is not current.
pub const CACHE_DELAY: Duration = Duration::from_millis(500);

#[derive(Deserialize)]
struct Current {
    metadata: Version,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    name: String,
    resource_version: String,
}

/// Whether a cache shows the current state of all objects of a namespace that a selector matches. `cached`: their names and
/// resource versions.
async fn is_current<'a>(
    objects: &Api<Object>,
    namespace: &str,
    selector: &LabelSelector,
    cached: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<bool, Error> {
    let cached: BTreeMap<&str, &str> = cached.collect();
    let current = Api::<Current>::new(objects.client().clone(), objects.resource().clone()).namespace(namespace);
    let current = current.list_all(&ListOptions { limit: 500, ..ListOptions::labels(selector) }).await?.items;
    let shown = |o: &Current| {
        let held = cached.get(o.metadata.name.as_str());
        held.is_some_and(|held| version(held) >= version(&o.metadata.resource_version))
    };
    Ok(current.len() == cached.len() && current.iter().all(shown))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_cache_is_stale_until_it_shows_the_write() {
        let (writes, key) = (Writes::default(), Key::new("ns", "a"));
        let object = json!({"metadata": {"name": "a", "uid": "u", "resourceVersion": "10"}});
        writes.written(&key, &Object::from_value(object).unwrap());
        for (uid, at, expect) in [("u", "9", true), ("u", "10", false), ("u", "100", false), ("later", "9", false)] {
            assert_eq!(writes.is_stale(&key, uid, at), expect, "{uid} at {at}");
        }
        writes.forget(&key);
        assert!(!writes.is_stale(&key, "u", "9"));
    }
}
