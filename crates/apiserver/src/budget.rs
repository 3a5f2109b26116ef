//! Limits the memory held by requests, per flow and in total, with a fair queue for waiting requests.
//!
//! A flow is a user; all service accounts of one namespace form one flow, since the namespace's owner can create any
//! number. Those of `kube-system` belong to the cluster, and each is its own flow.
//!
//! Invariants: grants never exceed either limit. Waiting flows are served by virtual finish times (fair queuing):
//! small requests pass large ones, and none starves. A flow at its own limit does not block others. The number of
//! waiting requests is limited per flow and in total; when full, the longest queue drops one.

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Maximum number of waiting requests, per flow and in total.
const WAITING: usize = 256;
const WAITING_TOTAL: usize = 2048;
/// Maximum number of cached flows without grants.
const IDLE: usize = 1024;

const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

#[derive(Clone)]
pub(crate) struct Budget {
    line: Arc<Mutex<Line>>,
    per_flow: usize,
}

/// Granted bytes, returned when dropped.
pub(crate) struct Share {
    line: Arc<Mutex<Line>>,
    flow: Arc<str>,
    size: usize,
}

struct Line {
    free: usize,
    per_flow: usize,
    closed: bool,
    flows: HashMap<Arc<str>, Flow>,
    /// Number of waiting requests.
    waiting: usize,
    /// Number of requests so far.
    came: u64,
    /// Virtual time: the start of the last served request.
    clock: u64,
}

#[derive(Default)]
struct Flow {
    granted: usize,
    /// The virtual finish time of all that was granted.
    done: u64,
    waiting: VecDeque<Waiter>,
}

struct Waiter {
    number: u64,
    size: usize,
    /// Bytes that are in memory already.
    weight: usize,
    grant: oneshot::Sender<()>,
}

/// A waiting request.
struct Ticket {
    line: Arc<Mutex<Line>>,
    flow: Arc<str>,
    number: u64,
    size: usize,
    /// Empty: waiting. Closed: rejected.
    granted: oneshot::Receiver<()>,
}

/// The flow of a user.
fn flow(user: &str) -> &str {
    match user.strip_prefix(SERVICE_ACCOUNT).and_then(|rest| rest.split_once(':')) {
        Some((namespace, _)) if namespace != "kube-system" => &user[..SERVICE_ACCOUNT.len() + namespace.len()],
        _ => user,
    }
}

impl Budget {
    pub fn new(total: usize, per_flow: usize) -> Self {
        let line = Line { free: total, per_flow, closed: false, flows: HashMap::new(), waiting: 0, came: 0, clock: 0 };
        Self { line: Arc::new(Mutex::new(line)), per_flow }
    }

    /// Like [`Self::take`], but limits the request to a quarter of a flow's limit.
    pub async fn take_part(&self, user: &str, bytes: usize, patience: Duration) -> Option<Share> {
        self.take_weighed(user, bytes.min(self.per_flow / 4), bytes, patience).await
    }

    /// Rejects all requests from now on.
    pub fn close(&self) {
        let mut line = self.line.lock();
        line.closed = true;
        line.waiting = 0;
        line.flows.values_mut().for_each(|f| f.waiting.clear());
    }

    pub fn is_closed(&self) -> bool {
        self.line.lock().closed
    }

    /// Grants without waiting, if the budget is free and nothing waits for it.
    pub fn take_now(&self, user: &str, bytes: usize) -> Option<Share> {
        let mut line = self.line.lock();
        let flow = line.flow(flow(user));
        let free = !line.closed && line.waiting == 0 && line.fits(&flow, bytes);
        free.then(|| line.grant(&flow, bytes))?;
        Some(Share { line: self.line.clone(), flow, size: bytes })
    }

    /// Waits at most `patience` for a grant; none after a timeout, or if too many requests wait.
    pub async fn take(&self, user: &str, bytes: usize, patience: Duration) -> Option<Share> {
        self.take_weighed(user, bytes, 0, patience).await
    }

