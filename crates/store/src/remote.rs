//! Commits through a shared engine, which other servers write, too.
//!
//! Invariant: the state consists of the changes that the engine has fed, in its order. A commit is answered when it has come back from the
//! engine, so that its caller sees it in the next snapshot.

use crate::engine::{EngineError, Fed, Outcome, SharedAction, SharedOp, SharedWriter, WriteError};
use crate::shared::{Ending, Shared};
use crate::state::State;
use crate::transaction::{Answer, CommitError, Committed, Prepared, PreparedAction};
use crate::{Change, Entry, Event};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Revisions on their way from the engine.
const FEED: usize = 1_024;

pub(crate) struct Remote {
    shared: Arc<Shared>,
    writer: Arc<dyn SharedWriter>,
    tasks: [JoinHandle<()>; 3],
}

impl Remote {
    pub fn start(shared: Arc<Shared>, writer: Arc<dyn SharedWriter>) -> Remote {
        let (sink, mut source) = mpsc::channel(FEED);
        let (feeder, feeding, after) = (writer.clone(), shared.clone(), shared.revision());
        let feed = tokio::spawn(async move {
            if let Err(error) = feeder.feed(after, sink).await {
                feeding.end(Ending::Fatal(error.whole().into()));
            }
        });
        let applying = shared.clone();
        let apply = tokio::spawn(async move {
            let mut batch = Vec::new();
            while source.recv_many(&mut batch, FEED).await > 0 {
                if let Err(error) = apply(&applying, std::mem::take(&mut batch)) {
                    return applying.end(Ending::Fatal(error.whole().into()));
                }
            }
        });
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
        Remote { shared, writer, tasks: [feed, apply, compact] }
    }

    pub fn stop(&self) {
        self.tasks.iter().for_each(JoinHandle::abort);
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
                if let Some(version) = &current {
                    self.shared.wait_for(version.revision).await.map_err(|ending| ending.refusal())?;
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
