//! The work queue of a controller (client-go `util/workqueue`).
//!
//! A key that is added while it waits is queued once; a key that is added while it is processed is queued again afterwards, and never
//! processed by two workers at a time. Keys come out in the order they were added. Timers are tokio's, so the queue runs in virtual time.

use crate::metrics::{self, QueueMetrics, Working};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use supervisor::panics::{Panicked, caught};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Longer delays are treated as endless.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Delay of a key that failed: `base · 2ⁿ`, at most `max`.
#[derive(Clone, Copy, Debug)]
pub struct RateLimit {
    /// Delay after the first failure.
    pub base: Duration,
    /// Maximum delay.
    pub max: Duration,
}

impl Default for RateLimit {
    /// client-go's `DefaultControllerRateLimiter`, per key.
    fn default() -> Self {
        Self { base: Duration::from_millis(5), max: Duration::from_secs(1000) }
    }
}

struct State<K> {
    /// Waiting keys, with the time since which they wait.
    queue: VecDeque<(K, Instant)>,
    dirty: BTreeSet<K>,
    /// Keys in progress, with the time since which they are processed.
    processing: BTreeMap<K, Instant>,
    failures: BTreeMap<K, u32>,
    /// Delayed keys by time and order of arrival; `due` finds a key's entry.
    delayed: BTreeMap<(Instant, u64), K>,
    due: BTreeMap<K, (Instant, u64)>,
    arrivals: u64,
    closed: bool,
}

/// A queue of keys, shared by `Arc`.
pub struct WorkQueue<K> {
    state: Mutex<State<K>>,
    wake: Notify,
    limit: RateLimit,
    /// Set when the queue is named.
    counts: OnceLock<QueueMetrics>,
}

impl<K: Ord + Clone> Default for WorkQueue<K> {
    fn default() -> Self {
        Self::new(RateLimit::default())
    }
}

impl<K: Ord + Clone> WorkQueue<K> {
    /// An empty queue without metrics.
    pub fn new(limit: RateLimit) -> Self {
        Self {
            state: Mutex::new(State {
                queue: VecDeque::new(),
                dirty: BTreeSet::new(),
                processing: BTreeMap::new(),
                failures: BTreeMap::new(),
                delayed: BTreeMap::new(),
                due: BTreeMap::new(),
                arrivals: 0,
                closed: false,
            }),
            wake: Notify::new(),
            limit,
            counts: OnceLock::new(),
        }
    }

    /// Adds a key. Wakes a worker, unless the key waits already or is being processed.
    pub fn add(&self, key: K) {
        let mut s = self.state.lock();
        if s.enqueue(key) {
            self.count(
                |c, s| {
                    c.adds.inc();
                    c.depth.set(s.depth());
                },
                &s,
            );
            drop(s);
            self.wake.notify_one();
        }
    }

    fn count(&self, what: impl FnOnce(&QueueMetrics, &State<K>), state: &State<K>) {
        if let Some(c) = self.counts.get() {
            what(c, state);
        }
    }

