//! What is made of stored objects, until they change.

use auth::aside;
use meta::Object;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{Mutex, MutexGuard};

/// Something made from what `K` is the fingerprint of. Should that change while it is made, the fingerprint is of the older
/// state, and it is made again.
pub(crate) struct LastResult<K, T>(RwLock<Option<(K, Arc<T>)>>);

impl<K, T> Default for LastResult<K, T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<K: PartialEq, T> LastResult<K, T> {
    /// What was made of this state, if it was the last.
    pub fn known(&self, now: &K) -> Option<Arc<T>> {
        self.0.read().as_ref().filter(|(then, _)| then == now).map(|(_, made)| made.clone())
    }

    pub fn put(&self, now: K, made: T) -> Arc<T> {
        let made = Arc::new(made);
        *self.0.write() = Some((now, made.clone()));
        made
    }
}

/// What is made of each object of a resource, by its name, UID and resource version: when one changes, the others are not made again.
pub(crate) struct ResultPerObject<T>(Mutex<HashMap<String, Made<T>>>);

type Made<T> = ((String, String), Arc<T>);

impl<T> Default for ResultPerObject<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// The turn to make what is not there yet. Another request waits for it.
pub(crate) struct Computation<'a, T> {
    before: MutexGuard<'a, HashMap<String, Made<T>>>,
    now: HashMap<String, Made<T>>,
}

impl<T> ResultPerObject<T> {
    pub async fn begin(&self) -> Computation<'_, T> {
        Computation { before: self.0.lock().await, now: HashMap::new() }
    }
}

impl<T> Computation<'_, T> {
    /// What is made of an object, now or before. It may take long, and holds up nobody who does not wait for it.
    pub async fn get(&mut self, o: &Object, make: impl FnOnce(&Object) -> T) -> Arc<T> {
        let version = (o.uid().to_owned(), o.resource_version().to_owned());
        let made = match self.before.remove(o.name()) {
            Some((then, made)) if then == version => made,
            _ => {
                tokio::task::yield_now().await;
                Arc::new(aside::run(|| make(o)))
            }
        };
        self.now.insert(o.name().to_owned(), (version, made.clone()));
        made
    }

    /// Forgets the objects that were not asked for.
    pub fn end(mut self) {
        *self.before = self.now;
    }
}
