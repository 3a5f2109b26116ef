//! The store: one handle for commits, snapshots and watches over any engine.
//!
//! Invariant: a revision is visible to snapshots before any watch delivers it and before its commit is answered; it is
//! durable before all of these.

use crate::commit::{CommitError, Committed, Committer, Prepared, PreparedAction, Queue, Request};
use crate::engine::{Decode, Engine, EngineError, Role, Usage, Visit};
use crate::log::Logs;
use crate::newest::Newest;
use crate::past::PastStates;
use crate::remote::Remote;
use crate::state::State;
use crate::transform::{Damaged, Transform, decoder};
use crate::{
    Action, Entry, Event, IndexFn, Key, MAX_KEY, MAX_VALUE, Op, Scope, Snapshot, SnapshotError, Watch, WatchError,
};
use parking_lot::{Mutex, RwLock};
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Published states that are cached for exact reads.
const RECENT: usize = 16;
/// Objects resealed at a time.
const RESEAL: usize = 64;

/// Returns the time in Unix milliseconds.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Retention of history: until it is old or large, whichever is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The age from which history is compacted, in milliseconds.
    pub age_ms: u64,
    /// The bound by size is the larger of this and `live_percent` of the live bytes.
    pub bytes: u64,
    /// The bound by size, in percent of the live bytes.
    pub live_percent: u32,
    /// Bounds of the event log in memory, per resource; beyond them watches read from the engine.
    pub log_events: usize,
    /// Maximum bytes of the event log of a resource.
    pub log_bytes: usize,
}

impl Default for Retention {
    fn default() -> Retention {
        Retention { age_ms: 300_000, bytes: 256 << 20, live_percent: 100, log_events: 16_384, log_bytes: 32 << 20 }
    }
}

/// Options of a store.
#[derive(Clone)]
pub struct Options {
    /// Computes the index of values.
    pub index: IndexFn,
    /// Encrypts values; none stores them as they are.
    pub transform: Option<Arc<dyn Transform>>,
    /// How much history is kept.
    pub retention: Retention,
    /// The clock of retention.
    pub clock: Clock,
}

/// The error of opening a store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process uses the data.
    #[error("{path:?} is in use by another process")]
    InUse {
        /// The directory of the data.
        path: std::path::PathBuf,
    },
    /// A newer release wrote the data.
    #[error("the data has format {found}, this program reads up to {known}: it was written by a newer release")]
    NewerFormat {
        /// The format of the data.
        found: u32,
        /// The newest known format.
        known: u32,
    },
    /// The engine failed.
    #[error("opening the store")]
    Engine(#[source] EngineError),
    /// The thread of the committer cannot be started.
    #[error("starting the committer")]
    Thread(#[source] std::io::Error),
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Error {
        match error {
            EngineError::InUse { path } => Error::InUse { path },
            EngineError::NewerFormat { found, known } => Error::NewerFormat { found, known },
            error => Error::Engine(error),
        }
    }
}

/// Contents of a backup.
#[derive(Clone, Debug, Default)]
pub struct Backup {
    /// The revision of the backup.
    pub revision: u64,
    /// The number of objects.
    pub objects: usize,
    /// Objects that could not be read and are not in it.
    pub damaged: Vec<Arc<Damaged>>,
}

/// Statistics for metrics and health checks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// The newest revision.
    pub revision: u64,
    /// The oldest revision after which a watch can certainly start.
    pub compacted: u64,
    /// The number of objects.
    pub objects: usize,
    /// The sizes of the data.
    pub usage: Usage,
    /// Since the store was opened: transactions, and the syncs that they shared.
    pub transactions: u64,
    /// Batches that were written since the store was opened.
    pub batches: u64,
}

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
    pub past: PastStates,
    ending: OnceLock<Ending>,
    /// Held shared from sealing a value until it is queued in order, or written.
    sealing: tokio::sync::RwLock<()>,
    transactions: AtomicU64,
    batches: AtomicU64,
}

impl Shared {
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

