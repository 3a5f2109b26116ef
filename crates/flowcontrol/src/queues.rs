//! Fair queuing, as data: requests wait in queues, and the queue that was served least is served next
//! (`k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/queueset`).
//!
//! Callers pass the time in seconds since any moment; nothing here waits. The hash of a flow selects a hand of queues (shuffle sharding), and a request
//! joins the shortest of them, so few flows share all their queues with a noisy one. Each queue has a virtual start time, in seat-seconds; a
//! queue that was idle starts at the virtual time of the whole set.
//!
//! Only queues that have requests, or that were served more than their share, take memory: a level may have ten million queues.

use std::collections::{BTreeMap, VecDeque};

/// The assumed execution time of a request until it ends, in seconds. It is long, so that a flow is not served twice before the
/// others are served once.
const ASSUMED_SECONDS: f64 = 60.0;

/// Idle queues that are kept because they were served more than their share. With more than that, all idle queues are dropped.
const KEPT_IDLE: usize = 1_000;

/// `spec.limited.limitResponse.queuing` of a PriorityLevelConfiguration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuingConfig {
    pub queues: usize,
    pub hand_size: usize,
    pub queue_length_limit: usize,
}

struct QueuedRequest<T> {
    id: u64,
    tag: usize,
    seats: u32,
    item: T,
}

struct Queue<T> {
    /// In order of arrival.
    waiting: VecDeque<QueuedRequest<T>>,
    /// The virtual time at which its next request starts.
    next_start: f64,
    executing: usize,
    seats_in_use: u32,
}

/// The state of a queue, for `/debug/api_priority_and_fairness/dump_queues`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueSnapshot {
    pub waiting: usize,
    pub executing: usize,
    pub seats_in_use: u32,
    /// Seats that the waiting requests need.
    pub seats_waiting: u32,
    /// The virtual start time of the next request, in seat-seconds.
    pub next_start: f64,
    /// The assumed work of the waiting requests, in seat-seconds.
    pub work: f64,
}

/// The queues of one priority level.
pub(crate) struct QueueSet<T> {
    config: QueuingConfig,
    /// By index. A queue that is missing here has no requests and starts at the virtual time.
    queues: BTreeMap<usize, Queue<T>>,
    virtual_time: f64,
    /// The real time at which the virtual time was updated.
    updated_at: f64,
    /// Seats of all requests that wait here or were dispatched from here.
    seat_demand: u32,
    waiting: usize,
    last_dispatched: usize,
    last_id: u64,
}

/// A request that joins a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub flow_hash: u64,
    pub seats: u32,
    /// The caller's name for the request.
    pub tag: usize,
}

/// A request that may execute now.
pub(crate) struct Dispatched<T> {
    pub item: T,
    pub queue: usize,
    pub seats: u32,
}

/// Identifies a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    queue: usize,
    id: u64,
    /// The length of the queue with this request.
    pub length: usize,
}

impl<T> Queue<T> {
    fn new(next_start: f64) -> Self {
        Self { waiting: VecDeque::new(), next_start, executing: 0, seats_in_use: 0 }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.executing == 0
    }

    /// The load that decides which queue is the shortest: seats of waiting requests, and one for each that executes.
    fn load(&self) -> usize {
        self.waiting.iter().map(|w| w.seats as usize).sum::<usize>() + self.executing
    }

    fn snapshot(&self) -> QueueSnapshot {
        let seats_waiting: u32 = self.waiting.iter().map(|w| w.seats).sum();
        QueueSnapshot {
            waiting: self.waiting.len(),
            executing: self.executing,
            seats_in_use: self.seats_in_use,
            seats_waiting,
            next_start: self.next_start,
            work: ASSUMED_SECONDS * f64::from(seats_waiting),
        }
    }
}

impl<T> QueueSet<T> {
    pub fn new(config: QueuingConfig) -> Self {
        Self {
            config,
            queues: BTreeMap::new(),
            virtual_time: 0.0,
            updated_at: 0.0,
            seat_demand: 0,
            waiting: 0,
            last_dispatched: 0,
            last_id: 0,
        }
    }

