//! A priority level: its seats, and the requests that wait for them.

use crate::queues::{Arrival, QueueSet, QueueSnapshot, QueuingConfig, Ticket};
use crate::retry::RetryAfter;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The seats of a level by its configuration: the nominal number, the number left after lending all it may, and the number after
/// borrowing all it may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub nominal: u32,
    pub minimum: u32,
    pub maximum: u32,
}

/// Why a request is rejected; the values of upstream's metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The level has no queues.
    ConcurrencyLimit,
    QueueFull,
    TimeOut,
}

impl Rejection {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ConcurrencyLimit => "concurrency-limit",
            Self::QueueFull => "queue-full",
            Self::TimeOut => "time-out",
        }
    }
}

pub struct PriorityLevel {
    pub name: String,
    pub uid: String,
    /// Its requests never wait and are never rejected.
    pub exempt: bool,
    queuing: Option<QueuingConfig>,
    seats_in_use: AtomicU32,
    /// The number of seats at the moment.
    seat_limit: AtomicU32,
    /// The highest demand for seats since [`PriorityLevel::take_peak_demand`] was called.
    peak_demand: AtomicU32,
    /// Requests that wait. While there are none, the lock of the queues is not taken.
    waiting: AtomicUsize,
    queues: Mutex<QueueSet<oneshot::Sender<SeatGuard>>>,
    pub(crate) allocation: Mutex<Allocation>,
    retry_after: Mutex<RetryAfter>,
    counters: Counters,
    created_at: Instant,
}

/// Requests that execute at the moment, and requests by outcome since the level was created.
#[derive(Default)]
struct Counters {
    executing: AtomicU64,
    dispatched: AtomicU64,
    rejected: AtomicU64,
    timed_out: AtomicU64,
    cancelled: AtomicU64,
}

/// The state of a level, for `/debug/api_priority_and_fairness/`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LevelSnapshot {
    pub waiting: usize,
    pub executing: u64,
    pub dispatched: u64,
    pub rejected: u64,
    pub timed_out: u64,
    pub cancelled: u64,
    /// The number of queues with waiting requests.
    pub active_queues: usize,
    /// The first [`SNAPSHOT_QUEUES`] queues.
    pub queues: Vec<QueueSnapshot>,
}

/// Queues in a snapshot; a level may have ten million.
const SNAPSHOT_QUEUES: usize = 1_000;

/// The inputs of seat allocation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Allocation {
    pub limits: Limits,
    /// A moving average of the peak demand.
    pub smoothed_demand: f64,
}

/// The seats of an executing request; dropping it gives them back.
pub struct SeatGuard {
    level: Arc<PriorityLevel>,
    seats: u32,
    /// For a request that waited: its queue, and the time of its dispatch.
    queue: Option<(usize, Instant)>,
}

impl SeatGuard {
    /// The queue in which the request waited; `None` if it did not wait.
    pub fn queue(&self) -> Option<usize> {
        self.queue.map(|(queue, _)| queue)
    }
}

impl Drop for SeatGuard {
    fn drop(&mut self) {
        let level = &self.level;
        level.seats_in_use.fetch_sub(self.seats, Ordering::SeqCst);
        level.counters.executing.fetch_sub(1, Ordering::Relaxed);
        if let Some((queue, since)) = self.queue {
            let mut queues = level.queues.lock();
            let limit = level.seat_limit.load(Ordering::Relaxed);
            queues.finish(queue, self.seats, since.elapsed().as_secs_f64(), level.time(), limit);
        }
        if level.waiting.load(Ordering::SeqCst) > 0 {
            level.dispatch();
        }
    }
}

/// A waiting request; dropping it removes the request from its queue.
struct Waiter<'a> {
    level: &'a Arc<PriorityLevel>,
    ticket: Option<Ticket>,
}

impl Waiter<'_> {
    /// Returns `false` if the request was dispatched already.
    fn cancel(&mut self) -> bool {
        let Some(ticket) = self.ticket.take() else { return false };
        let mut queues = self.level.queues.lock();
        let gone = queues.cancel(ticket);
        self.level.waiting.store(queues.waiting(), Ordering::SeqCst);
        gone
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if !self.cancel() {
            return;
        }
        self.level.counters.cancelled.fetch_add(1, Ordering::Relaxed);
        // A smaller request behind it may fit now.
        if self.level.waiting.load(Ordering::SeqCst) > 0 {
            self.level.dispatch();
        }
    }
}

