//! Caches values derived from stored objects until the objects change.

use meta::Object;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use stored::in_place;
use tokio::sync::{Mutex, MutexGuard};

/// A cached value with fingerprint `K`. If the objects change during the computation, the fingerprint is of the older
/// state and the value is computed again.
pub(crate) struct LastResult<K, T>(RwLock<Option<(K, Arc<T>)>>);

impl<K, T> Default for LastResult<K, T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<K: PartialEq, T> LastResult<K, T> {
    /// The value for this fingerprint, if cached.
    pub fn known(&self, now: &K) -> Option<Arc<T>> {
        self.0.read().as_ref().filter(|(then, _)| then == now).map(|(_, made)| made.clone())
    }

    pub fn put(&self, now: K, made: T) -> Arc<T> {
        let made = Arc::new(made);
        *self.0.write() = Some((now, made.clone()));
        made
    }
}

/// Values derived from each object of a resource, by name, UID and resource version: a change of one object
/// recomputes only its value.
pub(crate) struct ResultPerObject<T>(Mutex<HashMap<String, Entry<T>>>);

type Entry<T> = ((String, String), Arc<T>);

impl<T> Default for ResultPerObject<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// Exclusive access for computing missing values. Concurrent requests wait.
pub(crate) struct Computation<'a, T> {
    before: MutexGuard<'a, HashMap<String, Entry<T>>>,
    now: HashMap<String, Entry<T>>,
}

impl<T> ResultPerObject<T> {
    pub async fn begin(&self) -> Computation<'_, T> {
        Computation { before: self.0.lock().await, now: HashMap::new() }
    }
}

impl<T> Computation<'_, T> {
    /// The value for an object, cached or computed. Computing may be slow; only requests for this cache wait.
    pub async fn get(&mut self, o: &Object, make: impl FnOnce(&Object) -> T) -> Arc<T> {
        let version = (o.uid().to_owned(), o.resource_version().to_owned());
        let made = match self.before.remove(o.name()) {
            Some((then, made)) if then == version => made,
            _ => {
                tokio::task::yield_now().await;
                Arc::new(in_place::long(|| make(o)))
            }
        };
        self.now.insert(o.name().to_owned(), (version, made.clone()));
        made
    }

    /// Evicts objects that were not requested.
    pub fn end(mut self) {
        *self.before = self.now;
    }
}