    /// The number of requests that wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// The state of the first `limit` queues.
    pub fn snapshot(&self, limit: usize) -> Vec<QueueSnapshot> {
        let idle = Queue::<T>::new(0.0).snapshot();
        let count = self.config.queues.min(limit);
        (0..count).map(|i| self.queues.get(&i).map_or(idle, Queue::snapshot)).collect()
    }

    /// The number of queues that have waiting requests.
    pub fn active(&self) -> usize {
        self.queues.values().filter(|q| !q.waiting.is_empty()).count()
    }

    /// Queue index and tag of every waiting request, queue by queue in order of arrival.
    pub fn tags(&self) -> Vec<(usize, usize)> {
        self.queues.iter().flat_map(|(i, q)| q.waiting.iter().map(|w| (*i, w.tag))).collect()
    }

    /// Virtual time advances as fast as one queue would be served if all active queues were served equally.
    fn advance_virtual_time(&mut self, time: f64, seat_limit: u32) {
        let active = self.queues.values().filter(|q| !q.is_idle()).count();
        if active > 0 {
            let elapsed = (time - self.updated_at).max(0.0);
            self.virtual_time += elapsed * f64::from(self.seat_demand.min(seat_limit)) / active as f64;
        }
        self.updated_at = time;
    }

    /// Puts a request into the shortest queue of its flow's hand. `None` if that queue is full. `seat_limit` is the number of seats of the level.
    pub fn enqueue(&mut self, arrival: &Arrival, item: T, time: f64, seat_limit: u32) -> Option<Ticket> {
        let Arrival { flow_hash, seats, tag } = *arrival;
        self.advance_virtual_time(time, seat_limit);
        let hand = deal_hand(flow_hash, self.config.queues, self.config.hand_size);
        let index = hand.into_iter().min_by_key(|i| self.queues.get(i).map_or(0, Queue::load))?;
        let now = self.virtual_time;
        let waiting = self.queues.get(&index).map_or(0, |q| q.waiting.len());
        if waiting >= self.config.queue_length_limit {
            return None;
        }
        let queue = self.queues.entry(index).or_insert_with(|| Queue::new(now));
        if queue.is_idle() {
            queue.next_start = queue.next_start.max(now);
        }
        self.last_id += 1;
        let id = self.last_id;
        queue.waiting.push_back(QueuedRequest { id, tag, seats, item });
        self.waiting += 1;
        self.seat_demand += seats;
        Some(Ticket { queue: index, id, length: queue.waiting.len() })
    }

    /// Dispatches the request with the earliest virtual finish time, if `take_seats` can take the seats it needs. Among equals, the first
    /// queue after the one dispatched last wins.
    pub fn dispatch(
        &mut self,
        time: f64,
        seat_limit: u32,
        take_seats: impl FnOnce(u32) -> bool,
    ) -> Option<Dispatched<T>> {
        self.advance_virtual_time(time, seat_limit);
        let round_robin =
            self.queues.range(self.last_dispatched + 1..).chain(self.queues.range(..=self.last_dispatched));
        let finish_times = round_robin
            .filter_map(|(i, q)| Some((*i, q.next_start + ASSUMED_SECONDS * f64::from(q.waiting.front()?.seats))));
        let (index, _) = finish_times.min_by(|a, b| a.1.total_cmp(&b.1))?;
        let queue = self.queues.get_mut(&index)?;
        if !take_seats(queue.waiting.front()?.seats) {
            return None;
        }
        let QueuedRequest { seats, item, .. } = queue.waiting.pop_front()?;
        queue.next_start += ASSUMED_SECONDS * f64::from(seats);
        queue.executing += 1;
        queue.seats_in_use += seats;
        self.last_dispatched = index;
        self.waiting -= 1;
        Some(Dispatched { item, queue: index, seats })
    }

