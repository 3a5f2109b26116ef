//! Limits CEL evaluation so that other requests proceed.
//!
//! An expression may take a tenth of a second within its budget, and users control how many a request evaluates
//! (bindings, parameters, mutations). Evaluation yields between expressions. After slow expressions, only a few
//! evaluate concurrently, on threads that serve no other request (`kube-apiserver` leaves both to Go's scheduler).

use std::sync::LazyLock;
use std::time::Duration;

use parking_lot::Mutex;
use stored::in_place;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// Evaluations longer than this are slow.
const SLOW: Duration = Duration::from_millis(1);
/// How long expressions are treated as slow after a slow evaluation.
const COUNTS: Duration = Duration::from_secs(60);

static LAST_SLOW: Mutex<Option<Instant>> = Mutex::new(None);

/// Maximum number of concurrent slow evaluations: half of the cores stay free for other requests.
static PLACES: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(std::thread::available_parallelism().map_or(1, |n| n.get().div_ceil(2))));

/// Permission to evaluate expressions once.
#[must_use]
pub(crate) struct Turn {
    place: Option<SemaphorePermit<'static>>,
}

/// Waits for a turn; yields to tasks that are ready.
pub(crate) async fn turn() -> Turn {
    let slow = LAST_SLOW.lock().is_some_and(|at| at.elapsed() < COUNTS);
    if !slow {
        tokio::task::coop::consume_budget().await;
        return Turn { place: None };
    }
    Turn { place: PLACES.acquire().await.ok() }
}

impl Turn {
    pub(crate) fn take<T>(self, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let done = match &self.place {
            Some(_) => in_place::long(work),
            None => work(),
        };
        if begun.elapsed() > SLOW {
            *LAST_SLOW.lock() = Some(Instant::now());
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work() {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
    }

    /// A single thread, and hundreds of concurrent evaluations.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn others_go_on_while_slow_expressions_are_evaluated() {
        turn().await.take(work);
        let mut slow = tokio::task::JoinSet::new();
        for _ in 0..20 {
            slow.spawn(async {
                for _ in 0..10 {
                    turn().await.take(work);
                }
            });
        }
        // A request that waits a hundred times finishes long before the four seconds of the others.
        let quick = tokio::spawn(async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        });
        quick.await.unwrap();
        assert!(slow.try_join_next().is_none(), "not one of the slow ones is done");
        slow.shutdown().await;
    }
}
