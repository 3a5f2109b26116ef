//! The signal that ends long-running parts.

use crate::flag::{Flag, Setter, flag};

/// Ends everything that holds its [`Shutdown`], when it is triggered or dropped.
#[derive(Debug)]
pub struct Trigger(Setter);

/// Waits for the signal to end. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Shutdown(Flag);

/// Returns a shutdown signal and its trigger.
pub fn shutdown() -> (Trigger, Shutdown) {
    let (setter, flag) = flag();
    (Trigger(setter), Shutdown(flag))
}

impl Trigger {
    /// Gives the signal.
    pub fn trigger(&self) {
        self.0.set();
    }
}

impl Shutdown {
    /// A signal that is never given.
    pub fn never() -> Self {
        Self(Flag::default())
    }

    /// Whether the signal was given.
    pub fn is_triggered(&self) -> bool {
        self.0.is_over()
    }

    /// Waits for the signal. Returns at once if it was given before.
    pub async fn wait(&self) {
        self.0.wait().await;
    }

    /// Runs a future until it completes (`Some`) or the signal is given (`None`).
    pub async fn race<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.wait() => None,
            v = work => Some(v),
        }
    }
}
