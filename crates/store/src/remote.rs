//! Commits through a shared engine, which other servers write, too.
//!
//! Invariant: the state consists of the changes that the engine has fed, in its order. A commit is answered when it has come back from the
//! engine, so that its caller sees it in the next snapshot. What [`Remote::refresh`] returns after, every snapshot contains.

use crate::engine::{Engine, EngineError, Fed, Outcome, SharedAction, SharedOp, SharedWriter, WriteError};
use crate::shared::{Ending, Shared};
use crate::state::State;
use crate::transaction::{Answer, CommitError, Committed, Prepared, PreparedAction};
use crate::{Change, Entry, Event};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;

/// Revisions on their way from the engine.
const FEED: usize = 1_024;
/// How long the feed may take to bring a revision before it is asked for with a mark: revisions of other users of the engine never come.
const LATE: Duration = Duration::from_millis(100);
/// How long a reader waits for the feed.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often an idle store checks whether the engine answers.
const CHECK: Duration = Duration::from_secs(5);
/// Marks that are written at the same time.
const MARKS: u64 = 256;
/// Delay before the state is read again after a failure.
const RETRY: Duration = Duration::from_secs(1);

pub(crate) struct Remote {
    shared: Arc<Shared>,
    writer: Arc<dyn SharedWriter>,
    freshness: Arc<Freshness>,
    tasks: [JoinHandle<()>; 3],
}

/// Reads of the engine's newest revision, which concurrent callers share.
#[derive(Default)]
struct Freshness {
    /// How many callers have come.
    callers: AtomicU64,
    /// Held while the newest revision is read.
    turn: Mutex<Round>,
    /// The last read failed.
    failed: AtomicBool,
}

/// The last read, and the callers that it counts for: those that had come before it began.
#[derive(Default)]
struct Round {
    callers: u64,
    newest: Option<Result<u64, Arc<str>>>,
}

impl Remote {
    pub fn start(shared: Arc<Shared>, engine: Arc<dyn Engine>, writer: Arc<dyn SharedWriter>) -> Remote {
        let freshness = Arc::new(Freshness::default());
        let follow = tokio::spawn(follow(shared.clone(), engine, writer.clone()));
        let (compacting, compactor) = (shared.clone(), writer.clone());
        let compact = tokio::spawn(async move {
            let age = Duration::from_millis(compacting.options.retention.age_ms);
            loop {
                let revision = compacting.revision();
                tokio::time::sleep(age).await;
                // A failed compaction is retried next time; other servers compact, too.
                if revision > compacting.compacted() && compactor.compact(revision).await.is_ok() {
                    compacting.note_compacted(revision);
                }
            }
        });
        let (checking, checker, checked) = (shared.clone(), writer.clone(), freshness.clone());
        let check = tokio::spawn(async move {
            loop {
                tokio::time::sleep(CHECK).await;
                let _ = checked.refresh(&checking, &*checker).await;
            }
        });
        Remote { shared, writer, freshness, tasks: [follow, compact, check] }
    }

    pub fn stop(&self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }

    /// Whether the engine answered when it was last asked.
    pub fn is_reachable(&self) -> bool {
        !self.freshness.failed.load(Ordering::Relaxed)
    }

    /// Waits until the state contains everything that was committed before the call, through any server.
    pub async fn refresh(&self) -> Result<(), CommitError> {
        self.freshness.refresh(&self.shared, &*self.writer).await
    }

    /// Raises the revision to at least this one.
    pub async fn advance(&self, revision: u64) -> Result<(), CommitError> {
        let failed = |error: EngineError| CommitError::Unanswered(error.whole());
        let mut newest = self.writer.newest().await.map_err(failed)?;
        while newest < revision {
            let marks = (revision - newest).min(MARKS);
            let mut done = tokio::task::JoinSet::new();
            for _ in 0..marks {
                let writer = self.writer.clone();
                done.spawn(async move { writer.mark().await });
            }
            for mark in done.join_all().await {
                mark.map_err(failed)?;
            }
            newest = self.writer.newest().await.map_err(failed)?;
        }
        self.refresh().await
    }

    pub async fn commit(&self, prepared: Vec<Prepared>) -> Answer {
        let ops = prepared.iter().map(|op| SharedOp {
            key: op.key.clone(),
            expect: op.expect,
            action: match &op.action {
                PreparedAction::Put { sealed, .. } => SharedAction::Put(sealed.clone()),
                PreparedAction::Delete => SharedAction::Delete,
                PreparedAction::Check => SharedAction::Check,
            },
        });
        let outcome = self.writer.transact(ops.collect()).await.map_err(|error| match error {
            WriteError::NoSpace => CommitError::NoSpace,
            WriteError::Refused(why) => CommitError::Refused(why),
            WriteError::Unanswered(why) => CommitError::Unanswered(why),
            WriteError::Fatal(error) => CommitError::Fatal(error.whole().into()),
        })?;
        match outcome {
            Outcome::Committed { revision: None } => {
                let entries = prepared.iter().map(|_| None).collect();
                Ok(Committed { revision: self.shared.revision(), entries })
            }
            Outcome::Committed { revision: Some(revision) } => {
                self.shared.wait_for(revision).await.map_err(|ending| ending.refusal())?;
                let entries = prepared.into_iter().map(|op| match op.action {
                    PreparedAction::Put { value, .. } => {
                        let key = self.shared.state().shared(&op.key);
                        Some(Arc::new(Entry::new(key, value, revision, self.shared.options.index.clone())))
                    }
                    _ => None,
                });
                Ok(Committed { revision, entries: entries.collect() })
            }
            Outcome::Conflict { op, current } => {
                // So that the next attempt starts from what was in the way.
                match &current {
                    Some(version) => {
                        self.shared.wait_for(version.revision).await.map_err(|ending| ending.refusal())?;
                    }
                    None => self.refresh().await?,
                }
                let current = current.map(|version| {
                    (self.shared.decode)(&prepared[op].key, version.revision, &version.value)
                        .map_err(|source| CommitError::Seal { op, source })
                });
                Err(CommitError::Conflict { op, current: current.transpose()? })
            }
        }
    }

