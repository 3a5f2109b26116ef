//! Registers waiting and executing requests, for debugging.

use super::Governed;
use flowcontrol::FlowSchema;
use http::{Method, Uri};
use parking_lot::{Mutex, MutexGuard};
use slab::Slab;
use std::sync::Arc;
use tokio::time::Instant;

/// A request under priority and fairness. Its attributes are parsed from the request line again on demand.
pub(super) struct GovernedRequest {
    pub governed: Arc<Governed>,
    /// The index of its schema.
    pub schema: usize,
    pub distinguisher: String,
    pub user: String,
    pub method: Method,
    pub uri: Uri,
    pub seats: u32,
    pub arrived: Instant,
    /// When it got its seat, and the queue it waited in.
    pub begun: Option<(Instant, Option<usize>)>,
}

impl GovernedRequest {
    pub fn schema(&self) -> &FlowSchema {
        &self.governed.config.schemas()[self.schema]
    }
}

#[derive(Clone, Default)]
pub(super) struct ActiveRequests(Arc<Mutex<Slab<GovernedRequest>>>);

impl ActiveRequests {
    pub fn add(&self, request: GovernedRequest) -> Entry {
        Entry { key: self.0.lock().insert(request), known: self.clone() }
    }

    pub fn all(&self) -> MutexGuard<'_, Slab<GovernedRequest>> {
        self.0.lock()
    }
}

/// Registers a request until dropped.
pub(super) struct Entry {
    known: ActiveRequests,
    pub key: usize,
}

impl Entry {
    pub fn begin(&self, queue: Option<usize>) {
        if let Some(request) = self.known.all().get_mut(self.key) {
            request.begun = Some((Instant::now(), queue));
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // Drop the request after releasing the lock.
        let gone = self.known.all().try_remove(self.key);
        drop(gone);
    }
}
