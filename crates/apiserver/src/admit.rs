//! Connects the registry's admission hook to the plugin chain.

use crate::Server;
use crate::call::{Call, as_identity};
use crate::info::is_stream;
use crate::lookup::Stored;
use crate::server_kinds::{NAMESPACE_KIND, NAMESPACES, RESOURCE_QUOTAS};
use crate::webhooks::{MAX_ANSWER, own_path};
use crate::workers::await_remote;
use admission::{
    CallError, Event, Host, Lookup, MatchEvaluation, MatchOwner, PluginRun, PolicyDecision, Review, WebhookCall,
};
use async_trait::async_trait;
use auth::remote::refusal;
use auth::{Attributes, Caller, Endpoint, User};
use bytes::Bytes;
use http::Method;
use http::header::CONTENT_TYPE;
use http_body_util::{BodyExt, Limited};
use merge::typed::{self, TypeRef};
use meta::{Gvk, Gvr, MutatedBy, Object, Operation, Status, Value};
use parking_lot::Mutex;
use registry::{Admit, Charge, Request, Warnings, WriteOptions};
use serde_json::json;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use store::{Action, Expect, Key, Op};
use stored::encode;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::time::Instant;

/// Admission of one call.
pub struct Admission<'a> {
    pub(crate) server: &'a Arc<Server>,
    pub(crate) call: &'a Call,
    pub(crate) request: &'a Request,
    pub(crate) attributes: Arc<Attributes>,
    pub(crate) dry_run: bool,
    /// Number of loopback requests made.
    pub(crate) loopbacks: Arc<AtomicUsize>,
}

impl<'a> Admission<'a> {
    /// Admission of a write or connection, with these options.
    pub(crate) fn new(server: &'a Arc<Server>, call: &'a Call, request: &'a Request, options: &WriteOptions) -> Self {
        let attributes = call.attributes.clone();
        Self { server, call, request, attributes, dry_run: options.dry_run, loopbacks: Arc::default() }
    }
}

impl Admission<'_> {
    fn stored(&self) -> Stored<'_> {
        Stored { registry: &self.server.registry, decoded: &self.server.decoded }
    }

    /// `object_name`: see [`Self::object_name`].
    fn review<'a>(
        &'a self,
        operation: Operation,
        object_name: &'a str,
        old: Option<&'a Object>,
        lookup: &'a dyn Lookup,
    ) -> Review<'a> {
        let row = &self.request.resource;
        Review {
            operation,
            attributes: &self.attributes,
            kind: spoken(&row.kind, &self.request.subresource),
            subresource: &self.request.subresource,
            namespace: &self.request.namespace,
            name: &self.request.name,
            object_name,
            old,
            dry_run: self.dry_run,
            lookup,
            host: self,
        }
    }

    /// The name in rejections: of the request, or generated.
    fn object_name(&self, object: Option<&Object>) -> Cow<'_, str> {
        match object {
            Some(o) if self.request.name.is_empty() => Cow::Owned(o.name().to_owned()),
            _ => Cow::Borrowed(&self.request.name),
        }
    }
}

/// The user of loopback requests.
fn itself() -> User {
    User::new("system:apiserver", &["system:masters"])
}

/// Extension of a loopback request.
#[derive(Clone)]
struct SelfRequest {
    /// Depth: how many loopback requests led to this one.
    depth: u8,
    /// Number of loopback requests for the client's request, in total.
    loopbacks: Arc<AtomicUsize>,
}

/// Loopback requests for a client's request.
const MAX_LOOPBACKS: usize = 64;

/// The kinds of loopback calls: webhooks served by an API server behind this one, and namespace provisioning.
const DEEPEST: u8 = 2;

