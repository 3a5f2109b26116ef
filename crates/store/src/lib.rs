//! A revisioned, watchable key-value store. It knows keys, bytes and revisions; what the bytes mean it is told by the
//! [`IndexFn`] of its creator.
//!
//! Invariant: a commit is answered only after it is durable, and everyone (snapshots, watches, the answer) sees the same
//! revisions in the same order.

//!
//! The parts: an [`Engine`] keeps revisions on a disk, in memory or in etcd; the [`Store`] orders commits, holds the newest
//! state in memory as an immutable map that is cheap to clone ([`Snapshot`]) and a bounded log of events ([`Watch`]).
//! Left out: decoding values, selectors, and consensus between servers (etcd's business).

mod commit;
pub mod engine;
mod log;
mod newest;
mod past;
mod remote;
mod snapshot;
mod state;
mod store;
mod transform;
mod watch;

pub use commit::{CommitError, Committed};
#[cfg(feature = "etcd")]
pub use engine::etcd::Etcd;
pub use engine::{Capabilities, Engine, EngineError, Visit, lmdb::Lmdb, lmdb::LmdbOptions, memory::Memory};
pub use snapshot::{Snapshot, SnapshotError};
pub use store::{Backup, Clock, Error, Options, Retention, Stats, Store};
pub use transform::{Damaged, Fault, Transform, TransformError};
pub use watch::{Batch, Scope, Watch, WatchError};

use bytes::Bytes;
use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// The largest value any engine takes, in bytes of plaintext; the same for all, so that moving to etcd loses no object. It is more than an
/// object may have ([`MAX_OBJECT`]), so that what ends it can still be written into the largest one.
pub const MAX_VALUE: usize = MAX_OBJECT + (8 << 10);

/// The largest object that is taken and that is not being deleted, in bytes.
pub const MAX_OBJECT: usize = 1_500_000;

/// The longest namespace and name together, and the longest resource name, in bytes of UTF-8.
pub const MAX_KEY: usize = 1_900;

/// A short shared string.
pub type Str = Arc<str>;

/// Where an object lies. The order of keys is the order of a list: resource, namespace, name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The storage name of the resource, `apps/deployments` or `pods`; few and long-lived, so shared.
    pub resource: Str,
    /// Empty for cluster-scoped objects.
    pub namespace: Str,
    pub name: Str,
}

impl Key {
    pub fn new(resource: &str, namespace: &str, name: &str) -> Key {
        Key { resource: resource.into(), namespace: namespace.into(), name: name.into() }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}/{}/{}", self.resource, self.namespace, self.name)
    }
}

/// What must be true of a key for its operation (and with it the whole transaction) to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    Any,
    Absent,
    /// The key exists and was last written at this revision.
    Revision(u64),
}

#[derive(Clone, Debug)]
pub enum Action {
    Put(Bytes),
    Delete,
    /// Only the expectation is checked.
    Check,
}

#[derive(Clone, Debug)]
pub struct Op {
    pub key: Key,
    pub expect: Expect,
    pub action: Action,
}

impl Op {
    /// Bytes of the key and the value.
    fn size(&self) -> usize {
        let value = if let Action::Put(value) = &self.action { value.len() } else { 0 };
        self.key.resource.len() + self.key.namespace.len() + self.key.name.len() + value
    }
}

/// What the creator wants to find of a value without decoding it again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    /// Objects with equal labels may share them.
    pub labels: Arc<[(Str, Str)]>,
    pub fields: Box<[(Str, Str)]>,
    /// An offset in the value that the creator wants to find again.
    pub mark: u32,
}

/// Makes the index of a value.
pub type IndexFn = Arc<dyn Fn(&Key, &[u8]) -> Index + Send + Sync>;

/// One object at one revision. Immutable and shared by snapshots, watches and caches.
pub struct Entry {
    pub key: Key,
    /// Plaintext, on the heap.
    pub value: Bytes,
    /// The revision that wrote this value. In a deletion event: the revision of the deletion.
    pub revision: u64,
    index: OnceLock<Index>,
    make: IndexFn,
    pub memo: Memo,
    /// Fields that selectors asked for and the index does not have.
    pub selected: Memo,
}

impl Entry {
    pub fn new(key: Key, value: Bytes, revision: u64, index: IndexFn) -> Entry {
        Entry {
            key,
            value,
            revision,
            index: OnceLock::new(),
            make: index,
            memo: Memo::default(),
            selected: Memo::default(),
        }
    }

    /// Made when it is first asked for: a store with much in it is open before all of it was read.
    pub fn index(&self) -> &Index {
        self.index.get_or_init(|| (self.make)(&self.key, &self.value))
    }

    /// The same object at another revision.
    pub fn at(&self, revision: u64) -> Entry {
        let (key, value, make) = (self.key.clone(), self.value.clone(), self.make.clone());
        let index = self.index.clone();
        Entry { key, value, revision, index, make, memo: Memo::default(), selected: Memo::default() }
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("key", &self.key)
            .field("value", &self.value)
            .field("revision", &self.revision)
            .field("index", &self.index.get())
            .field("memo", &self.memo)
            .finish_non_exhaustive()
    }
}

/// What a reader in this process has made of an entry and the next one finds there. It says nothing that the entry does not.
#[derive(Default)]
pub struct Memo(OnceLock<Arc<dyn Any + Send + Sync>>);

impl Memo {
    /// What lies here, if it is of this type.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.0.get().and_then(|kept| kept.clone().downcast().ok())
    }

    /// Keeps something, unless something was kept before.
    pub fn keep<T: Any + Send + Sync>(&self, made: Arc<T>) {
        let _ = self.0.set(made);
    }

    /// What lies here, or is made now. What is of another type than the first that was kept is made anew every time.
    pub fn get_or_make<T: Any + Send + Sync, E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        if let Some(kept) = self.0.get() {
            return kept.clone().downcast().map_or_else(|_| Ok(Arc::new(make()?)), Ok);
        }
        let made = Arc::new(make()?);
        // Of two readers at once, the first is kept.
        let kept = self.0.get_or_init(|| made.clone());
        Ok(kept.clone().downcast().unwrap_or(made))
    }
}

impl fmt::Debug for Memo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() { "Memo(kept)" } else { "Memo" })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Put,
    Delete,
}

/// One change of one key.
#[derive(Debug)]
pub struct Event {
    pub change: Change,
    pub revision: u64,
    /// The new state; for a deletion the last state, with the revision of the deletion.
    pub entry: Arc<Entry>,
    /// The state before, if there was one and it is still known.
    pub previous: Option<Arc<Entry>>,
}
