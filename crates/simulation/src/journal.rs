//! What steps and simulated nodes did that no commit shows, with its virtual time.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How a drain ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrainEnd {
    Done,
    /// It never began, as for pods without a controller.
    Refused(String),
    /// The timeout passed: the pods that are left, and the budgets that protect them.
    TimedOut {
        left: usize,
    },
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The steps begin: what happens from now on counts.
    Begin,
    /// A step begins: its index and what it does.
    Step(usize, String),
    /// The machine of a node stops.
    NodeDown(String),
    /// The machine of a node starts again.
    NodeUp(String),
    /// The containers of a pod run, by UID.
    Started(String),
    /// A drain begins on a node.
    DrainBegan(String),
    /// An eviction was refused: the node, the pod's namespace and name, the message, and its details.
    EvictionRefused {
        node: String,
        namespace: String,
        pod: String,
        message: String,
    },
    DrainEnded(String, DrainEnd),
    /// A step did not do what it should.
    Failed(String),
    /// Anything else that a reader should see.
    Remark(String),
}

/// Notes in the order of time, for one reader.
pub struct Journal {
    begun: Instant,
    notes: Option<Mutex<VecDeque<(Duration, Note)>>>,
}

impl Journal {
    /// Keeps notes, with times since `begun`.
    pub fn since(begun: Instant) -> Arc<Self> {
        Arc::new(Self { begun, notes: Some(Mutex::default()) })
    }

    /// Keeps nothing.
    pub fn off() -> Arc<Self> {
        Arc::new(Self { begun: Instant::now(), notes: None })
    }

    pub(crate) fn write(&self, note: Note) {
        if let Some(notes) = &self.notes {
            notes.lock().push_back((self.begun.elapsed(), note));
        }
    }

    /// Takes the oldest note that is not younger than a time.
    pub(crate) fn take_until(&self, at: Duration) -> Option<(Duration, Note)> {
        let mut notes = self.notes.as_ref()?.lock();
        if notes.front().is_some_and(|(when, _)| *when <= at) { notes.pop_front() } else { None }
    }
}