impl Admission<'_> {
    /// A webhook served by an API server behind this one.
    async fn call_itself(&self, path: &str, timeout: Duration, body: Vec<u8>) -> Result<Vec<u8>, CallError> {
        let what = format!("{path}?timeout={}s", timeout.as_secs());
        let request = http::Request::post(&what).header(CONTENT_TYPE, "application/json").body(body.into());
        let request = request.map_err(|e| CallError::NotSent(e.to_string()))?;
        let work = self.handle_itself(request);
        let late = |_| {
            let why = format!("Post \"https://kubernetes.default.svc:443{what}\": context deadline exceeded");
            CallError::Failed { code: None, why }
        };
        let done = tokio::time::timeout(timeout, work).await.map_err(late)?;
        let (code, body) = done.map_err(|why| CallError::Failed { code: None, why })?;
        if code.is_success() {
            return Ok(body.to_vec());
        }
        let status = serde_json::from_slice(&body).ok().as_ref().and_then(Status::from_value);
        let why = status.map_or_else(|| refusal(code, &body), |s| s.message);
        Err(CallError::Failed { code: Some(code.as_u16()), why })
    }

    /// Handles a loopback request in its own task and stack, up to a maximum depth: a webhook that matches its own
    /// calls would recurse forever. Errors if it is too deep.
    async fn handle_itself(&self, mut request: http::Request<Bytes>) -> Result<(http::StatusCode, Bytes), String> {
        let outer = self.call.parts.extensions.get().cloned();
        let SelfRequest { depth, loopbacks } =
            outer.unwrap_or_else(|| SelfRequest { depth: 0, loopbacks: self.loopbacks.clone() });
        if loopbacks.fetch_add(1, Ordering::Relaxed) >= MAX_LOOPBACKS {
            return Err(format!("one request may lead to {MAX_LOOPBACKS} requests of the server to itself only"));
        }
        if depth >= DEEPEST {
            return Err(format!(
                "requests of the server to itself may lead to {DEEPEST} others like them only: the webhook calls itself"
            ));
        }
        request.extensions_mut().insert(SelfRequest { depth: depth + 1, loopbacks });
        let server = self.server.clone();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move {
            let answer = server.handle(as_identity(request, itself())).await;
            let code = answer.status();
            let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
            body.map(|b| (code, b.to_bytes())).map_err(|e| e.to_string())
        });
        match tasks.join_next().await {
            Some(Ok(done)) => done,
            _ => Err("the server's request to itself failed".into()),
        }
    }
}

/// The kind that a resource or subresource accepts.
pub(crate) fn spoken(kind: &kinds::Kind, subresource: &str) -> Gvk {
    kind.subresource(subresource).and_then(|s| s.speaks.clone()).unwrap_or_else(|| kind.gvk())
}

#[async_trait]
impl Admit for Admission<'_> {
    fn warnings(&self) -> Option<&Warnings> {
        Some(&self.call.warnings)
    }

    async fn mutate(
        &self,
        operation: Operation,
        object: &mut Object,
        old: Option<&Object>,
    ) -> Result<MutatedBy, Status> {
        let stored = self.stored();
        let begun = Instant::now();
        let name = self.object_name(Some(object));
        let mutated = self.server.admission.mutate(&self.review(operation, &name, old, &stored), object).await;
        self.server.metrics.admitted("admit", operation, mutated.is_err(), begun.elapsed());
        mutated
    }

    async fn validate(
        &self,
        operation: Operation,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let stored = self.stored();
        let begun = Instant::now();
        let name = self.object_name(object);
        let valid = self.server.admission.validate(&self.review(operation, &name, old, &stored), object).await;
        self.server.metrics.admitted("validate", operation, valid.is_err(), begun.elapsed());
        valid
    }

    async fn charge(&self, operation: Operation, object: &Object, old: Option<&Object>) -> Result<Charge, Status> {
        let registry = &self.server.registry;
        let namespace = &self.request.namespace;
        if namespace.is_empty() {
            return Ok(Charge::default());
        }
        let none = registry.store.snapshot().count(RESOURCE_QUOTAS, Some(namespace)) == 0;
        if none && !self.server.admission.wants_quotas() {
            return Ok(Charge::default());
        }
        // Serialized: of several concurrent charges of a quota, only one could commit.
        let turn = if self.dry_run || none { None } else { Some(self.server.turns.take(namespace).await) };
        let stored = self.stored();
        let name = self.object_name(Some(object));
        let review = self.review(operation, &name, old, &stored);
        let mut ops = Vec::new();
        let mut write = |o: Object| {
            let revision = o.resource_version().parse().unwrap_or(0);
            let key = Key::new(RESOURCE_QUOTAS, o.namespace(), o.name());
            ops.push(Op { key, expect: Expect::Revision(revision), action: Action::Put(encode::encode(&o)) });
        };
        self.server.admission.charge(&review, object, &mut write)?;
        let turn = turn.filter(|_| !ops.is_empty());
        Ok(Charge { ops, turn: turn.map(|t| Box::new(t) as Box<dyn Send + Sync>) })
    }
}

