//! Fair queuing, as data: requests wait in queues, and the queue whose flow had the least is served next.
//!
//! Time is told by the caller, in seconds since any moment; nothing here waits. A flow is dealt a hand of queues by its hash
//! (shuffle sharding) and uses the shortest, so that few flows share all their queues with a noisy one. Each queue has a virtual
//! time, in seat-seconds it was served; one that was empty begins at what a queue got on the average meanwhile.
//!
//! Only queues that have requests, or were served more than their share, take memory: a level may have ten million.

use std::collections::{BTreeMap, VecDeque};

/// What a request is thought to take before it is known, in seconds: long, so that a flow is not served twice before the
/// others are once.
const GUESS: f64 = 60.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub queues: usize,
    pub hand: usize,
    pub length: usize,
}

struct Waiting<T> {
    id: u64,
    tag: usize,
    seats: u32,
    item: T,
}

struct Queue<T> {
    /// In the order in which they came.
    waiting: VecDeque<Waiting<T>>,
    /// The virtual time at which its next request begins.
    next: f64,
    executing: usize,
    taken: u32,
}

/// A queue, as those see it who look for what is wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueDigest {
    pub waiting: usize,
    pub executing: usize,
    /// Seats of those that execute, and of those that wait.
    pub taken: u32,
    pub wanted: u32,
    /// When its next request begins, and the work that waits: in seat-seconds.
    pub next: f64,
    pub work: f64,
}

pub(crate) struct Queues<T> {
    shape: Shape,
    /// By number; a queue that is not there has no requests and begins now.
    queues: BTreeMap<usize, Queue<T>>,
    /// The virtual time of the whole, and the real one at which it was that.
    now: f64,
    told: f64,
    /// Seats that are used or wanted by requests known here.
    wanted: u32,
    waiting: usize,
    last: usize,
    ids: u64,
}

/// A request that is to wait: the hash of its flow, the seats it wants, and what it is called outside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Comer {
    pub flow: u64,
    pub seats: u32,
    pub tag: usize,
}

/// A request whose turn it is.
pub(crate) struct Turn<T> {
    pub item: T,
    pub queue: usize,
    pub seats: u32,
}

/// Where a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    queue: usize,
    id: u64,
    /// How many waited in the queue then, with this one.
    pub length: usize,
}

impl<T> Queue<T> {
    fn new(next: f64) -> Self {
        Self { waiting: VecDeque::new(), next, executing: 0, taken: 0 }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.executing == 0
    }

    /// Seats of those that wait, and one for each that executes.
    fn work(&self) -> usize {
        self.waiting.iter().map(|w| w.seats as usize).sum::<usize>() + self.executing
    }

    fn digest(&self) -> QueueDigest {
        let wanted: u32 = self.waiting.iter().map(|w| w.seats).sum();
        let (waiting, executing) = (self.waiting.len(), self.executing);
        QueueDigest { waiting, executing, taken: self.taken, wanted, next: self.next, work: GUESS * f64::from(wanted) }
    }
}

/// Idle queues that are remembered for having been served more than their share; of more, none are.
const REMEMBERED: usize = 1_000;

impl<T> Queues<T> {
    pub fn new(shape: Shape) -> Self {
        Self { shape, queues: BTreeMap::new(), now: 0.0, told: 0.0, wanted: 0, waiting: 0, last: 0, ids: 0 }
    }

    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// The first `most` queues.
    pub fn digest(&self, most: usize) -> Vec<QueueDigest> {
        let none = Queue::<T>::new(0.0).digest();
        let count = self.shape.queues.min(most);
        (0..count).map(|i| self.queues.get(&i).map_or(none, Queue::digest)).collect()
    }

    /// How many queues have requests that wait.
    pub fn active(&self) -> usize {
        self.queues.values().filter(|q| !q.waiting.is_empty()).count()
    }

    /// The queues of those who wait, in their order, and what they are called outside.
    pub fn tags(&self) -> Vec<(usize, usize)> {
        self.queues.iter().flat_map(|(i, q)| q.waiting.iter().map(|w| (*i, w.tag))).collect()
    }

    /// Virtual time goes as fast as one queue is served when all active ones are served alike.
    fn advance(&mut self, time: f64, seats: u32) {
        let active = self.queues.values().filter(|q| !q.is_idle()).count();
        if active > 0 {
            self.now += (time - self.told).max(0.0) * f64::from(self.wanted.min(seats)) / active as f64;
        }
        self.told = time;
    }

