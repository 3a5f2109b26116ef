//! What is made of stored objects, until they change.

use parking_lot::RwLock;
use std::sync::Arc;

/// Something made from what `K` is the fingerprint of. Should that change while it is made, the fingerprint is of the older
/// state, and it is made again.
pub(crate) struct Remembered<K, T>(RwLock<Option<(K, Arc<T>)>>);

impl<K, T> Default for Remembered<K, T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<K: PartialEq, T> Remembered<K, T> {
    pub fn get(&self, now: K, make: impl FnOnce() -> T) -> Arc<T> {
        if let Some((then, made)) = &*self.0.read()
            && *then == now
        {
            return made.clone();
        }
        let made = Arc::new(make());
        *self.0.write() = Some((now, made.clone()));
        made
    }
}