impl PriorityLevel {
    pub(crate) fn new(name: &str, uid: &str, exempt: bool, queuing: Option<QueuingConfig>) -> Arc<Self> {
        let none = QueuingConfig { queues: 0, hand_size: 0, queue_length_limit: 0 };
        Arc::new(Self {
            name: name.to_owned(),
            uid: uid.to_owned(),
            exempt,
            queuing,
            seats_in_use: AtomicU32::new(0),
            seat_limit: AtomicU32::new(0),
            peak_demand: AtomicU32::new(0),
            waiting: AtomicUsize::new(0),
            queues: Mutex::new(QueueSet::new(queuing.unwrap_or(none))),
            allocation: Mutex::default(),
            retry_after: Mutex::default(),
            counters: Counters::default(),
            created_at: Instant::now(),
        })
    }

    pub(crate) fn has_config(&self, uid: &str, exempt: bool, queuing: Option<QueuingConfig>) -> bool {
        self.uid == uid && self.exempt == exempt && self.queuing == queuing
    }

    /// Takes seats, at once or after waiting for at most `timeout`. `flow_hash` is computed only if the request has to wait; [`PriorityLevel::tags`]
    /// returns `tag` for a waiting request.
    pub async fn acquire(
        self: &Arc<Self>,
        seats: u32,
        tag: usize,
        timeout: Duration,
        flow_hash: impl FnOnce() -> u64,
    ) -> Result<SeatGuard, Rejection> {
        if self.exempt {
            let taken = self.seats_in_use.fetch_add(seats, Ordering::SeqCst) + seats;
            self.peak_demand.fetch_max(taken, Ordering::Relaxed);
            return Ok(self.guard(seats, None));
        }
        if self.waiting.load(Ordering::SeqCst) == 0 && self.try_take(seats) {
            return Ok(self.guard(seats, None));
        }
        if self.queuing.is_none() {
            self.counters.rejected.fetch_add(1, Ordering::Relaxed);
            return Err(Rejection::ConcurrencyLimit);
        }
        let (sender, mut dispatched) = oneshot::channel();
        let ticket = {
            let mut queues = self.queues.lock();
            let limit = self.seat_limit.load(Ordering::Relaxed);
            let arrival = Arrival { flow_hash: flow_hash(), seats, tag };
            let Some(ticket) = queues.enqueue(&arrival, sender, self.time(), limit) else {
                self.counters.rejected.fetch_add(1, Ordering::Relaxed);
                return Err(Rejection::QueueFull);
            };
            self.waiting.store(queues.waiting(), Ordering::SeqCst);
            let waiting = u32::try_from(queues.waiting()).unwrap_or(u32::MAX);
            self.peak_demand
                .fetch_max(self.seats_in_use.load(Ordering::Relaxed).saturating_add(waiting), Ordering::Relaxed);
            ticket
        };
        let mut waiter = Waiter { level: self, ticket: Some(ticket) };
        // Seats may have become free before this request was visible to others.
        self.dispatch();
        if let Ok(Ok(guard)) = tokio::time::timeout(timeout, &mut dispatched).await {
            waiter.ticket = None;
            return Ok(guard);
        }
        if waiter.cancel() {
            self.counters.timed_out.fetch_add(1, Ordering::Relaxed);
            self.dispatch();
            return Err(Rejection::TimeOut);
        }
        dispatched.try_recv().map_err(|_| Rejection::TimeOut)
    }

    /// The guard of seats that were taken.
    fn guard(self: &Arc<Self>, seats: u32, queue: Option<(usize, Instant)>) -> SeatGuard {
        self.counters.executing.fetch_add(1, Ordering::Relaxed);
        self.counters.dispatched.fetch_add(1, Ordering::Relaxed);
        SeatGuard { level: self.clone(), seats, queue }
    }

