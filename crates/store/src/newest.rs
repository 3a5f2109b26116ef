//! A revision that grows, and those who wait for that.
//!
//! Waiters are woken in the order in which they began to wait, so that a run in virtual time can be repeated: tokio's own
//! `watch` wakes them in an order by chance.

use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

pub(crate) struct Newest {
    value: AtomicU64,
    waiters: Notify,
}

impl Newest {
    pub fn new(value: u64) -> Newest {
        Newest { value: AtomicU64::new(value), waiters: Notify::new() }
    }

    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Acquire)
    }

    pub fn set(&self, value: u64) {
        self.value.store(value, Ordering::Release);
        self.wake();
    }

    pub fn wake(&self) {
        self.waiters.notify_waiters();
    }

    /// Done after the next change. Whoever waits takes this first and looks at the value then: so no change is missed.
    pub fn changed(&self) -> Notified<'_> {
        self.waiters.notified()
    }
}