    /// `weight`: the bytes that are in memory already while the request waits.
    async fn take_weighed(&self, user: &str, bytes: usize, weight: usize, patience: Duration) -> Option<Share> {
        let mut ticket = {
            if let Some(grant) = self.take_now(user, bytes) {
                return Some(grant);
            }
            let mut line = self.line.lock();
            let flow = line.flow(flow(user));
            if line.closed || bytes > self.per_flow {
                return None;
            }
            let (number, granted) = line.wait(&flow, bytes, weight)?;
            line.serve();
            Ticket { line: self.line.clone(), flow, number, size: bytes, granted }
        };
        tokio::time::timeout(patience, &mut ticket.granted).await.ok()?.ok()?;
        Some(Share { line: ticket.line.clone(), flow: ticket.flow.clone(), size: ticket.size })
    }
}

impl Line {
    /// Looks up or creates a flow. Returns its name.
    fn flow(&mut self, name: &str) -> Arc<str> {
        if let Some((known, _)) = self.flows.get_key_value(name) {
            return known.clone();
        }
        if self.flows.len() >= IDLE {
            self.flows.retain(|_, f| f.granted > 0 || !f.waiting.is_empty());
        }
        let name: Arc<str> = name.into();
        self.flows.insert(name.clone(), Flow::default());
        name
    }

    fn fits(&self, flow: &str, size: usize) -> bool {
        let granted = self.flows.get(flow).map_or(0, |f| f.granted);
        size <= self.free && granted + size <= self.per_flow
    }

    fn grant(&mut self, flow: &str, size: usize) {
        let Some(f) = self.flows.get_mut(flow) else { return };
        self.clock = self.clock.max(f.done);
        f.done = self.clock + size as u64;
        f.granted += size;
        self.free -= size;
    }

    /// Joins the flow's queue; none if it is full.
    fn wait(&mut self, flow: &str, size: usize, weight: usize) -> Option<(u64, oneshot::Receiver<()>)> {
        let own = self.flows.get(flow)?.waiting.len();
        let heavy = self.flows.get(flow)?.waiting.iter().map(|w| w.weight).sum::<usize>();
        if own >= WAITING || (own > 0 && heavy + weight > 2 * self.per_flow) {
            return None;
        }
        if self.waiting >= WAITING_TOTAL {
            let longest = self.flows.values_mut().max_by_key(|f| f.waiting.len())?;
            if longest.waiting.len() <= own + 1 {
                return None;
            }
            longest.waiting.pop_back();
            self.waiting -= 1;
        }
        let (grant, granted) = oneshot::channel();
        self.came += 1;
        self.waiting += 1;
        let (number, clock) = (self.came, self.clock);
        let f = self.flows.get_mut(flow)?;
        if f.waiting.is_empty() {
            // An idle flow accumulates no credit.
            f.done = f.done.max(clock);
        }
        f.waiting.push_back(Waiter { number, size, weight, grant });
        Some((number, granted))
    }

    /// Grants free budget to the next requests.
    fn serve(&mut self) {
        while self.waiting > 0 {
            let able = self.flows.iter().filter_map(|(name, f)| {
                let next = f.waiting.front().filter(|w| f.granted + w.size <= self.per_flow)?;
                Some((f.done + next.size as u64, next.number, name.clone(), next.size))
            });
            let Some((_, _, name, size)) = able.min_by_key(|(done, number, ..)| (*done, *number)) else { return };
            if size > self.free {
                return;
            }
            let Some(w) = self.flows.get_mut(&name).and_then(|f| f.waiting.pop_front()) else { return };
            self.waiting -= 1;
            // A cancelled request returns its grant.
            let _ = w.grant.send(());
            if let Some(f) = self.flows.get_mut(&name) {
                self.clock = self.clock.max(f.done);
                f.done += size as u64;
                f.granted += size;
            }
            self.free -= size;
        }
    }

