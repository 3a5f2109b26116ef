//! The audit log: who asked for what, when, and what came of it (`k8s.io/apiserver/pkg/audit`).
//!
//! A filter around everything: it reads the request as it came and the answer as it goes, and no verb knows of it. An event is
//! written before the answer is sent. Left out: sending events to a webhook, and cutting off large ones.

mod event;
mod log;
mod policy;

pub use log::{Log, Rotation};
pub use policy::{Error, Policy};

use crate::Body;
use crate::metrics::Metrics;
use crate::metrics::table::{AUDIT_ERRORS, AUDIT_EVENTS, AUDIT_LEVELS};
use auth::{Attributes, User};
use bytes::Bytes;
use event::{Event, Who};
use http::Response;
use http::header::AUTHORIZATION;
use http::request::Parts;
use meta::Clock;
use metrics::Counter;
use parking_lot::Mutex;
use policy::{Level, Stage, Verdict};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

/// Where a request came from. A request extension that only the socket sets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address(pub IpAddr);

/// What is written down, and where.
pub struct Audit {
    pub policy: Policy,
    pub log: Log,
}

/// What writes down.
pub(crate) struct Auditor {
    audit: Audit,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    events: Counter,
    levels: [OnceLock<Counter>; 4],
}

/// What is written down of one request.
pub(crate) struct Record {
    auditor: Arc<Auditor>,
    verdict: Verdict,
    event: Mutex<Event>,
}

impl Auditor {
    pub fn new(audit: Audit, clock: Arc<dyn Clock>, metrics: Arc<Metrics>) -> Arc<Self> {
        let events = metrics.set.counter(&AUDIT_EVENTS, &[]);
        let levels = std::array::from_fn(|_| OnceLock::new());
        Arc::new(Self { audit, clock, metrics, events, levels })
    }

    /// None for a request of which nothing is written down.
    pub fn begin(self: &Arc<Self>, id: &str, parts: &Parts, a: &Attributes) -> Option<Record> {
        let verdict = self.audit.policy.verdict(a);
        let level = verdict.level;
        let count = || self.metrics.set.counter(&AUDIT_LEVELS, &[level.as_str()]);
        self.levels[level as usize].get_or_init(count).inc();
        if level == Level::None {
            return None;
        }
        let peer = parts.extensions.get::<Address>().map(|p| p.0);
        let event = Event::new(level, id, self.now(), parts, a, peer);
        Some(Record { auditor: self.clone(), verdict: verdict.clone(), event: Mutex::new(event) })
    }

    /// Nobody knows who asked.
    pub fn unauthenticated(self: &Arc<Self>, id: &str, parts: &Parts, a: &Attributes) {
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
    }

    fn now(&self) -> String {
        meta::time::format_micro(self.clock.now())
    }
}

impl Record {
    pub fn received(&self) {
        self.write(Stage::RequestReceived);
    }

    /// The caller acts as somebody else.
    pub fn impersonates(&self, user: &User) {
        self.event.lock().impersonated_user = Some(Who::from(user));
    }

    /// A fact that plugins and authorizers tell. The first word on it stands.
    pub fn annotate(&self, key: &str, value: &str) {
        self.event.lock().annotations.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }

    /// What was sent.
    pub fn request(&self, verb: &str, media: &str, body: &Bytes) {
        if body.is_empty() {
            return;
        }
        let named = matches!(verb, "create" | "update");
        let whole = self.verdict.level >= Level::Request;
        if !named && !whole {
            return;
        }
        let Some(v) = event::read(media, body) else { return };
        let mut e = self.event.lock();
        if named {
            e.name_object(&v);
        }
        if whole {
            // A patch is written as it came.
            e.request_object = event::raw(v, self.verdict.omit_managed_fields && verb != "patch");
        }
    }

    /// What is answered. A resource's answer is written whole where the policy says so.
    pub fn response(&self, verb: &str, resource: bool, response: &Response<Body>) {
        let code = response.status().as_u16();
        let whole = resource && self.verdict.level >= Level::RequestResponse;
        let said = if whole || code >= 400 || verb == "delete" { event::answer(response) } else { None };
        let mut e = self.event.lock();
        e.response_status = Some(event::status(code, said.as_ref()));
        if whole && let Some(v) = said {
            e.response_object = event::raw(v, self.verdict.omit_managed_fields);
        }
    }

    pub fn started(&self) {
        self.write(Stage::ResponseStarted);
    }

    pub fn complete(&self) {
        self.write(Stage::ResponseComplete);
    }

    fn write(&self, stage: Stage) {
        if self.verdict.omit.contains(&stage) {
            return;
        }
        let mut e = self.event.lock();
        e.stage = stage.as_str();
        if stage != Stage::RequestReceived {
            e.stage_timestamp = self.auditor.now();
        }
        let line = e.line();
        drop(e);
        self.auditor.events.inc();
        if let Err(e) = self.auditor.audit.log.write(&line) {
            self.auditor.metrics.set.counter(&AUDIT_ERRORS, &["log"]).inc();
            tracing::error!("writing the audit log: {e}");
        }
    }
}
