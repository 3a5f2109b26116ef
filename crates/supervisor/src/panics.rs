//! Keeps a loop running when the work for one key panics.
//!
//! A panic is a bug that concerns the key it met: it is logged, and the caller tries that key again later, as after an error. Work
//! that is caught here holds no lock that others need afterwards (`parking_lot` releases its locks while unwinding).

use std::fmt::{self, Debug};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

const RESTART_DELAY: Duration = Duration::from_secs(1);

/// Error of work that panicked. The panic was logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the work panicked")]
pub struct Panicked;

/// Runs the work for a key. Logs a panic with `name` and the key.
pub async fn caught<T>(name: &str, key: impl Debug, work: impl Future<Output = T>) -> Result<T, Panicked> {
    let mut work = pin!(work);
    let done = std::future::poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(done)) => Poll::Ready(Ok(done)),
        Err(cause) => Poll::Ready(Err(cause)),
    });
    done.await.map_err(|cause| log(name, &key, &*cause))
}

/// Like [`caught`], for work that is not async.
pub fn caught_now<T>(name: &str, key: impl Debug, work: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|cause| log(name, &key, &*cause))
}

/// Runs a loop that is part of a service until it returns. After a panic it starts again, a second later.
pub async fn restarted<F: Future<Output = ()>>(name: &str, start: impl Fn() -> F) {
    while caught(name, Everything, async { start().await }).await.is_err() {
        tokio::time::sleep(RESTART_DELAY).await;
    }
}

fn log(name: &str, key: &dyn Debug, cause: &(dyn std::any::Any + Send)) -> Panicked {
    let text = cause.downcast_ref::<&str>().copied();
    let text = text.or_else(|| cause.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    tracing::error!(name, ?key, panic = text, "the work for this key panicked; it is tried again");
    Panicked
}

/// The key of work that has none: a loop as a whole.
pub struct Everything;

impl Debug for Everything {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("everything")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn panics_become_errors_whenever_they_happen() {
        assert_eq!(caught("test", 1, async { 7 }).await, Ok(7));
        let at_once = caught("test", 2, async { assert_eq!(1 + 1, 3) }).await;
        let later = caught("test", 3, async {
            tokio::task::yield_now().await;
            let none: Option<u8> = std::hint::black_box(None);
            none.expect("a value")
        });
        assert_eq!((at_once, later.await), (Err(Panicked), Err(Panicked)));
        assert_eq!(caught_now("test", Everything, || -> u8 { panic!("no") }), Err(Panicked));
        let rounds = std::cell::Cell::new(0);
        let third = restarted("test", async || {
            rounds.set(rounds.get() + 1);
            assert_eq!(rounds.get(), 3);
        });
        third.await;
    }
}
