//! What a converter outside has made of stored objects, kept for the next who reads them.
//!
//! Invariant: a row keeps only what its own converter said; a definition that changes makes a new row, and with it an empty
//! memory. What is kept is found by key, revision and content, so it is never that of another state: who ceases to select an object is
//! told its last state at the revision of the next. Bounded: the oldest goes first.

use meta::{Object, Value};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use store::{Entry, Key};

/// Bytes that a row keeps.
const MOST: usize = 8 << 20;
/// What an object takes beyond its bytes.
const OVERHEAD: usize = 200;

/// Nothing is allocated until something is kept.
#[derive(Default)]
pub struct Converted(Mutex<Option<Box<Kept>>>);

/// Key, revision and a hash of the bytes.
type CacheKey = (Key, u64, u64);

fn key(entry: &Entry) -> CacheKey {
    let mut hash = DefaultHasher::new();
    hash.write(&entry.value);
    (entry.key.clone(), entry.revision, hash.finish())
}

#[derive(Default)]
struct Kept {
    objects: HashMap<CacheKey, Box<[u8]>>,
    /// In the order in which they came.
    order: VecDeque<CacheKey>,
    bytes: usize,
}

impl Converted {
    pub(crate) fn get(&self, entry: &Entry) -> Option<Object> {
        let kept = self.0.lock();
        let bytes = kept.as_ref()?.objects.get(&key(entry))?;
        meta::depth::from_slice::<Value>(bytes).ok().and_then(Object::from_value)
    }

    pub(crate) fn keep(&self, entry: &Entry, object: &Object) {
        let Ok(bytes) = serde_json::to_vec(&object.0) else { return };
        let key = key(entry);
        let mut kept = self.0.lock();
        let kept = kept.get_or_insert_default();
        kept.bytes += bytes.len() + OVERHEAD;
        match kept.objects.insert(key.clone(), bytes.into()) {
            Some(before) => kept.bytes -= before.len() + OVERHEAD,
            None => kept.order.push_back(key),
        }
        while kept.bytes > MOST {
            let Some(oldest) = kept.order.pop_front() else { return };
            if let Some(gone) = kept.objects.remove(&oldest) {
                kept.bytes -= gone.len() + OVERHEAD;
            }
        }
    }
}
