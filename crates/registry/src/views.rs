//! Small views of stored objects: what a reader needs of each object, made once per revision and kept for those who come next.
//!
//! Invariant: a view always belongs to the revision of the given entry. An object that is replaced has another revision, and one that is deleted
//! has no entry to ask with. Bounded by bytes: when there are too many, all are forgotten.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use store::{Entry, Key};

/// What an entry of the map takes beside its view, in bytes.
const OVERHEAD: usize = 256;
pub struct Views<T> {
    kept: Mutex<Kept<T>>,
    most: usize,
    largest: usize,
}

struct Kept<T> {
    views: HashMap<Key, View<T>, foldhash::fast::RandomState>,
    bytes: usize,
}

struct View<T> {
    revision: u64,
    bytes: usize,
    view: Arc<T>,
}

impl<T> Views<T> {
    /// Keeps views of up to `most` bytes in total. A view of more than `largest` bytes is not kept.
    pub fn new(most: usize, largest: usize) -> Self {
        Self { kept: Mutex::new(Kept { views: HashMap::default(), bytes: 0 }), most, largest }
    }

    /// The view of an entry, if it is known.
    pub fn known(&self, entry: &Entry) -> Option<Arc<T>> {
        let kept = self.kept.lock();
        kept.views.get(&entry.key).filter(|v| v.revision == entry.revision).map(|v| v.view.clone())
    }

    /// The view of an entry. `make` returns it with the bytes that it takes.
    pub fn get(&self, entry: &Entry, make: impl FnOnce(&Entry) -> (T, usize)) -> Arc<T> {
        match self.try_get(entry, |e| Ok::<_, Infallible>(make(e))) {
            Ok(view) => view,
        }
    }

    /// The view of an entry. An error of `make` is returned and not kept.
    pub fn try_get<E>(&self, entry: &Entry, make: impl FnOnce(&Entry) -> Result<(T, usize), E>) -> Result<Arc<T>, E> {
        if let Some(view) = self.known(entry) {
            return Ok(view);
        }
        let (view, bytes) = make(entry)?;
        let (view, bytes) = (Arc::new(view), bytes + OVERHEAD);
        if bytes > self.largest {
            return Ok(view);
        }
        let one = View { revision: entry.revision, bytes, view: view.clone() };
        // What goes is freed without the lock.
        let gone;
        {
            let mut kept = self.kept.lock();
            gone = match kept.bytes + bytes > self.most {
                true => {
                    kept.bytes = 0;
                    std::mem::take(&mut kept.views)
                }
                false => HashMap::default(),
            };
            kept.bytes += bytes;
            if let Some(before) = kept.views.insert(entry.key.clone(), one) {
                kept.bytes -= before.bytes;
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
        assert_eq!(views.kept.lock().bytes, 6 + OVERHEAD);
    }

    #[test]
    fn no_more_is_kept_than_there_is_room() {
        let views = Views::new(4096, 1024);
        for i in 0..100 {
            views.get(&entry(&format!("o{i}"), 1), |_| (i, 500));
            let kept = views.kept.lock();
            assert!(kept.bytes <= 4096 && kept.bytes == kept.views.values().map(|v| v.bytes).sum::<usize>());
        }
        assert_eq!(views.known(&entry("o99", 1)).as_deref(), Some(&99));
        // One that takes much of the room does not drive out the others.
        views.get(&entry("large", 1), |_| (0, 1024));
        assert!(views.known(&entry("large", 1)).is_none() && views.known(&entry("o99", 1)).is_some());
    }
}
