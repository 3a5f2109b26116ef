//! What is found out about a request on its way down, for those who say afterwards what became of it.

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
    /// The request's identifier.
    pub id: String,
    /// Once it is known who asks, if the request is written down.
    pub audit: OnceLock<Record>,
    /// Once it is known what is asked for.
    pub series: OnceLock<Arc<Series>>,
    /// The identifiers of the flow schema and the priority level that govern the request.
    pub flow: OnceLock<[HeaderValue; 2]>,
    /// Nanoseconds in webhooks and queues.
    outside: AtomicU64,
    /// Somebody else holds its end.
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
            outside: AtomicU64::new(0),
            runs_on: AtomicBool::new(false),
        })
    }

    /// Time that others have taken.
    pub fn spent_outside(&self, time: Duration) {
        self.outside.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The server itself has ended the request.
    pub fn terminated(&self, code: u16) {
        if let Some(s) = self.series.get() {
            s.terminated(code);
        }
    }

    /// A fact about the request, for the audit log.
    pub fn annotate(&self, key: &str, value: &dyn std::fmt::Display) {
        if let Some(r) = self.audit.get() {
            r.annotate(key, &value.to_string());
        }
    }

    /// The same, where requests are written down with their objects.
    pub fn annotate_details(&self, key: &str, value: &dyn std::fmt::Display) {
        if let Some(r) = self.audit.get().filter(|r| r.has_objects()) {
            r.annotate(key, &value.to_string());
        }
    }

    /// The request is over when what this gives is dropped.
    pub fn run_on(self: &Arc<Self>) -> Running {
        self.runs_on.store(true, Ordering::Relaxed);
        let running = self.series.get().map(|s| s.long_running());
        running.as_ref().inspect(|r| r.inc());
        Running { trace: self.clone(), running, code: 200 }
    }

    /// The answer is on its way. One that runs long is over with its body.
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
        let outside = Duration::from_nanos(self.outside.load(Ordering::Relaxed));
        series.answered(code, self.begun.elapsed(), outside, response.body().size_hint().exact());
    }
}

/// A watch or a stream, until this is dropped.
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
            // Nobody waits for the end of a stream.
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
