//! Data about a request, collected by the filters and used for metrics and audit.

use crate::Body;
use crate::audit::Record;
use crate::metrics::Series;
use http::{HeaderValue, Response};
use http_body::Body as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;

pub(crate) struct Trace {
    begun: Instant,
    /// The audit ID of the request.
    pub id: String,
    /// Set after authentication, if the request is audited.
    pub audit: OnceLock<Record>,
    /// Set once the request is parsed.
    pub series: OnceLock<Arc<Series>>,
    /// The UIDs of the request's flow schema and priority level.
    pub flow: OnceLock<[HeaderValue; 2]>,
    /// Nanoseconds spent in webhooks and queues.
    waiting: AtomicU64,
    /// A guard elsewhere ends the request.
    runs_on: AtomicBool,
}

impl Trace {
    pub fn begin(id: String) -> Arc<Self> {
        let audit = OnceLock::new();
        Arc::new(Self {
            begun: Instant::now(),
            id,
            audit,
            series: OnceLock::new(),
            flow: OnceLock::new(),
            waiting: AtomicU64::new(0),
            runs_on: AtomicBool::new(false),
        })
    }

    /// Adds time spent waiting for others.
    pub fn spent_outside(&self, time: Duration) {
        self.waiting.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Records that the server terminated the request.
    pub fn terminated(&self, code: u16) {
        if let Some(s) = self.series.get() {
            s.terminated(code);
        }
    }

    /// Adds an audit annotation.
    pub fn annotate(&self, key: &str, value: &dyn std::fmt::Display) {
        if let Some(r) = self.audit.get() {
            r.annotate(key, &value.to_string());
        }
    }

    /// Adds an audit annotation if the audit level includes objects.
    pub fn annotate_details(&self, key: &str, value: &dyn std::fmt::Display) {
        if let Some(r) = self.audit.get().filter(|r| r.has_objects()) {
            r.annotate(key, &value.to_string());
        }
    }

    /// Ends the request when the returned guard is dropped.
    pub fn run_on(self: &Arc<Self>) -> Running {
        self.runs_on.store(true, Ordering::Relaxed);
        let running = self.series.get().map(|s| s.long_running());
        running.as_ref().inspect(|r| r.inc());
        Running { trace: self.clone(), running, code: 200 }
    }

    /// Records the response. A long-running request ends with its body.
    pub fn answered(self: &Arc<Self>, response: &mut Response<Body>, long_running: bool) {
        let code = response.status().as_u16();
        if long_running {
            self.audit.get().inspect(|r| r.started());
        }
        if self.runs_on.load(Ordering::Relaxed) {
            return;
        }
        if long_running && let Body::Stream(_) = response.body() {
            let mut running = self.run_on();
            running.code = code;
            response.body_mut().hold(Box::new(running));
            return;
        }
        self.audit.get().inspect(|r| r.complete());
        let Some(series) = self.series.get() else { return };
        let waiting = Duration::from_nanos(self.waiting.load(Ordering::Relaxed));
        series.answered(code, self.begun.elapsed(), waiting, response.body().size_hint().exact());
    }
}

/// A watch or stream; ends when dropped.
pub(crate) struct Running {
    trace: Arc<Trace>,
    running: Option<metrics::Gauge>,
    code: u16,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.running.as_ref().inspect(|r| r.dec());
        if let Some(record) = self.trace.audit.get() {
            record.complete();
            // The end of a stream delivers audit events in the background.
            if record.is_due()
                && let Ok(runtime) = tokio::runtime::Handle::try_current()
            {
                let trace = self.trace.clone();
                runtime.spawn(async move {
                    if let Some(record) = trace.audit.get() {
                        record.settle().await;
                    }
                });
            }
        }
        if let Some(s) = self.trace.series.get() {
            s.answered(self.code, self.trace.begun.elapsed(), Duration::ZERO, None);
        }
    }
}