    /// Lets a request wait; none when the queues of its flow are full. `limit` is the number of seats there are.
    pub fn place(&mut self, comer: &Comer, item: T, time: f64, limit: u32) -> Option<Ticket> {
        let Comer { flow, seats, tag } = *comer;
        self.advance(time, limit);
        let hand = deal(flow, self.shape.queues, self.shape.hand);
        let at = hand.into_iter().min_by_key(|i| self.queues.get(i).map_or(0, Queue::work))?;
        let now = self.now;
        let waiting = self.queues.get(&at).map_or(0, |q| q.waiting.len());
        if waiting >= self.shape.length {
            return None;
        }
        let queue = self.queues.entry(at).or_insert_with(|| Queue::new(now));
        if queue.is_idle() {
            queue.next = queue.next.max(now);
        }
        self.ids += 1;
        let id = self.ids;
        queue.waiting.push_back(Waiting { id, tag, seats, item });
        self.waiting += 1;
        self.wanted += seats;
        Some(Ticket { queue: at, id, length: queue.waiting.len() })
    }

    /// The request whose turn it is, if there are seats enough for it. Of queues that had as much the one after the last.
    pub fn next(&mut self, time: f64, limit: u32, fits: impl FnOnce(u32) -> bool) -> Option<Turn<T>> {
        self.advance(time, limit);
        let order = self.queues.range(self.last + 1..).chain(self.queues.range(..=self.last));
        let finishes = order.filter_map(|(i, q)| Some((*i, q.next + GUESS * f64::from(q.waiting.front()?.seats))));
        let (at, _) = finishes.min_by(|a, b| a.1.total_cmp(&b.1))?;
        let queue = self.queues.get_mut(&at)?;
        if !fits(queue.waiting.front()?.seats) {
            return None;
        }
        let Waiting { seats, item, .. } = queue.waiting.pop_front()?;
        queue.next += GUESS * f64::from(seats);
        queue.executing += 1;
        queue.taken += seats;
        self.last = at;
        self.waiting -= 1;
        Some(Turn { item, queue: at, seats })
    }

    /// A request that had its turn is over: its queue is charged what it really took.
    pub fn finish(&mut self, queue: usize, seats: u32, took: f64, time: f64, limit: u32) {
        self.advance(time, limit);
        self.wanted -= seats;
        let Some(q) = self.queues.get_mut(&queue) else { return };
        q.next += f64::from(seats) * (took - GUESS);
        q.executing -= 1;
        q.taken -= seats;
        self.forget(queue);
    }

    /// Drops a queue that is as good as a new one.
    fn forget(&mut self, queue: usize) {
        let now = self.now;
        if self.queues.get(&queue).is_some_and(|q| q.is_idle() && q.next <= now) {
            self.queues.remove(&queue);
        }
        if self.queues.len() > self.waiting + REMEMBERED {
            self.queues.retain(|_, q| !q.is_idle());
        }
    }

    /// Takes a request out that does not want to wait any more; false when its turn has come.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        let Some(queue) = self.queues.get_mut(&ticket.queue).map(|q| &mut q.waiting) else { return false };
        let Some(at) = queue.iter().position(|w| w.id == ticket.id) else { return false };
        if let Some(w) = queue.remove(at) {
            self.wanted -= w.seats;
        }
        self.waiting -= 1;
        self.forget(ticket.queue);
        true
    }
}

