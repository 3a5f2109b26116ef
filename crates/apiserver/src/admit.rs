//! Between the registry's admission hook and the chain of plugins.

use crate::Server;
use crate::aside::{self, Line};
use crate::handle::{Call, as_identity};
use crate::webhooks::{MAX_ANSWER, own_path};
use admission::{
    Asked, Decided, Event, Found, Host, Labels, Lookup, Matching, Passed, Review, Unanswered, Which, Whose,
};
use async_trait::async_trait;
use auth::remote::refusal;
use auth::{Attributes, Caller, Endpoint, User};
use bytes::Bytes;
use http::Method;
use http::header::CONTENT_TYPE;
use http_body_util::{BodyExt, Limited};
use merge::typed::{self, TypeRef};
use meta::{Gvk, Gvr, LabelSelector, Object, Status, Value};
use parking_lot::Mutex;
use registry::encode::Unreadable;
use registry::{Admit, Charge, Mutated, Operation, Registry, Request, amount, encode};
use serde_json::json;
use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use store::{Action, Entry, Expect, Key, Op};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::time::Instant;

/// Admission of one call.
pub struct Admission<'a> {
    pub(crate) server: &'a Arc<Server>,
    pub(crate) call: &'a Call,
    pub(crate) request: &'a Request,
    pub(crate) attributes: Attributes,
    pub(crate) dry_run: bool,
    /// How many requests to itself were made.
    pub(crate) asked: Arc<AtomicUsize>,
}

impl Admission<'_> {
    fn stored(&self) -> Stored<'_> {
        Stored { registry: &self.server.registry, decoded: &self.server.decoded }
    }

    /// `object_name`: what the object is called, see [`Self::object_name`].
    fn review<'a>(
        &'a self,
        operation: Operation,
        object_name: &'a str,
        old: Option<&'a Object>,
        lookup: &'a dyn Lookup,
    ) -> Review<'a> {
        let row = &self.request.resource;
        Review {
            operation: match operation {
                Operation::Create => admission::Operation::Create,
                Operation::Update => admission::Operation::Update,
                Operation::Delete => admission::Operation::Delete,
                Operation::Connect => admission::Operation::Connect,
            },
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

    /// The name that refusals tell: that of the request, or the one that was generated.
    fn object_name(&self, object: Option<&Object>) -> Cow<'_, str> {
        match object {
            Some(o) if self.request.name.is_empty() => Cow::Owned(o.name().to_owned()),
            _ => Cow::Borrowed(&self.request.name),
        }
    }
}

/// As whom the server asks itself.
fn itself() -> User {
    User::new("system:apiserver", &["system:masters"])
}

/// Of a request of the server to itself.
#[derive(Clone)]
struct Within {
    /// How many of them led to this one.
    depth: u8,
    /// How many were made for the request of the client, this one and all others.
    asked: Arc<AtomicUsize>,
}

/// Requests to itself for one of a client.
const MOST_ASKED: usize = 64;

/// A webhook that an API server behind this one serves, called for a namespace that is provisioned.
const DEEPEST: u8 = 2;

