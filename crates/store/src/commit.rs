//! The one place that decides on transactions when this process is the only writer.
//!
//! Invariant: transactions are decided in the order of arrival against the newest state, those before in the same batch
//! included. Nothing is published and nothing answered before the whole batch is durable; then first the state, then the
//! logs, then the answers.

use crate::engine::{SoleWriter, Transaction, Upkeep, Write, WriteError};
use crate::shared::{Ending, Shared};
use crate::state::State;
use crate::transaction::{Answer, CommitError, Committed, Prepared, PreparedAction};
use crate::{Change, Entry, Event, Expect, IndexFn};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Transactions and bytes taken together into one sync.
const BATCH: usize = 1_024;
const BATCH_BYTES: usize = 8 << 20;
/// Bytes of the transactions that are queued or being written. A transaction beyond them waits for a batch to be written before it is
/// sealed and queued: four full batches keep the thread busy, and memory stays bounded when the disk is slow and callers give up
/// waiting.
const QUEUED_BYTES: usize = 4 * BATCH_BYTES;
/// What every transaction counts for at least, so that no more than four batches of small ones are queued.
const SMALLEST: usize = QUEUED_BYTES / (4 * BATCH);
/// A batch of so many shows that the next ones are worth waiting for.
const CROWD: usize = 8;
/// How long is waited for as many requests as came last time.
const GATHER: Duration = Duration::from_micros(700);
/// How often an idle store looks whether history has become old.
const IDLE: Duration = Duration::from_secs(10);

pub(crate) struct Request {
    pub ops: Vec<Prepared>,
    pub reply: oneshot::Sender<Answer>,
    /// Its part of the queue, until it is answered.
    pub _room: Option<OwnedSemaphorePermit>,
}

impl Request {
    fn size(&self) -> usize {
        self.ops
            .iter()
            .map(|op| if let PreparedAction::Put { sealed, .. } = &op.action { sealed.len() } else { 0 })
            .sum()
    }

    fn puts(&self) -> bool {
        self.ops.iter().any(|op| matches!(op.action, PreparedAction::Put { .. }))
    }
}

#[derive(Default)]
struct Waiting {
    requests: VecDeque<Request>,
    /// The committer is not woken for fewer.
    minimum: usize,
    compactions: Vec<(u64, oneshot::Sender<Result<u64, CommitError>>)>,
    closed: bool,
}

/// Requests on their way to the committer's thread.
///
/// Invariant: those that are queued or being written hold [`QUEUED_BYTES`] at most; others wait in the order of arrival, and none is lost.
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    room: Arc<Semaphore>,
}

impl Default for Queue {
    fn default() -> Self {
        let room = Arc::new(Semaphore::new(QUEUED_BYTES));
        Self { waiting: Mutex::default(), changed: Condvar::new(), room }
    }
}

impl Queue {
    /// Waits until a transaction of this size may be queued. A larger one than the queue holds waits until it is empty.
    pub async fn reserve(&self, bytes: usize) -> Result<OwnedSemaphorePermit, CommitError> {
        let weight = bytes.clamp(SMALLEST, QUEUED_BYTES);
        let weight = u32::try_from(weight).unwrap_or(u32::MAX);
        self.room.clone().acquire_many_owned(weight).await.map_err(|_| CommitError::Closed)
    }

    pub fn push(&self, request: Request) -> Result<(), CommitError> {
        let mut waiting = self.waiting.lock();
        if waiting.closed {
            return Err(CommitError::Closed);
        }
        waiting.requests.push_back(request);
        let enough = waiting.requests.len() >= waiting.minimum;
        drop(waiting);
        if enough {
            self.changed.notify_one();
        }
        Ok(())
    }

    pub fn compact(&self, to: u64, reply: oneshot::Sender<Result<u64, CommitError>>) -> Result<(), CommitError> {
        let mut waiting = self.waiting.lock();
        if waiting.closed {
            return Err(CommitError::Closed);
        }
        waiting.compactions.push((to, reply));
        drop(waiting);
        self.changed.notify_one();
        Ok(())
    }

    /// Closes the queue. Queued transactions are still executed.
    pub fn close(&self) {
        self.waiting.lock().closed = true;
        self.changed.notify_all();
    }
}

