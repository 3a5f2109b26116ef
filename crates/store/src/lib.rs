//! A revisioned, watchable key-value store of bytes. The [`IndexFn`] of its creator extracts labels and fields from the values.
//!
//! Invariant: a commit is answered only after it is durable, and everyone (snapshots, watches, the answer) sees the same
//! revisions in the same order.

#![warn(missing_docs)]

//!
//! The parts: an [`Engine`] keeps revisions on a disk, in memory or in etcd; the [`Store`] orders commits, holds the newest
//! state in memory as an immutable map that is cheap to clone ([`Snapshot`]) and a bounded log of events ([`Watch`]).
//! Left out: decoding values, selectors, and consensus between servers (etcd's business).

mod commit;
pub mod engine;
mod log;
mod newest;
mod options;
mod past;
mod remote;
mod scope;
mod shared;
mod snapshot;
mod state;
mod store;
mod transaction;
mod transform;
mod watch;

pub use engine::etcd::{Etcd, EtcdOptions, EtcdTls};
pub use engine::{Capabilities, Engine, EngineError, Visit, lmdb::Lmdb, lmdb::LmdbOptions, memory::Memory};
pub use options::{Clock, Options, Retention};
pub use scope::Scope;
pub use snapshot::{Snapshot, SnapshotError};
pub use store::{Backup, Error, Stats, Store};
pub use transaction::{CommitError, Committed};
pub use transform::{Damaged, Fault, Transform, TransformError};
pub use watch::{Batch, Watch, WatchError};

use bytes::Bytes;
use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Maximum bytes of a value, in plaintext. It is the same for all engines, so that moving to etcd loses no object, and larger than
/// [`MAX_OBJECT`], so that a deletion can still be recorded in the largest object.
pub const MAX_VALUE: usize = MAX_OBJECT + (8 << 10);

/// Maximum bytes of an object that is not being deleted.
pub const MAX_OBJECT: usize = 1_500_000;

/// Maximum bytes of namespace and name together, and of the name of a resource.
pub const MAX_KEY: usize = 1_900;

/// A short shared string.
pub type Str = Arc<str>;

/// The key of an object. Keys are ordered as lists: by resource, namespace, name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The storage name of the resource, `apps/deployments` or `pods`; few and long-lived, so shared.
    pub resource: Str,
    /// Empty for cluster-scoped objects.
    pub namespace: Str,
    /// The name of the object.
    pub name: Str,
}

impl Key {
    /// The key of an object.
    pub fn new(resource: &str, namespace: &str, name: &str) -> Key {
        Key { resource: resource.into(), namespace: namespace.into(), name: name.into() }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}/{}/{}", self.resource, self.namespace, self.name)
    }
}

/// The condition on a key under which its operation, and the whole transaction, is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// No condition.
    Any,
    /// The key does not exist.
    Absent,
    /// The key exists and was last written at this revision.
    Revision(u64),
}

/// What an operation does.
#[derive(Clone, Debug)]
pub enum Action {
    /// Writes this value.
    Put(Bytes),
    /// Deletes the object.
    Delete,
    /// Checks the expectation only.
    Check,
}

/// An operation of a transaction.
#[derive(Clone, Debug)]
pub struct Op {
    /// The key.
    pub key: Key,
    /// The condition.
    pub expect: Expect,
    /// The action.
    pub action: Action,
}

impl Op {
    /// Bytes of the key and the value.
    fn size(&self) -> usize {
        let value = if let Action::Put(value) = &self.action { value.len() } else { 0 };
        self.key.resource.len() + self.key.namespace.len() + self.key.name.len() + value
    }
}

/// Parts of a value that are needed without decoding it again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    /// Objects with equal labels may share them.
    pub labels: Arc<[(Str, Str)]>,
    /// Selectable fields and their values.
    pub fields: Box<[(Str, Str)]>,
    /// An offset in the value, defined by the creator of the store.
    pub mark: u32,
}

/// Computes the index of a value.
pub type IndexFn = Arc<dyn Fn(&Key, &[u8]) -> Index + Send + Sync>;

/// One object at one revision. Immutable and shared by snapshots, watches and caches.
pub struct Entry {
    /// The key of the object.
    pub key: Key,
    /// Plaintext, on the heap.
    pub value: Bytes,
    /// The revision that wrote this value. In a deletion event: the revision of the deletion.
    pub revision: u64,
    index: OnceLock<Index>,
    make: IndexFn,
    /// Values that readers derived from the entry.
    pub memo: Memo,
    /// Fields of selectors that are not in the index, computed on demand.
    pub selected: Memo,
}

impl Entry {
    /// An entry with this value. The index is computed when it is needed.
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

    /// The index, computed on first use, so that a large store opens quickly.
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

/// A value that a reader derived from an entry, cached for the next reader.
#[derive(Default)]
pub struct Memo(OnceLock<Arc<dyn Any + Send + Sync>>);

impl Memo {
    /// The cached value, if it has this type.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.0.get().and_then(|kept| kept.clone().downcast().ok())
    }

    /// Caches a value, unless there is one.
    pub fn keep<T: Any + Send + Sync>(&self, made: Arc<T>) {
        let _ = self.0.set(made);
    }

    /// The cached value, or a new one. A type other than that of the cached value is computed every time.
    pub fn get_or_make<T: Any + Send + Sync, E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        if let Some(kept) = self.0.get() {
            return kept.clone().downcast().map_or_else(|_| Ok(Arc::new(make()?)), Ok);
        }
        let made = Arc::new(make()?);
        // The value of the first of two concurrent readers is kept.
        let kept = self.0.get_or_init(|| made.clone());
        Ok(kept.clone().downcast().unwrap_or(made))
    }
}

impl fmt::Debug for Memo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() { "Memo(kept)" } else { "Memo" })
    }
}

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The object was created or updated.
    Put,
    /// The object was deleted.
    Delete,
}

/// One change of one key.
#[derive(Debug)]
pub struct Event {
    /// The kind of the change.
    pub change: Change,
    /// The revision of the change.
    pub revision: u64,
    /// The new object; for a deletion the last one, with the revision of the deletion.
    pub entry: Arc<Entry>,
    /// The previous object, if there was one and it is still known.
    pub previous: Option<Arc<Entry>>,
}
