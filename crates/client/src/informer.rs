//! Informers: caches of the objects of a resource, kept up to date by list and watch.
//!
//! An entry has the object's bytes (shared with the server in the same process), its [`Meta`], and a *view*: the few fields that its
//! readers declare, decoded once per event. [`Entry::decode`] decodes the whole object on demand and does not cache it.
//! Handlers run in the order of events, after the cache was updated. Left out: resync; controllers are level-based and use their own
//! timers.

mod cache;
mod factory;
mod pooled;
mod reflector;
mod sink;

pub use cache::{Cache, Change, Entry, Key, Labels, Meta, Owner, or_default};
pub use factory::{Informers, Scope};
pub use pooled::Pooled;

use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use supervisor::Flag;

/// The fields a reader needs, as a serde struct over the object's JSON. `()` for metadata alone.
pub trait View: DeserializeOwned + Send + Sync + 'static {}
impl<T: DeserializeOwned + Send + Sync + 'static> View for T {}

/// A registered change handler; dropping it unregisters the handler.
#[derive(Debug)]
pub struct Subscription(Arc<()>);

/// The cache of one resource and its handlers. Cheap to clone.
pub struct Informer<V> {
    shared: Arc<cache::Shared<V>>,
    synced: Flag,
}

impl<V> Clone for Informer<V> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), synced: self.synced.clone() }
    }
}

impl<V: View> Informer<V> {
    /// A read lock on the cache.
    pub fn cache(&self) -> Cache<'_, V> {
        self.shared.read()
    }

    /// Calls `f` for every object in the cache and for every later change, as long as the informer runs. `f` must not block.
    pub fn on_change(&self, f: impl Fn(&Change<V>) + Send + Sync + 'static) {
        self.shared.subscribe(Arc::downgrade(&self.shared.forever), Arc::new(f));
    }

    /// Calls `f` as [`Self::on_change`] does, until the subscription is dropped.
    #[must_use]
    pub fn subscribe(&self, f: impl Fn(&Change<V>) + Send + Sync + 'static) -> Subscription {
        let subscription = Subscription(Arc::new(()));
        self.shared.subscribe(Arc::downgrade(&subscription.0), Arc::new(f));
        subscription
    }

    /// Adds an index from the values that `f` returns for an object to the objects; see [`Cache::by_index`].
    pub fn index(&self, name: &'static str, f: impl Fn(&Entry<V>) -> Vec<String> + Send + Sync + 'static) {
        self.shared.add_index(name, Arc::new(f));
    }

    /// The cached objects whose controller has this UID, and those of the namespace that have no controller.
    pub fn controlled_or_orphaned(&self, uid: &str, namespace: &str) -> Vec<Arc<Entry<V>>> {
        self.shared.controlled_or_orphaned(uid, namespace)
    }

    /// The cached entry of a key.
    pub fn get(&self, key: &Key) -> Option<Arc<Entry<V>>> {
        self.cache().get(key).cloned()
    }

    /// The revision up to which the cache shows all changes.
    pub fn revision(&self) -> u64 {
        self.shared.revision.load(Acquire)
    }

    /// Waits while the watch is interrupted, until the cache shows what happened meanwhile. Caches that recover at different times contradict
    /// each other.
    pub async fn connected(&self) {
        self.shared.connection.wait().await;
    }

    /// Whether the first list has been delivered to the handlers.
    pub fn has_synced(&self) -> bool {
        self.synced.is_set()
    }

    /// Waits until the first list has been delivered.
    pub async fn synced(&self) {
        self.synced.wait().await;
    }
}

#[cfg(test)]
mod tests;