    fn give_back(&mut self, flow: &str, size: usize) {
        if let Some(f) = self.flows.get_mut(flow) {
            f.granted -= size;
        }
        self.free += size;
        self.serve();
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.line.lock().give_back(&self.flow, self.size);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut line = self.line.lock();
        match self.granted.try_recv() {
            // Granted, but cancelled before it was received.
            Ok(()) => line.give_back(&self.flow, self.size),
            Err(oneshot::error::TryRecvError::Closed) => {}
            Err(oneshot::error::TryRecvError::Empty) => {
                let number = self.number;
                let Some(f) = line.flows.get_mut(&self.flow) else { return };
                let before = f.waiting.len();
                f.waiting.retain(|w| w.number != number);
                let gone = before - f.waiting.len();
                line.waiting -= gone;
                // It may have blocked others.
                line.serve();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_ONCE: Duration = Duration::ZERO;
    const LONG: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn a_user_takes_no_more_than_a_share_and_all_no_more_than_there_is() {
        let b = Arc::new(Budget::new(25, 10));
        let first = b.take("a", 10, AT_ONCE).await.unwrap();
        assert!(b.take("a", 1, AT_ONCE).await.is_none(), "the user's bound");
        assert!(b.take("a", 1, LONG).await.is_none(), "in vain");
        let second = b.take("b", 10, AT_ONCE).await.unwrap();
        assert!(b.take("c", 6, AT_ONCE).await.is_none(), "the bound of all");
        assert!(b.take("c", 11, LONG).await.is_none(), "more than a user may ever have");
        let waiting = wait(&b, "c", 6).await;
        drop(first);
        assert!(waiting.await.unwrap().is_some(), "room that becomes free is given to who waits");
        drop(second);
        assert!(b.take("a", 10, AT_ONCE).await.is_some());
        let line = b.line.lock();
        assert!(line.free == 25 && line.waiting == 0 && line.flows.values().all(|f| f.granted == 0));
    }

    /// Hundreds of complete responses waited in memory for the budget of the responses before them.
    #[tokio::test(start_paused = true)]
    async fn what_waits_in_memory_is_limited() {
        let b = Arc::new(Budget::new(1000, 100));
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(b.take_part("a", 1000, AT_ONCE).await.unwrap());
        }
        let take = |bytes| {
            let b = b.clone();
            tokio::spawn(async move { b.take_part("a", bytes, LONG).await })
        };
        let first = take(1000);
        tokio::task::yield_now().await;
        assert!(take(100).await.unwrap().is_none(), "the first is large, and alone may be");
        held.clear();
        assert!(first.await.unwrap().is_some());
        assert!(b.take_part("a", 100, AT_ONCE).await.is_some());
    }

    /// Waits until the request is in the queue.
    async fn wait(b: &Arc<Budget>, user: &str, bytes: usize) -> tokio::task::JoinHandle<Option<Share>> {
        let before = b.line.lock().came;
        let task = tokio::spawn({
            let (b, user) = (b.clone(), user.to_owned());
            async move { b.take(&user, bytes, LONG).await }
        });
        while b.line.lock().came == before {
            tokio::task::yield_now().await;
        }
        task
    }

    /// The order of service, when each returns its grant before the next.
    async fn order(b: &Arc<Budget>, waiting: Vec<(&str, usize)>) -> Vec<String> {
        let held = b.take("holder", b.per_flow, AT_ONCE).await.unwrap();
        let served = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for (user, bytes) in waiting {
            let task = wait(b, user, bytes).await;
            let (served, user) = (served.clone(), user.to_owned());
            tasks.push(tokio::spawn(async move {
                let grant = task.await.unwrap();
                if grant.is_some() {
                    served.lock().push(user);
                }
            }));
        }
        drop(held);
        for t in tasks {
            t.await.unwrap();
        }
        Arc::try_unwrap(served).unwrap().into_inner()
    }

    #[tokio::test(start_paused = true)]
    async fn everybody_gets_a_turn() {
        let b = Arc::new(Budget::new(10, 10));
        let many = [("a", 10); 20].into_iter().chain([("b", 10), ("c", 1), ("c", 1)]).collect();
        let served = order(&b, many).await;
        let turn = |user: &str| served.iter().position(|u| u == user).unwrap();
        assert!(turn("b") <= 4 && turn("c") <= 1, "{served:?}");
        assert_eq!(served.len(), 23);
    }

    #[tokio::test(start_paused = true)]
    async fn many_service_accounts_of_one_namespace_are_one() {
        let b = Arc::new(Budget::new(10, 10));
        let names: Vec<String> = (0..50).map(|i| format!("system:serviceaccount:evil:sa{i}")).collect();
        let waiting = names.iter().map(|n| (&**n, 10)).chain([("honest", 10)]).collect();
        let served = order(&b, waiting).await;
        assert!(served.iter().position(|u| u == "honest").unwrap() <= 1, "{served:?}");
        let own = ["system:serviceaccount:kube-system:a", "system:serviceaccount:kube-system:b", "system:node:a"];
        assert!(own.iter().all(|u| flow(u) == *u) && flow("system:serviceaccount:a:b") == "system:serviceaccount:a");
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_one_is_not_passed_for_ever_and_a_full_flow_holds_up_nobody() {
        let b = Arc::new(Budget::new(10, 8));
        let held = b.take("a", 8, AT_ONCE).await.unwrap();
        let large = wait(&b, "b", 8).await;
        // `a` is at its own limit: it blocks no others, and later requests do not overtake.
        let own = wait(&b, "a", 1).await;
        let passed = Arc::new(Mutex::new(0));
        let mut small = Vec::new();
        for i in 0..30 {
            let (task, passed) = (wait(&b, ["c", "d"][i % 2], 2).await, passed.clone());
            small.push(tokio::spawn(async move {
                assert!(task.await.unwrap().is_some());
                *passed.lock() += 1;
            }));
        }
        drop(held);
        assert!(large.await.unwrap().is_some());
        assert!(*passed.lock() <= 10, "{} passed it", passed.lock());
        for s in small {
            s.await.unwrap();
        }
        assert!(own.await.unwrap().is_some());
        assert_eq!(b.line.lock().free, 10);
    }

    #[tokio::test(start_paused = true)]
    async fn the_line_is_bounded_and_has_a_place_for_a_newcomer() {
        let b = Arc::new(Budget::new(10, 10));
        let held = b.take("a", 10, AT_ONCE).await.unwrap();
        let mut waiting = Vec::new();
        for u in 0..WAITING_TOTAL / WAITING {
            for _ in 0..WAITING {
                let task = wait(&b, &format!("u{u}"), 1).await;
                waiting.push(tokio::spawn(async move { task.await.unwrap().is_some() }));
            }
            assert!(b.take(&format!("u{u}"), 1, LONG).await.is_none(), "a flow has no more places");
        }
        let newcomer = wait(&b, "new", 1).await;
        assert_eq!(b.line.lock().waiting, WAITING_TOTAL);
        let begun = tokio::time::Instant::now();
        drop(held);
        assert!(newcomer.await.unwrap().is_some());
        let mut refused = 0;
        for w in waiting {
            refused += usize::from(!w.await.unwrap());
        }
        assert_eq!((refused, begun.elapsed()), (1, Duration::ZERO), "the last one of the longest line went at once");
        // A cancelled request leaves nothing behind.
        let held = b.take("a", 10, AT_ONCE).await.unwrap();
        wait(&b, "b", 1).await.abort();
        let last = wait(&b, "c", 1).await;
        b.close();
        assert!(last.await.unwrap().is_none() && b.take("d", 1, LONG).await.is_none());
        drop(held);
        let line = b.line.lock();
        assert_eq!((line.free, line.waiting), (10, 0));
    }
}
