//! `/metrics`: upstream's metrics that operators alert on ([`table`]).
//!
//! Not implemented: local admission plugins (they take less time than reading the clock), and summaries.

mod series;
pub(crate) mod table;

pub(crate) use series::{AllSeries, Series};

use crate::Server;
use crate::health::VERSION;
use admission::{MatchEvaluation, MatchOwner, Outcome, PluginRun, PolicyDecision, WebhookCall};
use meta::Operation;
use metrics::{Counter, HealthChecks, Histogram, Set};
use registry::convert::Conversion;
use registry::{CommitObserver, Resource};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// In the order of [`Operation`].
const OPERATIONS: [&str; 4] = ["CREATE", "UPDATE", "DELETE", "CONNECT"];

/// Maximum number of plugins in a chain.
const PLUGINS: usize = 64;

/// The index of an operation in [`OPERATIONS`].
fn operation(o: admission::Operation) -> usize {
    match o {
        admission::Operation::Create => 0,
        admission::Operation::Update => 1,
        admission::Operation::Delete => 2,
        admission::Operation::Connect => 3,
    }
}

/// The metrics of a server.
pub struct Metrics {
    pub(crate) set: Arc<Set>,
    pub(crate) requests: AllSeries,
    authentication: [(Counter, Histogram); 3],
    authorization: [(Counter, Histogram); 3],
    users: [Counter; 3],
    steps: [OnceLock<Histogram>; 16],
    /// Sixteen for each index in the chain.
    plugins: Box<[OnceLock<Histogram>]>,
    pub(crate) handshakes: Counter,
    pub(crate) health: HealthChecks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Authentication {
    Success,
    Failure,
    Error,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Authorization {
    Allowed,
    Denied,
    NoOpinion,
}

impl Metrics {
    pub(crate) fn new() -> Arc<Self> {
        let set = Arc::new(Set::new(table::ALL).with_process());
        let platform = format!("{}/{}", std::env::consts::OS, crate::health::ARCHITECTURE);
        let build = [
            "1",
            "36",
            VERSION,
            env!("CARGO_PKG_VERSION"),
            "clean",
            "1970-01-01T00:00:00Z",
            "none",
            "rustc",
            &platform,
        ];
        set.gauge(&table::BUILD, &build).set(1);
        let authn =
            |r: &str| (set.counter(&table::AUTHENTICATIONS, &[r]), set.histogram(&table::AUTHENTICATION_SECONDS, &[r]));
        let authz =
            |r: &str| (set.counter(&table::AUTHORIZATIONS, &[r]), set.histogram(&table::AUTHORIZATION_SECONDS, &[r]));
        Arc::new(Self {
            requests: AllSeries::new(&set),
            authentication: ["success", "failure", "error"].map(authn),
            authorization: ["allowed", "denied", "no-opinion"].map(authz),
            users: ["admin", "email_id", "other"].map(|u| set.counter(&table::AUTHENTICATED, &[u])),
            steps: std::array::from_fn(|_| OnceLock::new()),
            plugins: (0..PLUGINS * 16).map(|_| OnceLock::new()).collect(),
            handshakes: set.counter(&table::HANDSHAKES, &[]),
            health: HealthChecks::default(),
            set,
        })
    }

    pub(crate) fn authenticated(&self, result: Authentication, user: Option<&str>, took: Duration) {
        let (n, seconds) = &self.authentication[result as usize];
        n.inc();
        seconds.observe(took.as_secs_f64());
        let Some(user) = user else { return };
        // User names must not be visible to everyone who may read metrics.
        let kind = match user {
            "admin" => 0,
            u if u.contains('@') => 1,
            _ => 2,
        };
        self.users[kind].inc();
    }

    /// Records the remaining lifetime, in seconds, of the certificate that authenticated a request.
    pub(crate) fn certified(&self, left: i64) {
        self.set.histogram(&table::CERTIFICATES, &[]).observe(left as f64);
    }

    pub(crate) fn authorized(&self, result: Authorization, took: Duration) {
        let (n, seconds) = &self.authorization[result as usize];
        n.inc();
        seconds.observe(took.as_secs_f64());
    }

    /// Records a run of all plugins.
    pub(crate) fn admitted(&self, step: &'static str, operation: Operation, rejected: bool, took: Duration) {
        let index = (operation as usize * 2 + usize::from(rejected)) * 2 + usize::from(step == "validate");
        let make = || {
            let labels = [step, OPERATIONS[operation as usize], if rejected { "true" } else { "false" }];
            self.set.histogram(&table::ADMISSION_STEPS, &labels)
        };
        self.steps[index].get_or_init(make).observe(took.as_secs_f64());
    }

    /// Records a run of a plugin.
    pub(crate) fn record_plugin_run(&self, index: usize, p: &PluginRun) {
        let operation = operation(p.operation);
        let at = (operation * 2 + usize::from(p.rejected)) * 2 + usize::from(p.validating);
        let make = || {
            let step = if p.validating { "validate" } else { "admit" };
            let labels = [p.plugin, step, OPERATIONS[operation], if p.rejected { "true" } else { "false" }];
            self.set.histogram(&table::ADMISSION_PLUGINS, &labels)
        };
        if let Some(kept) = self.plugins.get(index * 16 + at) {
            kept.get_or_init(make).observe(p.took.as_secs_f64());
        }
    }

    /// Records a call of a conversion webhook.
    pub(crate) fn converted(&self, c: &Conversion<'_>) {
        let (took, set) = (c.took.as_secs_f64(), &self.set);
        let (result, ok) = if c.failure.is_none() { ("success", "true") } else { ("failure", "false") };
        let labels = [result, c.failure.unwrap_or_default()];
        set.histogram(&table::CONVERSION_SECONDS, &[c.definition, c.from, c.to, ok]).observe(took);
        set.histogram(&table::CONVERSION_CALL_SECONDS, &labels).observe(took);
        set.counter(&table::CONVERSIONS, &labels).inc();
    }

    /// Records a call of a webhook, which takes much longer than looking up the series.
    pub(crate) fn record_webhook_call(&self, a: &WebhookCall<'_>) {
        let operation = OPERATIONS[operation(a.operation)];
        let kind = if a.mutating { "admit" } else { "validating" };
        let (code, error) = match a.outcome {
            Outcome::Allowed => (200, ""),
            Outcome::Refused(code) => (code.min(600), "no_error"),
            Outcome::Failed { code, .. } => (code.min(600), "calling_webhook_error"),
            Outcome::Unfit => (0, "apiserver_internal_error"),
        };
        let passes = matches!(a.outcome, Outcome::Allowed | Outcome::Failed { open: true, .. });
        let rejected = if passes { "false" } else { "true" };
        let code = code.to_string();
        let set = &self.set;
        let seconds = set.histogram(&table::WEBHOOK_SECONDS_BY_NAME, &[a.hook, kind, operation, rejected]);
        seconds.observe(a.took.as_secs_f64());
        set.counter(&table::WEBHOOK_REQUESTS, &[a.hook, kind, operation, &code, rejected]).inc();
        if matches!(a.outcome, Outcome::Failed { open: true, .. }) {
            set.counter(&table::WEBHOOK_FAIL_OPEN, &[a.hook, kind]).inc();
        } else if !passes {
            set.counter(&table::WEBHOOK_REJECTIONS, &[a.hook, kind, operation, error, &code]).inc();
        }
    }

    /// Records the decision of a policy.
    pub(crate) fn record_policy_decision(&self, d: &PolicyDecision<'_>) {
        let (rows, labels) = match d.action {
            Some(action) => (&table::POLICY_CHECKS, vec![d.policy, d.binding, d.error, action]),
            None => (&table::MUTATION_CHECKS, vec![d.policy, d.binding, d.error]),
        };
        self.set.counter(&rows.0, &labels).inc();
        self.set.histogram(&rows.1, &labels).observe(d.took.as_secs_f64());
    }

    /// Records an evaluation of match conditions.
    pub(crate) fn record_match_evaluation(&self, m: &MatchEvaluation<'_>) {
        let labels = [m.owner.name.as_str(), m.owner.kind, m.owner.when, m.operation.as_str()];
        self.set.histogram(&table::CONDITION_SECONDS, &labels).observe(m.took.as_secs_f64());
        if m.errors > 0 {
            self.set.counter(&table::CONDITION_ERRORS, &labels).inc_by(m.errors as u64);
        }
    }

    /// Records that match conditions exclude a request.
    pub(crate) fn record_exclusion(&self, owner: &MatchOwner, operation: admission::Operation) {
        let labels = [owner.name.as_str(), owner.kind, owner.when, operation.as_str()];
        self.set.counter(&table::CONDITION_EXCLUSIONS, &labels).inc();
    }

    /// All metrics, including those computed on reads.
    pub(crate) fn text(&self, server: &Server) -> String {
        let set = &self.set;
        let store = &server.registry.store;
        let stats = store.stats();
        set.gauge(&table::REVISION, &[]).set(store.revision().cast_signed());
        set.gauge(&table::TRANSACTIONS, &[]).set(stats.transactions.cast_signed());
        set.gauge(&table::SYNCS, &[]).set(stats.batches.cast_signed());
        set.gauge(&table::STORAGE_SIZE, &["0"]).set(stats.usage.file.cast_signed());
        for (kind, flight) in [("readOnly", &server.reading), ("mutating", &server.mutating)] {
            set.gauge(&table::IN_FLIGHT, &[kind]).set(i64::try_from(flight.take_peak()).unwrap_or(i64::MAX));
        }
        server.flow.note(set);
        set.reset(&table::RESOURCE_OBJECTS);
        set.reset(&table::STORAGE_OBJECTS);
        let snapshot = store.snapshot();
        for r in snapshot.resources().filter(|r| !registry::is_internal(r)) {
            let (group, resource) = r.rsplit_once('/').unwrap_or(("", r));
            let n = i64::try_from(snapshot.count(r, None)).unwrap_or(i64::MAX);
            set.gauge(&table::RESOURCE_OBJECTS, &[group, resource]).set(n);
            let dotted = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
            set.gauge(&table::STORAGE_OBJECTS, &[&dotted]).set(n);
        }
        for s in server.registry.supervisor.statuses() {
            set.gauge(&table::SERVICE_UP, &[s.component, s.name]).set(s.is_healthy().into());
            let restarts = set.counter(&table::SERVICE_RESTARTS, &[s.component, s.name]);
            restarts.inc_by(s.restarts.saturating_sub(restarts.get()));
        }
        set.text() + &client::metrics::text() + &metrics::published()
    }
}

impl CommitObserver for Metrics {
    fn committed(&self, row: &Arc<Resource>, operation: &'static str, took: Duration, ok: bool) {
        self.requests.of_resource(row, "").committed(operation, took, ok);
    }
}
