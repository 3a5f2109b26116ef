//! What clients and work queues of this process count, under client-go's names. One set for the process: clients are made
//! everywhere, and whoever reads metrics wants them all.

use metrics::{Counter, Gauge, Histogram, Row, Set};
use std::sync::LazyLock;
use std::time::Duration;

const TENFOLD: &[f64] = &[1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1000.0];
const REQUEST_SECONDS: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

const REQUESTS: Row = Row::counter(
    "rest_client_requests_total",
    &["code", "host", "method"],
    "Requests of this process as a client, by code, host and method.",
);
const REQUEST_TIME: Row = Row::histogram(
    "rest_client_request_duration_seconds",
    &["host", "verb"],
    REQUEST_SECONDS,
    "How long requests of this process as a client took, by host and verb.",
);
const ADDS: Row = Row::counter("workqueue_adds_total", &["name"], "Keys that were added to a work queue.");
const DEPTH: Row = Row::gauge("workqueue_depth", &["name"], "Keys that wait in a work queue.");
const WAITED: Row =
    Row::histogram("workqueue_queue_duration_seconds", &["name"], TENFOLD, "How long a key waited in a work queue.");
const WORKED: Row =
    Row::histogram("workqueue_work_duration_seconds", &["name"], TENFOLD, "How long a key was worked on.");
const RETRIES: Row = Row::counter("workqueue_retries_total", &["name"], "Keys that came again after a failure.");

static SET: LazyLock<Set> = LazyLock::new(|| Set::new(&[REQUESTS, REQUEST_TIME, ADDS, DEPTH, WAITED, WORKED, RETRIES]));

/// Everything, as Prometheus reads it.
pub fn text() -> String {
    SET.text()
}

/// A request was answered, or not (`<error>`, as client-go has it).
pub(crate) fn requested(host: &str, method: &str, code: Option<u16>, took: Duration) {
    let code = code.map_or_else(|| "<error>".to_owned(), |c| c.to_string());
    SET.counter(&REQUESTS, &[&code, host, method]).inc();
    SET.histogram(&REQUEST_TIME, &[host, method]).observe(took.as_secs_f64());
}

/// The series of one work queue.
pub(crate) struct OfQueue {
    pub adds: Counter,
    pub depth: Gauge,
    pub waited: Histogram,
    pub worked: Histogram,
    pub retries: Counter,
}

impl OfQueue {
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
