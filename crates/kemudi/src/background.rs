//! Runtimes for controllers, for the scheduler, and for the node agent: threads of their own, fewer than those of the API server, so that
//! requests are answered whatever the background work does.
//!
//! On a busy machine requests come first, and controllers follow a little
//! later; of many changes of one object in that time they see only the last. A lower thread priority would
//! not be better, and would make these threads wait for every other program of the machine.

use tokio::runtime::{Builder, Runtime};

/// For controllers.
pub fn controllers() -> std::io::Result<Runtime> {
    named("controllers")
}

/// For the scheduler. Its decisions are computation: beside them the node controller would see heartbeats too late. They take one thread;
/// bindings and events, which are most of its work, take the others.
pub fn scheduler() -> std::io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(1 + half_of_cores()).thread_name("scheduler").enable_all().build()
}

/// For the node agent.
pub fn node() -> std::io::Result<Runtime> {
    named("node")
}

fn named(name: &str) -> std::io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(half_of_cores()).thread_name(name).enable_all().build()
}

/// At least one.
fn half_of_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).div_ceil(2)
}
