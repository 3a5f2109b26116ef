//! Telling long-running parts to end.

use tokio::sync::watch;

/// Ends everything that holds its [`Shutdown`], when it is triggered or dropped.
#[derive(Debug)]
pub struct Trigger(watch::Sender<bool>);

/// Waits for the end. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<bool>);

pub fn shutdown() -> (Trigger, Shutdown) {
    let (tx, rx) = watch::channel(false);
    (Trigger(tx), Shutdown(rx))
}

impl Trigger {
    pub fn trigger(&self) {
        self.0.send_replace(true);
    }
}

impl Shutdown {
    pub fn is_triggered(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }

    /// Returns at the end, at once when that has come already.
    pub async fn wait(&self) {
        let mut rx = self.0.clone();
        let _ = rx.wait_for(|ended| *ended).await;
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