/// The state after a batch, the answers and the events.
struct Plan {
    state: State,
    index: IndexFn,
    transactions: Vec<Transaction>,
    events: Vec<Arc<Event>>,
    answers: Vec<Answer>,
}

impl Plan {
    fn decide(&mut self, request: &Request) -> Answer {
        for (op, prepared) in request.ops.iter().enumerate() {
            let holds = match prepared.expect {
                Expect::Any => true,
                Expect::Absent => self.state.written(&prepared.key).is_none(),
                Expect::Revision(revision) => self.state.written(&prepared.key) == Some(revision),
            };
            if !holds {
                return Err(CommitError::Conflict { op, current: self.state.get(&prepared.key).cloned() });
            }
        }
        let revision = self.state.revision + 1;
        let mut writes = Vec::with_capacity(request.ops.len());
        let mut entries = Vec::with_capacity(request.ops.len());
        for op in &request.ops {
            let mut written = None;
            match &op.action {
                PreparedAction::Check => {}
                PreparedAction::Delete => {
                    if let Some(damaged) = self.state.mend(&op.key) {
                        // No event announced it, so none announces its deletion.
                        writes.push(Write { key: op.key.clone(), value: None, previous: damaged.revision });
                    } else if let Some(last) = self.state.remove(&op.key) {
                        writes.push(Write { key: last.key.clone(), value: None, previous: last.revision });
                        let entry = Arc::new(last.at(revision));
                        let (change, previous) = (Change::Delete, Some(last));
                        self.events.push(Arc::new(Event { change, revision, entry, previous }));
                    }
                }
                PreparedAction::Put { value, sealed } => {
                    let key = self.state.shared(&op.key);
                    let before = self.state.written(&key).unwrap_or(0);
                    self.state.mend(&key);
                    let previous = self.state.get(&key).cloned();
                    writes.push(Write { key: key.clone(), value: Some(sealed.clone()), previous: before });
                    let entry = Arc::new(Entry::new(key, value.clone(), revision, self.index.clone()));
                    self.state.put(entry.clone());
                    written = Some(entry.clone());
                    self.events.push(Arc::new(Event { change: Change::Put, revision, entry, previous }));
                }
            }
            entries.push(written);
        }
        if writes.is_empty() {
            return Ok(Committed { revision: self.state.revision, entries });
        }
        self.state.revision = revision;
        self.transactions.push(Transaction { revision, writes });
        Ok(Committed { revision, entries })
    }
}

pub(crate) struct Committer {
    shared: Arc<Shared>,
    writer: Arc<dyn SoleWriter>,
    /// Held while a batch is made; what was compacted when the logs were last trimmed.
    trimmed: Mutex<u64>,
}

impl Committer {
    pub fn new(shared: Arc<Shared>, writer: Arc<dyn SoleWriter>) -> Committer {
        Committer { shared, writer, trimmed: Mutex::new(0) }
    }

    /// Takes from the queue until it is closed and empty.
    pub fn run(&self, queue: &Queue) {
        let mut behind = false;
        let mut last = 0;
        loop {
            let (batch, compactions) = {
                let mut waiting = queue.waiting.lock();
                while waiting.requests.is_empty() && waiting.compactions.is_empty() && (!behind || waiting.closed) {
                    if waiting.closed {
                        return;
                    }
                    if self.shared.compacted() >= self.shared.revision() {
                        queue.changed.wait(&mut waiting);
                    } else if queue.changed.wait_for(&mut waiting, IDLE).timed_out() {
                        behind = true;
                    }
                }
                // With many writers, those just answered are about to commit again: one sync for all of them.
                if last >= CROWD && waiting.requests.len() < last && waiting.compactions.is_empty() && !waiting.closed {
                    waiting.minimum = last;
                    queue.changed.wait_for(&mut waiting, GATHER);
                    waiting.minimum = 0;
                }
                (take(&mut waiting.requests), std::mem::take(&mut waiting.compactions))
            };
            last = batch.len();
            behind = self.batch(batch, 0);
            for (to, reply) in compactions {
                let _ = reply.send(self.compact(to));
            }
        }
    }

