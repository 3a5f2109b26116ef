//! How many pods of a node start at a time.
//!
//! Starting one takes threads that may block and processors, both of which a server in the same process needs. **Invariant.** No more
//! than [`Starts::new`] says are at work on a start, whoever binds how many pods; who waits gets a place in the order of asking. Nothing
//! but starts waits here: deletions, probes and commands do not.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

/// A start that takes longer goes on without its place: what holds it up may be the pod's own doing.
const MOST: Duration = Duration::from_secs(10);
/// Starts for each processor: part of each is waiting for the kernel.
const FOR_PROCESSOR: usize = 2;
const LEAST: usize = 4;

#[derive(Clone)]
pub struct Starts(Arc<Semaphore>);

/// A place among the pods that start, until it is dropped.
pub struct Place {
    timer: AbortHandle,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.timer.abort();
    }
}

impl Starts {
    pub fn new(processors: usize) -> Starts {
        Starts(Arc::new(Semaphore::new((processors * FOR_PROCESSOR).max(LEAST))))
    }

    /// A place if there is one now.
    pub fn try_place(&self) -> Option<Place> {
        self.0.clone().try_acquire_owned().ok().map(hold)
    }

    pub async fn place(&self) -> Place {
        loop {
            if let Ok(permit) = self.0.clone().acquire_owned().await {
                return hold(permit);
            }
        }
    }
}

/// The permit lives in a task that ends in time, or with the place.
fn hold(permit: OwnedSemaphorePermit) -> Place {
    let task = tokio::spawn(async move {
        let _permit = permit;
        tokio::time::sleep(MOST).await;
    });
    Place { timer: task.abort_handle() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn places_are_given_in_order_and_not_for_ever() {
        let starts = Starts::new(1);
        let mut held = Vec::new();
        for _ in 0..LEAST {
            held.push(starts.try_place().unwrap());
        }
        assert!(starts.try_place().is_none());
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let waiting: Vec<_> = (0..3)
            .map(|number| {
                let (starts, order) = (starts.clone(), order.clone());
                tokio::spawn(async move {
                    let place = starts.place().await;
                    order.lock().unwrap().push(number);
                    place
                })
            })
            .collect();
        tokio::task::yield_now().await;
        assert!(order.lock().unwrap().is_empty());
        held.pop();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(*order.lock().unwrap(), [0]);
        // Those that never come to an end keep nobody waiting longer.
        tokio::time::sleep(MOST + Duration::from_secs(1)).await;
        assert_eq!(*order.lock().unwrap(), [0, 1, 2]);
        drop((held, waiting));
    }
}