impl Admission<'_> {
    /// A webhook that an API server behind this one serves.
    async fn ask_itself(&self, path: &str, timeout: Duration, body: Vec<u8>) -> Result<Vec<u8>, Unanswered> {
        let what = format!("{path}?timeout={}s", timeout.as_secs());
        let request = http::Request::post(&what).header(CONTENT_TYPE, "application/json").body(body.into());
        let request = request.map_err(|e| Unanswered::Unasked(e.to_string()))?;
        let work = self.handle_itself(request);
        let late = |_| {
            let why = format!("Post \"https://kubernetes.default.svc:443{what}\": context deadline exceeded");
            Unanswered::Asked { code: None, why }
        };
        let done = tokio::time::timeout(timeout, work).await.map_err(late)?;
        let (code, body) = done.map_err(|why| Unanswered::Asked { code: None, why })?;
        if code.is_success() {
            return Ok(body.to_vec());
        }
        let said = serde_json::from_slice(&body).ok().as_ref().and_then(Status::from_value);
        let why = said.map_or_else(|| refusal(code, &body), |s| s.message);
        Err(Unanswered::Asked { code: Some(code.as_u16()), why })
    }

    /// Handles a request of the server itself. It has a task, and so a stack, of its own, and may lead to others like it only so often:
    /// a webhook that matches the calls of itself would never end. Errors if it goes too deep.
    async fn handle_itself(&self, mut request: http::Request<Bytes>) -> Result<(http::StatusCode, Bytes), String> {
        let outer = self.call.parts.extensions.get().cloned();
        let Within { depth, asked } = outer.unwrap_or_else(|| Within { depth: 0, asked: self.asked.clone() });
        if asked.fetch_add(1, Ordering::Relaxed) >= MOST_ASKED {
            return Err(format!("one request may lead to {MOST_ASKED} requests of the server to itself only"));
        }
        if depth >= DEEPEST {
            return Err(format!(
                "requests of the server to itself may lead to {DEEPEST} others like them only: the webhook calls itself"
            ));
        }
        request.extensions_mut().insert(Within { depth: depth + 1, asked });
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

/// The kind that a resource or its subresource speaks.
pub(crate) fn spoken(kind: &kinds::Kind, subresource: &str) -> Gvk {
    kind.subresource(subresource).and_then(|s| s.speaks.clone()).unwrap_or_else(|| kind.gvk())
}

#[async_trait]
impl Admit for Admission<'_> {
    async fn mutate(&self, operation: Operation, object: &mut Object, old: Option<&Object>) -> Result<Mutated, Status> {
        let stored = self.stored();
        let begun = Instant::now();
        let name = self.object_name(Some(object));
        let mutated = self.server.admission.mutate(&self.review(operation, &name, old, &stored), object).await;
        self.server.metrics.admitted("admit", operation, mutated.is_err(), begun.elapsed());
        Ok(match mutated? {
            admission::Mutated::Inside => Mutated::Inside,
            admission::Mutated::Outside => Mutated::Outside,
        })
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
        let none = registry.store.snapshot().count(QUOTAS, Some(namespace)) == 0;
        if none && !self.server.admission.wants_quotas() {
            return Ok(Charge::default());
        }
        // One after the other: of several that charge the same quota at once only one could win.
        let turn = if self.dry_run || none { None } else { Some(self.server.turns.take(namespace).await) };
        let stored = self.stored();
        let name = self.object_name(Some(object));
        let review = self.review(operation, &name, old, &stored);
        let mut ops = Vec::new();
        let mut write = |o: Object| {
            let revision = o.resource_version().parse().unwrap_or(0);
            let key = Key::new(QUOTAS, o.namespace(), o.name());
            ops.push(Op { key, expect: Expect::Revision(revision), action: Action::Put(encode::encode(&o)) });
        };
        self.server.admission.charge(&review, object, &mut write)?;
        let turn = turn.filter(|_| !ops.is_empty());
        Ok(Charge { ops, turn: turn.map(|t| Box::new(t) as Box<dyn Send + Sync>) })
    }
}

/// The storage name of what is charged.
const QUOTAS: &str = "resourcequotas";

/// Whose turn it is to charge the quotas of a namespace.
#[derive(Default)]
pub(crate) struct Turns(Mutex<HashMap<String, Arc<AsyncMutex<()>>>>);

/// Namespaces are remembered up to so many, while nobody waits.
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
        self.request.warn(text);
    }

    fn decide(&self, attributes: &Attributes) -> auth::Decision {
        self.server.authorizer.authorize(attributes)
    }

    fn uid(&self) -> String {
        meta::random::uuid(&*self.server.registry.rng)
    }

    fn options(&self) -> Value {
        // Connections have none.
        if crate::verbs::is_stream(&self.request.subresource) {
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
            // It was read before, or the deletion would not have come so far.
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
    ) -> Result<Vec<u8>, Unanswered> {
        let begun = Instant::now();
        let answer = aside::outside(async {
            match own_path(to) {
                Some(path) => self.ask_itself(&path, timeout, body).await,
                None => self.server.webhooks.ask(&self.server.registry, to, caller, timeout, body).await,
            }
        });
        let answer = answer.await.unwrap_or(Err(Unanswered::Busy));
        self.call.trace.spent_outside(begun.elapsed());
        answer
    }

    async fn create_namespace(&self, name: &str) -> Result<(), Status> {
        let body = json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}}).to_string();
        let request = http::Request::post("/api/v1/namespaces").header(CONTENT_TYPE, "application/json");
        let request = request.body(body.into()).map_err(Status::internal)?;
        let (code, body) = self.handle_itself(request).await.map_err(Status::internal)?;
        if code.is_success() {
            return Ok(());
        }
        let said = serde_json::from_slice(&body).ok();
        Err(said
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

    fn asked(&self, asked: &Asked<'_>) {
        self.server.metrics.asked(asked);
    }

    fn excluded(&self, whose: &Whose, operation: admission::Operation) {
        self.server.metrics.excluded(whose, operation);
    }

    fn decided(&self, decided: &Decided<'_>) {
        self.server.metrics.decided(decided);
    }

    fn matched(&self, matched: &Matching<'_>) {
        self.server.metrics.matched(matched);
    }

    fn passed(&self, place: usize, passed: &Passed) {
        self.server.metrics.passed(place, passed);
    }
}

/// What plugins look up: the newest stored objects.
pub struct Stored<'a> {
    pub registry: &'a Registry,
    pub decoded: &'a Decoded,
}

/// Objects as they were read at a revision: namespaces, service accounts and classes seldom change, and each create asks for
/// them.
#[derive(Default)]
pub struct Decoded(Mutex<HashMap<Key, (u64, Arc<Object>)>>);

