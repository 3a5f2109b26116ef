//! Graceful shutdown: first the server is unready but serves (`--shutdown-delay-duration`), then it rejects new
//! requests, ends watches and completes open requests.

use crate::Body;
use crate::answer::json;
use http::header::{CONNECTION, RETRY_AFTER};
use http::{HeaderValue, Response};
use meta::Status;
use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serving,
    /// Unready for load balancers; all requests are served.
    Leaving,
    Draining,
}

pub(crate) struct Lifecycle(watch::Sender<Phase>);

impl Default for Lifecycle {
    fn default() -> Self {
        Self(watch::Sender::new(Phase::Serving))
    }
}

impl Lifecycle {
    pub fn leave(&self) {
        self.0.send_if_modified(|p| std::mem::replace(p, Phase::Leaving.max(*p)) < Phase::Leaving);
    }

    pub fn drain(&self) {
        self.0.send_replace(Phase::Draining);
    }

    pub fn is_ready(&self) -> bool {
        *self.0.borrow() == Phase::Serving
    }

    /// Rejects new requests; health checks are served to the end.
    pub fn refuses(&self, path: &str) -> bool {
        *self.0.borrow() == Phase::Draining
            && !["/readyz", "/livez", "/healthz", "/metrics"].iter().any(|p| path.starts_with(p))
    }

    /// Returns when new requests are rejected.
    pub fn drained(&self) -> impl Future<Output = ()> + use<> {
        let mut phase = self.0.subscribe();
        async move {
            let _ = phase.wait_for(|p| *p == Phase::Draining).await.map(|_| ());
        }
    }
}

/// The client should retry soon, likely on another server (`k8s.io/apiserver/pkg/server/filters/waitgroup.go`).
pub(crate) fn refusal() -> Response<Body> {
    let mut r = json(503, &Status::unavailable("apiserver is shutting down").to_value());
    r.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    r.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    r
}