    /// Ends a dispatched request and charges its queue the real execution time, in seconds, instead of the assumed one.
    pub fn finish(&mut self, queue: usize, seats: u32, execution_time: f64, time: f64, seat_limit: u32) {
        self.advance_virtual_time(time, seat_limit);
        self.seat_demand -= seats;
        let Some(q) = self.queues.get_mut(&queue) else { return };
        q.next_start += f64::from(seats) * (execution_time - ASSUMED_SECONDS);
        q.executing -= 1;
        q.seats_in_use -= seats;
        self.drop_idle(queue);
    }

    /// Drops a queue whose state equals that of a new one.
    fn drop_idle(&mut self, queue: usize) {
        let now = self.virtual_time;
        if self.queues.get(&queue).is_some_and(|q| q.is_idle() && q.next_start <= now) {
            self.queues.remove(&queue);
        }
        if self.queues.len() > self.waiting + KEPT_IDLE {
            self.queues.retain(|_, q| !q.is_idle());
        }
    }

    /// Removes a waiting request. Returns `false` if it was dispatched or removed before.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        let Some(queue) = self.queues.get_mut(&ticket.queue).map(|q| &mut q.waiting) else { return false };
        let Some(position) = queue.iter().position(|w| w.id == ticket.id) else { return false };
        if let Some(w) = queue.remove(position) {
            self.seat_demand -= w.seats;
        }
        self.waiting -= 1;
        self.drop_idle(ticket.queue);
        true
    }
}

