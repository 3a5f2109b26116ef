//! Metrics of this process's clients and work queues, under client-go's names. They are global, because clients are created
//! everywhere and a scrape reads all of them.

use metrics::{Counter, Gauge, Histogram, Row, Set};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{LazyLock, Weak};
use std::time::Duration;
use tokio::time::Instant;

const TENFOLD: &[f64] = &[1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1000.0];
const REQUEST_SECONDS: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

const REQUESTS: Row = Row::counter(
    "rest_client_requests_total",
    &["code", "host", "method"],
    "Number of HTTP requests sent, by status code, host and method.",
);
const REQUEST_TIME: Row = Row::histogram(
    "rest_client_request_duration_seconds",
    &["host", "verb"],
    REQUEST_SECONDS,
    "Request latency in seconds, by host and verb.",
);
const ADDS: Row = Row::counter("workqueue_adds_total", &["name"], "Number of keys added to a work queue.");
const DEPTH: Row = Row::gauge("workqueue_depth", &["name"], "Current number of keys in a work queue.");
const WAITED: Row = Row::histogram(
    "workqueue_queue_duration_seconds",
    &["name"],
    TENFOLD,
    "Seconds a key waits in a work queue before it is processed.",
);
const WORKED: Row =
    Row::histogram("workqueue_work_duration_seconds", &["name"], TENFOLD, "Seconds that processing a key takes.");
const RETRIES: Row = Row::counter("workqueue_retries_total", &["name"], "Number of keys requeued after a failure.");

const UNFINISHED: Row = Row::real_gauge(
    "workqueue_unfinished_work_seconds",
    &["name"],
    "Total seconds spent so far on keys that are still being processed. Steady growth indicates a stuck worker.",
);
const LONGEST: Row = Row::real_gauge(
    "workqueue_longest_running_processor_seconds",
    &["name"],
    "Seconds that the longest running worker has spent on its key.",
);

static SET: LazyLock<Set> =
    LazyLock::new(|| Set::new(&[REQUESTS, REQUEST_TIME, ADDS, DEPTH, WAITED, WORKED, RETRIES, UNFINISHED, LONGEST]));

/// A queue that reports when the processing of its current keys began.
pub(crate) trait Working: Send + Sync {
    fn since(&self) -> Vec<Instant>;
}

/// Named queues that still exist.
static QUEUES: Mutex<Vec<(&'static str, Weak<dyn Working>)>> = Mutex::new(Vec::new());

pub(crate) fn follow(name: &'static str, queue: Weak<dyn Working>) {
    QUEUES.lock().push((name, queue));
}

/// All metrics in the Prometheus text format.
pub fn text() -> String {
    let queues = QUEUES.lock().clone();
    let mut all: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for (name, queue) in &queues {
        // A queue that no longer exists is reported once more, with zero.
        let (sum, most) = all.entry(name).or_default();
        for since in queue.upgrade().map(|q| q.since()).unwrap_or_default() {
            let took = since.elapsed().as_secs_f64();
            *sum += took;
            *most = most.max(took);
        }
    }
    for (name, (sum, most)) in all {
        SET.real_gauge(&UNFINISHED, &[name]).set(sum);
        SET.real_gauge(&LONGEST, &[name]).set(most);
    }
    QUEUES.lock().retain(|(_, q)| q.strong_count() > 0);
    SET.text()
}

/// Counts a request and its response; `code` is none (`<error>`, as in client-go) if there was no response.
pub(crate) fn requested(host: &str, method: &str, code: Option<u16>, took: Duration) {
    let code = code.map_or_else(|| "<error>".to_owned(), |c| c.to_string());
    SET.counter(&REQUESTS, &[&code, host, method]).inc();
    SET.histogram(&REQUEST_TIME, &[host, method]).observe(took.as_secs_f64());
}

/// The metrics of one work queue.
pub(crate) struct QueueMetrics {
    pub adds: Counter,
    pub depth: Gauge,
    pub waited: Histogram,
    pub worked: Histogram,
    pub retries: Counter,
}

impl QueueMetrics {
    pub fn new(name: &str) -> Self {
        Self {
            adds: SET.counter(&ADDS, &[name]),
            depth: SET.gauge(&DEPTH, &[name]),
            waited: SET.histogram(&WAITED, &[name]),
            worked: SET.histogram(&WORKED, &[name]),
            retries: SET.counter(&RETRIES, &[name]),
        }
    }
}
