//! The HTTP API: one stack of filters, one file per verb, and documents derived from the resource rows.
//!
//! A request passes through [`Server::handle`]: authentication, authorization, lookup of the row, then the verb.
//! Requests from sockets and from components in the same process enter at the same point. Invariant: this crate names
//! no kind.

pub mod admit;
pub mod aggregate;
mod answer;
pub mod audit;
mod authenticate;
mod authorize;
pub mod body;
mod budget;
mod call;
mod compress;
mod connect;
mod content;
mod deadline;
pub mod decision;
mod dialer;
pub mod discovery;
mod documents;
mod elsewhere;
mod encoded;
mod events;
mod filters;
pub mod flow;
mod gzip;
mod handle;
mod header_text;
mod health;
mod ids;
mod impersonate;
mod inflight;
mod info;
mod joined;
mod lifecycle;
pub mod listen;
mod listing;
mod lookup;
mod metrics;
mod openapi;
mod options;
mod order;
mod path;
mod placement;
mod proxy;
mod request_body;
pub mod scraper;
mod server_kinds;
mod services;
mod table;
mod trace;
mod verbs;
mod webhooks;
pub mod workers;
mod zpages;

pub use self::metrics::Metrics;
pub use authenticate::bootstrap_token::BootstrapTokens;
pub use authenticate::{
    Anonymous, AnyCertificate, Authenticators, Certificates, FrontProxy, Identity, Peer, PeerError,
};
pub use body::{Body, CutOff};
pub use call::as_identity;
pub use connect::{ConnectError, NodeConnector};
pub use deadline::duration;
pub use decision::{DecisionReport, DecisionSource};
pub use dialer::NodeDialer;
pub use health::VERSION;
pub use options::Options;

use parking_lot::RwLock;
use registry::Registry;
use std::sync::Arc;
use supervisor::Shutdown;
use tokio::runtime::Handle;

/// The state shared by all requests.
pub struct Server {
    pub registry: Arc<Registry>,
    pub authenticators: Authenticators,
    pub authorizer: Arc<dyn auth::Authorizer>,
    pub admission: admission::Chain,
    pub connector: RwLock<Option<Arc<dyn NodeConnector>>>,
    /// Explains the decisions of a component of this process.
    pub decisions: RwLock<Option<Arc<dyn DecisionSource>>>,
    pub readiness: health::Readiness,
    pub start_steps: health::StartSteps,
    pub options: Options,
    /// When the server started.
    pub(crate) started: jiff::Timestamp,
    pub metrics: Arc<Metrics>,
    pub(crate) ids: ids::Ids,
    pub(crate) auditor: Option<Arc<audit::Auditor>>,
    pub(crate) lifecycle: lifecycle::Lifecycle,
    /// The last impersonation mode of each caller.
    pub(crate) last_modes: impersonate::LastModes,
    pub(crate) reading: Arc<inflight::InFlight>,
    pub(crate) mutating: Arc<inflight::InFlight>,
    pub(crate) aggregator: aggregate::Aggregator,
    pub(crate) flow: flow::FlowControl,
    pub(crate) documents: documents::Documents,
    pub(crate) decoded: lookup::Decoded,
    pub(crate) webhooks: Arc<webhooks::Clients>,
    pub(crate) turns: admit::Turns,
    pub(crate) workers: workers::Workers,
    pub(crate) connections: Arc<listen::Table>,
    /// Budget for request bodies.
    pub(crate) bodies: budget::Budget,
    /// Budget for large heads of unauthenticated requests.
    pub(crate) heads: budget::Budget,
    /// Budget for large responses.
    pub(crate) answers: budget::Budget,
    /// Budget for slow watches.
    pub(crate) watches: budget::Budget,
    pub(crate) encoded: encoded::Encoded,
}

impl Server {
    pub fn new(
        registry: Arc<Registry>,
        authenticators: Authenticators,
        authorizer: Arc<dyn auth::Authorizer>,
        admission: admission::Chain,
    ) -> Arc<Self> {
        Self::with(registry, authenticators, authorizer, admission, Options::default())
    }

    pub fn with(
        registry: Arc<Registry>,
        authenticators: Authenticators,
        authorizer: Arc<dyn auth::Authorizer>,
        admission: admission::Chain,
        mut options: Options,
    ) -> Arc<Self> {
        let metrics = Metrics::new();
        // The first of several servers that share a registry records its metrics.
        let _ = registry.commit_observer.set(metrics.clone());
        let services = Arc::new(services::Services::default());
        let webhooks = Arc::new(webhooks::Clients::new(metrics.clone(), services.clone(), options.endpoints));
        let _ = registry.webhooks.set(webhooks.clone());
        let audit = options.audit.take();
        let workers = workers::Workers::new(options.workers.take(), options.request_timeout);
        let governed = options.priority_and_fairness;
        let auditor = audit.map(|a| {
            // Ends with the process: the last events are those of the shutdown.
            let component = registry.supervisor.component("audit", &Shutdown::never(), &Handle::current());
            audit::Auditor::new(a, registry.clock.clone(), metrics.clone(), &component)
        });
        Arc::new(Self {
            started: registry.clock.now(),
            ids: ids::Ids::new(&*registry.rng),
            registry,
            authenticators,
            authorizer,
            admission,
            connector: RwLock::new(None),
            decisions: RwLock::new(None),
            readiness: health::Readiness::default(),
            start_steps: health::StartSteps::default(),
            auditor,
            lifecycle: lifecycle::Lifecycle::default(),
            last_modes: impersonate::LastModes::default(),
            reading: inflight::InFlight::new(if governed { 0 } else { options.max_requests_in_flight }),
            mutating: inflight::InFlight::new(if governed { 0 } else { options.max_mutating_requests_in_flight }),
            aggregator: aggregate::Aggregator::new(options.proxy_client.take(), services, options.endpoints),
            flow: flow::FlowControl::new(&options, &metrics),
            connections: listen::Table::new(options.max_connections),
            answers: budget::Budget::new(answer::TOTAL, answer::PER_USER),
            watches: budget::Budget::new(answer::TOTAL / 2, answer::PER_USER / 2),
            encoded: encoded::Encoded::default(),
            bodies: budget::Budget::new(request_body::TOTAL, request_body::PER_USER),
            heads: budget::Budget::new(request_body::HEADS, request_body::HEADS_PER_ADDRESS),
            metrics,
            options,
            documents: documents::Documents::default(),
            decoded: lookup::Decoded::default(),
            webhooks,
            turns: admit::Turns::default(),
            workers,
        })
    }

    /// Starts the shutdown delay: the server is no longer ready, but still serves.
    pub fn leave(&self) {
        self.lifecycle.leave();
    }

    /// The number of requests, or parts of requests, sent to worker threads ([`workers`]).
    pub fn sent_to_workers(&self) -> u64 {
        self.workers.count()
    }

    /// Waits until all audit events have been delivered or dropped.
    pub async fn flush_audit(&self) {
        if let Some(auditor) = &self.auditor {
            auditor.flush().await;
        }
    }

    /// Shuts down: rejects new requests, and ends watches as if timed out.
    pub fn end(&self) {
        self.lifecycle.drain();
        self.workers.end();
    }
}
