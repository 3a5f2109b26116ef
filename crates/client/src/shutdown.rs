//! Telling long-running parts to end.

use crate::flag::{Flag, Setter, flag};

/// Ends everything that holds its [`Shutdown`], when it is triggered or dropped.
#[derive(Debug)]
pub struct Trigger(Setter);

/// Waits for the end. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Shutdown(Flag);

pub fn shutdown() -> (Trigger, Shutdown) {
    let (setter, flag) = flag();
    (Trigger(setter), Shutdown(flag))
}

impl Trigger {
    pub fn trigger(&self) {
        self.0.set();
    }
}

impl Shutdown {
    pub fn is_triggered(&self) -> bool {
        self.0.is_over()
    }

    /// Returns at the end, at once when that has come already.
    pub async fn wait(&self) {
        self.0.wait().await;
    }

    /// Runs a future until it is done (`Some`) or the end comes (`None`).
    pub async fn race<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.wait() => None,
            v = work => Some(v),
        }
    }
}
