//! Something that happens once, and those who wait for it.
//!
//! Waiters are woken in the order in which they began to wait, so that a run in virtual time can be repeated: tokio's own
//! `watch` wakes them in an order by chance.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

#[derive(Debug, Default)]
struct State {
    set: AtomicBool,
    /// It is set, or nobody is left who could set it.
    over: AtomicBool,
    waiters: Notify,
}

/// Sets the flag. Dropped, it lets those go who wait in vain.
#[derive(Debug)]
pub struct Setter(Arc<State>);

/// Waits for the flag. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Flag(Arc<State>);

pub fn flag() -> (Setter, Flag) {
    let state = Arc::new(State::default());
    (Setter(state.clone()), Flag(state))
}

impl Setter {
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
    pub fn is_set(&self) -> bool {
        self.0.set.load(Ordering::Acquire)
    }

    /// It is set, or will never be.
    pub fn is_over(&self) -> bool {
        self.0.over.load(Ordering::Acquire)
    }

    /// Returns when it is over, at once when it is already.
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
