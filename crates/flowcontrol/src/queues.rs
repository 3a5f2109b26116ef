//! Fair queuing, as data: requests wait in queues, and the queue whose flow had the least is served next.
//!
//! Time is told by the caller, in seconds since any moment; nothing here waits. A flow is dealt a hand of queues by its hash
//! (shuffle sharding) and uses the shortest, so that few flows share all their queues with a noisy one. Each queue has a virtual
//! time, in seat-seconds it was served; one that was empty begins at what a queue got on the average meanwhile.

use std::collections::VecDeque;

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
    queues: Vec<Queue<T>>,
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

impl<T> Queues<T> {
    pub fn new(shape: Shape) -> Self {
        let queue = || Queue { waiting: VecDeque::new(), next: 0.0, executing: 0, taken: 0 };
        let queues = (0..shape.queues).map(|_| queue()).collect();
        Self { shape, queues, now: 0.0, told: 0.0, wanted: 0, waiting: 0, last: 0, ids: 0 }
    }

    pub fn waiting(&self) -> usize {
        self.waiting
    }

    pub fn digest(&self) -> Vec<QueueDigest> {
        let of = |q: &Queue<T>| {
            let wanted: u32 = q.waiting.iter().map(|w| w.seats).sum();
            let (waiting, executing) = (q.waiting.len(), q.executing);
            QueueDigest { waiting, executing, taken: q.taken, wanted, next: q.next, work: GUESS * f64::from(wanted) }
        };
        self.queues.iter().map(of).collect()
    }

    /// The queues of those who wait, in their order, and what they are called outside.
    pub fn tags(&self) -> Vec<(usize, usize)> {
        let of = |(i, q): (usize, &Queue<T>)| q.waiting.iter().map(move |w| (i, w.tag)).collect::<Vec<_>>();
        self.queues.iter().enumerate().flat_map(of).collect()
    }

    /// Virtual time goes as fast as one queue is served when all active ones are served alike.
    fn advance(&mut self, time: f64, seats: u32) {
        let active = self.queues.iter().filter(|q| !q.waiting.is_empty() || q.executing > 0).count();
        if active > 0 {
            self.now += (time - self.told).max(0.0) * f64::from(self.wanted.min(seats)) / active as f64;
        }
        self.told = time;
    }

    /// Lets a request wait; none when the queues of its flow are full. `limit` is the number of seats there are.
    pub fn place(&mut self, comer: &Comer, item: T, time: f64, limit: u32) -> Option<Ticket> {
        let Comer { flow, seats, tag } = *comer;
        self.advance(time, limit);
        let work = |q: &Queue<T>| q.waiting.iter().map(|w| w.seats as usize).sum::<usize>() + q.executing;
        let hand = deal(flow, self.queues.len(), self.shape.hand);
        let at = hand.into_iter().min_by_key(|i| work(&self.queues[*i]))?;
        let queue = &mut self.queues[at];
        if queue.waiting.len() >= self.shape.length {
            return None;
        }
        if queue.waiting.is_empty() && queue.executing == 0 {
            queue.next = queue.next.max(self.now);
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
        let n = self.queues.len();
        let order = (1..=n).map(|i| (self.last + i) % n).filter(|i| !self.queues[*i].waiting.is_empty());
        let finish = |i: usize| {
            let q = &self.queues[i];
            q.next + GUESS * f64::from(q.waiting.front().map_or(0, |w| w.seats))
        };
        let at = order.min_by(|a, b| finish(*a).total_cmp(&finish(*b)))?;
        if !fits(self.queues[at].waiting.front()?.seats) {
            return None;
        }
        let queue = &mut self.queues[at];
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
        let q = &mut self.queues[queue];
        q.next += f64::from(seats) * (took - GUESS);
        q.executing -= 1;
        q.taken -= seats;
        self.wanted -= seats;
    }

    /// Takes a request out that does not want to wait any more; false when its turn has come.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        let queue = &mut self.queues[ticket.queue].waiting;
        let Some(at) = queue.iter().position(|w| w.id == ticket.id) else { return false };
        if let Some(w) = queue.remove(at) {
            self.wanted -= w.seats;
        }
        self.waiting -= 1;
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
