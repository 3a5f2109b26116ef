//! Runs long computations in request handlers.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs `f` while another thread takes over this thread's other tasks.
pub fn run<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|h| h.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}
