//! Caches objects converted by a webhook.
//!
//! Invariant: a row caches only the results of its own converter; a changed definition makes a new row with an empty
//! cache. The key is object, revision and content: a watch delivers the last selected state of an object at the
//! revision of the next, so the revision alone is ambiguous. Bounded: evicts the oldest first.

use meta::{Object, Value};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use store::{Entry, Key};

/// Maximum bytes per row.
const MOST: usize = 8 << 20;
/// Size of a cache entry without its bytes.
const OVERHEAD: usize = 200;

/// Allocated on first use.
#[derive(Default)]
pub struct Converted(Mutex<Option<Box<Cache>>>);

/// Key, revision and a hash of the bytes.
type CacheKey = (Key, u64, u64);

fn key(entry: &Entry) -> CacheKey {
    let mut hash = DefaultHasher::new();
    hash.write(&entry.value);
    (entry.key.clone(), entry.revision, hash.finish())
}

#[derive(Default)]
struct Cache {
    objects: HashMap<CacheKey, Box<[u8]>>,
    /// Keys in insertion order.
    order: VecDeque<CacheKey>,
    bytes: usize,
}

impl Converted {
    pub(crate) fn get(&self, entry: &Entry) -> Option<Object> {
        let cache = self.0.lock();
        let bytes = cache.as_ref()?.objects.get(&key(entry))?;
        meta::depth::from_slice::<Value>(bytes).ok().and_then(Object::from_value)
    }

    pub(crate) fn keep(&self, entry: &Entry, object: &Object) {
        let Ok(bytes) = serde_json::to_vec(&object.0) else { return };
        let key = key(entry);
        let mut cache = self.0.lock();
        let cache = cache.get_or_insert_default();
        cache.bytes += bytes.len() + OVERHEAD;
        match cache.objects.insert(key.clone(), bytes.into()) {
            Some(before) => cache.bytes -= before.len() + OVERHEAD,
            None => cache.order.push_back(key),
        }
        while cache.bytes > MOST {
            let Some(oldest) = cache.order.pop_front() else { return };
            if let Some(gone) = cache.objects.remove(&oldest) {
                cache.bytes -= gone.len() + OVERHEAD;
            }
        }
    }
}
