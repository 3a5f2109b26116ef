//! The priority and fairness filter and its metrics. The crate `flowcontrol` decides; `keep` follows the FlowSchemas and
//! PriorityLevelConfigurations.

mod dump;
mod keep;
mod known;

pub use keep::run;

use crate::Server;
use crate::info::RequestInfo;
use crate::metrics::Metrics;
use crate::metrics::table::{
    FLOW_DISPATCHED, FLOW_EXECUTED, FLOW_EXECUTING, FLOW_QUEUED, FLOW_REJECTED, FLOW_SEATS, FLOW_WAITED, LEVEL_CURRENT,
    LEVEL_LOWER, LEVEL_NOMINAL, LEVEL_TAKEN, LEVEL_UPPER,
};
use crate::options::Options;
use crate::trace::Trace;
use auth::User;
use flowcontrol::{Config, Flow, Rejection, RequestDigest, SeatGuard};
use http::header::{HeaderName, HeaderValue};
use http::request::Parts;
use known::{ActiveRequests, Entry, GovernedRequest};
use metrics::{Counter, Gauge, Histogram, Set};
use parking_lot::RwLock;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

pub(crate) const SCHEMA: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
pub(crate) const LEVEL: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// Objects per seat of a list.
const OBJECTS_PER_SEAT: usize = 100;

/// The configuration in force, if priority and fairness is enabled.
pub(crate) struct FlowControl {
    governed: Option<RwLock<Arc<Governed>>>,
    seats: u32,
    /// Maximum time that a request waits for its seat.
    patience: Duration,
    known: ActiveRequests,
}

struct Governed {
    config: Config,
    /// By index of the schema.
    counts: Vec<Counts>,
}

/// The metrics of one schema.
struct Counts {
    dispatched: Counter,
    executing: Gauge,
    seats: Gauge,
    /// For requests, and for watches.
    executed: [Histogram; 2],
    queued: Gauge,
    got: Histogram,
    gave_up: Histogram,
    rejected: [Counter; 3],
    headers: [HeaderValue; 2],
}

/// What an executing request holds.
pub(crate) struct Executing {
    _seat: SeatGuard,
    _known: Entry,
    wide: i64,
    since: Instant,
    executing: Gauge,
    seats: Gauge,
    executed: Histogram,
}

impl Drop for Executing {
    fn drop(&mut self) {
        self.executing.dec();
        self.seats.add(-self.wide);
        self.executed.observe(self.since.elapsed().as_secs_f64());
    }
}

impl Governed {
    fn new(config: Config, set: &Set) -> Self {
        let counts = config.schemas().iter().map(|s| {
            let labels = [s.level.name.as_str(), s.name.as_str()];
            let with = |third: &'static str| [labels[0], labels[1], third];
            let rejected = [Rejection::ConcurrencyLimit, Rejection::QueueFull, Rejection::TimeOut];
            let header = |uid: &str| HeaderValue::from_str(uid).unwrap_or(HeaderValue::from_static(""));
            Counts {
                dispatched: set.counter(&FLOW_DISPATCHED, &labels),
                executing: set.gauge(&FLOW_EXECUTING, &labels),
                seats: set.gauge(&FLOW_SEATS, &labels),
                executed: ["regular", "watch"].map(|t| set.histogram(&FLOW_EXECUTED, &with(t))),
                queued: set.gauge(&FLOW_QUEUED, &labels),
                got: set.histogram(&FLOW_WAITED, &with("true")),
                gave_up: set.histogram(&FLOW_WAITED, &with("false")),
                rejected: rejected.map(|r| set.counter(&FLOW_REJECTED, &with(r.as_str()))),
                headers: [header(&s.uid), header(&s.level.uid)],
            }
        });
        Self { counts: counts.collect(), config }
    }
}

impl FlowControl {
    pub fn new(options: &Options, metrics: &Metrics) -> Self {
        let seats = options.max_requests_in_flight.saturating_add(options.max_mutating_requests_in_flight);
        let seats = u32::try_from(seats).unwrap_or(u32::MAX).max(1);
        let governed = options
            .priority_and_fairness
            .then(|| RwLock::new(Arc::new(Governed::new(Config::new(seats, &[], &[], None), &metrics.set))));
        Self { governed, seats, patience: options.request_timeout / 4, known: ActiveRequests::default() }
    }

