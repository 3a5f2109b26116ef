//! The control plane components that run in this process, for component status.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The running components.
#[derive(Clone, Default)]
pub struct Components(Arc<Mutex<BTreeSet<&'static str>>>);

impl Components {
    /// Registers a running component until the returned guard is dropped.
    #[must_use]
    pub fn run(&self, name: &'static str) -> Running {
        self.0.lock().insert(name);
        Running { all: self.clone(), name }
    }

    pub fn is_running(&self, name: &str) -> bool {
        self.0.lock().contains(name)
    }
}

/// A running component.
pub struct Running {
    all: Components,
    name: &'static str,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.all.0.lock().remove(self.name);
    }
}
