//! Caches views of stored objects: data derived from an object, computed once per revision.
//!
//! Invariant: a returned view is of the revision of the given entry. A replaced object has another revision, and a
//! deleted one has no entry. Bounded by bytes: when full, everything is evicted.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use store::{Entry, Key};

/// Size of a map entry without its view, in bytes.
const OVERHEAD: usize = 256;
/// Views of stored objects, by key. Cached per revision, up to a number of bytes.
pub struct Views<T> {
    cache: Mutex<Cache<T>>,
    most: usize,
    largest: usize,
}

struct Cache<T> {
    views: HashMap<Key, View<T>, foldhash::fast::RandomState>,
    bytes: usize,
}

struct View<T> {
    revision: u64,
    bytes: usize,
    view: Arc<T>,
}

impl<T> Views<T> {
    /// Caches views of up to `most` bytes in total, and none of more than `largest` bytes.
    pub fn new(most: usize, largest: usize) -> Self {
        Self { cache: Mutex::new(Cache { views: HashMap::default(), bytes: 0 }), most, largest }
    }

    /// The cached view of an entry.
    pub fn known(&self, entry: &Entry) -> Option<Arc<T>> {
        let cache = self.cache.lock();
        cache.views.get(&entry.key).filter(|v| v.revision == entry.revision).map(|v| v.view.clone())
    }

    /// The view of an entry. `make` returns it with its size in bytes.
    pub fn get(&self, entry: &Entry, make: impl FnOnce(&Entry) -> (T, usize)) -> Arc<T> {
        match self.try_get(entry, |e| Ok::<_, Infallible>(make(e))) {
            Ok(view) => view,
        }
    }

    /// The view of an entry. Returns errors of `make` without caching them.
    pub fn try_get<E>(&self, entry: &Entry, make: impl FnOnce(&Entry) -> Result<(T, usize), E>) -> Result<Arc<T>, E> {
        if let Some(view) = self.known(entry) {
            return Ok(view);
        }
        let (view, bytes) = make(entry)?;
        let (view, bytes) = (Arc::new(view), bytes + OVERHEAD);
        if bytes > self.largest {
            return Ok(view);
        }
        let entry_view = View { revision: entry.revision, bytes, view: view.clone() };
        // Drop evicted views after releasing the lock.
        let gone;
        {
            let mut cache = self.cache.lock();
            gone = match cache.bytes + bytes > self.most {
                true => {
                    cache.bytes = 0;
                    std::mem::take(&mut cache.views)
                }
                false => HashMap::default(),
            };
            cache.bytes += bytes;
            if let Some(before) = cache.views.insert(entry.key.clone(), entry_view) {
                cache.bytes -= before.bytes;
            }
        }
        drop(gone);
        Ok(view)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn entry(name: &str, revision: u64) -> Entry {
        let key = Key { resource: "r".into(), namespace: "".into(), name: name.into() };
        Entry::new(key, "{}".into(), revision, crate::encode::index_fn(HashMap::new()))
    }

    #[test]
    fn a_view_is_made_once_per_revision() {
        let views = Views::new(1 << 20, 1 << 10);
        let (first, second) = (entry("a", 1), entry("a", 2));
        assert_eq!(*views.get(&first, |_| ("first", 5)), "first");
        assert_eq!(*views.get(&first, |_| unreachable!("it is known")), "first");
        assert_eq!(*views.get(&second, |_| ("second", 6)), "second");
        assert_eq!(views.known(&first), None);
        assert_eq!(views.cache.lock().bytes, 6 + OVERHEAD);
    }

    #[test]
    fn no_more_is_kept_than_there_is_room() {
        let views = Views::new(4096, 1024);
        for i in 0..100 {
            views.get(&entry(&format!("o{i}"), 1), |_| (i, 500));
            let cache = views.cache.lock();
            assert!(cache.bytes <= 4096 && cache.bytes == cache.views.values().map(|v| v.bytes).sum::<usize>());
        }
        assert_eq!(views.known(&entry("o99", 1)).as_deref(), Some(&99));
        // A view that takes much of the budget does not evict the others.
        views.get(&entry("large", 1), |_| (0, 1024));
        assert!(views.known(&entry("large", 1)).is_none() && views.known(&entry("o99", 1)).is_some());
    }
}
