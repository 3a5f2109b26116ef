//! A flag that is set once, and its waiters.
//!
//! Waiters are woken in the order in which they began to wait, so that a run in virtual time can be repeated. Tokio's `watch`
//! wakes them in a random order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

#[derive(Debug, Default)]
struct State {
    set: AtomicBool,
    /// The flag is set, or its setter was dropped.
    over: AtomicBool,
    waiters: Notify,
}

/// Sets the flag. Dropping it wakes the waiters without setting the flag.
#[derive(Debug)]
pub struct Setter(Arc<State>);

/// Waits for the flag. Cheap to clone. The default one is never set.
#[derive(Clone, Debug, Default)]
pub struct Flag(Arc<State>);

/// Returns a flag that is not set, with its setter.
pub fn flag() -> (Setter, Flag) {
    let state = Arc::new(State::default());
    (Setter(state.clone()), Flag(state))
}

impl Setter {
    /// Sets the flag and wakes all waiters.
    pub fn set(&self) {
        self.0.set.store(true, Ordering::Release);
        self.end();
    }

    fn end(&self) {
        self.0.over.store(true, Ordering::Release);
        self.0.waiters.notify_waiters();
    }
}

impl Drop for Setter {
    fn drop(&mut self) {
        self.end();
    }
}

impl Flag {
    /// Whether the flag is set.
    pub fn is_set(&self) -> bool {
        self.0.set.load(Ordering::Acquire)
    }

    /// Whether the flag is set, or can no longer be.
    pub fn is_over(&self) -> bool {
        self.0.over.load(Ordering::Acquire)
    }

    /// Waits until the flag is set or can no longer be.
    pub async fn wait(&self) {
        loop {
            let changed = self.0.waiters.notified();
            if self.is_over() {
                return;
            }
            changed.await;
        }
    }
}
