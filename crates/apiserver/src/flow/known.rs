//! The requests that wait or are answered, for those who look for what is wrong.

use super::Governed;
use flowcontrol::FlowSchema;
use http::{Method, Uri};
use parking_lot::{Mutex, MutexGuard};
use slab::Slab;
use std::sync::Arc;
use tokio::time::Instant;

/// A request that is governed. What it asks for is read from its first line again when somebody wants to know.
pub(super) struct GovernedRequest {
    pub governed: Arc<Governed>,
    /// The place of its schema.
    pub schema: usize,
    pub distinguisher: String,
    pub user: String,
    pub method: Method,
    pub uri: Uri,
    pub seats: u32,
    pub arrived: Instant,
    /// Since it has its seat: when, and in which queue it waited.
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
    pub fn add(&self, asked: GovernedRequest) -> Entry {
        Entry { key: self.0.lock().insert(asked), known: self.clone() }
    }

    pub fn all(&self) -> MutexGuard<'_, Slab<GovernedRequest>> {
        self.0.lock()
    }
}

/// A request is known until this is dropped.
pub(super) struct Entry {
    known: ActiveRequests,
    pub key: usize,
}

impl Entry {
    pub fn begin(&self, queue: Option<usize>) {
        if let Some(asked) = self.known.all().get_mut(self.key) {
            asked.begun = Some((Instant::now(), queue));
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // What it holds is given up without the lock.
        let gone = self.known.all().try_remove(self.key);
        drop(gone);
    }
}
