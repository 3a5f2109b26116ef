//! Expires objects with a lifetime: removes those not written for that long (upstream's leases, used by events).
//!
//! A row sets the lifetime ([`Resource::lifetime`](crate::Resource)). The store removes the object, without
//! finalizers and admission. Not implemented: an expiry time in the object; the store keeps none. After a restart the
//! expiry is computed from the time of the last write in the object.

use crate::Registry;
use jiff::{SignedDuration, Timestamp};
use meta::{Object, Value};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;
use store::{Action, Change, CommitError, Entry, Expect, Key, Op, Scope, Str, WatchError};
use stored::encode;
use tokio::task::JoinSet;

/// Maximum number of removals per transaction.
const BATCH: usize = 64;
/// Delay before retrying a failure.
const AGAIN: Duration = Duration::from_secs(1);

/// Removes expired objects until the store closes. Panics if the task of a kind panics, so that the caller notices.
pub async fn run(registry: Arc<Registry>) {
    let mut seen = HashSet::new();
    let mut sweepers = Vec::new();
    for row in registry.rows().iter() {
        if let (Some((resource, _)), Some(lifetime)) = (row.stored(), row.lifetime)
            && seen.insert(resource.clone())
        {
            let lifetime = SignedDuration::try_from(lifetime).unwrap_or(SignedDuration::MAX);
            let (registry, resource) = (registry.clone(), resource.clone());
            sweepers.push(Sweeper { registry, resource, lifetime, due: BTreeSet::new() });
        }
    }
    // A single one runs in this task.
    let own = sweepers.pop().map(Sweeper::run);
    let mut others: JoinSet<()> = sweepers.into_iter().map(Sweeper::run).collect();
    let others = async {
        while let Some(ended) = others.join_next().await {
            if let Err(e) = ended
                && let Ok(cause) = e.try_into_panic()
            {
                std::panic::resume_unwind(cause);
            }
        }
    };
    tokio::join!(
        async {
            if let Some(own) = own {
                own.await
            }
        },
        others
    );
}

struct Sweeper {
    registry: Arc<Registry>,
    resource: Str,
    lifetime: SignedDuration,
    /// Expiry times; an entry is removed only at this revision.
    due: BTreeSet<(Timestamp, u64, Key)>,
}

impl Sweeper {
    async fn run(mut self) {
        loop {
            let store = self.registry.store.clone();
            let snapshot = store.snapshot();
            self.due.clear();
            let resource = self.resource.clone();
            for e in snapshot.range(&resource, None, None) {
                let written = encode::decode_or_log(e).and_then(|o| written_at(&o));
                self.note(e, written.unwrap_or(self.registry.clock.now()));
            }
            let Ok(mut watch) = store.watch(Scope::resource(&self.resource), snapshot.revision()) else { return };
            loop {
                let next = self.due.first().map(|(at, ..)| *at);
                tokio::select! {
                    batch = watch.next() => match batch {
                        Ok(batch) => {
                            let now = self.registry.clock.now();
                            let written = batch.events.iter().filter(|e| e.change == Change::Put);
                            written.for_each(|e| self.note(&e.entry, now));
                        }
                        Err(WatchError::Expired { .. } | WatchError::Engine(_)) => break,
                        Err(_) => return,
                    },
                    () = self.until(next) => if !self.sweep().await {
                        tokio::time::sleep(AGAIN).await;
                    },
                }
            }
        }
    }

    fn note(&mut self, e: &Entry, written: Timestamp) {
        let at = written.checked_add(self.lifetime).unwrap_or(Timestamp::MAX);
        self.due.insert((at, e.revision, e.key.clone()));
    }

    /// Waits until a time, or until the clock may have changed.
    async fn until(&self, at: Option<Timestamp>) {
        let Some(at) = at else { return std::future::pending().await };
        let wait = at.duration_since(self.registry.clock.now()).min(self.lifetime);
        tokio::time::sleep(wait.try_into().unwrap_or_default()).await;
    }

    /// Removes what has expired. Returns false if the store failed.
    async fn sweep(&mut self) -> bool {
        let now = self.registry.clock.now();
        let later = self.due.split_off(&(now + SignedDuration::from_nanos(1), 0, Key::new("", "", "")));
        let due = std::mem::replace(&mut self.due, later);
        let snapshot = self.registry.store.snapshot();
        let still = |(_, revision, key): &(Timestamp, u64, Key)| {
            let live = snapshot.get(key).is_some_and(|e| e.revision == *revision);
            live.then(|| Op { key: key.clone(), expect: Expect::Revision(*revision), action: Action::Delete })
        };
        let ops: Vec<Op> = due.iter().filter_map(still).collect();
        for batch in ops.chunks(BATCH) {
            match self.registry.store.commit(batch.to_vec()).await {
                Ok(_) => {}
                // One object was written concurrently: remove the others individually.
                Err(CommitError::Conflict { .. }) => {
                    for op in batch {
                        let _ = self.registry.store.commit(vec![op.clone()]).await;
                    }
                }
                Err(e) => {
                    tracing::debug!("removing what has outlived its time: {e}");
                    self.due.extend(due);
                    return false;
                }
            }
        }
        true
    }
}

/// The time of an object's last write, if it contains one.
fn written_at(o: &Object) -> Option<Timestamp> {
    let managers = o.at(&["metadata", "managedFields"]).and_then(Value::as_array).into_iter().flatten();
    let times = managers.filter_map(|m| m["time"].as_str()).chain(o.str_at(&["metadata", "creationTimestamp"]));
    times.filter_map(meta::time::parse).max()
}
