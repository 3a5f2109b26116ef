//! Which parts of the control plane run in this process beside the server, for those who ask for their health.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The parts that run.
#[derive(Clone, Default)]
pub struct Components(Arc<Mutex<BTreeSet<&'static str>>>);

impl Components {
    /// Notes that a part runs, until what is returned is dropped.
    #[must_use]
    pub fn run(&self, name: &'static str) -> Running {
        self.0.lock().insert(name);
        Running { all: self.clone(), name }
    }

    pub fn is_running(&self, name: &str) -> bool {
        self.0.lock().contains(name)
    }
}

/// A part that runs.
pub struct Running {
    all: Components,
    name: &'static str,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.all.0.lock().remove(self.name);
    }
}
