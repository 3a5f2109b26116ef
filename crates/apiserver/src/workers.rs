//! Worker threads for long requests, so that their decoding and validation delays no other request.
//!
//! Limits the bytes processed at a time, since a decoded object takes many times the memory of its text. One flow
//! ([`crate::budget`]) takes at most half, and waiting requests are queued fairly: however much the service accounts
//! of one namespace send, a large request of another flow starts soon. Without worker threads (tests with virtual
//! time) all work runs where it arrives. [`crate::placement`] decides which requests are long. Not implemented:
//! preemption.

use crate::budget::{Budget, Share};
use meta::Status;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stored::in_place::{self, LARGE};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

/// Capacity in KiB processed at a time: a few bodies of maximum size.
const CAPACITY: usize = 16 << 10;
/// Capacity in KiB of requests that await a remote response (of a webhook). Their objects stay in memory without
/// being processed.
const WAITING_CAPACITY: usize = 64 << 10;
/// How long a request waits to be decoded for the audit log.
const TURN_TIMEOUT: Duration = Duration::from_secs(30);
const TOO_MANY: &str = "too many large requests of this user are being worked on";

/// Creates the worker threads: half as many as cores, to leave the others for short requests, but at least two.
pub fn runtime() -> std::io::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Builder::new_multi_thread()
        .worker_threads(cores.div_ceil(2).max(2))
        .thread_name("large-requests")
        .on_thread_start(in_place::mark_worker)
        .enable_all()
        .build()
}

/// The worker threads and their capacity.
pub(crate) struct Workers {
    threads: Option<Handle>,
    /// How long work waits for capacity.
    timeout: Duration,
    /// Number of tasks sent to the threads.
    count: AtomicU64,
    /// KiB being processed.
    capacity: Budget,
    /// KiB awaiting a remote response.
    waiting: Budget,
    /// KiB being read in place.
    turns: Budget,
}

impl Workers {
    /// Without `threads`, all work runs where it arrives. `timeout`: how long work waits for capacity.
    pub fn new(threads: Option<Handle>, timeout: Duration) -> Self {
        Self {
            threads,
            timeout,
            count: AtomicU64::new(0),
            capacity: Budget::new(CAPACITY, CAPACITY / 2),
            waiting: Budget::new(WAITING_CAPACITY, WAITING_CAPACITY / 4),
            turns: Budget::new(CAPACITY / 2, CAPACITY / 4),
        }
    }

    /// Whether worker threads exist and this is not one of them.
    pub fn accepts(&self) -> bool {
        self.threads.is_some() && !in_place::is_worker()
    }

    /// Number of requests, or parts of requests, sent to worker threads.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Waits for a user's turn to decode something large with [`in_place::run`]: only few do so at a time, to block few
    /// threads.
    pub async fn turn(&self, user: &str, size: usize) -> Result<Option<Share>, Status> {
        if size < LARGE {
            return Ok(None);
        }
        let turn = self.turns.take(user, (size >> 10).min(CAPACITY / 4), TURN_TIMEOUT).await;
        turn.map(Some).ok_or_else(|| Status::too_many_requests(TOO_MANY, 1))
    }