/// The hand of a flow: different queues, the same each time.
fn deal(mut hash: u64, deck: usize, hand: usize) -> Vec<usize> {
    let mut cards: Vec<usize> = Vec::with_capacity(hand);
    for dealt in 0..hand.min(deck) {
        let left = (deck - dealt) as u64;
        let mut card = (hash % left) as usize;
        hash /= left;
        // Of the cards that are left: those below it that were dealt before do not count.
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

    fn comer(flow: u64, seats: u32) -> Comer {
        Comer { flow, seats, tag: 0 }
    }

    #[test]
    fn a_hand_has_different_queues() {
        for hash in [0, 1, 12_345, u64::MAX, 0x9e37_79b9_7f4a_7c15] {
            let hand = deal(hash, 128, 6);
            assert_eq!(hand.iter().collect::<HashSet<_>>().len(), 6, "{hand:?}");
            assert!(hand.iter().all(|c| *c < 128));
            assert_eq!(hand, deal(hash, 128, 6));
        }
        assert_eq!(deal(7, 3, 9).len(), 3);
        let all: HashSet<usize> = (0..64u64).flat_map(|h| deal(h.wrapping_mul(0x9e37_79b9_7f4a_7c15), 16, 4)).collect();
        assert_eq!(all.len(), 16, "all queues are used");
    }

    /// Serves flows with one seat for a while. A flow is its number, how long its requests take, and how many it keeps waiting.
    fn serve(shape: Shape, flows: &[(u64, f64, usize)], seconds: f64) -> BTreeMap<u64, f64> {
        let mut q = Queues::new(shape);
        let (mut time, mut got) = (0.0, BTreeMap::new());
        let mut waits: BTreeMap<u64, usize> = BTreeMap::new();
        while time < seconds {
            for (flow, _, depth) in flows {
                let waiting = waits.entry(*flow).or_default();
                while *waiting < *depth && q.place(&comer(*flow, 1), *flow, time, 1).is_some() {
                    *waiting += 1;
                }
            }
            let turn = q.next(time, 1, |_| true).unwrap();
            let took = flows.iter().find(|f| f.0 == turn.item).unwrap().1;
            time += took;
            q.finish(turn.queue, turn.seats, took, time, 1);
            *waits.get_mut(&turn.item).unwrap() -= 1;
            *got.entry(turn.item).or_insert(0.0) += took;
        }
        got
    }

    #[test]
    fn flows_get_equal_shares_of_time() {
        let shape = Shape { queues: 64, hand: 1, length: 50 };
        let check = |flows: &[(u64, f64, usize)]| {
            let got = serve(shape, flows, 400.0);
            let fair = 400.0 / flows.len() as f64;
            assert!(got.values().all(|g| (g - fair).abs() < fair * 0.1), "{got:?}");
        };
        // Many against one at a time, long against short: it is seats and seconds that count.
        check(&[(1, 0.1, 40), (2, 0.1, 1)]);
        check(&[(1, 1.0, 40), (2, 0.1, 2), (3, 0.3, 40)]);
    }

    #[test]
    fn a_queue_that_was_empty_does_not_make_up_for_it() {
        let mut q = Queues::new(Shape { queues: 8, hand: 1, length: 50 });
        let mut time = 0.0;
        let run = |q: &mut Queues<u64>, time: &mut f64| {
            let t = q.next(*time, 1, |_| true).unwrap();
            *time += 1.0;
            q.finish(t.queue, t.seats, 1.0, *time, 1);
            t.item
        };
        for _ in 0..20 {
            q.place(&comer(1, 1), 1, time, 1);
        }
        for _ in 0..10 {
            run(&mut q, &mut time);
        }
        for _ in 0..10 {
            q.place(&comer(2, 1), 2, time, 1);
        }
        let next: Vec<u64> = (0..10).map(|_| run(&mut q, &mut time)).collect();
        assert_eq!(next.iter().filter(|i| **i == 2).count(), 5, "{next:?}");
    }

    /// Ten million queues are allowed; only those in use are there, and idle ones are not kept for ever.
    #[test]
    fn queues_take_memory_while_they_are_used() {
        let mut q = Queues::new(Shape { queues: 10_000_000, hand: 1, length: 50 });
        let mut time = 0.0;
        for flow in 0..3 * REMEMBERED as u64 {
            q.place(&comer(flow.wrapping_mul(0x9e37_79b9_7f4a_7c15), 1), flow, time, 1).unwrap();
            let turn = q.next(time, 1, |_| true).unwrap();
            time += 0.01;
            q.finish(turn.queue, turn.seats, 0.01, time, 1);
        }
        assert!(q.queues.len() <= REMEMBERED + 1, "{}", q.queues.len());
        assert_eq!((q.digest(5).len(), q.active()), (5, 0));
    }

    #[test]
    fn queues_are_bounded_and_waiting_can_be_given_up() {
        let mut q = Queues::new(Shape { queues: 1, hand: 1, length: 2 });
        let a = q.place(&comer(1, 1), "a", 0.0, 1).unwrap();
        let b = q.place(&comer(1, 3), "b", 0.0, 1).unwrap();
        assert!(q.place(&comer(2, 1), "c", 0.0, 1).is_none());
        assert_eq!((a.length, b.length, q.waiting()), (1, 2, 2));
        assert!(q.cancel(a) && !q.cancel(a));
        assert!(q.next(1.0, 1, |seats| seats < 3).is_none(), "it is not overtaken");
        assert_eq!(q.next(1.0, 1, |_| true).unwrap().item, "b");
        assert!(!q.cancel(b), "its turn has come");
        assert!(q.next(1.0, 1, |_| true).is_none());
    }
}
