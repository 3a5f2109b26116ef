//! The result of a write: the written object, or the `Status` of a failed commit.

use meta::{Object, Status};
use std::sync::Arc;
use store::{CommitError, Committed, Entry};

/// A written object.
pub struct Written {
    pub object: Arc<Object>,
    /// Its entry, in the storage version. None after a dry run, and for functions.
    pub entry: Option<Arc<Entry>>,
}

impl From<Object> for Written {
    fn from(object: Object) -> Self {
        Self { object: Arc::new(object), entry: None }
    }
}

impl Written {
    /// The result of the transaction's first operation, which wrote this object.
    pub(crate) fn committed(mut object: Object, done: &Committed) -> Self {
        object.set_resource_version(&done.revision.to_string());
        Self { object: Arc::new(object), entry: done.entries.first().cloned().flatten() }
    }
}

/// Converts a failed commit to a `Status`. Callers handle conflicts.
pub(crate) fn commit_status(e: &CommitError) -> Status {
    match e {
        CommitError::TooLarge { .. } => Status::too_large(format!("Request entity too large: {e}")),
        CommitError::TooLongKey { .. } => Status::bad_request(e.to_string()),
        CommitError::NoSpace => Status::new(507, meta::Reason::Unknown, format!("the server's disk is full: {e}")),
        _ => Status::internal(e),
    }
}