    /// Adds a key after a delay. Of two delays for one key the earlier applies.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let mut s = self.state.lock();
        if s.closed {
            return;
        }
        let now = Instant::now();
        let at = now.checked_add(delay).unwrap_or(now + FAR);
        if let Some(held) = s.due.get(&key).copied() {
            if held.0 <= at {
                return;
            }
            s.delayed.remove(&held);
        }
        s.arrivals += 1;
        let slot = (at, s.arrivals);
        s.delayed.insert(slot, key.clone());
        s.due.insert(key, slot);
        drop(s);
        self.wake.notify_one();
    }

    /// Adds a key after the delay for its number of failures, and counts another failure.
    pub fn add_rate_limited(&self, key: K) {
        let n = {
            let mut s = self.state.lock();
            let n = s.failures.entry(key.clone()).or_insert(0);
            *n += 1;
            *n - 1
        };
        if let Some(c) = self.counts.get() {
            c.retries.inc();
        }
        let delay = self.limit.base.saturating_mul(1u32.checked_shl(n.min(31)).unwrap_or(u32::MAX)).min(self.limit.max);
        self.add_after(key, delay);
    }

    /// The number of failures of a key since [`Self::forget`].
    pub fn failures(&self, key: &K) -> u32 {
        self.state.lock().failures.get(key).copied().unwrap_or(0)
    }

    /// Resets the failures of a key after a success.
    pub fn forget(&self, key: &K) {
        self.state.lock().failures.remove(key);
    }

    /// The number of waiting keys, without delayed ones and those in progress.
    pub fn len(&self) -> usize {
        self.state.lock().queue.len()
    }

    /// Whether no key waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits for a key, which must be returned with [`Self::done`]. `None` when the queue is closed.
    pub async fn get(&self) -> Option<K> {
        loop {
            let woken = self.wake.notified();
            let next = {
                let mut s = self.state.lock();
                if s.closed {
                    self.wake.notify_one();
                    return None;
                }
                s.ripen(Instant::now());
                if let Some((k, since)) = s.queue.pop_front() {
                    self.count(
                        |c, s| {
                            c.waited.observe(since.elapsed().as_secs_f64());
                            c.depth.set(s.depth());
                        },
                        &s,
                    );
                    s.dirty.remove(&k);
                    s.processing.insert(k.clone(), Instant::now());
                    if !s.queue.is_empty() || !s.delayed.is_empty() {
                        self.wake.notify_one();
                    }
                    return Some(k);
                }
                s.delayed.keys().next().map(|(at, _)| *at)
            };
            match next {
                None => woken.await,
                Some(at) => tokio::select! {
                    biased;
                    () = woken => {}
                    () = tokio::time::sleep_until(at) => {}
                },
            }
        }
    }

    /// Returns a key from [`Self::get`]. Queues it again if it was added meanwhile.
    pub fn done(&self, key: &K) {
        let mut s = self.state.lock();
        s.processing.remove(key);
        if s.dirty.contains(key) {
            s.queue.push_back((key.clone(), Instant::now()));
            drop(s);
            self.wake.notify_one();
        }
    }

    /// Handles the result of processing a key: forgets, requeues or delays it.
    fn decide<E: std::fmt::Display>(&self, name: &str, key: &K, done: Result<Outcome, E>)
    where
        K: Debug,
    {
        match done {
            Ok(Outcome::Done) => self.forget(key),
            Ok(Outcome::After(delay)) => {
                self.forget(key);
                self.add_after(key.clone(), delay);
            }
            Err(e) => {
                let tries = self.failures(key);
                tracing::debug!(controller = name, ?key, tries, "{e}");
                self.add_rate_limited(key.clone());
            }
        }
    }

    /// Closes the queue: [`Self::get`] returns `None`.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.wake.notify_waiters();
        self.wake.notify_one();
    }
}

impl<K: Send> Working for WorkQueue<K> {
    fn since(&self) -> Vec<Instant> {
        self.state.lock().processing.values().copied().collect()
    }
}

impl<K: Ord + Clone> State<K> {
    fn enqueue(&mut self, key: K) -> bool {
        if self.closed || !self.dirty.insert(key.clone()) {
            return false;
        }
        if self.processing.contains_key(&key) {
            return false;
        }
        self.queue.push_back((key, Instant::now()));
        true
    }

    fn depth(&self) -> i64 {
        i64::try_from(self.queue.len()).unwrap_or(i64::MAX)
    }

    fn ripen(&mut self, now: Instant) {
        while let Some(first) = self.delayed.first_entry() {
            if first.key().0 > now {
                break;
            }
            let key = first.remove();
            self.due.remove(&key);
            self.enqueue(key);
        }
    }
}

/// What to do with a key that was processed without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing more to do until the key is added again.
    Done,
    /// Process the key again after this delay.
    After(Duration),
}