    /// Runs a user's work on a worker thread if `size` (bytes) is large, else here. Errors if the user has too much
    /// pending work, or the server shuts down.
    pub async fn run<T: Send + 'static>(
        &self,
        user: &str,
        size: usize,
        work: impl Future<Output = Result<T, Status>> + Send + 'static,
    ) -> Result<T, Status> {
        match &self.threads {
            Some(threads) if size >= LARGE && self.accepts() => self.run_on(threads, user, size, work).await,
            _ => work.await,
        }
    }

    async fn run_on<T: Send + 'static>(
        &self,
        threads: &Handle,
        user: &str,
        size: usize,
        work: impl Future<Output = Result<T, Status>> + Send + 'static,
    ) -> Result<T, Status> {
        self.count.fetch_add(1, Ordering::Relaxed);
        let kib = (size >> 10).clamp(1, CAPACITY / 2);
        let Some(share) = self.capacity.take(user, kib, self.timeout).await else {
            return Err(match self.capacity.is_closed() {
                true => Status::unavailable("the server is shutting down"),
                false => Status::too_many_requests(TOO_MANY, 1),
            });
        };
        let held = TaskState {
            user: user.to_owned(),
            kib,
            timeout: self.timeout,
            capacity: self.capacity.clone(),
            waiting: self.waiting.clone(),
            state: Mutex::new(State { share: Some(share), waits: 0 }),
        };
        let mut task = Task(threads.spawn(HELD.scope(Arc::new(held), work)));
        (&mut task.0).await.unwrap_or_else(|e| Err(Status::internal(format!("working on the request failed: {e}"))))
    }

    /// Rejects waiting and new work from now on.
    pub fn end(&self) {
        self.capacity.close();
        self.waiting.close();
        self.turns.close();
    }
}

/// Aborts the task when its result is no longer awaited.
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

tokio::task_local! {
    static HELD: Arc<TaskState>;
}

/// What a request on a worker thread holds.
struct TaskState {
    user: String,
    kib: usize,
    timeout: Duration,
    capacity: Budget,
    waiting: Budget,
    state: Mutex<State>,
}

struct State {
    /// A share of the processing capacity, or of that for remote waits.
    share: Option<Share>,
    /// Number of remote responses awaited.
    waits: usize,
}

/// Decrements the number of awaited responses when dropped.
struct Waiting<'a>(&'a TaskState);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state.lock().waits -= 1;
    }
}

/// Awaits a remote response (of a webhook). Meanwhile the request releases its share of the capacity, since the wait
/// is unbounded. `None`: too many requests wait already.
pub(crate) async fn await_remote<T>(work: impl Future<Output = T>) -> Option<T> {
    let Ok(held) = HELD.try_with(Arc::clone) else { return Some(work.await) };
    {
        let mut state = held.state.lock();
        if state.waits == 0 {
            state.share = Some(held.waiting.take_now(&held.user, held.kib)?);
        }
        state.waits += 1;
    }
    let waiting = Waiting(&held);
    let done = work.await;
    drop(waiting);
    if held.state.lock().waits == 0 {
        let share = held.capacity.take(&held.user, held.kib, held.timeout).await?;
        let mut state = held.state.lock();
        // By now the request may await another response.
        if state.waits == 0 {
            state.share = Some(share);
        }
    }
    Some(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(capacity: &Budget, waiting: &Budget) -> Arc<TaskState> {
        let state = Mutex::new(State { share: capacity.take_now("jane", 6), waits: 0 });
        let (capacity, waiting) = (capacity.clone(), waiting.clone());
        Arc::new(TaskState { user: "jane".into(), kib: 6, timeout: Duration::from_secs(9), capacity, waiting, state })
    }

    #[tokio::test]
    async fn waiting_for_a_remote_answer_leaves_capacity_to_others() {
        let (capacity, waiting) = (Budget::new(10, 10), Budget::new(10, 6));
        let request = HELD.scope(held(&capacity, &waiting), async {
            assert!(capacity.take_now("joe", 5).is_none(), "it is processed");
            let (one, two) = tokio::join!(
                await_remote(async { assert!(capacity.take_now("joe", 10).is_some()) }),
                await_remote(async {
                    tokio::task::yield_now().await;
                    assert!(capacity.take_now("joe", 10).is_some(), "it still waits for one of two answers");
                    let another = HELD.scope(held(&capacity, &waiting), await_remote(async {}));
                    assert!(another.await.is_none(), "too many wait already");
                }),
            );
            assert!(one.and(two).is_some());
            assert!(capacity.take_now("joe", 5).is_none(), "it is processed again");
            assert!(waiting.take_now("joe", 6).is_some());
        });
        request.await;
        assert!(capacity.take_now("joe", 10).is_some(), "nothing is left behind");
        // Small work holds no capacity.
        assert!(await_remote(async {}).await.is_some());
    }
}
