//! Limits concurrent requests (`k8s.io/apiserver/pkg/server/filters/maxinflight.go`): excess requests are rejected.

use crate::Body;
use crate::answer::bytes;
use http::header::{HeaderValue, RETRY_AFTER};
use http::{HeaderName, Response};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// In-flight requests of one kind.
pub(crate) struct InFlight {
    now: AtomicUsize,
    /// The maximum since it was last read.
    peak: AtomicUsize,
    /// 0: unlimited.
    most: usize,
}

/// An in-flight request, until dropped.
pub(crate) struct Pass(Arc<InFlight>);

impl Drop for Pass {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::Relaxed);
    }
}

impl InFlight {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { now: AtomicUsize::new(0), peak: AtomicUsize::new(0), most })
    }

    /// None if the limit is reached. A `privileged` request is never limited.
    pub fn enter(self: &Arc<Self>, privileged: bool) -> Option<Pass> {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        let pass = Pass(self.clone());
        if self.most > 0 && now > self.most && !privileged {
            return None;
        }
        self.peak.fetch_max(now, Ordering::Relaxed);
        Some(pass)
    }

    /// The maximum number of concurrent requests since the last call.
    pub fn take_peak(&self) -> usize {
        self.peak.swap(self.now.load(Ordering::Relaxed), Ordering::Relaxed)
    }
}

/// The response to an excess request; plain text, as upstream's.
pub(crate) fn refusal(retry_after: u32) -> Response<Body> {
    let text = "Too many requests, please try again later.\n".to_owned();
    let mut r = bytes(429, "text/plain; charset=utf-8", text);
    r.headers_mut().insert(RETRY_AFTER, retry_after.into());
    r.headers_mut().insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    r
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_too_many_is_turned_away() {
        let f = InFlight::new(2);
        let (a, b) = (f.enter(false), f.enter(false));
        assert!(a.is_some() && b.is_some() && f.enter(false).is_none());
        assert!(f.enter(true).is_some(), "an administrator is always let in");
        drop(a);
        assert!(f.enter(false).is_some());
        assert_eq!(InFlight::new(0).enter(false).map(|_| ()), Some(()));
    }
}