    /// Compacts up to a revision, in steps. Returns the revision reached.
    pub fn compact(&self, to: u64) -> Result<u64, CommitError> {
        let to = to.min(self.shared.revision());
        loop {
            let before = self.shared.compacted();
            if let Some(ending) = self.shared.ending() {
                return Err(ending.refusal());
            }
            if before >= to {
                break;
            }
            self.batch(Vec::new(), to);
            if self.shared.compacted() == before && self.shared.ending().is_none() {
                return Err(CommitError::NoSpace);
            }
        }
        Ok(self.shared.compacted())
    }

    /// Decides, writes, publishes and answers a batch. True if there is more to compact now.
    pub fn batch(&self, requests: Vec<Request>, compact_to: u64) -> bool {
        let mut trimmed = self.trimmed.lock();
        let options = &self.shared.options;
        let upkeep = Upkeep { now: (options.clock)(), retention: options.retention, compact_to };
        let mut puts_allowed = true;
        loop {
            if let Some(ending) = self.shared.ending() {
                requests.into_iter().for_each(|request| drop(request.reply.send(Err(ending.refusal()))));
                return false;
            }
            let mut plan = Plan {
                index: self.shared.options.index.clone(),
                state: State::clone(&self.shared.state()),
                transactions: Vec::new(),
                events: Vec::new(),
                answers: Vec::with_capacity(requests.len()),
            };
            for request in &requests {
                let answer =
                    if request.puts() && !puts_allowed { Err(CommitError::NoSpace) } else { plan.decide(request) };
                plan.answers.push(answer);
            }
            match self.writer.write(&plan.transactions, &upkeep) {
                Ok(written) => {
                    self.shared.publish(plan.state, plan.events, written.compacted);
                    if written.compacted > *trimmed {
                        self.shared.logs.trim(written.compacted);
                        *trimmed = written.compacted;
                    }
                    for (request, answer) in requests.into_iter().zip(plan.answers) {
                        let _ = request.reply.send(answer);
                    }
                    return written.behind;
                }
                // Retries with deletions only.
                Err(WriteError::NoSpace) if puts_allowed && !requests.is_empty() => puts_allowed = false,
                Err(WriteError::NoSpace) => {
                    requests.into_iter().for_each(|request| drop(request.reply.send(Err(CommitError::NoSpace))));
                    return false;
                }
                Err(WriteError::Unanswered(why) | WriteError::Refused(why)) => {
                    self.shared.end(Ending::Fatal(why.into()))
                }
                Err(WriteError::Fatal(error)) => self.shared.end(Ending::Fatal(error.whole().into())),
            }
        }
    }
}

fn take(requests: &mut VecDeque<Request>) -> Vec<Request> {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    while batch.len() < BATCH && bytes < BATCH_BYTES {
        let Some(request) = requests.pop_front() else { break };
        bytes += request.size();
        batch.push(request);
    }
    batch
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn request(queue: &Queue, room: OwnedSemaphorePermit) -> oneshot::Receiver<Answer> {
        let (reply, answer) = oneshot::channel();
        queue.push(Request { ops: Vec::new(), reply, _room: Some(room) }).unwrap();
        answer
    }

    /// Polls once.
    fn now<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    /// Callers that gave up waiting left their transactions in a queue without a bound.
    #[test]
    fn a_full_queue_makes_the_next_wait() {
        let queue = Queue::default();
        for _ in 0..4 * BATCH {
            let room = now(pin!(queue.reserve(10))).expect("there is room").unwrap();
            drop(request(&queue, room));
        }
        let mut next = pin!(queue.reserve(10));
        assert!(now(next.as_mut()).is_none(), "the queue is full");
        // The thread takes a batch, but its bytes are held until it is written.
        let batch = take(&mut queue.waiting.lock().requests);
        assert!(now(next.as_mut()).is_none());
        drop(batch);
        assert!(now(next).is_some_and(|room| room.is_ok()));
        // One that is larger than the queue has it for itself.
        let left = std::mem::take(&mut queue.waiting.lock().requests);
        assert!(now(pin!(queue.reserve(usize::MAX))).is_none());
        drop(left);
        assert!(now(pin!(queue.reserve(usize::MAX))).is_some());
    }
}
