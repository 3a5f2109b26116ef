//! Limits how many pods of a node start at a time.
//!
//! A start takes blocking threads and processor time, which an API server in the same process needs as well. **Invariant.** No more
//! pods than [`Starts::new`] allows start at a time. Waiting namespaces take turns, and the pods of a namespace are served in order,
//! so a namespace with many pods delays others by one turn at most. Only starts wait here: deletions, probes and commands do not.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

/// A start that takes longer continues without its permit: the pod itself may delay it.
const MAX_TIME: Duration = Duration::from_secs(10);
/// Starts per processor: a start waits for the kernel part of the time.
const PER_PROCESSOR: usize = 2;
const MINIMUM: usize = 4;

#[derive(Clone)]
pub struct Starts(Arc<Mutex<Queue>>);

struct Queue {
    free: usize,
    /// Waiting pods by namespace, in the order of their requests; no queue is empty.
    waiting: BTreeMap<String, VecDeque<oneshot::Sender<Permit>>>,
    /// The waiting namespaces, the next one first.
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

/// Passed to the next waiting pod, or freed, when it is dropped.
struct Permit(Option<Arc<Mutex<Queue>>>);

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(queue) = self.0.take() else { return };
        loop {
            let Some(next) = queue.lock().next_or_free() else { return };
            match next.send(Permit(Some(queue.clone()))) {
                Ok(()) => return,
                // That pod does not wait any more; try the next one.
                Err(mut permit) => permit.0 = None,
            }
        }
    }
}

impl Queue {
    /// The pod that gets a permit that has become free. If no pod waits, the permit is free.
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
        let free = (processors * PER_PROCESSOR).max(MINIMUM);
        Starts(Arc::new(Mutex::new(Queue { free, waiting: BTreeMap::new(), turns: VecDeque::new() })))
    }

    /// A permit, if one is free.
    pub fn try_acquire(&self) -> Option<StartPermit> {
        let mut queue = self.0.lock();
        queue.free = queue.free.checked_sub(1)?;
        drop(queue);
        Some(hold(Permit(Some(self.0.clone()))))
    }

    /// Waits for a permit for a pod of this namespace.
    pub async fn acquire(&self, namespace: &str) -> StartPermit {
        loop {
            if let Some(permit) = self.try_acquire() {
                return permit;
            }
            let turn = {
                let mut queue = self.0.lock();
                // A permit may have become free meanwhile.
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

/// A task holds the permit until the limit of time, or until the [`StartPermit`] is dropped.
fn hold(permit: Permit) -> StartPermit {
    let task = tokio::spawn(async move {
        let _permit = permit;
        tokio::time::sleep(MAX_TIME).await;
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
        /// All permits are held, and these pods wait, in this order. The first letter of a pod is its namespace.
        async fn new(pods: &[&'static str]) -> Waiting {
            let starts = Starts::new(1);
            let held = (0..MINIMUM).map(|_| starts.try_acquire().unwrap()).collect();
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
        // Starts that never end do not delay others for longer.
        tokio::time::sleep(MAX_TIME + Duration::from_secs(1)).await;
        assert_eq!(*w.order.lock(), ["a1", "a2", "a3"]);
        drop((w.held, w.tasks));
    }

    /// Pods of other namespaces waited for all pods of a namespace with many.
    #[tokio::test(start_paused = true)]
    async fn namespaces_take_turns() {
        let mut w = Waiting::new(&["a1", "a2", "a3", "a4", "b1", "c1", "b2"]).await;
        for _ in 0..MINIMUM {
            w.free_one().await;
        }
        assert_eq!(*w.order.lock(), ["a1", "b1", "c1", "a2"]);
        tokio::time::sleep(MAX_TIME + Duration::from_secs(1)).await;
        assert_eq!(w.order.lock()[4..], ["b2", "a3", "a4"]);
    }

    #[tokio::test(start_paused = true)]
    async fn skips_pods_that_do_not_wait_any_more() {
        let mut w = Waiting::new(&["a1", "b1", "a2"]).await;
        w.tasks[0].abort();
        w.tasks[1].abort();
        w.free_one().await;
        assert_eq!(*w.order.lock(), ["a2"]);
        // All permits become free again.
        drop((std::mem::take(&mut w.held), w.tasks.pop()));
        tokio::time::sleep(MAX_TIME + Duration::from_secs(1)).await;
        let all: Vec<_> = std::iter::from_fn(|| w.starts.try_acquire()).collect();
        assert_eq!(all.len(), MINIMUM);
    }
}
