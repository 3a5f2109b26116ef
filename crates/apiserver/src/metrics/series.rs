//! Request metrics, resolved once per resource, verb and scope: each request only updates a few atomics.

use super::table::{
    COMMIT_ERRORS, COMMIT_SECONDS, COMMITS, DEPRECATED, DURATION, LONG_RUNNING, REQUESTS, SIZES, SLI_DURATION,
    TERMINATIONS,
};
use crate::info::RequestInfo;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use metrics::{Counter, Gauge, Histogram, Set};
use parking_lot::RwLock;
use registry::Resource;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

const VERBS: [&str; 9] = ["GET", "LIST", "WATCH", "POST", "PUT", "PATCH", "APPLY", "DELETE", "CONNECT"];
const SCOPES: [&str; 4] = ["", "cluster", "namespace", "resource"];
const DRY: [&str; 3] = ["", "All", "invalid"];
/// Status codes with a cached series; others are looked up each time.
const CODES: [u16; 24] = [
    200, 201, 202, 204, 301, 304, 400, 401, 403, 404, 405, 406, 409, 410, 413, 415, 422, 429, 500, 502, 503, 504, 507,
    101,
];
const COMPONENT: &str = "apiserver";
const OPERATIONS: [&str; 3] = ["create", "update", "delete"];
/// Paths of health and version requests, counted by path.
const PATHS: [&str; 4] = ["/healthz", "/livez", "/readyz", "/metrics"];

/// The metrics of all requests so far.
pub(crate) struct AllSeries {
    set: Arc<Set>,
    /// By the address of the row and the index of the subresource. The weak reference keeps the address from being
    /// reused.
    rows: RwLock<HashMap<(usize, usize), (Weak<Resource>, Arc<OfResource>)>>,
    paths: [Arc<OfResource>; 4],
}

/// The metrics of one resource or subresource.
pub(crate) struct OfResource {
    set: Arc<Set>,
    /// Group, version, resource, subresource.
    names: [String; 4],
    requests: [OnceLock<Arc<Series>>; VERBS.len() * SCOPES.len() * DRY.len()],
    commits: [OnceLock<Commits>; OPERATIONS.len()],
}

struct Commits {
    seconds: Histogram,
    all: Counter,
    failed: Counter,
}

/// The metrics of requests with the same labels.
pub(crate) struct Series {
    set: Arc<Set>,
    /// Verb, dry run, group, version, resource, subresource, scope, component.
    labels: Vec<String>,
    codes: [OnceLock<Counter>; CODES.len()],
    duration: Histogram,
    /// Not for dry runs.
    sli: Option<Histogram>,
    sizes: Option<Histogram>,
}

fn empty<T, const N: usize>() -> [OnceLock<T>; N] {
    std::array::from_fn(|_| OnceLock::new())
}

impl AllSeries {
    pub fn new(set: &Arc<Set>) -> Self {
        let paths = PATHS.map(|p| Arc::new(OfResource::new(set, ["", "", "", p])));
        Self { set: set.clone(), rows: RwLock::default(), paths }
    }

    pub fn of_resource(&self, row: &Arc<Resource>, subresource: &str) -> Arc<OfResource> {
        let index = match subresource {
            "" => 0,
            s => 1 + row.kind.subresources.iter().position(|x| *x.name == *s).unwrap_or(usize::MAX - 1),
        };
        let key = (Arc::as_ptr(row) as usize, index);
        if let Some((_, s)) = self.rows.read().get(&key) {
            return s.clone();
        }
        let k = &row.kind;
        let made = Arc::new(OfResource::new(&self.set, [&k.group, &k.version, &k.plural, subresource]));
        if k.warning.is_some() {
            let labels = [&*k.group, &*k.version, &*k.plural, subresource, ""];
            self.set.gauge(&DEPRECATED, &labels).set(1);
        }
        let mut rows = self.rows.write();
        // Custom resource definitions come and go.
        rows.retain(|_, (row, _)| row.strong_count() > 0);
        rows.insert(key, (Arc::downgrade(row), made.clone()));
        made
    }

    /// The metrics of a non-resource request, if its path is counted.
    pub fn of_path(&self, path: &str) -> Option<Arc<Series>> {
        let root = path.match_indices('/').nth(1).map_or(path, |(i, _)| &path[..i]);
        let at = PATHS.iter().position(|p| *p == root)?;
        Some(self.paths[at].series(0, 0, 0))
    }
}

