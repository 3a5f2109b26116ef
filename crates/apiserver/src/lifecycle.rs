//! The end of a server: first it is not ready any more while it still serves (`--shutdown-delay-duration`), then it takes no new
//! requests, ends its watches and answers what it has begun.

use crate::Body;
use crate::answer::json;
use http::header::{CONNECTION, RETRY_AFTER};
use http::{HeaderValue, Response};
use meta::Status;
use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serving,
    /// Load balancers are told; everything is answered.
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

    /// New requests are sent elsewhere; questions after the server's health are answered to the last.
    pub fn refuses(&self, path: &str) -> bool {
        *self.0.borrow() == Phase::Draining
            && !["/readyz", "/livez", "/healthz", "/metrics"].iter().any(|p| path.starts_with(p))
    }

    /// Returns when no new requests are taken.
    pub fn drained(&self) -> impl Future<Output = ()> + use<> {
        let mut phase = self.0.subscribe();
        async move {
            let _ = phase.wait_for(|p| *p == Phase::Draining).await.map(|_| ());
        }
    }
}

/// The client comes back soon, most likely to another server (`k8s.io/apiserver/pkg/server/filters/waitgroup.go`).
pub(crate) fn refusal() -> Response<Body> {
    let mut r = json(503, &Status::unavailable("apiserver is shutting down").to_value());
    r.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    r.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    r
}
