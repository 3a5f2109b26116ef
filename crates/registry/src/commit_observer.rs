//! Observes writes to the store, for metrics.

use crate::{Registry, Resource};
use std::sync::Arc;
use std::time::Duration;
use store::{CommitError, Committed, Op};
use tokio::time::Instant;

pub trait CommitObserver: Send + Sync {
    /// A transaction for an object of this row was committed durably, or failed.
    fn committed(&self, row: &Arc<Resource>, operation: &'static str, took: Duration, ok: bool);
}

impl Registry {
    pub(crate) async fn commit(
        &self,
        row: &Arc<Resource>,
        operation: &'static str,
        ops: Vec<Op>,
    ) -> Result<Committed, CommitError> {
        let Some(commit_observer) = self.commit_observer.get() else { return self.store.commit(ops).await };
        let begun = Instant::now();
        let done = self.store.commit(ops).await;
        // A conflict is not a failure of the store.
        let ok = matches!(done, Ok(_) | Err(CommitError::Conflict { .. }));
        commit_observer.committed(row, operation, begun.elapsed(), ok);
        done
    }
}
