//! A priority level: its seats, and who waits for one.

use crate::queues::{Comer, QueueDigest, Queues, Shape, Ticket};
use crate::retry::Dropped;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How many seats a level has by its configuration: nominally, when it has lent, and when it has borrowed all it may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub nominal: u32,
    pub least: u32,
    pub most: u32,
}

/// Why a request is turned away, in upstream's words for its metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// There are no queues.
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

pub struct Level {
    pub name: String,
    pub uid: String,
    /// Nobody waits here, and nobody is turned away.
    pub exempt: bool,
    shape: Option<Shape>,
    /// Seats that are taken, and that there are at the moment.
    taken: AtomicU32,
    seats: AtomicU32,
    /// The most seats taken or waited for since somebody last asked.
    peak: AtomicU32,
    /// Requests that wait: while there are none, the queues are not looked at.
    waiting: AtomicUsize,
    queues: Mutex<Queues<oneshot::Sender<Seat>>>,
    pub(crate) plan: Mutex<Plan>,
    dropped: Mutex<Dropped>,
    tally: Tally,
    begun: Instant,
}

/// What became of requests so far, and how many there are at the moment.
#[derive(Default)]
struct Tally {
    executing: AtomicU64,
    dispatched: AtomicU64,
    rejected: AtomicU64,
    timed_out: AtomicU64,
    cancelled: AtomicU64,
}

/// A level, as those see it who look for what is wrong.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LevelDigest {
    pub waiting: usize,
    pub executing: u64,
    pub dispatched: u64,
    pub rejected: u64,
    pub timed_out: u64,
    pub cancelled: u64,
    /// How many queues have requests that wait.
    pub active: usize,
    /// The first [`SHOWN`] queues.
    pub queues: Vec<QueueDigest>,
}

/// Queues of a level that a digest shows; a level may have ten million.
const SHOWN: usize = 1_000;

/// What the shares of a level are reckoned from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plan {
    pub limits: Limits,
    /// The demand of the last time, which is forgotten slowly.
    pub smoothed: f64,
}

/// Seats that a request has, until this is dropped.
pub struct Seat {
    level: Arc<Level>,
    seats: u32,
    /// Of a request that waited: the queue, and when its turn came.
    queue: Option<(usize, Instant)>,
}

impl Seat {
    /// The queue in which its request waited.
    pub fn queue(&self) -> Option<usize> {
        self.queue.map(|(queue, _)| queue)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let level = &self.level;
        level.taken.fetch_sub(self.seats, Ordering::SeqCst);
        level.tally.executing.fetch_sub(1, Ordering::Relaxed);
        if let Some((queue, since)) = self.queue {
            let mut queues = level.queues.lock();
            let limit = level.seats.load(Ordering::Relaxed);
            queues.finish(queue, self.seats, since.elapsed().as_secs_f64(), level.time(), limit);
        }
        if level.waiting.load(Ordering::SeqCst) > 0 {
            level.serve();
        }
    }
}

/// Who waits; taken out of the queue when nobody wants to know any more.
struct Waiter<'a> {
    level: &'a Arc<Level>,
    ticket: Option<Ticket>,
}

impl Waiter<'_> {
    /// False when its turn has come already.
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
        self.level.tally.cancelled.fetch_add(1, Ordering::Relaxed);
        // Who stood in front of a smaller request has kept it from its seats.
        if self.level.waiting.load(Ordering::SeqCst) > 0 {
            self.level.serve();
        }
    }
}

impl Level {
    pub(crate) fn new(name: &str, uid: &str, exempt: bool, shape: Option<Shape>) -> Arc<Self> {
        let none = Shape { queues: 0, hand: 0, length: 0 };
        Arc::new(Self {
            name: name.to_owned(),
            uid: uid.to_owned(),
            exempt,
            shape,
            taken: AtomicU32::new(0),
            seats: AtomicU32::new(0),
            peak: AtomicU32::new(0),
            waiting: AtomicUsize::new(0),
            queues: Mutex::new(Queues::new(shape.unwrap_or(none))),
            plan: Mutex::default(),
            dropped: Mutex::default(),
            tally: Tally::default(),
            begun: Instant::now(),
        })
    }

    pub(crate) fn is_like(&self, uid: &str, exempt: bool, shape: Option<Shape>) -> bool {
        self.uid == uid && self.exempt == exempt && self.shape == shape
    }

