//! The recent events of each resource, shared by all its watchers.
//!
//! Invariant: a log holds every event of its resource with a revision above its floor. A watcher is a number (the last
//! revision it saw), not a queue: a slow one falls off the log and goes on from the engine's history.

use crate::newest::Newest;
use crate::{Event, Str};
use parking_lot::RwLock;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of events that a watcher takes at a time, and that an idle watcher keeps in memory.
const READ_BYTES: usize = 1 << 20;

/// The value of the channel when no further events will come.
pub(crate) const ENDED: u64 = u64::MAX;

pub(crate) struct Log {
    inner: RwLock<Inner>,
    /// The revision of the newest event, or [`ENDED`].
    pub newest: Newest,
}

struct Inner {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    floor: u64,
}

/// What an event holds beyond the object that the newest state holds anyway; an estimate.
fn weight(event: &Event) -> usize {
    event.entry.value.len() + 256
}

pub(crate) enum Read {
    /// Events after the cursor, whole revisions, and the revision up to which this is everything of the resource that the
    /// log holds (`None`: the log was read to its end).
    Events(Vec<Arc<Event>>, Option<u64>),
    /// The cursor is below the floor.
    Fallen,
}

impl Log {
    fn new(floor: u64) -> Log {
        let inner = Inner { events: VecDeque::new(), bytes: 0, floor };
        Log { inner: RwLock::new(inner), newest: Newest::new(floor) }
    }

    /// Events above `after` that `matches` accepts, up to about `limit` events or [`READ_BYTES`].
    pub fn read(&self, after: u64, limit: usize, matches: impl Fn(&Event) -> bool) -> Read {
        let inner = self.inner.read();
        if after < inner.floor {
            return Read::Fallen;
        }
        let start = inner.events.partition_point(|event| event.revision <= after);
        let (mut found, mut bytes): (Vec<Arc<Event>>, usize) = (Vec::new(), 0);
        for event in inner.events.range(start..) {
            if (found.len() >= limit || bytes > READ_BYTES)
                && found.last().is_some_and(|last| last.revision < event.revision)
            {
                let through = found.last().map(|last| last.revision);
                return Read::Events(found, through);
            }
            if matches(event) {
                bytes += event.entry.value.len();
                found.push(event.clone());
            }
        }
        Read::Events(found, None)
    }

    /// Whether the log has an event above `after` that `matches` accepts, or may have dropped one.
    pub fn pending(&self, after: u64, matches: impl Fn(&Event) -> bool) -> bool {
        let inner = self.inner.read();
        let start = inner.events.partition_point(|event| event.revision <= after);
        after < inner.floor || inner.events.range(start..).any(|event| matches(event))
    }

    /// Whether a watch after this revision can start here.
    pub fn covers(&self, after: u64) -> bool {
        self.inner.read().floor <= after
    }

    fn push(&self, events: Vec<Arc<Event>>, bounds: (usize, usize)) {
        let mut inner = self.inner.write();
        for event in events {
            inner.bytes += weight(&event);
            inner.events.push_back(event);
        }
        while inner.events.len() > bounds.0 || inner.bytes > bounds.1 {
            inner.drop_first();
        }
    }

    fn restart(&self, revision: u64) {
        let mut inner = self.inner.write();
        *inner = Inner { events: VecDeque::new(), bytes: 0, floor: revision };
    }

    fn trim(&self, compacted: u64) {
        let mut inner = self.inner.write();
        while inner.events.front().is_some_and(|event| event.revision <= compacted) {
            inner.drop_first();
        }
        if inner.events.capacity() > 64 && inner.events.len() < inner.events.capacity() / 4 {
            inner.events.shrink_to_fit();
        }
    }
}

impl Inner {
    fn drop_first(&mut self) {
        if let Some(event) = self.events.pop_front() {
            self.bytes -= weight(&event);
            self.floor = event.revision;
        }
    }
}

/// The logs of all resources, created with the first event or watcher of a resource.
pub(crate) struct Logs {
    logs: RwLock<HashMap<Str, Arc<Log>>>,
    /// The start of the logs: the revision at which the store was opened, or read again.
    start: AtomicU64,
    bounds: (usize, usize),
}

impl Logs {
    /// `bounds`: events and bytes per resource.
    pub fn new(start: u64, bounds: (usize, usize)) -> Logs {
        Logs { logs: RwLock::new(HashMap::new()), start: AtomicU64::new(start), bounds }
    }

    pub fn log(&self, resource: &str) -> Arc<Log> {
        if let Some(log) = self.logs.read().get(resource) {
            return log.clone();
        }
        let mut logs = self.logs.write();
        logs.entry(resource.into()).or_insert_with(|| Arc::new(Log::new(self.start.load(Ordering::Acquire)))).clone()
    }

    /// Appends events in the order of their revisions. Returns the logs with new events.
    pub fn append(&self, events: Vec<Arc<Event>>) -> Vec<(Arc<Log>, u64)> {
        // Ordered, so that watchers are woken in the same order in every run.
        let mut by_resource: BTreeMap<Str, Vec<Arc<Event>>> = BTreeMap::new();
        for event in events {
            match by_resource.get_mut(&event.entry.key.resource) {
                Some(list) => list.push(event),
                None => drop(by_resource.insert(event.entry.key.resource.clone(), vec![event])),
            }
        }
        let mut touched = Vec::new();
        for (resource, events) in by_resource {
            let log = self.log(&resource);
            let newest = events.last().map_or(0, |event| event.revision);
            log.push(events, self.bounds);
            touched.push((log, newest));
        }
        touched
    }

    /// Drops the events up to a revision.
    pub fn trim(&self, compacted: u64) {
        self.logs.read().values().for_each(|log| log.trim(compacted));
    }

    /// Drops all events: the logs start at this revision, and the changes before it are unknown.
    pub fn restart(&self, revision: u64) {
        let logs = self.logs.write();
        self.start.store(revision, Ordering::Release);
        logs.values().for_each(|log| log.restart(revision));
    }

    /// Wakes the waiters of all logs, which then find their cursors below the floor.
    pub fn wake(&self, revision: u64) {
        self.logs.read().values().for_each(|log| log.newest.set(revision));
    }

    /// Wakes all waiters for good.
    pub fn end(&self) {
        for log in self.logs.read().values() {
            log.newest.set(ENDED);
        }
    }
}
