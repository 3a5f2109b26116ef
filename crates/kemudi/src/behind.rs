//! Where controllers and the scheduler run, and where the node agent does: on threads of their own, fewer than those that answer requests.
//! Whatever a pod makes the agent do, requests are answered meanwhile.
//!
//! When more is asked than the cores can do, people and programs are answered first, and what follows from their wishes is done
//! a little later; of many changes of one object in that time, only the last is looked at. Lower priority of these threads would
//! do no better, and have them wait for every other program of the machine.

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