    pub fn engine(&self) -> Option<Arc<dyn Engine>> {
        self.engine.read().clone()
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

    /// Ends the store. Only the first reason counts.
    pub fn end(&self, ending: Ending) {
        let _ = self.ending.set(ending);
        self.visible.wake();
        self.logs.end();
    }

    pub async fn wait_for(&self, revision: u64) -> Result<(), WatchError> {
        loop {
            let changed = self.visible.changed();
            if self.visible.get() >= revision {
                return Ok(());
            }
            self.alive()?;
            changed.await;
        }
    }

    fn recent(&self, revision: u64) -> Option<Arc<State>> {
        self.recent.lock().iter().find(|state| state.revision == revision).cloned()
    }
}

/// Executes commits.
enum Path {
    /// In the caller's task: the engine never waits.
    Here(Committer),
    /// On a thread that syncs many commits at once.
    Thread { queue: Arc<Queue>, thread: Mutex<Option<JoinHandle<()>>> },
    /// In a shared engine.
    Remote(Remote),
}

struct Inner {
    shared: Arc<Shared>,
    path: Path,
    capabilities: crate::Capabilities,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shut();
    }
}

impl Inner {
    /// No further commits; those queued are still done by the thread.
    fn shut(&self) {
        match &self.path {
            Path::Here(_) => self.shared.end(Ending::Closed),
            Path::Thread { queue, .. } => queue.close(),
            Path::Remote(remote) => {
                self.shared.end(Ending::Closed);
                remote.stop();
            }
        }
    }
}

/// A handle; clones are the same store. When the last one is gone the store closes.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

impl Store {
    /// Reads the newest version of everything. Must be called inside a tokio runtime.
    pub async fn open(engine: Arc<dyn Engine>, options: Options) -> Result<Store, Error> {
        let decode = decoder(&options);
        let loaded = engine.load(decode.clone()).await?;
        let retention = options.retention;
        let state = Arc::new(State::new(loaded.revision, loaded.entries, loaded.damaged));
        let shared = Arc::new(Shared {
            options,
            decode,
            logs: Logs::new(loaded.revision, (retention.log_events, retention.log_bytes)),
            engine: RwLock::new(Some(engine.clone())),
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
        });
        let capabilities = engine.capabilities();
        let path = match engine.role() {
            Role::Shared(writer) => Path::Remote(Remote::start(shared.clone(), writer)),
            Role::Sole(writer) if writer.waits() => {
                let queue = Arc::new(Queue::default());
                let committer = Committer::new(shared.clone(), writer);
                let (taken, ended) = (queue.clone(), shared.clone());
                let run = move || {
                    committer.run(&taken);
                    ended.end(Ending::Closed);
                };
                let thread = std::thread::Builder::new().name("committer".into()).spawn(run).map_err(Error::Thread)?;
                Path::Thread { queue, thread: Mutex::new(Some(thread)) }
            }
            Role::Sole(writer) => Path::Here(Committer::new(shared.clone(), writer)),
        };
        Ok(Store { inner: Arc::new(Inner { shared, path, capabilities }) })
    }

    /// Commits all operations or none, under one revision. Returns when it is durable and visible. The transaction continues if the caller stops
    /// waiting.
    pub async fn commit(&self, ops: Vec<Op>) -> Result<Committed, CommitError> {
        let shared = &self.inner.shared;
        if let Some(ending) = shared.ending() {
            return Err(ending.refusal());
        }
        let (reply, answer) = oneshot::channel();
        let room = match &self.inner.path {
            Path::Thread { queue, .. } => Some(queue.reserve(ops.iter().map(Op::size).sum()).await?),
            Path::Remote(_) | Path::Here(_) => None,
        };
        {
            let _sealing = shared.sealing.read().await;
            let ops = self.prepare(ops)?;
            match &self.inner.path {
                Path::Remote(remote) => return remote.commit(ops).await,
                Path::Here(committer) => drop(committer.batch(vec![Request { ops, reply, _room: room }], 0)),
                Path::Thread { queue, .. } => queue.push(Request { ops, reply, _room: room })?,
            }
        }
        answer.await.unwrap_or_else(|_| Err(shared.ending().map_or(CommitError::Closed, Ending::refusal)))
    }