/// Beyond this many, all are forgotten.
const DECODED_MAX: usize = 4096;
/// Larger ones, in bytes as stored, are read each time.
const DECODED_SIZE: usize = 4096;

/// Reads an object that a plugin asked for. One that is large was not foreseen ([`Lookup::bytes`]), and holds up no other request.
fn decode(entry: &Entry) -> Result<Object, Unreadable> {
    aside::in_place(Line::Objects, entry.value.len(), || encode::decode(entry))
}

impl Decoded {
    fn of(&self, entry: &Entry) -> Result<Arc<Object>, Unreadable> {
        if entry.value.len() > DECODED_SIZE {
            return decode(entry).map(Arc::new);
        }
        if let Some((_, object)) = self.0.lock().get(&entry.key).filter(|(revision, _)| *revision == entry.revision) {
            return Ok(object.clone());
        }
        let object = Arc::new(encode::decode(entry)?);
        let mut known = self.0.lock();
        if known.len() >= DECODED_MAX {
            known.clear();
        }
        known.insert(entry.key.clone(), (entry.revision, object.clone()));
        Ok(object)
    }
}

impl Lookup for Stored<'_> {
    fn bytes(&self, group: &str, resource: &str, namespace: Option<&str>, which: Which<'_>) -> usize {
        let rows = self.registry.rows();
        let Some(row) = rows.stored(group, resource) else { return 0 };
        let Some((stored, _)) = row.stored() else { return 0 };
        let snapshot = self.registry.store.snapshot();
        match which {
            Which::All => amount::all(&snapshot, stored, namespace),
            Which::One => amount::largest(&snapshot, stored, namespace),
            Which::Named(name) => {
                let key = row.key(namespace.unwrap_or_default(), name);
                key.and_then(|k| snapshot.get(&k)).map_or(0, |e| e.value.len())
            }
        }
    }

    fn resource(&self, kind: &Gvk) -> Option<(Gvr, bool)> {
        self.registry.rows().kind(kind).map(|r| (r.kind.gvr(), r.kind.namespaced))
    }

    fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Result<Option<Arc<Object>>, Status> {
        let rows = self.registry.rows();
        let Some(key) = rows.stored(group, resource).and_then(|r| r.key(namespace, name)) else { return Ok(None) };
        let entry = self.registry.find(&key)?;
        Ok(entry.map(|e| self.decoded.of(&e)).transpose()?)
    }

    fn labels(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Labels> {
        let rows = self.registry.rows();
        let key = rows.stored(group, resource)?.key(namespace, name)?;
        let entry = self.registry.store.snapshot().get(&key)?;
        Some(entry.index().labels.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect())
    }

    fn list(
        &self,
        group: &str,
        resource: &str,
        namespace: Option<&str>,
    ) -> Box<dyn Iterator<Item = Result<Object, Status>> + Send + '_> {
        let rows = self.registry.rows();
        let Some(name) = rows.stored(group, resource).and_then(|r| r.stored().map(|(n, _)| n.clone())) else {
            return Box::new(std::iter::empty());
        };
        let snapshot = self.registry.store.snapshot();
        let damaged = registry::check_readable(&snapshot, &name, namespace).err().map(Err);
        let entries: Vec<_> = snapshot.range(&name, namespace, None).cloned().collect();
        Box::new(damaged.into_iter().chain(entries.into_iter().map(|e| Ok(decode(&e)?))))
    }

    fn find(&self, group: &str, resource: &str, namespace: &str, selector: &LabelSelector) -> Vec<Found> {
        let rows = self.registry.rows();
        let Some(name) = rows.stored(group, resource).and_then(|r| r.stored().map(|(n, _)| n.clone())) else {
            return Vec::new();
        };
        let namespace = Some(namespace).filter(|n| !n.is_empty());
        let chosen = |e: &Arc<Entry>| {
            let labels = &e.index().labels;
            selector.matches(|k| labels.iter().find(|(l, _)| **l == *k).map(|(_, v)| &**v))
        };
        let snapshot = self.registry.store.snapshot();
        let all = snapshot.range(&name, namespace, None).filter(|e| chosen(e));
        all.map(|e| Found { name: e.key.name.to_string(), size: e.value.len() }).collect()
    }

    fn fingerprint(&self, group: &str, resource: &str) -> u64 {
        let rows = self.registry.rows();
        let Some((name, _)) = rows.stored(group, resource).and_then(|r| r.stored()) else { return 0 };
        let snapshot = self.registry.store.snapshot();
        let entries = snapshot.range(name, None, None).map(|e| (&*e.key.name, e.revision));
        let damaged = snapshot.all_damaged(name, None).map(|d| (&*d.key.name, d.revision));
        let mut all = entries.chain(damaged).peekable();
        if all.peek().is_none() {
            return 0;
        }
        let mut hash = DefaultHasher::new();
        all.for_each(|e| e.hash(&mut hash));
        hash.finish().max(1)
    }
}
