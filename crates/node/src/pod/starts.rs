//! How many pods of a node start at a time.
//!
//! Starting one takes threads that may block and processors, both of which a server in the same process needs. **Invariant.** No more
//! than [`Starts::new`] says are at work on a start, however many pods are bound. Namespaces that wait take turns, and the pods of one
//! get places in the order of asking: a namespace with many pods makes others wait for no more than a turn. Nothing but starts waits
//! here: deletions, probes and commands do not.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

/// A start that takes longer goes on without its place: what holds it up may be the pod's own doing.
const MOST: Duration = Duration::from_secs(10);
/// Starts for each processor: part of each is waiting for the kernel.
const FOR_PROCESSOR: usize = 2;
const LEAST: usize = 4;

#[derive(Clone)]
pub struct Starts(Arc<Mutex<Queue>>);

struct Queue {
    free: usize,
    /// By namespace, in the order of asking; none is empty.
    waiting: BTreeMap<String, VecDeque<oneshot::Sender<Permit>>>,
    /// The namespaces that wait, the next one first.
    turns: VecDeque<String>,
}

/// Permission to start something of a pod, until it is dropped.
pub struct StartPermit {
    timer: AbortHandle,
}

impl Drop for StartPermit {
    fn drop(&mut self) {
        self.timer.abort();
    }
}

/// Goes to who is next, or back, when it is dropped.
struct Permit(Option<Arc<Mutex<Queue>>>);

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(queue) = self.0.take() else { return };
        loop {
            let Some(next) = queue.lock().next_or_free() else { return };
            match next.send(Permit(Some(queue.clone()))) {
                Ok(()) => return,
                // Who asked waits no more; the one after it is next.
                Err(mut permit) => permit.0 = None,
            }
        }
    }
}

impl Queue {
    /// Who gets the place that has become free; nobody waits if there is none.
    fn next_or_free(&mut self) -> Option<oneshot::Sender<Permit>> {
        while let Some(namespace) = self.turns.pop_front() {
            let Some(waiting) = self.waiting.get_mut(&namespace) else { continue };
            let next = waiting.pop_front();
            if waiting.is_empty() {
                self.waiting.remove(&namespace);
            } else {
                self.turns.push_back(namespace);
            }
            if next.is_some() {
                return next;
            }
        }
        self.free += 1;
        None
    }

    fn wait(&mut self, namespace: &str) -> oneshot::Receiver<Permit> {
        let (sender, receiver) = oneshot::channel();
        if !self.waiting.contains_key(namespace) {
            self.turns.push_back(namespace.to_owned());
        }
        self.waiting.entry(namespace.to_owned()).or_default().push_back(sender);
        receiver
    }
}

impl Starts {
    pub fn new(processors: usize) -> Starts {
        let free = (processors * FOR_PROCESSOR).max(LEAST);
        Starts(Arc::new(Mutex::new(Queue { free, waiting: BTreeMap::new(), turns: VecDeque::new() })))
    }

    /// A place if there is one now.
    pub fn try_acquire(&self) -> Option<StartPermit> {
        let mut queue = self.0.lock();
        queue.free = queue.free.checked_sub(1)?;
        drop(queue);
        Some(hold(Permit(Some(self.0.clone()))))
    }

    /// A place for a pod of this namespace, when it is its turn.
    pub async fn acquire(&self, namespace: &str) -> StartPermit {
        loop {
            if let Some(permit) = self.try_acquire() {
                return permit;
            }
            let turn = {
                let mut queue = self.0.lock();
                // One may have become free just now.
                if queue.free > 0 { None } else { Some(queue.wait(namespace)) }
            };
            if let Some(turn) = turn
                && let Ok(permit) = turn.await
            {
                return hold(permit);
            }
        }
    }
}

/// The permit lives in a task that ends in time, or with the place.
fn hold(permit: Permit) -> StartPermit {
    let task = tokio::spawn(async move {
        let _permit = permit;
        tokio::time::sleep(MOST).await;
    });
    StartPermit { timer: task.abort_handle() }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Waiting {
        starts: Starts,
        held: Vec<StartPermit>,
        order: Arc<Mutex<Vec<&'static str>>>,
        tasks: Vec<tokio::task::JoinHandle<StartPermit>>,
    }

    impl Waiting {
        /// All places are held, and these pods wait, in this order; a pod begins with the letter of its namespace.
        async fn new(pods: &[&'static str]) -> Waiting {
            let starts = Starts::new(1);
            let held = (0..LEAST).map(|_| starts.try_acquire().unwrap()).collect();
            assert!(starts.try_acquire().is_none());
            let order: Arc<Mutex<Vec<&'static str>>> = Arc::default();
            let mut tasks = Vec::new();
            for &pod in pods {
                let (starts, order) = (starts.clone(), order.clone());
                tasks.push(tokio::spawn(async move {
                    let place = starts.acquire(&pod[..1]).await;
                    order.lock().push(pod);
                    place
                }));
                tokio::task::yield_now().await;
            }
            assert!(order.lock().is_empty());
            Waiting { starts, held, order, tasks }
        }

        async fn free_one(&mut self) {
            drop(self.held.pop());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn places_are_given_in_order_and_not_for_ever() {
        let mut w = Waiting::new(&["a1", "a2", "a3"]).await;
        w.free_one().await;
        assert_eq!(*w.order.lock(), ["a1"]);
        // Those that never come to an end keep nobody waiting longer.
        tokio::time::sleep(MOST + Duration::from_secs(1)).await;
        assert_eq!(*w.order.lock(), ["a1", "a2", "a3"]);
        drop((w.held, w.tasks));
    }

    /// A namespace with many pods made those of all others wait for all of its own.
    #[tokio::test(start_paused = true)]
    async fn namespaces_take_turns() {
        let mut w = Waiting::new(&["a1", "a2", "a3", "a4", "b1", "c1", "b2"]).await;
        for _ in 0..LEAST {
            w.free_one().await;
        }
        assert_eq!(*w.order.lock(), ["a1", "b1", "c1", "a2"]);
        tokio::time::sleep(MOST + Duration::from_secs(1)).await;
        assert_eq!(w.order.lock()[4..], ["b2", "a3", "a4"]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_no_more_is_passed_over() {
        let mut w = Waiting::new(&["a1", "b1", "a2"]).await;
        w.tasks[0].abort();
        w.tasks[1].abort();
        w.free_one().await;
        assert_eq!(*w.order.lock(), ["a2"]);
        // All places come back.
        drop((std::mem::take(&mut w.held), w.tasks.pop()));
        tokio::time::sleep(MOST + Duration::from_secs(1)).await;
        let all: Vec<_> = std::iter::from_fn(|| w.starts.try_acquire()).collect();
        assert_eq!(all.len(), LEAST);
    }
}