    /// Validates and prepares operations without the state.
    fn prepare(&self, ops: Vec<Op>) -> Result<Vec<Prepared>, CommitError> {
        let limits = self.inner.capabilities;
        let options = &self.inner.shared.options;
        if ops.len() > limits.max_ops {
            return Err(CommitError::TooManyOps { count: ops.len(), limit: limits.max_ops });
        }
        let mut prepared: Vec<Prepared> = Vec::with_capacity(ops.len());
        let (mut total, mut seen) = (0, HashSet::with_capacity(ops.len()));
        for (op, Op { key, expect, action }) in ops.into_iter().enumerate() {
            check_key(op, &key)?;
            if !seen.insert(key.clone()) {
                return Err(CommitError::SameKey { op });
            }
            total += key.resource.len() + key.namespace.len() + key.name.len();
            let action = match action {
                Action::Delete => PreparedAction::Delete,
                Action::Check => PreparedAction::Check,
                Action::Put(value) => {
                    if value.len() > MAX_VALUE {
                        return Err(CommitError::TooLarge { op, size: value.len(), limit: MAX_VALUE });
                    }
                    let sealed = match &options.transform {
                        None => value.clone(),
                        Some(transform) => {
                            transform.seal(&key, &value).map_err(|source| CommitError::Seal { op, source })?
                        }
                    };
                    total += sealed.len();
                    PreparedAction::Put { value, sealed }
                }
            };
            if total > limits.max_bytes {
                return Err(CommitError::TooLarge { op, size: total, limit: limits.max_bytes });
            }
            prepared.push(Prepared { key, expect, action });
        }
        Ok(prepared)
    }

    /// The objects of a resource that are not sealed in the current form ([`Transform::is_current`]), with the revisions that wrote them. It sees
    /// every commit that began before: if an encryption key was replaced before the call and no object is found, none needs the old key.
    pub async fn stale(&self, resource: &str) -> Result<Vec<(Key, u64)>, SnapshotError> {
        let shared = &self.inner.shared;
        let Some(transform) = shared.options.transform.clone() else { return Ok(Vec::new()) };
        // No commit is between sealing and queueing, and all queued ones are written when this returns.
        drop(shared.sealing.write().await);
        let check = Op { key: Key::new(resource, "", "-"), expect: crate::Expect::Any, action: Action::Check };
        if let Err(error) = self.commit(vec![check]).await {
            let error = EngineError::Failed(error.to_string());
            return Err(SnapshotError::Engine(Arc::new(error)));
        }
        let found = Arc::new(Mutex::new(Vec::new()));
        let finds = found.clone();
        let visit = move |key: &Key, revision: u64, stored: &[u8]| {
            if !transform.is_current(key, stored) {
                finds.lock().push((key.clone(), revision));
            }
        };
        self.visit(resource, Arc::new(visit)).await?;
        let found = std::mem::take(&mut *found.lock());
        Ok(found)
    }

    /// Visits the stored form of the newest version of every object of a resource. Concurrent writes may be missing.
    pub async fn visit(&self, resource: &str, visit: Visit) -> Result<(), SnapshotError> {
        let engine = self.inner.shared.engine().ok_or(SnapshotError::Closed)?;
        engine.visit(resource, visit).await.map_err(|error| SnapshotError::Engine(Arc::new(error)))
    }

    /// Writes objects again without changes, so that they are sealed in the current form; each gets a new revision. Skips those that changed since
    /// the given revision. Returns how many were written.
    pub async fn reseal(&self, objects: &[(Key, u64)]) -> Result<usize, CommitError> {
        let mut written = 0;
        for part in objects.chunks(RESEAL) {
            let snapshot = self.snapshot();
            let mut commits = JoinSet::new();
            for (key, revision) in part {
                let Some(entry) = snapshot.get(key).filter(|entry| entry.revision == *revision) else { continue };
                let action = Action::Put(entry.value.clone());
                let op = Op { key: key.clone(), expect: crate::Expect::Revision(*revision), action };
                let store = self.clone();
                commits.spawn(async move { store.commit(vec![op]).await });
            }
            while let Some(done) = commits.join_next().await {
                match done {
                    Ok(Ok(_)) => written += 1,
                    Ok(Err(CommitError::Conflict { .. })) => {}
                    Ok(Err(error)) => return Err(error),
                    Err(_) => return Err(CommitError::Closed),
                }
            }
        }
        Ok(written)
    }

    /// Writes the newest state into a new directory that [`crate::Lmdb::open`] reads: sealed in the current form, without history, at one revision.
    /// The directory appears when it is complete and durable.
    pub async fn backup(&self, directory: &std::path::Path) -> Result<Backup, Error> {
        let (snapshot, directory) = (self.snapshot(), directory.to_path_buf());
        let transform = self.inner.shared.options.transform.clone();
        let work = move || {
            let resources: Vec<_> = snapshot.resources().cloned().collect();
            let mut entries: Vec<&Arc<Entry>> =
                resources.iter().flat_map(|resource| snapshot.range(resource, None, None)).collect();
            entries.sort_by_key(|entry| entry.revision);
            let damaged = snapshot.state.every_damaged().cloned().collect();
            let made = Backup { revision: snapshot.revision(), objects: entries.len(), damaged };
            let sealed = entries.into_iter().map(|entry| {
                let value = match &transform {
                    None => entry.value.clone(),
                    Some(transform) => transform.seal(&entry.key, &entry.value)?,
                };
                Ok((entry.key.clone(), entry.revision, value))
            });
            crate::Lmdb::create(&directory, made.revision, sealed)?;
            Ok(made)
        };
        let done = tokio::task::spawn_blocking(work).await;
        done.unwrap_or_else(|error| Err(EngineError::Failed(error.to_string()))).map_err(Error::from)
    }

