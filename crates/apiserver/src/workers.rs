//! Worker threads for long requests, so that no other request waits for their decoding and validation.
//!
//! How many bytes are processed at a time is bounded, since a decoded object takes many times the memory of its text. One flow
//! ([`crate::budget`]) takes half of that at most, and those that wait are served in a fair order: whatever many service accounts of one
//! namespace send, a large request of another flow is next or nearly so. Without worker threads (in tests with virtual time) all work is done
//! where it arrives. Which requests are long is decided in [`crate::placement`]. Left out: preempting work that has begun.

use crate::budget::{Budget, Share};
use meta::{Object, Status};
use parking_lot::Mutex;
use registry::encode::Unreadable;
use registry::{Views, encode};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store::Entry;
use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};
use tokio::task::JoinHandle;

/// Work on so many bytes is long.
pub(crate) const LARGE: usize = 64 << 10;
/// Bytes that are processed at a time, in KiB: a few bodies of the largest size.
const CAPACITY: usize = 16 << 10;
/// Bytes of requests that wait for a remote answer (of a webhook), in KiB. Their objects stay in memory, though nothing processes them.
const WAITING_CAPACITY: usize = 64 << 10;
/// How long a request waits to be read for the audit log.
const TURN_TIMEOUT: Duration = Duration::from_secs(30);
const TOO_MANY: &str = "too many large requests of this user are being worked on";

thread_local! {
    /// Whether this thread is a worker.
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Makes the worker threads: half as many as cores, so that the other half answers meanwhile, and two at least, for two users.
pub fn runtime() -> std::io::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Builder::new_multi_thread()
        .worker_threads(cores.div_ceil(2).max(2))
        .thread_name("large-requests")
        .on_thread_start(|| IS_WORKER.set(true))
        .enable_all()
        .build()
}

/// Kinds of work done with [`in_place`]. Work of one lane is done one after the other; work of another lane does not wait for it.
#[derive(Clone, Copy)]
pub(crate) enum Lane {
    Audit,
    Discovery,
    /// Documents of OpenAPI.
    Schemas,
    /// Objects of which a small view is kept.
    Views,
    /// Objects that admission plugins look up.
    Objects,
}

/// Does synchronous work on the current thread. Work on a large `size` (bytes) blocks no other task of the thread, and waits for its lane.
pub(crate) fn in_place<T>(lane: Lane, size: usize, work: impl FnOnce() -> T) -> T {
    static LANES: [Mutex<()>; Lane::Objects as usize + 1] = [const { Mutex::new(()) }; Lane::Objects as usize + 1];
    let many = Handle::try_current().is_ok_and(|h| h.runtime_flavor() == RuntimeFlavor::MultiThread);
    if size < LARGE || !many || IS_WORKER.get() {
        return work();
    }
    tokio::task::block_in_place(|| {
        let _turn = LANES[lane as usize].lock();
        work()
    })
}

/// Returns the view of a stored object. It is decoded once per revision, with [`in_place`] if it is large. `make` returns the view and its
/// size in bytes. Errors if the object cannot be decoded.
pub(crate) fn view<T>(
    views: &Views<T>,
    entry: &Entry,
    make: impl FnOnce(&Object) -> (T, usize),
) -> Result<Arc<T>, Unreadable> {
    if let Some(known) = views.known(entry) {
        return Ok(known);
    }
    // Of several requests at a time, one decodes it.
    in_place(Lane::Views, entry.value.len(), || views.try_get(entry, |e| Ok(make(&encode::decode(e)?))))
}

/// The worker threads, and how much they process at a time.
pub(crate) struct Workers {
    threads: Option<Handle>,
    /// How long work waits for its share.
    timeout: Duration,
    /// How many pieces of work were sent to the threads.
    count: AtomicU64,
    /// KiB that are processed.
    capacity: Budget,
    /// KiB that wait for a remote answer.
    waiting: Budget,
    /// KiB that are read in place.
    turns: Budget,
}

impl Workers {
    /// Without `threads`, all work is done where it arrives. `timeout`: how long work waits for its share.
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

    /// Whether there are worker threads, and this is none of them.
    pub fn accepts(&self) -> bool {
        self.threads.is_some() && !IS_WORKER.get()
    }

    /// How many requests, or parts of requests, were sent to the worker threads.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Waits for a user's turn to read something large with [`in_place`]: few do so at a time, so that few threads wait there.
    pub async fn turn(&self, user: &str, size: usize) -> Result<Option<Share>, Status> {
        if size < LARGE {
            return Ok(None);
        }
        let turn = self.turns.take(user, (size >> 10).min(CAPACITY / 4), TURN_TIMEOUT).await;
        turn.map(Some).ok_or_else(|| Status::too_many_requests(TOO_MANY, 1))
    }

    /// Does work of a user on a worker thread if its `size` in bytes is large, else here. Errors if the user has too much work already, or the
    /// server shuts down.
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
        let held = Held {
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

    /// Refuses work that waits, from now on.
    pub fn end(&self) {
        self.capacity.close();
        self.waiting.close();
        self.turns.close();
    }
}

/// Stops work that nobody waits for any more, at its next await.
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

tokio::task_local! {
    static HELD: Arc<Held>;
}

/// What a request on a worker thread holds.
struct Held {
    user: String,
    kib: usize,
    timeout: Duration,
    capacity: Budget,
    waiting: Budget,
    state: Mutex<State>,
}

struct State {
    /// Of the capacity, or of what may wait for remote answers.
    share: Option<Share>,
    /// How many remote answers the request waits for.
    waits: usize,
}

/// Counts one remote answer less when it is dropped.
struct Waiting<'a>(&'a Held);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state.lock().waits -= 1;
    }
}

/// Waits for a remote answer (of a webhook). Meanwhile the request leaves its share of the capacity to others, since nobody knows for how
/// long. `None`: too many requests wait so already.
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
        // By now the request may wait for another answer.
        if state.waits == 0 {
            state.share = Some(share);
        }
    }
    Some(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(capacity: &Budget, waiting: &Budget) -> Arc<Held> {
        let state = Mutex::new(State { share: capacity.take_now("jane", 6), waits: 0 });
        let (capacity, waiting) = (capacity.clone(), waiting.clone());
        Arc::new(Held { user: "jane".into(), kib: 6, timeout: Duration::from_secs(9), capacity, waiting, state })
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
        // What is small holds nothing.
        assert!(await_remote(async {}).await.is_some());
    }
}
