//! The contract between the store and its engines, which keep revisions.
//!
//! Invariant: after any crash, an engine returns all acknowledged transactions, complete and in revision order.
//! There are two kinds. A sole writer ([`SoleWriter`]: memory, LMDB) gets revisions from the store, which checks all expectations in
//! memory. A shared one ([`SharedWriter`]: etcd) decides itself, since other servers write too, and feeds all changes back to the store.
//! Engines see sealed values only and never interpret them.

pub mod etcd;
pub(crate) mod ledger;
pub mod lmdb;
pub mod memory;

use crate::scope::Scope;
use crate::transform::{Damaged, TransformError};
use crate::{Entry, Expect, Key};
use async_trait::async_trait;
use bytes::Bytes;
use std::path::PathBuf;
use std::sync::Arc;

pub use crate::transform::Decode;
pub use ledger::Upkeep;

/// What an engine supports, and its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Old revisions survive a restart and can be read back.
    pub history: bool,
    /// Operations per transaction.
    pub max_ops: usize,
    /// Bytes of keys and sealed values per transaction.
    pub max_bytes: usize,
}

/// Where a sealed value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The revision that wrote it.
    pub revision: u64,
    /// The sealed value.
    pub value: Bytes,
}

/// One change of one key as the engine knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawChange {
    /// The revision of the change.
    pub revision: u64,
    /// The key.
    pub key: Key,
    /// `None`: deleted.
    pub value: Option<Bytes>,
    /// The version that was replaced or deleted, if it is known.
    pub previous: Option<Version>,
}

/// A piece of history.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// The changes, in order.
    pub changes: Vec<RawChange>,
    /// History is complete up to this revision.
    pub through: u64,
}

/// The newest state, read when the store opens.
pub struct Loaded {
    /// The newest revision.
    pub revision: u64,
    /// History is complete for every revision above this one.
    pub compacted: u64,
    /// Ordered by key.
    pub entries: Vec<Arc<Entry>>,
    /// Objects that cannot be opened.
    pub damaged: Vec<Damaged>,
}

/// Versions as they were decoded.
#[derive(Default)]
pub(crate) struct Decoded {
    pub entries: Vec<Arc<Entry>>,
    pub damaged: Vec<Damaged>,
}

impl Decoded {
    /// Fails if the fault is not the value's own.
    pub fn add(
        &mut self,
        key: &Key,
        revision: u64,
        opened: Result<Arc<Entry>, TransformError>,
    ) -> Result<(), EngineError> {
        match opened {
            Ok(entry) => self.entries.push(entry),
            Err(error) => self.damaged.push(Damaged::new(key, revision, error)?),
        }
        Ok(())
    }
}

/// A visitor of sealed values with their keys and revisions.
pub type Visit = Arc<dyn Fn(&Key, u64, &[u8]) + Send + Sync>;

/// Sizes in bytes; zero if the engine does not know them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The newest version of every key.
    pub live: u64,
    /// Older versions and tombstones.
    pub history: u64,
    /// The file of the data.
    pub file: u64,
    /// There is no space for further puts.
    pub full: bool,
}

/// The error of an engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The history is compacted.
    #[error("revisions up to {oldest} are compacted")]
    Expired {
        /// The oldest revision that is known.
        oldest: u64,
    },
    /// Another process uses the data.
    #[error("{path:?} is in use by another process")]
    InUse {
        /// The directory of the data.
        path: PathBuf,
    },
    /// A newer release wrote the data.
    #[error("the data has format {found}, this program reads up to {known}: it was written by a newer release")]
    NewerFormat {
        /// The format of the data.
        found: u32,
        /// The newest known format.
        known: u32,
    },
    /// A file cannot be read or written.
    #[error("{path:?}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The data is damaged.
    #[error("the data is damaged: {0}")]
    Corrupt(String),
    /// A value cannot be encrypted or decrypted.
    #[error(transparent)]
    Transform(#[from] TransformError),
    /// LMDB failed.
    #[error("the database")]
    Lmdb(#[from] heed::Error),
    /// etcd failed.
    #[error("{0}")]
    Backend(String),
    /// An earlier write failed with an unknown result, so that no further one is accepted.
    #[error("writing failed before: {0}")]
    Failed(String),
    /// The engine is closed.
    #[error("the engine is closed")]
    Closed,
}

impl EngineError {
    /// The error and its causes in one line.
    pub fn whole(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(source) = cause {
            text.push_str(": ");
            text.push_str(&source.to_string());
            cause = source.source();
        }
        text
    }
}

/// Keeps revisions: what sole and shared engines have in common.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// What the engine supports.
    fn capabilities(&self) -> Capabilities;

    /// Called once, before everything else.
    async fn load(&self, decode: Decode) -> Result<Loaded, EngineError>;

    /// The changes of a scope (or of everything) with `after < revision <= upto`, oldest first, whole revisions, up to about
    /// `limit` records; always makes progress. [`EngineError::Expired`] when they are not all known any more.
    async fn changes(&self, scope: Option<&Scope>, after: u64, upto: u64, limit: usize)
    -> Result<Changes, EngineError>;

    /// Visits the stored form of the newest version of every object of a resource. Concurrent writes may be missing.
    async fn visit(&self, resource: &str, visit: Visit) -> Result<(), EngineError>;

    /// The sizes of the data.
    fn usage(&self) -> Usage;

    /// Its writer, by kind.
    fn role(self: Arc<Self>) -> Role;

    /// Returns when all resources are free, so that the same data can be opened again.
    async fn close(&self);
}

