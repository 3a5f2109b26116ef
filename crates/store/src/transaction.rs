//! A transaction: its operations as they are prepared for a writer, its result, and its errors.

use crate::transform::TransformError;
use crate::{Entry, Expect, Key};
use bytes::Bytes;
use std::sync::Arc;

/// A transaction that happened.
#[derive(Clone, Debug)]
pub struct Committed {
    /// Of the transaction; the current one if it changed nothing (only checks, or deletions of what did not exist).
    pub revision: u64,
    /// Per operation; nothing for deletions and checks.
    pub entries: Vec<Option<Arc<Entry>>>,
}

/// A transaction of which nothing happened.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CommitError {
    /// The expectation of operation `op` does not hold.
    #[error("operation {op}: the state is not the expected one")]
    Conflict {
        /// The index of the operation.
        op: usize,
        /// The current object, if it exists.
        current: Option<Arc<Entry>>,
    },
    /// A value is too large.
    #[error("operation {op}: {size} bytes are too much, the limit is {limit}")]
    TooLarge {
        /// The index of the operation.
        op: usize,
        /// The bytes of the value.
        size: usize,
        /// The maximum.
        limit: usize,
    },
    /// The transaction has too many operations.
    #[error("{count} operations are too many, the limit is {limit}")]
    TooManyOps {
        /// The number of operations.
        count: usize,
        /// The maximum.
        limit: usize,
    },
    /// A key is too long.
    #[error("operation {op}: a key of {size} bytes is too long, the limit is {limit}")]
    TooLongKey {
        /// The index of the operation.
        op: usize,
        /// The bytes of the key.
        size: usize,
        /// The maximum.
        limit: usize,
    },
    /// An empty resource or name, or a zero byte in one.
    #[error("operation {op}: not a key")]
    BadKey {
        /// The index of the operation.
        op: usize,
    },
    /// Two operations have the same key.
    #[error("operation {op}: its key occurs twice in the transaction")]
    SameKey {
        /// The index of the second operation.
        op: usize,
    },
    /// A value cannot be encrypted.
    #[error("operation {op}: sealing the value")]
    Seal {
        /// The index of the operation.
        op: usize,
        /// The cause.
        #[source]
        source: TransformError,
    },
    /// The disk is full. Deletions still work.
    #[error("no space left on the device")]
    NoSpace,
    /// A backend elsewhere refused it for a reason that may pass.
    #[error("{0}")]
    Refused(String),
    /// A backend elsewhere did not answer: the transaction may have happened or not. Read before trying again.
    #[error("the backend did not answer: {0}")]
    Unanswered(String),
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
    /// Something was not synced: whether this transaction is on the disk is unknown, and the store takes no other.
    #[error("the store has failed: {0}")]
    Fatal(Arc<str>),
}

/// An operation, prepared before it reaches the committer.
pub(crate) struct Prepared {
    pub key: Key,
    pub expect: Expect,
    pub action: PreparedAction,
}

pub(crate) enum PreparedAction {
    Put { value: Bytes, sealed: Bytes },
    Delete,
    Check,
}

pub(crate) type Answer = Result<Committed, CommitError>;
