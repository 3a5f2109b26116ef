//! Where controllers and the scheduler run: on threads of their own that give way to those that answer requests.
//!
//! When more is asked than the cores can do, people and programs are answered first, and what follows from their wishes is done
//! a little later. Nothing starves: the scheduler of the system leaves these threads a tenth of a full machine, and all of an
//! idle one.

use rustix::process::setpriority_process;
use tokio::runtime::{Builder, Runtime};

/// As `nice -n 10`: a tenth of the weight of the others.
const NICENESS: i32 = 10;

pub fn runtime() -> std::io::Result<Runtime> {
    let give_way = || {
        // Without a process it is the calling thread, on Linux.
        if let Err(e) = setpriority_process(None, NICENESS) {
            tracing::debug!("controllers run with the priority of all: {e}");
        }
    };
    Builder::new_multi_thread().thread_name("controllers").enable_all().on_thread_start(give_way).build()
}