    pub fn snapshot(&self) -> LevelSnapshot {
        let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let t = &self.counters;
        let (active_queues, queues) = {
            let queues = self.queues.lock();
            (queues.active(), queues.snapshot(SNAPSHOT_QUEUES))
        };
        LevelSnapshot {
            waiting: self.waiting(),
            executing: load(&t.executing),
            dispatched: load(&t.dispatched),
            rejected: load(&t.rejected),
            timed_out: load(&t.timed_out),
            cancelled: load(&t.cancelled),
            active_queues,
            queues,
        }
    }

    /// Queue index and tag of every waiting request, queue by queue in order of arrival.
    pub fn tags(&self) -> Vec<(usize, usize)> {
        self.queues.lock().tags()
    }

    /// Takes free seats. A single request always fits, however many seats it needs.
    fn try_take(&self, seats: u32) -> bool {
        let limit = self.seat_limit.load(Ordering::Relaxed);
        let fits = |taken: u32| (taken == 0 || taken + seats <= limit).then_some(taken + seats);
        match self.seats_in_use.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits) {
            Ok(before) => {
                self.peak_demand.fetch_max(before + seats, Ordering::Relaxed);
                true
            }
            Err(_) => false,
        }
    }

    /// Dispatches waiting requests while there are free seats.
    fn dispatch(self: &Arc<Self>) {
        // Seats of requests that were given up meanwhile are returned after the lock is released.
        let mut unwanted = Vec::new();
        let mut queues = self.queues.lock();
        let limit = self.seat_limit.load(Ordering::Relaxed);
        while let Some(t) = queues.dispatch(self.time(), limit, |seats| self.try_take(seats)) {
            let guard = self.guard(t.seats, Some((t.queue, Instant::now())));
            if let Err(guard) = t.item.send(guard) {
                unwanted.push(guard);
            }
        }
        self.waiting.store(queues.waiting(), Ordering::SeqCst);
        drop(queues);
        drop(unwanted);
    }

    fn time(&self) -> f64 {
        self.created_at.elapsed().as_secs_f64()
    }

    pub(crate) fn set_seat_limit(self: &Arc<Self>, seats: u32) {
        self.seat_limit.store(seats, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.dispatch();
        }
    }

    /// The highest demand for seats since the last call.
    pub(crate) fn take_peak_demand(&self) -> u32 {
        self.peak_demand.swap(self.seats_in_use.load(Ordering::Relaxed), Ordering::Relaxed)
    }

    /// The most seats that one request of this level may take.
    pub fn max_request_seats(&self) -> u32 {
        let nominal = self.allocation.lock().limits.nominal;
        let Some(queuing) = self.queuing else { return MAX_REQUEST_SEATS };
        let hand_size = u32::try_from(queuing.hand_size.max(1)).unwrap_or(u32::MAX);
        (nominal * 15).div_ceil(100).min(nominal / hand_size).clamp(1, MAX_REQUEST_SEATS)
    }

    /// Records a rejected request at a time in Unix seconds. Returns the seconds after which the client may retry.
    pub fn record_rejection(&self, second: i64) -> u32 {
        self.retry_after.lock().record_rejection(second)
    }

    pub fn seats_in_use(&self) -> u32 {
        self.seats_in_use.load(Ordering::Relaxed)
    }

    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub fn seat_limit(&self) -> u32 {
        self.seat_limit.load(Ordering::Relaxed)
    }

    pub fn limits(&self) -> Limits {
        self.allocation.lock().limits
    }
}

