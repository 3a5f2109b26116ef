//! Runs blocking work (files, kernel calls) away from the threads that run asynchronous tasks.

use std::panic::resume_unwind;

/// Runs `work` on a thread that may block and returns its result. Panics are propagated. Work that has begun is not cancelled.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(e) => match e.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime shuts down and drops this task too.
            Err(_) => std::future::pending().await,
        },
    }
}