    pub async fn compact(&self, revision: u64) -> Result<u64, CommitError> {
        let revision = revision.min(self.shared.revision());
        if revision > self.shared.compacted() {
            self.writer.compact(revision).await.map_err(|error| CommitError::Fatal(error.whole().into()))?;
            self.shared.note_compacted(revision);
        }
        Ok(self.shared.compacted())
    }
}

impl Freshness {
    async fn refresh(&self, shared: &Shared, writer: &dyn SharedWriter) -> Result<(), CommitError> {
        let newest = self.newest(shared, writer).await.map_err(|why| CommitError::Unanswered(why.to_string()))?;
        let arrived = || async { shared.wait_for(newest).await.map_err(|ending| ending.refusal()) };
        if let Ok(done) = tokio::time::timeout(LATE, arrived()).await {
            return done;
        }
        let late = |why: &str| CommitError::Unanswered(format!("waiting for revision {newest}: {why}"));
        writer.mark().await.map_err(|error| late(&error.whole()))?;
        tokio::time::timeout(PATIENCE, arrived()).await.unwrap_or_else(|_| Err(late("its changes did not arrive")))
    }

    /// The newest revision, read after the call began.
    async fn newest(&self, shared: &Shared, writer: &dyn SharedWriter) -> Result<u64, Arc<str>> {
        let caller = self.callers.fetch_add(1, Ordering::SeqCst) + 1;
        let mut round = self.turn.lock().await;
        if let Some(newest) = round.newest.as_ref().filter(|_| round.callers >= caller) {
            return newest.clone();
        }
        let callers = self.callers.load(Ordering::SeqCst);
        let known = shared.revision();
        let newest = writer.newest().await.map_err(|error| Arc::from(error.whole()));
        self.failed.store(newest.is_err(), Ordering::Relaxed);
        if let Ok(newest) = newest
            && newest < known
        {
            let why = format!("the backend went back from revision {known} to {newest}: it was replaced or restored");
            shared.end(Ending::Fatal(why.into()));
        }
        *round = Round { callers, newest: Some(newest.clone()) };
        newest
    }
}

/// Applies the changes of the engine. Reads everything again when changes were compacted before they came.
async fn follow(shared: Arc<Shared>, engine: Arc<dyn Engine>, writer: Arc<dyn SharedWriter>) {
    loop {
        let (sink, mut source) = mpsc::channel(FEED);
        let applied_to = shared.clone();
        // The receiver ends with this future, and with it the feed.
        let apply = async move {
            let mut batch = Vec::new();
            while source.recv_many(&mut batch, FEED).await > 0 {
                apply(&applied_to, std::mem::take(&mut batch))?;
            }
            Ok(())
        };
        let feed = writer.feed(shared.revision(), sink);
        let (fed, applied): (_, Result<(), EngineError>) = tokio::join!(feed, apply);
        match (fed, applied) {
            (Err(EngineError::Expired { .. }), Ok(())) => {}
            (Err(error), _) | (Ok(()), Err(error)) => return shared.end(Ending::Fatal(error.whole().into())),
            (Ok(()), Ok(())) => return,
        }
        loop {
            match engine.load(shared.decode.clone()).await {
                Ok(loaded) => break shared.replace(loaded),
                Err(EngineError::Backend(_)) => tokio::time::sleep(RETRY).await,
                Err(error) => return shared.end(Ending::Fatal(error.whole().into())),
            }
        }
    }
}

fn apply(shared: &Shared, batch: Vec<Fed>) -> Result<(), EngineError> {
    let mut state = State::clone(&shared.state());
    let mut events = Vec::new();
    for Fed { revision, changes } in batch {
        for (key, value) in changes {
            let key = state.shared(&key);
            match value {
                Some(sealed) => {
                    let previous = state.get(&key).cloned();
                    let opened = (shared.decode)(&key, revision, &sealed);
                    state.take(&key, revision, opened.clone())?;
                    let (change, entry) = match (opened, &previous) {
                        (Ok(entry), _) => (Change::Put, entry),
                        // It cannot be shown any more.
                        (Err(_), Some(last)) => (Change::Delete, Arc::new(last.at(revision))),
                        (Err(_), None) => continue,
                    };
                    events.push(Arc::new(Event { change, revision, entry, previous }));
                }
                None => {
                    state.mend(&key);
                    if let Some(last) = state.remove(&key) {
                        let entry = Arc::new(last.at(revision));
                        events.push(Arc::new(Event { change: Change::Delete, revision, entry, previous: Some(last) }));
                    }
                }
            }
        }
        state.revision = state.revision.max(revision);
    }
    shared.publish(state, events, shared.compacted());
    Ok(())
}