/// The hand of a flow: `hand_size` different queue indices out of `deck_size`, always the same for one hash
/// (`k8s.io/apiserver/pkg/util/shufflesharding`).
fn deal_hand(mut hash: u64, deck_size: usize, hand_size: usize) -> Vec<usize> {
    let mut cards: Vec<usize> = Vec::with_capacity(hand_size.min(deck_size));
    for dealt in 0..hand_size.min(deck_size) {
        let left = (deck_size - dealt) as u64;
        let mut card = (hash % left) as usize;
        hash /= left;
        // `card` counts among the cards that are left: skip those that were dealt before.
        let mut before: Vec<usize> = cards.clone();
        before.sort_unstable();
        for b in before {
            if card >= b {
                card += 1;
            }
        }
        cards.push(card);
    }
    cards
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, HashSet};

    fn arrival(flow: u64, seats: u32) -> Arrival {
        Arrival { flow_hash: flow, seats, tag: 0 }
    }

    #[test]
    fn a_hand_has_different_queues() {
        for hash in [0, 1, 12_345, u64::MAX, 0x9e37_79b9_7f4a_7c15] {
            let hand = deal_hand(hash, 128, 6);
            assert_eq!(hand.iter().collect::<HashSet<_>>().len(), 6, "{hand:?}");
            assert!(hand.iter().all(|c| *c < 128));
            assert_eq!(hand, deal_hand(hash, 128, 6));
        }
        assert_eq!(deal_hand(7, 3, 9).len(), 3);
        let all: HashSet<usize> =
            (0..64u64).flat_map(|h| deal_hand(h.wrapping_mul(0x9e37_79b9_7f4a_7c15), 16, 4)).collect();
        assert_eq!(all.len(), 16, "all queues are used");
    }

    /// Serves flows with one seat for a while. A flow is its number, how long its requests take, and how many it keeps waiting.
    fn serve(config: QueuingConfig, flows: &[(u64, f64, usize)], seconds: f64) -> BTreeMap<u64, f64> {
        let mut q = QueueSet::new(config);
        let (mut time, mut got) = (0.0, BTreeMap::new());
        let mut waits: BTreeMap<u64, usize> = BTreeMap::new();
        while time < seconds {
            for (flow, _, depth) in flows {
                let waiting = waits.entry(*flow).or_default();
                while *waiting < *depth && q.enqueue(&arrival(*flow, 1), *flow, time, 1).is_some() {
                    *waiting += 1;
                }
            }
            let dispatched = q.dispatch(time, 1, |_| true).unwrap();
            let took = flows.iter().find(|f| f.0 == dispatched.item).unwrap().1;
            time += took;
            q.finish(dispatched.queue, dispatched.seats, took, time, 1);
            *waits.get_mut(&dispatched.item).unwrap() -= 1;
            *got.entry(dispatched.item).or_insert(0.0) += took;
        }
        got
    }

    #[test]
    fn flows_get_equal_shares_of_time() {
        let config = QueuingConfig { queues: 64, hand_size: 1, queue_length_limit: 50 };
        let check = |flows: &[(u64, f64, usize)]| {
            let got = serve(config, flows, 400.0);
            let fair = 400.0 / flows.len() as f64;
            assert!(got.values().all(|g| (g - fair).abs() < fair * 0.1), "{got:?}");
        };
        // Many against one at a time, long against short: it is seats and seconds that count.
        check(&[(1, 0.1, 40), (2, 0.1, 1)]);
        check(&[(1, 1.0, 40), (2, 0.1, 2), (3, 0.3, 40)]);
    }

    #[test]
    fn a_queue_that_was_empty_does_not_make_up_for_it() {
        let mut q = QueueSet::new(QueuingConfig { queues: 8, hand_size: 1, queue_length_limit: 50 });
        let mut time = 0.0;
        let run = |q: &mut QueueSet<u64>, time: &mut f64| {
            let t = q.dispatch(*time, 1, |_| true).unwrap();
            *time += 1.0;
            q.finish(t.queue, t.seats, 1.0, *time, 1);
            t.item
        };
        for _ in 0..20 {
            q.enqueue(&arrival(1, 1), 1, time, 1);
        }
        for _ in 0..10 {
            run(&mut q, &mut time);
        }
        for _ in 0..10 {
            q.enqueue(&arrival(2, 1), 2, time, 1);
        }
        let next: Vec<u64> = (0..10).map(|_| run(&mut q, &mut time)).collect();
        assert_eq!(next.iter().filter(|i| **i == 2).count(), 5, "{next:?}");
    }

    /// Ten million queues are allowed; only those in use are there, and idle ones are not kept for ever.
    #[test]
    fn queues_take_memory_while_they_are_used() {
        let mut q = QueueSet::new(QueuingConfig { queues: 10_000_000, hand_size: 1, queue_length_limit: 50 });
        let mut time = 0.0;
        for flow in 0..3 * KEPT_IDLE as u64 {
            q.enqueue(&arrival(flow.wrapping_mul(0x9e37_79b9_7f4a_7c15), 1), flow, time, 1).unwrap();
            let dispatched = q.dispatch(time, 1, |_| true).unwrap();
            time += 0.01;
            q.finish(dispatched.queue, dispatched.seats, 0.01, time, 1);
        }
        assert!(q.queues.len() <= KEPT_IDLE + 1, "{}", q.queues.len());
        assert_eq!((q.snapshot(5).len(), q.active()), (5, 0));
    }

    #[test]
    fn queues_are_bounded_and_waiting_can_be_given_up() {
        let mut q = QueueSet::new(QueuingConfig { queues: 1, hand_size: 1, queue_length_limit: 2 });
        let a = q.enqueue(&arrival(1, 1), "a", 0.0, 1).unwrap();
        let b = q.enqueue(&arrival(1, 3), "b", 0.0, 1).unwrap();
        assert!(q.enqueue(&arrival(2, 1), "c", 0.0, 1).is_none());
        assert_eq!((a.length, b.length, q.waiting()), (1, 2, 2));
        assert!(q.cancel(a) && !q.cancel(a));
        assert!(q.dispatch(1.0, 1, |seats| seats < 3).is_none(), "it is not overtaken");
        assert_eq!(q.dispatch(1.0, 1, |_| true).unwrap().item, "b");
        assert!(!q.cancel(b), "its dispatched has come");
        assert!(q.dispatch(1.0, 1, |_| true).is_none());
    }
}
