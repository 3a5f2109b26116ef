//! The state of an open store, shared by its handles, its watches and its writer.
//!
//! Invariant: a batch becomes visible to snapshots before it is in the logs, from which watches read.

use crate::Event;
use crate::engine::{Decode, Engine, Loaded};
use crate::log::Logs;
use crate::newest::Newest;
use crate::options::Options;
use crate::past::PastStates;
use crate::scope::Scope;
use crate::snapshot::SnapshotError;
use crate::state::State;
use crate::transaction::CommitError;
use parking_lot::{Mutex, RwLock};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Published states that are cached for exact reads.
const RECENT: usize = 16;

/// Why a store accepts no commits any more.
#[derive(Clone)]
pub(crate) enum Ending {
    Closed,
    Fatal(Arc<str>),
}

impl Ending {
    pub fn refusal(&self) -> CommitError {
        match self {
            Ending::Closed => CommitError::Closed,
            Ending::Fatal(why) => CommitError::Fatal(why.clone()),
        }
    }
}

/// The state shared by handles, watches and the committer.
pub(crate) struct Shared {
    pub options: Options,
    pub decode: Decode,
    pub logs: Logs,
    engine: RwLock<Option<Arc<dyn Engine>>>,
    state: RwLock<Arc<State>>,
    /// The revision of `state`.
    visible: Newest,
    /// Everything up to here is in the logs.
    logged: AtomicU64,
    compacted: AtomicU64,
    recent: Mutex<VecDeque<Arc<State>>>,
    past: PastStates,
    ending: OnceLock<Ending>,
    /// Held shared from sealing a value until it is queued in order, or written.
    pub sealing: tokio::sync::RwLock<()>,
    transactions: AtomicU64,
    batches: AtomicU64,
}

impl Shared {
    /// The state that an engine has loaded.
    pub fn new(engine: Arc<dyn Engine>, options: Options, decode: Decode, loaded: Loaded) -> Shared {
        let retention = options.retention;
        let state = Arc::new(State::new(loaded.revision, loaded.entries, loaded.damaged));
        Shared {
            options,
            decode,
            logs: Logs::new(loaded.revision, (retention.log_events, retention.log_bytes)),
            engine: RwLock::new(Some(engine)),
            recent: Mutex::new(VecDeque::from([state.clone()])),
            state: RwLock::new(state),
            visible: Newest::new(loaded.revision),
            logged: AtomicU64::new(loaded.revision),
            compacted: AtomicU64::new(loaded.compacted),
            past: PastStates::default(),
            ending: OnceLock::new(),
            sealing: tokio::sync::RwLock::default(),
            transactions: AtomicU64::new(0),
            batches: AtomicU64::new(0),
        }
    }

    pub fn state(&self) -> Arc<State> {
        self.state.read().clone()
    }

    pub fn revision(&self) -> u64 {
        self.visible.get()
    }

    pub fn logged(&self) -> u64 {
        self.logged.load(Ordering::Acquire)
    }

    pub fn compacted(&self) -> u64 {
        self.compacted.load(Ordering::Acquire)
    }

    pub fn ending(&self) -> Option<&Ending> {
        self.ending.get()
    }

    /// Errors if the store has ended.
    pub fn alive(&self) -> Result<(), Ending> {
        self.ending().map_or(Ok(()), |ending| Err(ending.clone()))
    }

    pub fn engine(&self) -> Option<Arc<dyn Engine>> {
        self.engine.read().clone()
    }

    /// Takes the engine away, so that it can be closed. Later reads of history fail.
    pub fn take_engine(&self) -> Option<Arc<dyn Engine>> {
        self.engine.write().take()
    }

    /// How many transactions were published since the store was opened.
    pub fn transactions(&self) -> u64 {
        self.transactions.load(Ordering::Relaxed)
    }

    /// How many batches were published since the store was opened.
    pub fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    /// Makes a batch visible: first to snapshots, then to watches.
    pub fn publish(&self, state: State, events: Vec<Arc<Event>>, compacted: u64) {
        if self.compacted.fetch_max(compacted, Ordering::AcqRel) < compacted {
            self.past.compacted(compacted);
        }
        let revision = state.revision;
        let before = self.revision();
        if revision == before {
            return;
        }
        self.transactions.fetch_add(revision - before, Ordering::Relaxed);
        self.batches.fetch_add(1, Ordering::Relaxed);
        let state = Arc::new(state);
        *self.state.write() = state.clone();
        let dropped = {
            let mut recent = self.recent.lock();
            recent.push_back(state);
            if recent.len() > RECENT { recent.pop_front() } else { None }
        };
        drop(dropped);
        self.past.published(&events);
        self.visible.set(revision);
        let touched = self.logs.append(events);
        self.logged.store(revision, Ordering::Release);
        for (log, newest) in touched {
            log.newest.set(newest);
        }
    }

    /// History up to here is gone, from the logs as well.
    pub fn note_compacted(&self, revision: u64) {
        self.compacted.fetch_max(revision, Ordering::AcqRel);
        self.past.compacted(revision);
        self.logs.trim(revision);
    }

    /// Replaces the state by one that was read again, because changes in between are unknown: watches continue from the engine's
    /// history, or expire if that is compacted.
    pub fn replace(&self, loaded: Loaded) {
        let revision = loaded.revision;
        let state = Arc::new(State::new(revision, loaded.entries, loaded.damaged));
        self.logs.restart(revision);
        self.past.compacted(revision);
        *self.recent.lock() = VecDeque::from([state.clone()]);
        *self.state.write() = state;
        self.visible.set(revision);
        self.logged.store(revision, Ordering::Release);
        self.logs.wake(revision);
    }

    /// Ends the store. Only the first reason counts.
    pub fn end(&self, ending: Ending) {
        let _ = self.ending.set(ending);
        self.visible.wake();
        self.logs.end();
    }

    /// Waits until the revision is visible. Errors if the store ends before.
    pub async fn wait_for(&self, revision: u64) -> Result<(), Ending> {
        loop {
            let changed = self.visible.changed();
            if self.visible.get() >= revision {
                return Ok(());
            }
            self.alive()?;
            changed.await;
        }
    }

    /// The state at a revision, if it was published recently.
    pub fn recent(&self, revision: u64) -> Option<Arc<State>> {
        self.recent.lock().iter().find(|state| state.revision == revision).cloned()
    }

    /// The objects of a scope at a revision before that of the newest state, from the cache or reconstructed in turn.
    pub async fn past(&self, scope: &Scope, revision: u64) -> Result<Arc<State>, SnapshotError> {
        if let Some(state) = self.past.find(scope, revision) {
            return Ok(state);
        }
        let turn = self.past.turn().await;
        // Reconstructed while this waited.
        if let Some(state) = self.past.find(scope, revision) {
            return Ok(state);
        }
        let engine = self.engine().ok_or(SnapshotError::Closed)?;
        self.past.reconstruct(turn, &*engine, &self.decode, || self.state(), scope, revision).await
    }
}
