//! Every commit of a store, in order, with the virtual time at which it happened.

use meta::Value;
use parking_lot::Mutex;
use registry::Registry;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use store::{Change, Event, Key, Scope};
use tokio::time::Instant;

/// A change of one object in a commit.
#[derive(Clone, Debug)]
pub struct ObjectChange {
    pub key: Key,
    /// The object before; none if it was created.
    pub old: Option<Arc<Value>>,
    /// The object after; none if it was deleted.
    pub new: Option<Arc<Value>>,
}

/// All changes of one revision.
#[derive(Clone, Debug)]
pub struct Commit {
    pub revision: u64,
    /// The virtual time since the start of the trace.
    pub at: Duration,
    pub changes: Vec<ObjectChange>,
}

type Pending = BTreeMap<u64, (Duration, Vec<Arc<Event>>)>;

/// Records the commits of a store from its start on.
pub struct Trace {
    pending: Arc<Mutex<Pending>>,
    /// The newest revision that each recorder has seen, by resource.
    registry: Arc<Registry>,
    begun: Instant,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    /// The newest objects, as decoded from the commits.
    objects: BTreeMap<Key, Arc<Value>>,
    /// A hash over all revisions, keys and bytes so far.
    hash: u64,
    writes: u64,
    lines: Option<Vec<String>>,
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

impl Trace {
    /// Starts to record. With `lines`, [`Self::lines`] returns a line for each change.
    pub fn start(registry: &Arc<Registry>, lines: bool) -> Self {
        let (pending, begun) = (Arc::<Mutex<Pending>>::default(), Instant::now());
        let mut tasks = Vec::new();
        let rows = registry.rows();
        let mut resources: Vec<_> =
            rows.iter().filter_map(|r| r.stored().map(|(resource, _)| resource.clone())).collect();
        resources.sort();
        resources.dedup();
        for resource in resources {
            // Before the first write the revision is 1.
            let Ok(mut watch) = registry.store.watch(Scope::resource(&resource), 1) else { continue };
            let pending = pending.clone();
            tasks.push(tokio::spawn(async move {
                while let Ok(batch) = watch.next().await {
                    let mut pending = pending.lock();
                    for event in batch.events {
                        let (_, events) =
                            pending.entry(event.revision).or_insert_with(|| (begun.elapsed(), Vec::new()));
                        events.push(event);
                    }
                }
            }));
        }
        let lines = lines.then(Vec::new);
        let objects = BTreeMap::new();
        Self { pending, registry: registry.clone(), begun, tasks, objects, hash: 0, writes: 0, lines }
    }

    /// When it began.
    pub(crate) fn begun(&self) -> Instant {
        self.begun
    }

    /// The virtual time since the start.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// The newest objects without their managed fields, up to the last commit that was taken.
    pub fn objects(&self) -> &BTreeMap<Key, Arc<Value>> {
        &self.objects
    }

    /// The number of changes that were taken.
    pub fn writes(&self) -> u64 {
        self.writes
    }

    /// A hash over the revisions, keys and bytes of all commits that were taken.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// A line for each change that was taken, if they are kept: its revision, time, key and object.
    pub fn lines(&self) -> &[String] {
        self.lines.as_deref().unwrap_or_default()
    }

    /// Waits until everything that is committed was recorded, and calls `observe` for each commit that was not taken before, in order.
    pub async fn take<E>(
        &mut self,
        mut observe: impl FnMut(&Commit, &BTreeMap<Key, Arc<Value>>) -> Result<(), E>,
    ) -> Result<(), E> {
        // The recorders are awake already if there is something to record.
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        let newest = self.registry.store.revision();
        let taken = {
            let mut pending = self.pending.lock();
            let later = pending.split_off(&(newest + 1));
            std::mem::replace(&mut *pending, later)
        };
        for (revision, (at, mut events)) in taken {
            events.sort_by(|a, b| a.entry.key.cmp(&b.entry.key));
            let mut changes = Vec::with_capacity(events.len());
            for event in events {
                changes.push(self.apply(revision, at, &event));
            }
            observe(&Commit { revision, at, changes }, &self.objects)?;
        }
        Ok(())
    }

    fn apply(&mut self, revision: u64, at: Duration, event: &Event) -> ObjectChange {
        let key = event.entry.key.clone();
        let put = event.change == Change::Put;
        let bytes: &[u8] = if put { &event.entry.value } else { &[] };
        self.writes += 1;
        self.hash = fnv(self.hash, &revision.to_le_bytes());
        self.hash = fnv(self.hash, key.to_string().as_bytes());
        self.hash = fnv(self.hash, bytes);
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{revision} {at:?} {key} {}", String::from_utf8_lossy(bytes)));
        }
        let new = put.then(|| {
            let mut value: Value = serde_json::from_slice(bytes).unwrap_or(Value::Null);
            // They take half of the memory, and nothing here reads them.
            if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.remove("managedFields");
            }
            Arc::new(value)
        });
        let old = match &new {
            Some(new) => self.objects.insert(key.clone(), new.clone()),
            None => self.objects.remove(&key),
        };
        ObjectChange { key, old, new }
    }
}

/// FNV-1a, whose result depends on nothing but its input.
fn fnv(start: u64, bytes: &[u8]) -> u64 {
    let start = if start == 0 { 0xcbf2_9ce4_8422_2325 } else { start };
    bytes.iter().fold(start, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}