    /// Takes seats, at once or when the turn of the request's flow has come. `flow` is asked for only where there is a queue,
    /// `tag` is told by [`Level::tags`].
    pub async fn enter(
        self: &Arc<Self>,
        seats: u32,
        tag: usize,
        patience: Duration,
        flow: impl FnOnce() -> u64,
    ) -> Result<Seat, Rejection> {
        if self.exempt {
            let taken = self.taken.fetch_add(seats, Ordering::SeqCst) + seats;
            self.peak.fetch_max(taken, Ordering::Relaxed);
            return Ok(self.seat(seats, None));
        }
        if self.waiting.load(Ordering::SeqCst) == 0 && self.take(seats) {
            return Ok(self.seat(seats, None));
        }
        if self.shape.is_none() {
            self.tally.rejected.fetch_add(1, Ordering::Relaxed);
            return Err(Rejection::ConcurrencyLimit);
        }
        let (sender, mut turn) = oneshot::channel();
        let ticket = {
            let mut queues = self.queues.lock();
            let limit = self.seats.load(Ordering::Relaxed);
            let comer = Comer { flow: flow(), seats, tag };
            let Some(ticket) = queues.place(&comer, sender, self.time(), limit) else {
                self.tally.rejected.fetch_add(1, Ordering::Relaxed);
                return Err(Rejection::QueueFull);
            };
            self.waiting.store(queues.waiting(), Ordering::SeqCst);
            let waiting = u32::try_from(queues.waiting()).unwrap_or(u32::MAX);
            self.peak.fetch_max(self.taken.load(Ordering::Relaxed).saturating_add(waiting), Ordering::Relaxed);
            ticket
        };
        let mut waiter = Waiter { level: self, ticket: Some(ticket) };
        // Somebody may have left before he could see who waits.
        self.serve();
        if let Ok(Ok(seat)) = tokio::time::timeout(patience, &mut turn).await {
            waiter.ticket = None;
            return Ok(seat);
        }
        if waiter.cancel() {
            self.tally.timed_out.fetch_add(1, Ordering::Relaxed);
            self.serve();
            return Err(Rejection::TimeOut);
        }
        turn.try_recv().map_err(|_| Rejection::TimeOut)
    }

    /// Seats that were taken.
    fn seat(self: &Arc<Self>, seats: u32, queue: Option<(usize, Instant)>) -> Seat {
        self.tally.executing.fetch_add(1, Ordering::Relaxed);
        self.tally.dispatched.fetch_add(1, Ordering::Relaxed);
        Seat { level: self.clone(), seats, queue }
    }

    pub fn digest(&self) -> LevelDigest {
        let told = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let t = &self.tally;
        let (active, queues) = {
            let queues = self.queues.lock();
            (queues.active(), queues.digest(SHOWN))
        };
        LevelDigest {
            waiting: self.waiting(),
            executing: told(&t.executing),
            dispatched: told(&t.dispatched),
            rejected: told(&t.rejected),
            timed_out: told(&t.timed_out),
            cancelled: told(&t.cancelled),
            active,
            queues,
        }
    }

    /// Who waits, queue by queue and in the order of each: the queue, and the tag the request came with.
    pub fn tags(&self) -> Vec<(usize, usize)> {
        self.queues.lock().tags()
    }

    /// Takes seats that are free. One request always has room, however many it wants.
    fn take(&self, seats: u32) -> bool {
        let limit = self.seats.load(Ordering::Relaxed);
        let fits = |taken: u32| (taken == 0 || taken + seats <= limit).then_some(taken + seats);
        match self.taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits) {
            Ok(before) => {
                self.peak.fetch_max(before + seats, Ordering::Relaxed);
                true
            }
            Err(_) => false,
        }
    }

    /// Gives free seats to those whose turn it is.
    fn serve(self: &Arc<Self>) {
        // A seat that nobody wants any more is given back without the lock, and goes to the next.
        let mut unwanted = Vec::new();
        let mut queues = self.queues.lock();
        let limit = self.seats.load(Ordering::Relaxed);
        while let Some(t) = queues.next(self.time(), limit, |seats| self.take(seats)) {
            let seat = self.seat(t.seats, Some((t.queue, Instant::now())));
            if let Err(seat) = t.item.send(seat) {
                unwanted.push(seat);
            }
        }
        self.waiting.store(queues.waiting(), Ordering::SeqCst);
        drop(queues);
        drop(unwanted);
    }

    fn time(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    pub(crate) fn set_seats(self: &Arc<Self>, seats: u32) {
        self.seats.store(seats, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.serve();
        }
    }

    /// The most seats that were wanted since this was last asked.
    pub(crate) fn take_peak(&self) -> u32 {
        self.peak.swap(self.taken.load(Ordering::Relaxed), Ordering::Relaxed)
    }

    /// The most seats that one request of this level takes.
    pub fn widest(&self) -> u32 {
        let nominal = self.plan.lock().limits.nominal;
        let Some(shape) = self.shape else { return WIDEST };
        let hand = u32::try_from(shape.hand.max(1)).unwrap_or(u32::MAX);
        (nominal * 15).div_ceil(100).min(nominal / hand).clamp(1, WIDEST)
    }

    /// One request is turned away: the seconds after which it may come again.
    pub fn drop_one(&self, second: i64) -> u32 {
        self.dropped.lock().note(second)
    }

    pub fn taken(&self) -> u32 {
        self.taken.load(Ordering::Relaxed)
    }

    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub fn seats(&self) -> u32 {
        self.seats.load(Ordering::Relaxed)
    }

    pub fn limits(&self) -> Limits {
        self.plan.lock().limits
    }
}

