//! The audit log: records requests and responses (`k8s.io/apiserver/pkg/audit`).
//!
//! A filter around all others: it reads the request before and the response after them, and no verb depends on it.
//! Events are created before the response is sent; the [`backend`] decides when to deliver them.

mod backend;
mod event;
mod log;
mod policy;

pub use backend::{Batch, Limits, Mode, Sink, Webhook};
pub use log::{Log, Rotation};
pub use policy::{Error, Policy};

use crate::Body;
use crate::metrics::Metrics;
use crate::metrics::table::{AUDIT_ERRORS, AUDIT_EVENTS, AUDIT_LEVELS};
use auth::{Attributes, User};
use backend::{Backend, Lost};
use bytes::Bytes;
use event::{AuditUser, AuthenticationMetadata, Event};
use http::Response;
use http::header::AUTHORIZATION;
use http::request::Parts;
use meta::Clock;
use metrics::Counter;
use parking_lot::Mutex;
use policy::{Level, RequestAuditConfig, Stage};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use stored::in_place;
use supervisor::Component;

/// The client's address. A request extension that only the socket sets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address(pub IpAddr);

/// What to record, and where.
pub struct Audit {
    pub policy: Policy,
    pub to: Vec<AuditBackend>,
}

/// A backend with its mode and limits.
pub struct AuditBackend {
    pub sink: Sink,
    pub mode: Mode,
    /// None: events are not truncated.
    pub limits: Option<Limits>,
}

/// The audit filter.
pub(crate) struct Auditor {
    policy: Policy,
    backends: Vec<Backend>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    events: Counter,
    levels: [OnceLock<Counter>; 4],
}

/// The audit state of one request.
pub(crate) struct Record {
    auditor: Arc<Auditor>,
    /// The authenticated user.
    pub user: Box<str>,
    audit_config: RequestAuditConfig,
    event: Mutex<Event>,
    /// Events to deliver before the response, by backend.
    due: Mutex<Vec<(usize, Bytes)>>,
}

impl Auditor {
    pub fn new(audit: Audit, clock: Arc<dyn Clock>, metrics: Arc<Metrics>, component: &Component) -> Arc<Self> {
        let events = metrics.set.counter(&AUDIT_EVENTS, &[]);
        let levels = std::array::from_fn(|_| OnceLock::new());
        let errors = metrics.clone();
        let lost: Lost = Arc::new(move |plugin, count, why| {
            errors.set.counter(&AUDIT_ERRORS, &[plugin]).inc_by(count as u64);
            tracing::error!("{count} audit events are lost, {plugin}: {why}");
        });
        let start = |p: AuditBackend| Backend::start(p.sink, p.mode, p.limits, lost.clone(), component);
        let backends = audit.to.into_iter().map(start).collect();
        Arc::new(Self { policy: audit.policy, backends, clock, metrics, events, levels })
    }

    /// None if the policy omits the request.
    pub fn begin(self: &Arc<Self>, id: &str, parts: &Parts, a: &Attributes) -> Option<Record> {
        let audit_config = self.policy.evaluate(a);
        let level = audit_config.level;
        let count = || self.metrics.set.counter(&AUDIT_LEVELS, &[level.as_str()]);
        self.levels[level as usize].get_or_init(count).inc();
        if level == Level::None {
            return None;
        }
        let peer = parts.extensions.get::<Address>().map(|p| p.0);
        let event = Event::new(level, id, self.now(), parts, a, peer);
        Some(Record {
            auditor: self.clone(),
            user: a.user.name.as_str().into(),
            audit_config: audit_config.clone(),
            event: Mutex::new(event),
            due: Mutex::default(),
        })
    }

    /// Waits until all events so far have been delivered or dropped.
    pub async fn flush(&self) {
        for b in &self.backends {
            b.flush().await;
        }
    }

    /// Records that authentication failed.
    pub async fn unauthenticated(self: &Arc<Self>, id: &str, parts: &Parts, a: &Attributes) {
        let Some(record) = self.begin(id, parts, a) else { return };
        let bearer =
            parts.headers.get(AUTHORIZATION).is_some_and(|v| v.as_bytes().to_ascii_lowercase().starts_with(b"bearer "));
        let how = if bearer {
            "Authentication failed, attempted: bearer"
        } else {
            "Authentication failed, no credentials provided"
        };
        record.event.lock().response_status = Some(serde_json::json!({"metadata": {}, "message": how, "code": 401}));
        record.write(Stage::ResponseStarted);
        record.settle().await;
    }

