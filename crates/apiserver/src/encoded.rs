//! Caches encodings of watch events other than stored bytes, shared by all watchers.
//!
//! Invariant: the encoding under a key is the same for every watcher: independent of time and of earlier events.
//! Bounded; evicts the oldest first.

use crate::content::{Encoding, Negotiated, Shape};
use bytes::Bytes;
use parking_lot::Mutex;
use registry::{ObjectEventKind, Resource};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use store::Entry;

/// Maximum bytes of the cache, and of one event.
const MOST: usize = 8 << 20;
const OVERHEAD: usize = 300;

#[derive(Default)]
pub(crate) struct Encoded(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    events: HashMap<Key, Bytes>,
    order: VecDeque<Key>,
    bytes: usize,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    /// A changed row is a new one. Kept alive here, so that its address is not reused.
    row: Row,
    key: store::Key,
    revision: u64,
    event: &'static str,
    encoding: Encoding,
    shape: Shape,
    meta: &'static str,
    pretty: bool,
}

#[derive(Clone)]
struct Row(Arc<Resource>);

impl PartialEq for Row {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Row {}

impl std::hash::Hash for Row {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

/// What the encoding of an event depends on.
pub(crate) struct EventSource<'a> {
    pub row: &'a Arc<Resource>,
    pub entry: &'a Entry,
    pub kind: ObjectEventKind,
    pub negotiated: &'a Negotiated,
}

impl EventSource<'_> {
    /// None for tables: their cells contain ages.
    fn key(&self) -> Option<Key> {
        let w = self.negotiated;
        (w.shape != Shape::Table).then(|| Key {
            row: Row(self.row.clone()),
            key: self.entry.key.clone(),
            revision: self.entry.revision,
            event: self.kind.as_str(),
            encoding: w.encoding,
            shape: w.shape,
            meta: w.meta,
            pretty: w.pretty,
        })
    }
}

impl Encoded {
    pub fn get(&self, source: &EventSource<'_>) -> Option<Bytes> {
        self.0.lock().events.get(&source.key()?).cloned()
    }

    /// Caches an encoding. Returns it, or the one cached meanwhile by another watcher.
    pub fn keep(&self, source: &EventSource<'_>, bytes: Bytes) -> Bytes {
        let Some(key) = source.key().filter(|_| bytes.len() < MOST / 4) else { return bytes };
        let mut kept = self.0.lock();
        if let Some(there) = kept.events.get(&key) {
            return there.clone();
        }
        kept.bytes += bytes.len() + OVERHEAD;
        kept.events.insert(key.clone(), bytes.clone());
        kept.order.push_back(key);
        while kept.bytes > MOST {
            let Some(oldest) = kept.order.pop_front() else { break };
            if let Some(gone) = kept.events.remove(&oldest) {
                kept.bytes -= gone.len() + OVERHEAD;
            }
        }
        bytes
    }
}