const WIDEST: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn level(seats: u32, shape: Option<Shape>) -> Arc<Level> {
        let l = Level::new("l", "", false, shape);
        l.set_seats(seats);
        l
    }

    const QUEUES: Option<Shape> = Some(Shape { queues: 8, hand: 2, length: 10 });
    const LONG: Duration = Duration::from_secs(15);

    #[tokio::test(start_paused = true)]
    async fn without_queues_one_too_many_is_turned_away() {
        let l = level(2, None);
        let a = l.enter(1, 0, LONG, || 0).await.unwrap_or_else(|_| panic!());
        let _b = l.enter(1, 0, LONG, || 0).await.unwrap_or_else(|_| panic!());
        assert_eq!(l.enter(1, 0, LONG, || 0).await.err(), Some(Rejection::ConcurrencyLimit));
        drop(a);
        assert!(l.enter(1, 0, LONG, || 0).await.is_ok());
        drop(_b);
        assert!(l.enter(9, 0, LONG, || 0).await.is_ok(), "one alone has room, however wide");
        assert_eq!((l.taken(), l.take_peak(), l.take_peak()), (0, 9, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_is_served_or_goes() {
        let l = level(1, QUEUES);
        let first = l.enter(1, 0, LONG, || 0).await.unwrap_or_else(|_| panic!());
        let began = Instant::now();
        assert_eq!(l.enter(1, 0, LONG, || 1).await.err(), Some(Rejection::TimeOut));
        assert_eq!((began.elapsed(), l.waiting()), (LONG, 0));
        let waiting = tokio::spawn({
            let l = l.clone();
            async move { l.enter(1, 0, LONG, || 1).await.map(|_| ()) }
        });
        // One that is given up in the meantime is not in the way.
        let given_up = l.enter(1, 0, LONG, || 2);
        assert!(tokio::time::timeout(Duration::from_secs(1), given_up).await.is_err());
        assert_eq!(l.waiting(), 1);
        drop(first);
        assert!(waiting.await.unwrap().is_ok());
        assert_eq!((l.taken(), l.waiting()), (0, 0));
        let d = l.digest();
        assert_eq!((d.executing, d.dispatched, d.rejected, d.timed_out, d.cancelled), (0, 2, 0, 1, 1));
        assert!(d.queues.iter().all(|q| (q.waiting, q.executing, q.taken) == (0, 0, 0)));
    }

    #[tokio::test(start_paused = true)]
    async fn full_queues_turn_away_and_more_seats_let_in() {
        let l = level(1, Some(Shape { queues: 1, hand: 1, length: 2 }));
        let _first = l.enter(1, 0, LONG, || 0).await.unwrap_or_else(|_| panic!());
        let served = Arc::new(AtomicBool::new(false));
        let wait = || {
            let (l, served) = (l.clone(), served.clone());
            tokio::spawn(async move {
                let seat = l.enter(1, 0, LONG, || 0).await;
                served.store(seat.is_ok(), Ordering::Relaxed);
                seat.is_ok()
            })
        };
        let (a, b) = (wait(), wait());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(l.enter(1, 0, LONG, || 0).await.err(), Some(Rejection::QueueFull));
        assert!(!served.load(Ordering::Relaxed));
        l.set_seats(2);
        assert!(a.await.unwrap() && b.await.unwrap());
    }

    /// A thousand requests of one client, and one of another, in virtual time.
    #[tokio::test(start_paused = true)]
    async fn a_crowd_waits_for_itself() {
        let l = level(2, Some(Shape { queues: 64, hand: 4, length: 500 }));
        let one = |l: Arc<Level>, flow: u64| async move {
            let began = Instant::now();
            let _seat = l.enter(1, 0, Duration::from_secs(600), || flow).await.unwrap_or_else(|_| panic!());
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
        assert_eq!(l.taken(), 0);
    }
}