    /// Waits for seats. An error is the `Retry-After` in seconds.
    pub async fn enter(
        &self,
        server: &Server,
        user: &User,
        info: &RequestInfo,
        parts: &Parts,
        trace: &Trace,
    ) -> Result<Option<Executing>, u32> {
        let Some(governed) = &self.governed else { return Ok(None) };
        // Streams last arbitrarily long; a watch occupies its seat only during initialization.
        if info.long_running && info.verb != "watch" {
            return Ok(None);
        }
        let governed = governed.read().clone();
        let t = &info.target;
        let group = t.group_version.as_ref().map_or("", |gv| gv.group.as_str());
        let digest = RequestDigest {
            user,
            verb: info.verb,
            group,
            resource: if t.is_resource() { &t.resource } else { "" },
            subresource: &t.subresource,
            namespace: &t.namespace,
            path: parts.uri.path(),
        };
        let Some(flow) = governed.config.classify(&digest) else { return Ok(None) };
        let counts = &governed.counts[flow.index];
        let [schema, level] = &counts.headers;
        let _ = trace.flow.set([schema.clone(), level.clone()]);
        let level = &flow.schema.level;
        let seats = if level.exempt { 1 } else { seats(server, info, &flow) };
        let begun = Instant::now();
        let known = self.known.add(GovernedRequest {
            governed: governed.clone(),
            schema: flow.index,
            distinguisher: flow.distinguisher.to_owned(),
            user: user.name.clone(),
            method: parts.method.clone(),
            uri: parts.uri.clone(),
            seats,
            arrived: begun,
            begun: None,
        });
        let queued = Queued::new(&counts.queued);
        let seat = level.acquire(seats, known.key, self.patience, || flow.hash()).await;
        drop(queued);
        let waited = begun.elapsed();
        trace.spent_outside(waited);
        match seat {
            Ok(seat) => {
                known.begin(seat.queue());
                counts.got.observe(waited.as_secs_f64());
                counts.dispatched.inc();
                counts.executing.inc();
                let wide = i64::from(seats);
                counts.seats.add(wide);
                let executed = counts.executed[usize::from(info.verb == "watch")].clone();
                let (executing, seats) = (counts.executing.clone(), counts.seats.clone());
                Ok(Some(Executing {
                    _seat: seat,
                    _known: known,
                    wide,
                    since: Instant::now(),
                    executing,
                    seats,
                    executed,
                }))
            }
            Err(why) => {
                counts.gave_up.observe(waited.as_secs_f64());
                counts.rejected[why as usize].inc();
                Err(level.record_rejection(server.registry.clock.now().as_second()))
            }
        }
    }

    fn replace(&self, make: impl FnOnce(u32, &Config) -> Config, set: &Set) {
        if let Some(governed) = &self.governed {
            let before = governed.read().clone();
            *governed.write() = Arc::new(Governed::new(make(self.seats, &before.config), set));
        }
    }

    fn has_level(&self, name: &str) -> bool {
        self.governed.as_ref().is_none_or(|g| g.read().config.has_level(name))
    }

    fn allocate_seats(&self) {
        if let Some(g) = &self.governed {
            g.read().clone().config.allocate_seats();
        }
    }

    /// Updates the metrics of seats.
    pub fn note(&self, set: &Set) {
        let Some(governed) = &self.governed else { return };
        let governed = governed.read().clone();
        for l in governed.config.levels() {
            let limits = l.limits();
            for (row, seats) in [
                (&LEVEL_NOMINAL, limits.nominal),
                (&LEVEL_LOWER, limits.minimum),
                (&LEVEL_UPPER, limits.maximum),
                (&LEVEL_CURRENT, l.seat_limit()),
                (&LEVEL_TAKEN, l.seats_in_use()),
            ] {
                set.gauge(row, &[&l.name]).set(seats.into());
            }
        }
    }
}

/// A request that waits, or is about to.
struct Queued<'a>(&'a Gauge);

impl<'a> Queued<'a> {
    fn new(gauge: &'a Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The seats of a request: for a list, and for a watch with initial events, by the objects it reads
/// (`list_work_estimator.go`).
fn seats(server: &Server, info: &RequestInfo, flow: &Flow<'_>) -> u32 {
    let q = &info.query;
    let revision = q.get("resourceVersion");
    let reads = match info.verb {
        "list" => true,
        "watch" => q.is_true("sendInitialEvents") || matches!(revision, "" | "0"),
        _ => false,
    };
    if !reads || q.get("fieldSelector").contains("metadata.name=") {
        return 1;
    }
    let t = &info.target;
    let group = t.group_version.as_ref().map_or("", |gv| gv.group.as_str());
    let stored = server.registry.store.snapshot().count(&registry::row::storage_name(group, &t.resource), None);
    let read = match q.get("limit").parse::<usize>() {
        Ok(limit) if limit > 0 && info.verb == "list" => limit.min(stored),
        _ => stored,
    };
    let seats = u32::try_from(read.div_ceil(OBJECTS_PER_SEAT)).unwrap_or(u32::MAX);
    seats.clamp(1, flow.schema.level.max_request_seats())
}