    fn now(&self) -> String {
        meta::time::format_micro(self.clock.now())
    }
}

impl Record {
    pub fn received(&self) {
        self.write(Stage::RequestReceived);
    }

    /// Records impersonation, with or without a constraint.
    pub fn impersonates(&self, user: &User, constraint: Option<String>) {
        let mut event = self.event.lock();
        event.impersonated_user = Some(AuditUser::from(user));
        event.authentication_metadata =
            constraint.map(|impersonation_constraint| AuthenticationMetadata { impersonation_constraint });
    }

    /// Adds an annotation from a plugin or authorizer. The first value of a key is kept.
    pub fn annotate(&self, key: &str, value: &str) {
        self.event.lock().annotations.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }

    pub fn has_objects(&self) -> bool {
        self.audit_config.level >= Level::Request
    }

    /// Records the request body.
    pub fn request(&self, verb: &str, media: &str, body: &Bytes) {
        if body.is_empty() {
            return;
        }
        let named = matches!(verb, "create" | "update");
        let whole = self.audit_config.level >= Level::Request;
        if !named && !whole {
            return;
        }
        in_place::run(in_place::Lane::Audit, body.len(), || {
            let Some(v) = event::read(media, body) else { return };
            let mut e = self.event.lock();
            if named {
                e.name_object(&v);
            }
            if whole {
                // A patch is recorded unchanged.
                e.request_object = event::raw(v, self.audit_config.omit_managed_fields && verb != "patch");
            }
        });
    }

    /// Records the response. Includes the object if the policy says so.
    pub fn response(&self, verb: &str, resource: bool, response: &Response<Body>) {
        in_place::run(in_place::Lane::Audit, size_of(response), || self.read_response(verb, resource, response));
    }

    fn read_response(&self, verb: &str, resource: bool, response: &Response<Body>) {
        let code = response.status().as_u16();
        let whole = resource && self.audit_config.level >= Level::RequestResponse;
        let object = if whole || code >= 400 || verb == "delete" { event::answer(response) } else { None };
        let mut e = self.event.lock();
        e.response_status = Some(event::status(code, object.as_ref()));
        if whole && let Some(v) = object {
            e.response_object = event::raw(v, self.audit_config.omit_managed_fields);
        }
    }

    pub fn started(&self) {
        self.write(Stage::ResponseStarted);
    }

    pub fn complete(&self) {
        self.write(Stage::ResponseComplete);
    }

    /// Whether events must be delivered before the response.
    pub fn is_due(&self) -> bool {
        !self.due.lock().is_empty()
    }

    /// Delivers pending events. Returns false if an event was lost in blocking-strict mode.
    pub async fn settle(&self) -> bool {
        let due = std::mem::take(&mut *self.due.lock());
        let mut kept = true;
        for (to, event) in due {
            let backend = &self.auditor.backends[to];
            kept &= backend.deliver(event).await || !backend.is_strict();
        }
        kept
    }

    fn write(&self, stage: Stage) {
        if self.audit_config.omit.contains(&stage) {
            return;
        }
        let mut e = self.event.lock();
        e.stage = stage.as_str();
        if stage != Stage::RequestReceived {
            e.stage_timestamp = self.auditor.now();
        }
        let line: Bytes = e.line().into();
        self.auditor.events.inc();
        for (to, backend) in self.auditor.backends.iter().enumerate() {
            let whole = self.audit_config.level >= Level::Request;
            let cut = || if whole { e.line_without_objects().into() } else { line.clone() };
            let Some(fitting) = backend.fitting(&line, cut) else { continue };
            if let Err(event) = backend.take(fitting) {
                self.due.lock().push((to, event));
            }
        }
    }
}

/// The bytes of a response that are known before it is sent.
pub(crate) fn size_of(response: &Response<Body>) -> usize {
    usize::try_from(http_body::Body::size_hint(response.body()).lower()).unwrap_or(usize::MAX)
}
