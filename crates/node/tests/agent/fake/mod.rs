//! An API server of a hundred lines: objects by path, lists, watches, merge and status patches. Enough for an agent.
#![allow(dead_code, clippy::unwrap_used)] // every test binary uses its part; a broken setup is a failed test

pub mod held;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use client::{Body, Client, Error, Transport};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use serde_json::{Value, json};
use tokio::sync::broadcast;

#[derive(Default)]
struct State {
    revision: u64,
    /// By collection path and name.
    objects: BTreeMap<(String, String), Value>,
}

/// `(type, collection, object)`.
type Event = (&'static str, String, Value);

#[derive(Clone)]
pub struct Fake {
    state: Arc<Mutex<State>>,
    /// Held from the reading of an object to the writing of what it becomes.
    change: Arc<Mutex<()>>,
    events: broadcast::Sender<Event>,
    /// Whether requests fail.
    is_down: Arc<AtomicBool>,
}

fn body(bytes: Vec<u8>) -> Body {
    Full::new(Bytes::from(bytes)).map_err(|e: Infallible| match e {}).boxed_unsync()
}

fn answer(status: StatusCode, v: &Value) -> Response<Body> {
    Response::builder().status(status).body(body(serde_json::to_vec(v).unwrap())).unwrap()
}

fn failure(code: u16, reason: &str) -> Response<Body> {
    let v = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": reason});
    answer(StatusCode::from_u16(code).unwrap(), &v)
}

/// `/api/v1/namespaces/NS/pods/NAME/SUB` → collection of all namespaces, namespace, name, subresource.
fn split(path: &str) -> (String, Option<String>, Option<String>, Option<String>) {
    let mut parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let root = if parts[0] == "api" { 2 } else { 3 };
    let prefix = parts.drain(..root).collect::<Vec<_>>().join("/");
    let mut namespace = None;
    if parts[0] == "namespaces" && parts.len() > 2 {
        namespace = Some(parts[1].to_owned());
        parts.drain(..2);
    }
    let owned = |i: usize| parts.get(i).map(|s| (*s).to_owned());
    (format!("{prefix}/{}", parts[0]), namespace, owned(1), owned(2))
}

fn merge(into: &mut Value, patch: &Value) {
    match (into, patch) {
        (Value::Object(a), Value::Object(b)) => {
            for (k, v) in b {
                if v.is_null() {
                    a.remove(k);
                } else if k == "conditions" && a.get(k).is_some_and(Value::is_array) {
                    let list = a.get_mut(k).unwrap().as_array_mut().unwrap();
                    for c in v.as_array().unwrap() {
                        if c["$patch"] == "delete" {
                            list.retain(|o| o["type"] != c["type"]);
                            continue;
                        }
                        match list.iter_mut().find(|o| o["type"] == c["type"]) {
                            Some(o) => merge(o, c),
                            None => list.push(c.clone()),
                        }
                    }
                } else {
                    let at = a.entry(k.clone()).or_insert(Value::Null);
                    if at.is_object() && v.is_object() { merge(at, v) } else { *at = v.clone() }
                }
            }
        }
        (a, b) => *a = b.clone(),
    }
}

impl Fake {
    pub fn new() -> Self {
        let events = broadcast::channel(4096).0;
        Self { state: Arc::default(), change: Arc::default(), events, is_down: Arc::default() }
    }

    /// Lets all requests fail, or answers them again. Watches go on.
    pub fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::Relaxed);
    }

    pub fn client(&self) -> Client {
        Client::new(self.clone(), "test")
    }

    fn write(&self, kind: &'static str, collection: &str, name: &str, mut v: Value) -> Value {
        let mut state = self.state.lock().unwrap();
        state.revision += 1;
        v["metadata"]["resourceVersion"] = state.revision.to_string().into();
        let ns = v["metadata"]["namespace"].as_str().unwrap_or_default();
        let key = (collection.to_owned(), format!("{ns}/{name}"));
        if kind == "DELETED" {
            state.objects.remove(&key);
        } else {
            state.objects.insert(key, v.clone());
        }
        let _ = self.events.send((kind, collection.to_owned(), v.clone()));
        v
    }

    /// Creates or replaces; the collection is as in `api/v1/pods`.
    pub fn put(&self, collection: &str, mut v: Value) -> Value {
        let name = v["metadata"]["name"].as_str().unwrap().to_owned();
        let ns = v["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let before = self.get(collection, &ns, &name);
        if v["metadata"]["uid"].is_null() {
            let n = self.state.lock().unwrap().revision + 1;
            v["metadata"]["uid"] = format!("00000000-0000-4000-8000-{n:012}").into();
        }
        self.write(if before.is_some() { "MODIFIED" } else { "ADDED" }, collection, &name, v)
    }

    pub fn get(&self, collection: &str, ns: &str, name: &str) -> Option<Value> {
        self.state.lock().unwrap().objects.get(&(collection.to_owned(), format!("{ns}/{name}"))).cloned()
    }

    pub fn list(&self, collection: &str) -> Vec<Value> {
        let state = self.state.lock().unwrap();
        state.objects.iter().filter(|((c, _), _)| c == collection).map(|(_, v)| v.clone()).collect()
    }

    /// What `kubectl delete` does: a deletion timestamp and a grace period.
    pub fn delete_gracefully(&self, collection: &str, ns: &str, name: &str, grace: i64) {
        let _change = self.change.lock().unwrap();
        let mut v = self.get(collection, ns, name).unwrap();
        v["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        v["metadata"]["deletionGracePeriodSeconds"] = grace.into();
        self.put(collection, v);
    }

    /// Waits until an object meets a condition.
    pub async fn until(
        &self,
        collection: &str,
        ns: &str,
        name: &str,
        is_met: impl Fn(Option<&Value>) -> bool,
    ) -> Option<Value> {
        let mut events = self.events.subscribe();
        let wait = async {
            loop {
                let now = self.get(collection, ns, name);
                if is_met(now.as_ref()) {
                    return now;
                }
                let _ = events.recv().await;
            }
        };
        match tokio::time::timeout(std::time::Duration::from_secs(30), wait).await {
            Ok(v) => v,
            Err(_) => panic!(
                "{collection} {ns}/{name} did not become as wanted:\n{:#?}\nevents: {:#?}",
                self.get(collection, ns, name),
                self.list("api/v1/events").iter().map(|e| e["message"].clone()).collect::<Vec<_>>()
            ),
        }
    }

    fn selects(query: &str, ns: Option<&str>, v: &Value) -> bool {
        let field = query.split('&').find_map(|p| p.strip_prefix("fieldSelector=")).unwrap_or_default();
        let fields = field.replace("%3D", "=").replace("%2C", ",");
        let matches = |field: &str| match field.split_once('=') {
            Some((path @ ("spec.nodeName" | "spec.driver" | "metadata.name"), value)) => {
                path.split('.').fold(v, |v, name| &v[name]) == value
            }
            _ => true,
        };
        fields.split(',').all(matches) && ns.is_none_or(|ns| v["metadata"]["namespace"] == ns)
    }

    fn watch(&self, collection: String, ns: Option<String>, query: String) -> Response<Body> {
        let events = self.events.subscribe();
        let param =
            |name: &str| query.split('&').find_map(|p| p.strip_prefix(&format!("{name}=")[..])).map(str::to_owned);
        let from: Option<u64> = param("resourceVersion").and_then(|v| v.parse().ok());
        let initial = param("sendInitialEvents").is_some() || from.is_none();
        let now = self.state.lock().unwrap().revision;
        let list = self.list(&collection);
        let line = |kind: &str, v: &Value| format!("{}\n", json!({"type": kind, "object": v}));
        let mut first: Vec<String> = Vec::new();
        for v in &list {
            let rv: u64 = v["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
            if Self::selects(&query, ns.as_deref(), v) && (initial || from.is_some_and(|f| rv > f)) {
                first.push(line("ADDED", v));
            }
        }
        if initial {
            let metadata =
                json!({"resourceVersion": now.to_string(), "annotations": {"k8s.io/initial-events-end": "true"}});
            first.push(line("BOOKMARK", &json!({"metadata": metadata})));
        }
        let stream = futures::stream::unfold((first.into_iter(), events, now), move |(mut first, mut events, seen)| {
            let (collection, ns, query) = (collection.clone(), ns.clone(), query.clone());
            async move {
                if let Some(l) = first.next() {
                    return Some((Ok(http_body::Frame::data(Bytes::from(l))), (first, events, seen)));
                }
                loop {
                    let (kind, of, v) = events.recv().await.ok()?;
                    let rv: u64 = v["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
                    if of == collection && rv > seen && Self::selects(&query, ns.as_deref(), &v) {
                        let text = format!("{}\n", json!({"type": kind, "object": v}));
                        return Some((
                            Ok::<_, Error>(http_body::Frame::data(Bytes::from(text))),
                            (first, events, seen),
                        ));
                    }
                }
            }
        });
        Response::new(StreamBody::new(Box::pin(stream)).boxed_unsync())
    }
}

#[async_trait::async_trait]
impl Transport for Fake {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Body>, Error> {
        if self.is_down.load(Ordering::Relaxed) {
            return Err(Error::Send("the API is away".into()));
        }
        let query = request.uri().query().unwrap_or_default().to_owned();
        let (collection, ns, name, sub) = split(request.uri().path());
        let sent: Value = serde_json::from_slice(request.body()).unwrap_or_default();
        let namespace = ns.clone().unwrap_or_default();
        let _change = self.change.lock().unwrap();
        let found = name.as_ref().and_then(|n| self.get(&collection, &namespace, n));
        Ok(match (request.method(), name, sub.as_deref()) {
            (&Method::GET, None, _) if query.contains("watch=true") => self.watch(collection, ns, query),
            (&Method::GET, None, _) => {
                let revision = self.state.lock().unwrap().revision.to_string();
                let items: Vec<Value> =
                    self.list(&collection).into_iter().filter(|v| Self::selects(&query, ns.as_deref(), v)).collect();
                answer(StatusCode::OK, &json!({"metadata": {"resourceVersion": revision}, "items": items}))
            }
            (&Method::POST, Some(_), Some("token")) => {
                let status = json!({"token": "a.b.c", "expirationTimestamp": "2099-01-01T00:00:00Z"});
                answer(StatusCode::CREATED, &json!({"status": status}))
            }
            (&Method::POST, None, _) => {
                let mut v = sent;
                if ns.is_some() {
                    v["metadata"]["namespace"] = namespace.clone().into();
                }
                let name = v["metadata"]["name"].as_str().unwrap().to_owned();
                if self.get(&collection, &namespace, &name).is_some() {
                    return Ok(failure(409, "AlreadyExists"));
                }
                answer(StatusCode::CREATED, &self.put(&collection, v))
            }
            (_, Some(_), _) if found.is_none() => failure(404, "NotFound"),
            (&Method::GET, Some(_), _) => answer(StatusCode::OK, &found.unwrap()),
            (&Method::PUT, Some(_), _) => answer(StatusCode::OK, &self.put(&collection, sent)),
            (&Method::PATCH, Some(_), _) => {
                let mut v = found.unwrap();
                let mut patch = sent;
                if let Some(uid) = patch["metadata"]["uid"].as_str()
                    && v["metadata"]["uid"] != uid
                {
                    return Ok(failure(409, "Conflict"));
                }
                for list in ["podIPs", "hostIPs"] {
                    if let Some(l) = patch["status"][list].as_array_mut() {
                        l.retain(|i| i.get("$patch").is_none());
                    }
                }
                if patch["status"].is_null() {
                    patch.as_object_mut().unwrap().remove("status");
                }
                merge(&mut v, &patch);
                answer(StatusCode::OK, &self.put(&collection, v))
            }
            (&Method::DELETE, None, _) => {
                let gone: Vec<Value> =
                    self.list(&collection).into_iter().filter(|v| Self::selects(&query, ns.as_deref(), v)).collect();
                for v in gone {
                    let name = v["metadata"]["name"].as_str().unwrap().to_owned();
                    self.write("DELETED", &collection, &name, v);
                }
                answer(StatusCode::OK, &json!({"kind": "Status", "status": "Success"}))
            }
            (&Method::DELETE, Some(name), _) => {
                let v = self.write("DELETED", &collection, &name, found.unwrap());
                answer(StatusCode::OK, &v)
            }
            _ => failure(405, "MethodNotAllowed"),
        })
    }
}