    /// The newest state.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { state: self.inner.shared.state() }
    }

    /// The objects of a scope at exactly this revision; the snapshot may have others, too. Unless the state is cached, it undoes all changes since
    /// then, after waiting for earlier calls. Errors if the revision is compacted.
    pub async fn snapshot_at(&self, scope: &Scope, revision: u64) -> Result<Snapshot, SnapshotError> {
        let shared = &self.inner.shared;
        let newest = shared.state();
        if revision > newest.revision {
            return Err(SnapshotError::Future { current: newest.revision });
        }
        if revision == newest.revision {
            return Ok(Snapshot { state: newest });
        }
        let oldest = shared.compacted();
        if revision < oldest {
            return Err(SnapshotError::Expired { oldest });
        }
        drop(newest);
        let state = match shared.recent(revision) {
            Some(state) => state,
            None => shared.past(scope, revision).await?,
        };
        Ok(Snapshot { state })
    }

    /// Every event of the scope with a revision above `after`.
    pub fn watch(&self, scope: Scope, after: u64) -> Result<Watch, WatchError> {
        Watch::start(self.inner.shared.clone(), scope, after)
    }

    /// The newest revision that is visible.
    pub fn revision(&self) -> u64 {
        self.inner.shared.revision()
    }

    /// Waits until the revision is visible.
    pub async fn wait_for(&self, revision: u64) -> Result<(), WatchError> {
        self.inner.shared.wait_for(revision).await
    }

    /// Whether it accepts commits: it is neither closed nor failed.
    pub fn is_alive(&self) -> bool {
        self.inner.shared.ending().is_none()
    }

    /// What the engine supports.
    pub fn capabilities(&self) -> crate::Capabilities {
        self.inner.capabilities
    }

    /// The current statistics.
    pub fn stats(&self) -> Stats {
        let shared = &self.inner.shared;
        let state = shared.state();
        Stats {
            revision: state.revision,
            compacted: shared.compacted(),
            objects: state.len(),
            usage: shared.engine().map(|engine| engine.usage()).unwrap_or_default(),
            transactions: shared.transactions.load(Ordering::Relaxed),
            batches: shared.batches.load(Ordering::Relaxed),
        }
    }

    /// Compacts the history up to a revision, regardless of its age. Returns the revision after which history starts.
    pub async fn compact_now(&self, revision: u64) -> Result<u64, CommitError> {
        let shared = &self.inner.shared;
        match &self.inner.path {
            Path::Here(committer) => committer.compact(revision),
            Path::Remote(remote) => remote.compact(revision).await,
            Path::Thread { queue, .. } => {
                let (reply, answer) = oneshot::channel();
                queue.compact(revision, reply)?;
                answer.await.unwrap_or_else(|_| Err(shared.ending().map_or(CommitError::Closed, Ending::refusal)))
            }
        }
    }

    /// Finishes what was queued and frees the engine, for all handles; the same data can be opened again afterwards.
    pub async fn close(self) {
        self.inner.shut();
        if let Path::Thread { thread, .. } = &self.inner.path {
            let thread = thread.lock().take();
            if let Some(thread) = thread {
                let _ = tokio::task::spawn_blocking(move || thread.join()).await;
            }
        }
        self.inner.shared.end(Ending::Closed);
        let engine = self.inner.shared.engine.write().take();
        if let Some(engine) = engine {
            engine.close().await;
        }
    }
}

fn check_key(op: usize, key: &Key) -> Result<(), CommitError> {
    let bad = |text: &str| text.as_bytes().contains(&0);
    if key.resource.is_empty() || key.name.is_empty() || bad(&key.resource) || bad(&key.namespace) || bad(&key.name) {
        return Err(CommitError::BadKey { op });
    }
    let size = key.resource.len().max(key.namespace.len() + key.name.len());
    if size > MAX_KEY {
        return Err(CommitError::TooLongKey { op, size, limit: MAX_KEY });
    }
    Ok(())
}