impl OfResource {
    fn new(set: &Arc<Set>, names: [&str; 4]) -> Self {
        Self { set: set.clone(), names: names.map(str::to_owned), requests: empty(), commits: empty() }
    }

    /// The metrics of a request for this resource.
    pub fn request(&self, info: &RequestInfo, parts: &Parts) -> Arc<Series> {
        let t = &info.target;
        let scope = match info.verb {
            _ if !t.name.is_empty() => 3,
            "create" => 3,
            _ if !t.namespace.is_empty() => 2,
            _ => 1,
        };
        let verb = match info.verb {
            _ if matches!(t.subresource.as_str(), "log" | "exec" | "attach" | "portforward" | "proxy") => 8,
            "watch" => 2,
            "list" => 1,
            "create" => 3,
            "update" => 4,
            "patch" => {
                let media = parts.headers.get(CONTENT_TYPE).map_or(&b""[..], |v| v.as_bytes());
                if media == b"application/apply-patch+yaml" { 6 } else { 5 }
            }
            "delete" | "deletecollection" => 7,
            _ => 0,
        };
        let dry = match info.query.get("dryRun") {
            "" => 0,
            "All" => 1,
            _ => 2,
        };
        self.series(verb, scope, dry)
    }

    fn series(&self, verb: usize, scope: usize, dry: usize) -> Arc<Series> {
        let index = (verb * SCOPES.len() + scope) * DRY.len() + dry;
        let make = || {
            let [group, version, resource, subresource] = &self.names;
            let labels = [VERBS[verb], DRY[dry], group, version, resource, subresource, SCOPES[scope], COMPONENT];
            let undry = [labels[0], group, version, resource, subresource, labels[6], COMPONENT];
            Arc::new(Series {
                set: self.set.clone(),
                labels: labels.map(str::to_owned).to_vec(),
                codes: empty(),
                duration: self.set.histogram(&DURATION, &labels),
                sli: (dry == 0).then(|| self.set.histogram(&SLI_DURATION, &undry)),
                sizes: (verb < 2).then(|| self.set.histogram(&SIZES, &undry)),
            })
        };
        self.requests[index].get_or_init(make).clone()
    }

    /// Records a write to the store.
    pub fn committed(&self, operation: &str, took: Duration, ok: bool) {
        let Some(at) = OPERATIONS.iter().position(|o| *o == operation) else { return };
        let c = self.commits[at].get_or_init(|| {
            let labels = [operation, &self.names[0], &self.names[2]];
            Commits {
                seconds: self.set.histogram(&COMMIT_SECONDS, &labels),
                all: self.set.counter(&COMMITS, &labels),
                failed: self.set.counter(&COMMIT_ERRORS, &labels),
            }
        });
        c.seconds.observe(took.as_secs_f64());
        c.all.inc();
        if !ok {
            c.failed.inc();
        }
    }
}

impl Series {
    fn labels(&self) -> Vec<&str> {
        self.labels.iter().map(String::as_str).collect()
    }

    /// Without the dry run label.
    fn running(&self) -> Vec<&str> {
        self.labels.iter().enumerate().filter(|(i, _)| *i != 1).map(|(_, l)| l.as_str()).collect()
    }

    /// Records a response. `waiting` is the time in webhooks and queues, excluded from the SLI.
    pub fn answered(&self, code: u16, took: Duration, waiting: Duration, size: Option<u64>) {
        let lookup = || {
            let code = code.to_string();
            let mut labels = self.labels();
            labels.push(&code);
            self.set.counter(&REQUESTS, &labels)
        };
        match CODES.iter().position(|c| *c == code) {
            Some(at) => self.codes[at].get_or_init(lookup).inc(),
            None => lookup().inc(),
        }
        self.duration.observe(took.as_secs_f64());
        if let Some(sli) = &self.sli {
            sli.observe(took.saturating_sub(waiting).as_secs_f64());
        }
        if let (Some(sizes), Some(size)) = (&self.sizes, size) {
            sizes.observe(size as f64);
        }
    }

    /// Records a request that the server terminated.
    pub fn terminated(&self, code: u16) {
        let code = code.to_string();
        let mut labels = self.running();
        labels.push(&code);
        self.set.counter(&TERMINATIONS, &labels).inc();
    }

    pub fn long_running(&self) -> Gauge {
        self.set.gauge(&LONG_RUNNING, &self.running())
    }
}
