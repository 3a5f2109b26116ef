//! What clients and work queues of this process count, under client-go's names. One set for the process: clients are made
//! everywhere, and whoever reads metrics wants them all.

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

const UNFINISHED: Row = Row::real_gauge(
    "workqueue_unfinished_work_seconds",
    &["name"],
    "How long the keys that are worked on have been, together: what grows shows that somebody is stuck.",
);
const LONGEST: Row = Row::real_gauge(
    "workqueue_longest_running_processor_seconds",
    &["name"],
    "How long the key has been worked on that has been the longest.",
);

static SET: LazyLock<Set> =
    LazyLock::new(|| Set::new(&[REQUESTS, REQUEST_TIME, ADDS, DEPTH, WAITED, WORKED, RETRIES, UNFINISHED, LONGEST]));

/// A queue that tells since when its keys are worked on.
pub(crate) trait Working: Send + Sync {
    fn since(&self) -> Vec<Instant>;
}

/// The queues that have a name, for as long as they are there.
static QUEUES: Mutex<Vec<(&'static str, Weak<dyn Working>)>> = Mutex::new(Vec::new());

pub(crate) fn follow(name: &'static str, queue: Weak<dyn Working>) {
    QUEUES.lock().push((name, queue));
}

/// Everything, as Prometheus reads it.
pub fn text() -> String {
    let queues = QUEUES.lock().clone();
    let mut all: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for (name, queue) in &queues {
        // Of one that is gone it is told once more, that nothing is left.
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
