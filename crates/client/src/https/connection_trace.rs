//! The steps of opening the connection of a request, for request logs.

use parking_lot::Mutex;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The steps taken for one request; empty if an open connection was reused.
#[derive(Clone, Debug, Default)]
pub struct ConnectionTrace {
    /// Lookups and dials, in order.
    pub steps: Vec<Step>,
    /// Total duration of each kind of step.
    pub lookup: Duration,
    /// Total duration of TCP connects.
    pub dial: Duration,
    /// Total duration of TLS handshakes.
    pub handshake: Duration,
    /// When the connection was ready.
    pub ready: Option<Instant>,
}

/// A step of opening a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A DNS lookup.
    Lookup {
        /// Host name.
        host: String,
        /// Addresses found.
        addresses: Vec<IpAddr>,
    },
    /// A TCP connect.
    Dial {
        /// `host:port`
        address: String,
        /// The error, if the connection failed.
        error: Option<String>,
    },
}

tokio::task_local! {
    static TASK_TRACE: Arc<Mutex<ConnectionTrace>>;
}

/// Runs `work` and returns its result with the connections opened for it, except by other tasks that it spawned.
pub async fn traced<T>(work: impl Future<Output = T>) -> (T, ConnectionTrace) {
    let seen = Arc::new(Mutex::new(ConnectionTrace::default()));
    let done = TASK_TRACE.scope(seen.clone(), work).await;
    let seen = seen.lock().clone();
    (done, seen)
}

/// Records a step of the connection, if the caller traces it.
pub(super) fn note(write: impl FnOnce(&mut ConnectionTrace)) {
    let _ = TASK_TRACE.try_with(|c| write(&mut c.lock()));
}