/// The locks for charging the quotas of a namespace.
#[derive(Default)]
pub(crate) struct Turns(Mutex<HashMap<String, Arc<AsyncMutex<()>>>>);

/// Maximum number of cached namespace locks that are not in use.
const REMEMBERED: usize = 1_024;

impl Turns {
    async fn take(&self, namespace: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut all = self.0.lock();
            if all.len() > REMEMBERED {
                all.retain(|_, l| Arc::strong_count(l) > 1);
            }
            all.entry(namespace.to_owned()).or_default().clone()
        };
        lock.lock_owned().await
    }
}

#[async_trait]
impl Host for Admission<'_> {
    fn warn(&self, text: String) {
        self.call.warnings.push(text);
    }

    fn decide(&self, attributes: &Attributes) -> auth::Decision {
        self.server.authorizer.authorize(attributes)
    }

    fn uid(&self) -> String {
        meta::random::uuid(&*self.server.registry.rng)
    }

    fn options(&self) -> Value {
        // Connections have none.
        if is_stream(&self.request.subresource) {
            return Value::Null;
        }
        let query = &self.call.query;
        let (kind, texts): (_, &[&str]) = match self.call.parts.method {
            Method::POST => ("CreateOptions", &["fieldManager", "fieldValidation"]),
            Method::PUT => ("UpdateOptions", &["fieldManager", "fieldValidation"]),
            Method::PATCH => ("PatchOptions", &["fieldManager", "fieldValidation"]),
            _ => ("DeleteOptions", &["propagationPolicy"]),
        };
        let mut v = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
        if kind == "DeleteOptions" {
            // Unreadable objects cannot reach this point of a deletion.
            let sent = self.call.sent().map(|s| s.value);
            for (k, x) in sent.ok().as_ref().and_then(Value::as_object).into_iter().flatten() {
                if !matches!(k.as_str(), "kind" | "apiVersion") {
                    v[k] = x.clone();
                }
            }
            if let Ok(n) = query.get("gracePeriodSeconds").parse::<i64>() {
                v["gracePeriodSeconds"] = n.into();
            }
        }
        for k in texts.iter().filter(|k| !query.get(k).is_empty()) {
            v[*k] = query.get(k).into();
        }
        if kind == "PatchOptions" && query.has("force") {
            v["force"] = query.is_true("force").into();
        }
        if self.dry_run {
            v["dryRun"] = json!(["All"]);
        }
        v
    }

    fn equivalents(&self, resource: &Gvr, subresource: &str) -> Vec<(Gvr, Gvk)> {
        let rows = self.server.registry.rows();
        let Some((stored, _)) = rows.resource(resource).and_then(|r| r.stored()) else { return Vec::new() };
        let same = rows.iter().filter(|r| r.kind.gvr() != *resource && r.stored().is_some_and(|(s, _)| s == stored));
        let has = same.filter(|r| subresource.is_empty() || r.kind.subresource(subresource).is_some());
        has.map(|r| (r.kind.gvr(), spoken(&r.kind, subresource))).collect()
    }

    async fn convert(&self, object: Object, to: &Gvk) -> Result<Object, Status> {
        let registry = &self.server.registry;
        match registry.rows().kind(to) {
            Some(row) => registry.convert(row, object, to).await,
            None => Err(Status::internal(format!("unable to convert to {to}: unknown kind"))),
        }
    }

    fn read(&self, mut value: Value, kind: &Gvk) -> Result<Object, Status> {
        let rows = self.server.registry.rows();
        let row = rows.kind(kind);
        let schema = row.map(|r| &r.kind.schema).or_else(|| kinds::catalog().schema_of(kind));
        let schema = schema.ok_or_else(|| Status::internal(format!("{kind} has no schema")))?;
        schema::typed(&mut value, schema).map_err(Status::internal)?;
        schema::fill(&mut value, schema);
        let mut object = Object::from_value(value).ok_or_else(|| Status::internal("the document is no object"))?;
        object.set_gvk(kind);
        if let Some(row) = row {
            row.strategy.default(&mut object);
        }
        Ok(object)
    }

    fn merge(&self, live: &Value, part: &Value, kind: &Gvk) -> Result<Value, String> {
        let rows = self.server.registry.rows();
        let row = rows.kind(kind).ok_or_else(|| format!("{kind} has no schema"))?;
        let t = TypeRef::new(Some(&row.kind.schema));
        typed::validate(part, t).map_err(|e| format!("failed to convert patch object to typed object: {e}"))?;
        let whole = typed::atomics(part, t);
        if !whole.is_empty() {
            let why = format!("may not mutate atomic arrays, maps or structs: {}", whole.join(", "));
            return Err(format!("error applying patch: invalid ApplyConfiguration: {why}"));
        }
        Ok(typed::merge(live, part, t))
    }

    async fn post(
        &self,
        to: &Endpoint,
        caller: Option<&Arc<Caller>>,
        timeout: Duration,
        body: Vec<u8>,
    ) -> Result<Vec<u8>, CallError> {
        let begun = Instant::now();
        let answer = await_remote(async {
            match own_path(to) {
                Some(path) => self.call_itself(&path, timeout, body).await,
                None => self.server.webhooks.call(&self.server.registry, to, caller, timeout, body).await,
            }
        });
        let answer = answer.await.unwrap_or(Err(CallError::Busy));
        self.call.trace.spent_outside(begun.elapsed());
        answer
    }

    async fn create_namespace(&self, name: &str) -> Result<(), Status> {
        let body = json!({"kind": NAMESPACE_KIND, "apiVersion": "v1", "metadata": {"name": name}}).to_string();
        let request = http::Request::post(format!("/api/v1/{NAMESPACES}")).header(CONTENT_TYPE, "application/json");
        let request = request.body(body.into()).map_err(Status::internal)?;
        let (code, body) = self.handle_itself(request).await.map_err(Status::internal)?;
        if code.is_success() {
            return Ok(());
        }
        let body_value = serde_json::from_slice(&body).ok();
        Err(body_value
            .as_ref()
            .and_then(Status::from_value)
            .unwrap_or_else(|| Status::internal("no answer of the server's own")))
    }

    fn annotate(&self, key: &str, value: &dyn std::fmt::Display) {
        self.call.trace.annotate(key, value);
    }

    fn annotate_details(&self, key: &str, value: &dyn std::fmt::Display) {
        self.call.trace.annotate_details(key, value);
    }

    fn event(&self, event: &Event<'_>) {
        if !self.dry_run {
            crate::events::write(&self.server.registry, event);
        }
    }

    fn record_webhook_call(&self, loopbacks: &WebhookCall<'_>) {
        self.server.metrics.record_webhook_call(loopbacks);
    }

    fn record_exclusion(&self, owner: &MatchOwner, operation: Operation) {
        self.server.metrics.record_exclusion(owner, operation);
    }

    fn record_policy_decision(&self, decided: &PolicyDecision<'_>) {
        self.server.metrics.record_policy_decision(decided);
    }

    fn record_match_evaluation(&self, matched: &MatchEvaluation<'_>) {
        self.server.metrics.record_match_evaluation(matched);
    }

    fn record_plugin_run(&self, index: usize, run: &PluginRun) {
        self.server.metrics.record_plugin_run(index, run);
    }
}
