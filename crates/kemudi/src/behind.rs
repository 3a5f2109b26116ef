//! Where controllers and the scheduler run: on threads of their own, fewer than those that answer requests.
//!
//! When more is asked than the cores can do, people and programs are answered first, and what follows from their wishes is done
//! a little later; of many changes of one object in that time, only the last is looked at. Lower priority of these threads would
//! do no better, and have them wait for every other program of the machine.

use tokio::runtime::{Builder, Runtime};

pub fn runtime() -> std::io::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Builder::new_multi_thread().worker_threads(cores.div_ceil(2)).thread_name("controllers").enable_all().build()
}
