//! The store: one handle for commits, snapshots and watches over any engine.
//!
//! Invariant: a revision is visible to snapshots before any watch delivers it and before its commit is answered; it is
//! durable before all of these.

use crate::commit::{Committer, Queue, Request};
use crate::engine::{Engine, EngineError, Role, Usage, Visit};
use crate::options::Options;
use crate::remote::Remote;
use crate::scope::Scope;
use crate::shared::{Ending, Shared};
use crate::snapshot::{Snapshot, SnapshotError};
use crate::transaction::{CommitError, Committed, Prepared, PreparedAction};
use crate::transform::{Damaged, decoder};
use crate::watch::{Watch, WatchError};
use crate::{Action, Entry, Key, MAX_KEY, MAX_VALUE, Op};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Objects resealed at a time.
const RESEAL: usize = 64;

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
        let decode = decoder(options.index.clone(), options.transform.clone());
        let loaded = engine.load(decode.clone()).await?;
        let shared = Arc::new(Shared::new(engine.clone(), options, decode, loaded));
        let capabilities = engine.capabilities();
        let path = match engine.clone().role() {
            Role::Shared(writer) => Path::Remote(Remote::start(shared.clone(), engine, writer)),
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

    /// The objects of a resource that are not sealed in the current form ([`crate::Transform::is_current`]), with the revisions that wrote them. It sees
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
    /// The directory appears when it is complete and durable. Its store starts `ahead` revisions above the state, so that revisions which were
    /// given after it do not come again.
    pub async fn backup(&self, directory: &std::path::Path, ahead: u64) -> Result<Backup, Error> {
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
            crate::Lmdb::create(&directory, made.revision.saturating_add(ahead), sealed)?;
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
        Ok(self.inner.shared.wait_for(revision).await?)
    }

    /// Waits until the state contains everything that was committed before the call, through any server. At once where this process is the only writer.
    pub async fn refresh(&self) -> Result<(), CommitError> {
        match &self.inner.path {
            Path::Remote(remote) => remote.refresh().await,
            Path::Here(_) | Path::Thread { .. } => Ok(()),
        }
    }

    /// Raises the revision to at least this one, without a change of an object. Nothing where the store assigns revisions itself.
    pub async fn advance(&self, revision: u64) -> Result<(), CommitError> {
        match &self.inner.path {
            Path::Remote(remote) => remote.advance(revision).await,
            Path::Here(_) | Path::Thread { .. } => Ok(()),
        }
    }

    /// Whether other servers write it, too.
    pub fn is_shared(&self) -> bool {
        matches!(self.inner.path, Path::Remote(_))
    }

    /// Whether it has neither been closed nor failed.
    pub fn is_alive(&self) -> bool {
        self.inner.shared.ending().is_none()
    }

    /// Waits until the store fails for good, and returns why. Does not return if it is closed.
    pub async fn failed(&self) -> Arc<str> {
        match self.inner.shared.wait_for(u64::MAX).await {
            Err(Ending::Fatal(why)) => why,
            Err(Ending::Closed) | Ok(()) => std::future::pending().await,
        }
    }

    /// Whether it accepts commits: it is alive, and a backend elsewhere answers.
    pub fn is_healthy(&self) -> bool {
        let reachable = match &self.inner.path {
            Path::Remote(remote) => remote.is_reachable(),
            Path::Here(_) | Path::Thread { .. } => true,
        };
        reachable && self.is_alive()
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
            transactions: shared.transactions(),
            batches: shared.batches(),
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
        let engine = self.inner.shared.take_engine();
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