/// Processes keys until the queue is closed or `shutdown` fires. An error is logged under `name` and the key is requeued with
/// back-off, also when `reconcile` panics.
pub async fn work<K, F, Fut, E>(
    name: &'static str,
    queue: Arc<WorkQueue<K>>,
    workers: usize,
    shutdown: crate::Shutdown,
    reconcile: F,
) where
    K: Ord + Clone + Debug + Send + 'static,
    F: Fn(K) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Outcome, E>> + Send,
    E: std::fmt::Display + Send,
{
    let reconcile = Arc::new(reconcile);
    let mut set = JoinSet::new();
    if queue.counts.set(QueueMetrics::new(name)).is_ok() {
        let working: Arc<dyn Working> = queue.clone();
        metrics::follow(name, Arc::downgrade(&working));
    }
    for _ in 0..workers.max(1) {
        let (queue, reconcile) = (queue.clone(), reconcile.clone());
        set.spawn(async move {
            while let Some(key) = queue.get().await {
                let begun = Instant::now();
                let taken = key.clone();
                let work = async { reconcile(taken).await };
                match caught(name, key.clone(), work).await {
                    Ok(done) => queue.decide(name, &key, done),
                    Err(Panicked) => queue.add_rate_limited(key.clone()),
                }
                if let Some(c) = queue.counts.get() {
                    c.worked.observe(begun.elapsed().as_secs_f64());
                }
                queue.done(&key);
            }
        });
    }
    shutdown.race(async { while set.join_next().await.is_some() {} }).await;
    queue.close();
    set.shutdown().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_is_queued_once_and_again_when_added_in_progress() {
        let q = WorkQueue::default();
        q.add(1);
        q.add(1);
        q.add(2);
        assert_eq!(q.len(), 2);
        let k = q.get().await.unwrap();
        q.add(1);
        assert_eq!(q.len(), 1, "not to a second worker");
        q.done(&k);
        assert_eq!((q.get().await, q.get().await), (Some(2), Some(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn delays_grow_with_failures_and_the_earlier_applies() {
        let q = WorkQueue::default();
        let start = Instant::now();
        for expect in [5, 10, 20, 40] {
            let before = Instant::now();
            q.add_rate_limited("a");
            let k = q.get().await.unwrap();
            q.done(&k);
            assert_eq!(before.elapsed(), Duration::from_millis(expect));
        }
        q.forget(&"a");
        assert_eq!(q.failures(&"a"), 0);
        assert!(start.elapsed() < Duration::from_millis(80));
        q.add_after("b", Duration::from_secs(9));
        q.add_after("b", Duration::from_secs(3));
        q.add_after("b", Duration::from_secs(5));
        let before = Instant::now();
        assert_eq!(q.get().await, Some("b"));
        assert_eq!(before.elapsed(), Duration::from_secs(3));
        q.done(&"b");
        let nothing = tokio::time::timeout(Duration::from_secs(60), q.get()).await;
        assert!(nothing.is_err());
    }

    /// Metrics show that a worker is stuck.
    #[tokio::test(start_paused = true)]
    async fn unfinished_work_is_reported() {
        let q = Arc::new(WorkQueue::<u8>::default());
        let (trigger, shutdown) = crate::shutdown();
        let stuck = |_| async { std::future::pending::<Result<Outcome, &str>>().await };
        let running = tokio::spawn(work("stuck", q.clone(), 2, shutdown, stuck));
        q.add(1);
        tokio::time::sleep(Duration::from_secs(2)).await;
        q.add(2);
        tokio::time::sleep(Duration::from_secs(3)).await;
        let has_line = |line: &str| assert!(metrics::text().lines().any(|l| l == line), "{line}");
        has_line("workqueue_unfinished_work_seconds{name=\"stuck\"} 8");
        has_line("workqueue_longest_running_processor_seconds{name=\"stuck\"} 5");
        trigger.trigger();
        running.await.unwrap();
        drop(q);
        has_line("workqueue_unfinished_work_seconds{name=\"stuck\"} 0");
    }

    /// A panic once ended a worker for good; as many such keys as workers stopped a controller.
    #[tokio::test(start_paused = true)]
    async fn keys_that_panic_are_requeued_and_others_processed() {
        let q = Arc::new(WorkQueue::<u8>::default());
        let (trigger, shutdown) = crate::shutdown();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let s = seen.clone();
        let running = tokio::spawn(work("panics", q.clone(), 2, shutdown, move |key| {
            s.lock().push(key);
            // Some panic before they return a future, some in it.
            assert_ne!(key, 0, "poisoned");
            async move {
                tokio::task::yield_now().await;
                assert!(key >= 5, "poisoned");
                Ok::<_, String>(Outcome::Done)
            }
        }));
        (0..10).for_each(|key| q.add(key));
        tokio::time::sleep(Duration::from_millis(16)).await;
        let times = |key: u8| seen.lock().iter().filter(|k| **k == key).count();
        for key in 0..10 {
            assert_eq!(times(key), if key < 5 { 3 } else { 1 }, "{key}: at 0, 5 and 15 ms, or once");
        }
        q.add(9);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!((times(9), q.failures(&9), q.failures(&0)), (2, 0, 3));
        trigger.trigger();
        running.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_delay_may_be_of_any_length() {
        let q = WorkQueue::default();
        q.add_after(1, Duration::MAX);
        q.add_after(2, Duration::from_secs(u64::MAX));
        q.add_after(1, Duration::from_secs(1));
        assert_eq!(q.get().await, Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn workers_end_at_shutdown() {
        let q = Arc::new(WorkQueue::<u8>::default());
        let (trigger, shutdown) = crate::shutdown();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let s = seen.clone();
        let running = tokio::spawn(work("test", q.clone(), 2, shutdown, move |k| {
            s.lock().push(k);
            async move { if k == 7 { Err("again") } else { Ok(Outcome::Done) } }
        }));
        q.add(7);
        q.add(8);
        tokio::time::sleep(Duration::from_millis(16)).await;
        trigger.trigger();
        running.await.unwrap();
        assert_eq!(seen.lock().iter().filter(|k| **k == 7).count(), 3, "at 0, 5 and 15 ms");
        assert_eq!(seen.lock().iter().filter(|k| **k == 8).count(), 1);
    }
}
