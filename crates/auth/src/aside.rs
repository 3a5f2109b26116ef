//! Work that may take long where a request is answered.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Does work that may take long while another thread goes on with what else this one had to do.
pub fn run<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|h| h.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}
