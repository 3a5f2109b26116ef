//! How expressions are evaluated so that other requests go on meanwhile.
//!
//! An expression may take a tenth of a second within its budget, and how many are evaluated for a request (bindings, parameters,
//! mutations) is up to users. Between two of them others have their turn. Once expressions were slow, they are evaluated few at a time
//! on threads that no other request waits for (`kube-apiserver` leaves both to Go's scheduler).

use std::sync::LazyLock;
use std::time::Duration;

use auth::aside;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// What takes longer is slow.
const SLOW: Duration = Duration::from_millis(1);
/// How long it counts that expressions were slow.
const COUNTS: Duration = Duration::from_secs(60);

static LAST_SLOW: Mutex<Option<Instant>> = Mutex::new(None);

/// So many slow ones are evaluated at a time: half of the cores is left to other requests.
static PLACES: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(std::thread::available_parallelism().map_or(1, |n| n.get().div_ceil(2))));

/// The turn to evaluate expressions once.
#[must_use]
pub(crate) struct Turn {
    place: Option<SemaphorePermit<'static>>,
}

/// Waits for a turn. Others that are ready have theirs before.
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
            Some(_) => aside::run(work),
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

    /// One thread is all there is, and hundreds of evaluations are under way.
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
        // A request that waits a hundred times is over long before the four seconds of the others.
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
