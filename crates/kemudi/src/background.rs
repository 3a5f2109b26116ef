//! Runtimes for controllers and scheduler, and for the node agent: threads of their own, fewer than those of the API server, so that
//! requests are answered whatever the background work does.
//!
//! On a busy machine requests come first, and controllers follow a little
//! later; of many changes of one object in that time they see only the last. A lower thread priority would
//! not be better, and would make these threads wait for every other program of the machine.

use tokio::runtime::{Builder, Runtime};

/// For controllers and the scheduler.
pub fn runtime() -> std::io::Result<Runtime> {
    named("controllers")
}

/// For the node agent.
pub fn node() -> std::io::Result<Runtime> {
    named("node")
}

fn named(name: &str) -> std::io::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Builder::new_multi_thread().worker_threads(cores.div_ceil(2)).thread_name(name).enable_all().build()
}
