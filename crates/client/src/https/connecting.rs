//! What is done to get a connection for a request, for those who log it.

use parking_lot::Mutex;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// What was done for one request. Nothing, if a connection was there.
#[derive(Clone, Debug, Default)]
pub struct Connecting {
    pub steps: Vec<Step>,
    /// How long each kind of step took.
    pub lookup: Duration,
    pub dial: Duration,
    pub handshake: Duration,
    /// When the connection was ready.
    pub ready: Option<Instant>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Lookup {
        host: String,
        addresses: Vec<IpAddr>,
    },
    Dial {
        /// `host:port`
        address: String,
        /// Why nobody answered there.
        error: Option<String>,
    },
}

tokio::task_local! {
    static OF_THIS_TASK: Arc<Mutex<Connecting>>;
}

/// Does some work and tells what connections were made for it. Those made by other tasks on its behalf are not seen.
pub async fn observed<T>(work: impl Future<Output = T>) -> (T, Connecting) {
    let seen = Arc::new(Mutex::new(Connecting::default()));
    let done = OF_THIS_TASK.scope(seen.clone(), work).await;
    let seen = seen.lock().clone();
    (done, seen)
}

/// Records a step of the connection, if the caller traces it.
pub(super) fn note(write: impl FnOnce(&mut Connecting)) {
    let _ = OF_THIS_TASK.try_with(|c| write(&mut c.lock()));
}
