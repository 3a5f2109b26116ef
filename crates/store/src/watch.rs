//! Watching: every change of a resource after a revision, in order, without gaps.
//!
//! Invariant: a watch delivers each event of its scope exactly once in the order of revisions, the events of one revision
//! together, or ends with an error. It never runs ahead of the snapshots: what it delivered is in [`crate::Store::snapshot`].

use crate::engine::{Decode, EngineError, RawChange};
use crate::log::{ENDED, Log, Read};
use crate::scope::Scope;
use crate::shared::{Ending, Shared};
use crate::transform::{Fault, TransformError};
use crate::{Change, Event};
use std::sync::Arc;

/// Events per batch; whole revisions, so a large transaction may exceed it.
const BATCH: usize = 512;

/// The error that ends a watch.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WatchError {
    /// The HTTP answer is 410 with reason `Expired`.
    #[error("the revision is compacted; a watch can start after {oldest} or later")]
    Expired {
        /// The oldest revision after which a watch can start.
        oldest: u64,
    },
    /// The revision does not exist yet.
    #[error("the revision is in the future; the current one is {current}")]
    Future {
        /// The newest revision.
        current: u64,
    },
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
    /// The store failed.
    #[error("the store has failed: {0}")]
    Fatal(Arc<str>),
    /// The engine failed.
    #[error("reading history")]
    Engine(#[source] Arc<EngineError>),
}

impl From<Ending> for WatchError {
    fn from(ending: Ending) -> WatchError {
        match ending {
            Ending::Closed => WatchError::Closed,
            Ending::Fatal(why) => WatchError::Fatal(why),
        }
    }
}

/// Events of a watch; at least one.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The events, in the order of revisions.
    pub events: Vec<Arc<Event>>,
    /// Everything of the scope up to here was delivered with this batch.
    pub revision: u64,
}

/// The changes of a scope, in order and without gaps.
pub struct Watch {
    shared: Arc<Shared>,
    scope: Scope,
    /// Everything up to here was delivered.
    cursor: u64,
    log: Arc<Log>,
}

impl Watch {
    pub(crate) fn start(shared: Arc<Shared>, scope: Scope, after: u64) -> Result<Watch, WatchError> {
        let current = shared.revision();
        if after > current {
            return Err(WatchError::Future { current });
        }
        let log = shared.logs.log(&scope.resource);
        shared.alive()?;
        let compacted = shared.compacted();
        if after < compacted && !log.covers(after) {
            return Err(WatchError::Expired { oldest: compacted });
        }
        Ok(Watch { shared, scope, cursor: after, log })
    }

    /// The next events; waits until there are some. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Batch, WatchError> {
        loop {
            self.shared.alive()?;
            let log = self.log.clone();
            let changed = log.newest.changed();
            let seen = log.newest.get();
            // Taken before the log is read: everything up to here is in the log by now.
            let logged = self.shared.logged();
            match self.log.read(self.cursor, BATCH, |event| self.scope.contains(&event.entry.key)) {
                Read::Events(events, through) => {
                    let last = events.last().map_or(0, |event| event.revision);
                    self.cursor = through.unwrap_or(logged.max(last)).max(self.cursor);
                    if !events.is_empty() {
                        return Ok(Batch { events, revision: self.cursor });
                    }
                }
                Read::Fallen => {
                    if let Some(batch) = self.catch_up(logged).await? {
                        return Ok(batch);
                    }
                    continue;
                }
            }
            if seen != ENDED {
                changed.await;
            }
        }
    }

    /// Everything of the scope up to this revision was delivered; for bookmarks. Grows without events, too.
    pub fn revision(&self) -> u64 {
        let logged = self.shared.logged();
        if logged > self.cursor && !self.log.pending(self.cursor, |event| self.scope.contains(&event.entry.key)) {
            return logged;
        }
        self.cursor
    }

    /// The objects of the watch.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Reads a part of the engine's history, up to `upto` at most.
    async fn catch_up(&mut self, upto: u64) -> Result<Option<Batch>, WatchError> {
        let engine = self.shared.engine().ok_or(WatchError::Closed)?;
        let changes =
            engine.changes(Some(&self.scope), self.cursor, upto, BATCH).await.map_err(|error| match error {
                EngineError::Expired { oldest } => WatchError::Expired { oldest },
                error => WatchError::Engine(Arc::new(error)),
            })?;
        let mut events = Vec::with_capacity(changes.changes.len());
        for change in changes.changes {
            // History that cannot be opened counts as compacted: a list then returns the objects, or the error.
            let expired = |_| WatchError::Expired { oldest: self.shared.revision() };
            events.extend(event(&self.shared.decode, change).map_err(expired)?);
        }
        self.cursor = changes.through.max(self.cursor);
        Ok((!events.is_empty()).then_some(Batch { events, revision: self.cursor }))
    }
}

/// The event of a change. None for a deletion with an unknown previous object.
pub(crate) fn event(decode: &Decode, change: RawChange) -> Result<Option<Arc<Event>>, TransformError> {
    let RawChange { revision, key, value, previous } = change;
    let previous = previous.map(|version| decode(&key, version.revision, &version.value)).transpose();
    let previous = match previous {
        // The object could not be read before either.
        Err(error) if error.fault == Fault::Value => None,
        other => other?,
    };
    let (change, entry) = match value {
        Some(value) => (Change::Put, decode(&key, revision, &value)?),
        None => match &previous {
            Some(last) => (Change::Delete, Arc::new(last.at(revision))),
            None => return Ok(None),
        },
    };
    Ok(Some(Arc::new(Event { change, revision, entry, previous })))
}
