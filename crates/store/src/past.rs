//! Older states, reconstructed from a newer one by undoing its changes.
//!
//! Invariant: one state is reconstructed at a time, for one scope, and the values held only for cached states take at most [`ALONE`] bytes. A
//! caller that stops waiting cancels its reconstruction.

use crate::engine::{Decode, Engine, EngineError};
use crate::scope::Scope;
use crate::snapshot::SnapshotError;
use crate::state::State;
use crate::transform::{Fault, TransformError};
use crate::{Event, Key};
use parking_lot::Mutex;
use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Weak};

/// States that are cached for further pages of a list.
const KEPT: usize = 16;
/// Maximum bytes of values held only for cached states.
const ALONE: usize = 32 << 20;
/// Records of history read at a time.
const STEP: usize = 2_048;
/// Objects, and bytes of values, that are processed before the task yields.
const OBJECTS: usize = 512;
const BYTES: usize = 256 << 10;
/// Estimated bytes of an entry without its value.
const ENTRY: usize = 256;

/// The state of a scope at an older revision.
#[derive(Clone)]
struct Past {
    scope: Scope,
    state: Arc<State>,
    /// An upper bound on the bytes of values that the newest state does not share.
    alone: usize,
}

/// A state that is too large for the cache lives as long as its readers.
struct Passing {
    scope: Scope,
    state: Weak<State>,
}

#[derive(Default)]
struct Kept {
    /// Oldest first.
    states: VecDeque<Past>,
    passing: Vec<Passing>,
    /// Bytes of all values that were replaced or deleted since the store was opened.
    replaced: u64,
}

/// The right to reconstruct a state.
pub(crate) struct Turn<'a> {
    _held: tokio::sync::MutexGuard<'a, ()>,
}

#[derive(Default)]
pub(crate) struct PastStates {
    kept: Mutex<Kept>,
    /// Held while a state is reconstructed.
    turn: tokio::sync::Mutex<()>,
}

impl PastStates {
    /// What was replaced is in memory for older states only.
    pub fn published(&self, events: &[Arc<Event>]) {
        let mut gone = Vec::new();
        let mut kept = self.kept.lock();
        for event in events {
            let Some(previous) = &event.previous else { continue };
            let size = ENTRY + previous.value.len();
            kept.replaced += size as u64;
            for past in kept.states.iter_mut().filter(|past| past.scope.contains(&previous.key)) {
                past.alone += size;
            }
        }
        kept.shrink(&mut gone);
        drop(kept);
        // Freeing a state takes a while.
        drop(gone);
    }

    /// States before this revision have expired.
    pub fn compacted(&self, oldest: u64) {
        let mut kept = self.kept.lock();
        let (gone, states) = std::mem::take(&mut kept.states).into_iter().partition(|it| it.state.revision < oldest);
        kept.states = states;
        drop(kept);
        drop::<VecDeque<Past>>(gone);
    }

    /// The cached state of a scope at a revision.
    pub fn find(&self, scope: &Scope, revision: u64) -> Option<Arc<State>> {
        let kept = self.kept.lock();
        let fits = |state: &State, of: &Scope| state.revision == revision && of.includes(scope);
        let mut found = kept.states.iter().filter(|past| fits(&past.state, &past.scope)).map(|past| past.state.clone());
        found.next().or_else(|| {
            let mut passing = kept.passing.iter().filter_map(|it| Some((&it.scope, it.state.upgrade()?)));
            passing.find(|(of, state)| fits(state, of)).map(|(_, state)| state)
        })
    }

    /// The nearest cached state of a scope after a revision, and how much had been replaced before it.
    fn nearest(&self, scope: &Scope, revision: u64) -> (Option<Past>, u64) {
        let kept = self.kept.lock();
        let newer = kept.states.iter().filter(|past| past.state.revision > revision && past.scope.includes(scope));
        (newer.min_by_key(|past| past.state.revision).cloned(), kept.replaced)
    }