/// The kind of an engine: who assigns revisions.
pub enum Role {
    /// Only this process writes it.
    Sole(Arc<dyn SoleWriter>),
    /// Other servers write it, too.
    Shared(Arc<dyn SharedWriter>),
}

/// One transaction, already checked.
#[derive(Clone, Debug)]
pub struct Transaction {
    /// The revision of the transaction.
    pub revision: u64,
    /// The writes, in order.
    pub writes: Vec<Write>,
}

/// A write of a transaction.
#[derive(Clone, Debug)]
pub struct Write {
    /// The key.
    pub key: Key,
    /// `None`: delete.
    pub value: Option<Bytes>,
    /// The revision of the version that this one replaces; 0 if there is none.
    pub previous: u64,
}

/// The error of a write.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Nothing was written; deletions may still be.
    #[error("no space left on the device")]
    NoSpace,
    /// Nothing was written, for a reason that may pass.
    #[error("{0}")]
    Refused(String),
    /// It may have happened or not.
    #[error("the backend did not answer: {0}")]
    Unanswered(String),
    /// Nothing may be written any more.
    #[error(transparent)]
    Fatal(#[from] EngineError),
}

/// The result of writing a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The revision up to which history is compacted.
    pub compacted: u64,
    /// There is more to compact now.
    pub behind: bool,
}

/// An engine that only this process writes.
pub trait SoleWriter: Send + Sync {
    /// Whether a write takes so long that it needs a thread of its own.
    fn waits(&self) -> bool;

    /// All transactions or none, in order, durable when it returns; and a small step of compaction. With an empty batch only
    /// the latter. Called by one thread at a time.
    fn write(&self, batch: &[Transaction], upkeep: &Upkeep) -> Result<Written, WriteError>;
}

/// An operation for a backend that checks the expectation itself.
#[derive(Clone, Debug)]
pub struct SharedOp {
    /// The key.
    pub key: Key,
    /// The condition.
    pub expect: Expect,
    /// The action.
    pub action: SharedAction,
}

/// What an operation of a shared engine does.
#[derive(Clone, Debug)]
pub enum SharedAction {
    /// A sealed value.
    Put(Bytes),
    /// Deletes the object.
    Delete,
    /// Checks the condition only.
    Check,
}

/// How a transaction went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing if nothing changed.
    Committed {
        /// The revision of the transaction.
        revision: Option<u64>,
    },
    /// The condition of an operation is not met.
    Conflict {
        /// The index of the operation.
        op: usize,
        /// The current version, if the key exists.
        current: Option<Version>,
    },
}

/// All changes of one revision; perhaps none of objects.
#[derive(Clone, Debug)]
pub struct Fed {
    /// The revision.
    pub revision: u64,
    /// The keys with their sealed values; none for deletions.
    pub changes: Vec<(Key, Option<Bytes>)>,
}

/// An engine that other processes write, too.
#[async_trait]
pub trait SharedWriter: Send + Sync {
    /// Executes a transaction.
    async fn transact(&self, ops: Vec<SharedOp>) -> Result<Outcome, WriteError>;

    /// A revision at or above those of all transactions that were answered before the call, by any server.
    async fn newest(&self) -> Result<u64, EngineError>;

    /// Creates a revision that concerns our keys but no object, so that the feed reaches all earlier ones.
    async fn mark(&self) -> Result<(), EngineError>;

    /// Sends every revision above `after` that concerns our keys, in order, until the receiver is gone. Reconnects by itself;
    /// an error means that revisions were lost ([`EngineError::Expired`]: they are compacted).
    async fn feed(&self, after: u64, sink: tokio::sync::mpsc::Sender<Fed>) -> Result<(), EngineError>;

    /// Forgets the history up to a revision.
    async fn compact(&self, revision: u64) -> Result<(), EngineError>;
}