const MAX_REQUEST_SEATS: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn level(seats: u32, queuing: Option<QueuingConfig>) -> Arc<PriorityLevel> {
        let l = PriorityLevel::new("l", "", false, queuing);
        l.set_seat_limit(seats);
        l
    }

    const QUEUES: Option<QueuingConfig> = Some(QueuingConfig { queues: 8, hand_size: 2, queue_length_limit: 10 });
    const TIMEOUT: Duration = Duration::from_secs(15);

    #[tokio::test(start_paused = true)]
    async fn without_queues_requests_beyond_the_limit_are_rejected() {
        let l = level(2, None);
        let a = l.acquire(1, 0, TIMEOUT, || 0).await.unwrap_or_else(|_| panic!());
        let _b = l.acquire(1, 0, TIMEOUT, || 0).await.unwrap_or_else(|_| panic!());
        assert_eq!(l.acquire(1, 0, TIMEOUT, || 0).await.err(), Some(Rejection::ConcurrencyLimit));
        drop(a);
        assert!(l.acquire(1, 0, TIMEOUT, || 0).await.is_ok());
        drop(_b);
        assert!(l.acquire(9, 0, TIMEOUT, || 0).await.is_ok(), "one alone has room, however wide");
        assert_eq!((l.seats_in_use(), l.take_peak_demand(), l.take_peak_demand()), (0, 9, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_requests_are_dispatched_or_time_out() {
        let l = level(1, QUEUES);
        let first = l.acquire(1, 0, TIMEOUT, || 0).await.unwrap_or_else(|_| panic!());
        let began = Instant::now();
        assert_eq!(l.acquire(1, 0, TIMEOUT, || 1).await.err(), Some(Rejection::TimeOut));
        assert_eq!((began.elapsed(), l.waiting()), (TIMEOUT, 0));
        let waiting = tokio::spawn({
            let l = l.clone();
            async move { l.acquire(1, 0, TIMEOUT, || 1).await.map(|_| ()) }
        });
        // One that is given up in the meantime is not in the way.
        let given_up = l.acquire(1, 0, TIMEOUT, || 2);
        assert!(tokio::time::timeout(Duration::from_secs(1), given_up).await.is_err());
        assert_eq!(l.waiting(), 1);
        drop(first);
        assert!(waiting.await.unwrap().is_ok());
        assert_eq!((l.seats_in_use(), l.waiting()), (0, 0));
        let d = l.snapshot();
        assert_eq!((d.executing, d.dispatched, d.rejected, d.timed_out, d.cancelled), (0, 2, 0, 1, 1));
        assert!(d.queues.iter().all(|q| (q.waiting, q.executing, q.seats_in_use) == (0, 0, 0)));
    }

    #[tokio::test(start_paused = true)]
    async fn full_queues_reject_and_more_seats_dispatch() {
        let l = level(1, Some(QueuingConfig { queues: 1, hand_size: 1, queue_length_limit: 2 }));
        let _first = l.acquire(1, 0, TIMEOUT, || 0).await.unwrap_or_else(|_| panic!());
        let served = Arc::new(AtomicBool::new(false));
        let wait = || {
            let (l, served) = (l.clone(), served.clone());
            tokio::spawn(async move {
                let seat = l.acquire(1, 0, TIMEOUT, || 0).await;
                served.store(seat.is_ok(), Ordering::Relaxed);
                seat.is_ok()
            })
        };
        let (a, b) = (wait(), wait());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(l.acquire(1, 0, TIMEOUT, || 0).await.err(), Some(Rejection::QueueFull));
        assert!(!served.load(Ordering::Relaxed));
        l.set_seat_limit(2);
        assert!(a.await.unwrap() && b.await.unwrap());
    }

    /// A thousand requests of one client, and one of another, in virtual time.
    #[tokio::test(start_paused = true)]
    async fn a_noisy_flow_delays_only_itself() {
        let l = level(2, Some(QueuingConfig { queues: 64, hand_size: 4, queue_length_limit: 500 }));
        let one = |l: Arc<PriorityLevel>, flow: u64| async move {
            let began = Instant::now();
            let _seat = l.acquire(1, 0, Duration::from_secs(600), || flow).await.unwrap_or_else(|_| panic!());
            let waited = began.elapsed();
            tokio::time::sleep(Duration::from_millis(100)).await;
            waited
        };
        let crowd: Vec<_> = (0..1000).map(|_| tokio::spawn(one(l.clone(), 1))).collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        for _ in 0..20 {
            let waited = one(l.clone(), 0x00ff_1234_5678_9abc).await;
            assert!(waited < Duration::from_millis(500), "{waited:?}");
        }
        for c in crowd {
            c.await.unwrap();
        }
        assert_eq!(l.seats_in_use(), 0);
    }
}