    /// Waits for the turn to reconstruct a state.
    pub async fn turn(&self) -> Turn<'_> {
        Turn { _held: self.turn.lock().await }
    }

    /// Reconstructs the state of a scope at a revision from the nearest cached state after it, or from the newest one, and caches it. `newest` is
    /// called after the cache was read.
    pub async fn reconstruct(
        &self,
        _turn: Turn<'_>,
        engine: &dyn Engine,
        decode: &Decode,
        newest: impl FnOnce() -> Arc<State>,
        scope: &Scope,
        revision: u64,
    ) -> Result<Arc<State>, SnapshotError> {
        let (nearest, replaced) = self.nearest(scope, revision);
        let newer = nearest.unwrap_or_else(|| Past { scope: scope.clone(), state: newest(), alone: 0 });
        let past = undo(engine, decode, newer, scope, revision).await?;
        let state = past.state.clone();
        self.keep(past, replaced);
        Ok(state)
    }

    /// `replaced`: the result of [`PastStates::nearest`] before the reconstruction.
    fn keep(&self, mut past: Past, replaced: u64) {
        let mut gone = Vec::new();
        let mut kept = self.kept.lock();
        past.alone = past.alone.saturating_add(usize::try_from(kept.replaced - replaced).unwrap_or(usize::MAX));
        if past.alone > ALONE {
            kept.passing.retain(|it| it.state.strong_count() > 0);
            kept.passing.push(Passing { scope: past.scope, state: Arc::downgrade(&past.state) });
        } else {
            kept.states.push_back(past);
            kept.shrink(&mut gone);
        }
        drop(kept);
        drop(gone);
    }
}

impl Kept {
    fn shrink(&mut self, gone: &mut Vec<Past>) {
        let mut alone: usize = self.states.iter().fold(0, |sum, past| sum.saturating_add(past.alone));
        while alone > ALONE || self.states.len() > KEPT {
            let Some(past) = self.states.pop_front() else { break };
            alone -= past.alone.min(alone);
            gone.push(past);
        }
    }
}

/// Undoes the changes of a scope after a revision.
async fn undo(
    engine: &dyn Engine,
    decode: &Decode,
    newer: Past,
    scope: &Scope,
    revision: u64,
) -> Result<Past, SnapshotError> {
    let failed = |error| match error {
        EngineError::Expired { oldest } => SnapshotError::Expired { oldest },
        error => SnapshotError::Engine(Arc::new(error)),
    };
    let mut state = narrowed(&newer.state, scope).await;
    let mut alone = newer.alone;
    let mut seen: HashSet<Key> = HashSet::new();
    let (mut objects, mut bytes) = (0, 0);
    let mut cursor = revision;
    while cursor < newer.state.revision {
        let changes = engine.changes(Some(scope), cursor, newer.state.revision, STEP).await.map_err(failed)?;
        for change in changes.changes {
            // The first change after the revision replaced the version of that time.
            if !seen.insert(change.key.clone()) {
                continue;
            }
            match change.previous {
                None => drop(state.remove(&change.key)),
                Some(version) => {
                    let key = state.shared(&change.key);
                    // Its encryption key may be gone, as no newest version needs it: only this version is affected.
                    let opened = decode(&key, version.revision, &version.value)
                        .map_err(|error| TransformError { fault: Fault::Value, ..error });
                    let size = ENTRY + opened.as_ref().map_or(0, |entry| entry.value.len());
                    state.take(&key, version.revision, opened).map_err(|error| failed(error.into()))?;
                    (alone, bytes) = (alone + size, bytes + size);
                }
            }
            objects += 1;
            if objects >= OBJECTS || bytes >= BYTES {
                (objects, bytes) = (0, 0);
                tokio::task::yield_now().await;
            }
        }
        cursor = changes.through;
    }
    state.revision = revision;
    Ok(Past { scope: scope.clone(), state: Arc::new(state), alone })
}

/// The objects of a scope alone. Those of a resource are shared with the whole; those of a namespace are few.
async fn narrowed(whole: &State, scope: &Scope) -> State {
    let mut state = whole.of_resource(scope);
    if scope.namespace.is_none() && scope.name.is_none() {
        return state;
    }
    let of_resource = std::mem::take(&mut state.tables);
    let Some(table) = of_resource.get(&*scope.resource) else { return state };
    for (at, entry) in table.range(scope.namespace.as_deref(), None).enumerate() {
        if scope.contains(&entry.key) {
            state.put(entry.clone());
        }
        if at % OBJECTS == OBJECTS - 1 {
            tokio::task::yield_now().await;
        }
    }
    state
}
