//! Tests of the reflector against a minimal server: its list and watch requests, and recovery.

use super::*;
use crate::shared::{Batch, Handover, HandoverRequest, Kind, Page, Stored};
use crate::{Client, InProcess, Transport};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::StreamBody;
use meta::Rng;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;
use tokio::sync::mpsc;

struct Zero;
impl Rng for Zero {
    fn next_u64(&self) -> u64 {
        0
    }
}

#[derive(Default)]
struct Server {
    revision: u64,
    objects: BTreeMap<String, Value>,
    watchers: Vec<mpsc::UnboundedSender<Result<http_body::Frame<Bytes>, Infallible>>>,
    requests: Vec<String>,
    /// Watches from an earlier revision are refused.
    compacted: u64,
    /// Each page of a list refers to another page.
    endless: bool,
    /// Each page of a list refers to itself.
    repeats: bool,
    /// Sent in place of lists.
    instead: Option<Value>,
}

impl Server {
    fn send(&mut self, kind: &str, object: &Value) {
        let line = format!("{}\n", json!({"type": kind, "object": object}));
        self.watchers.retain(|w| w.send(Ok(http_body::Frame::data(Bytes::from(line.clone())))).is_ok());
    }

    fn put(&mut self, name: &str, n: i64, owner: &str) {
        self.revision += 1;
        let o = json!({
            "metadata": {"name": name, "namespace": "d", "uid": name, "resourceVersion": self.revision.to_string(),
                "ownerReferences": [{"uid": owner, "controller": true}]},
            "spec": {"n": n},
        });
        let kind = if self.objects.insert(name.into(), o.clone()).is_some() { "MODIFIED" } else { "ADDED" };
        self.send(kind, &o);
    }

    fn delete(&mut self, name: &str) {
        self.revision += 1;
        let mut o = self.objects.remove(name).unwrap();
        o["metadata"]["resourceVersion"] = self.revision.to_string().into();
        self.send("DELETED", &o);
    }

    fn answer(&mut self, request: &Request<Bytes>) -> Response<crate::Body> {
        use http_body_util::BodyExt;
        let query = request.uri().query().unwrap_or_default().to_owned();
        self.requests.push(query.clone());
        let full = |code: u16, v: Value| {
            let body = http_body_util::Full::new(Bytes::from(v.to_string())).map_err(|e| match e {}).boxed_unsync();
            Response::builder().status(code).body(body).unwrap()
        };
        if !query.contains("watch=true") {
            if let Some(object) = &self.instead {
                return full(200, object.clone());
            }
            if self.repeats {
                return full(200, json!({"metadata": {"resourceVersion": "1", "continue": "more"}, "items": []}));
            }
            if self.endless {
                self.revision += 1;
                let token = self.revision.to_string();
                return full(200, json!({"metadata": {"resourceVersion": "1", "continue": token}, "items": []}));
            }
            let items: Vec<&Value> = self.objects.values().collect();
            return full(200, json!({"metadata": {"resourceVersion": self.revision.to_string()}, "items": items}));
        }
        let from = query.split('&').find_map(|p| p.strip_prefix("resourceVersion=")).unwrap();
        if from.parse::<u64>().unwrap() < self.compacted {
            return full(
                410,
                json!({"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410, "message": "old"}),
            );
        }
        let (tx, rx) = mpsc::unbounded_channel();
        self.watchers.push(tx);
        let frames = futures::stream::unfold(rx, |mut rx| async move { rx.recv().await.map(|f| (f, rx)) });
        let body = StreamBody::new(frames).map_err(|e: Infallible| match e {}).boxed_unsync();
        Response::new(body)
    }
}

#[derive(Debug, Deserialize)]
struct Spec {
    spec: N,
}

#[derive(Debug, Deserialize)]
struct N {
    n: u64,
}

struct Test {
    server: Arc<Mutex<Server>>,
    informer: Informer<Spec>,
    seen: Arc<Mutex<Vec<String>>>,
    _trigger: crate::Trigger,
}

fn start() -> Test {
    let server: Arc<Mutex<Server>> = Arc::default();
    let s = server.clone();
    let client = Client::new(
        InProcess(move |r: Request<Bytes>| {
            let answer = s.lock().answer(&r);
            async move { answer }
        }),
        "test",
    );
    let (trigger, shutdown) = crate::shutdown();
    let informers = Informers::new(client, Arc::new(Zero), shutdown);
    server.lock().put("a", 1, "x");
    server.lock().put("b", 2, "x");
    let resource = crate::ApiResource::named("", "v1", "things", "Thing", true);
    let informer: Informer<Spec> = informers.informer(&resource, &Scope::default());
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let s = seen.clone();
    informer.on_change(move |c| {
        let n = |e: &Option<Arc<Entry<Spec>>>| e.as_ref().map_or("-".into(), |e| e.view.spec.n.to_string());
        s.lock().push(format!("{} {}>{}", c.key(), n(&c.old), n(&c.new)));
    });
    Test { server, informer, seen, _trigger: trigger }
}

impl Test {
    async fn expect(&self, events: &[&str]) {
        for _ in 0..1000 {
            if self.seen.lock().len() >= events.len() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(std::mem::take(&mut *self.seen.lock()), events);
    }
}

#[tokio::test(start_paused = true)]
async fn lists_then_follows() {
    let t = start();
    assert!(!t.informer.has_synced());
    t.informer.synced().await;
    t.expect(&["d/a ->1", "d/b ->2"]).await;
    t.server.lock().put("a", 5, "y");
    t.server.lock().delete("b");
    t.expect(&["d/a 1>5", "d/b 2>-"]).await;
    let cache = t.informer.cache();
    assert_eq!((cache.len(), cache.controlled_by("x").count(), cache.controlled_by("y").count()), (1, 0, 1));
    assert_eq!(cache.in_namespace("d").count(), 1);
    let whole: Value = cache.entries().next().unwrap().decode().unwrap();
    assert_eq!(whole["spec"]["n"], 5);
    drop(cache);
    // A later handler gets the objects in the cache.
    let late: Arc<Mutex<usize>> = Arc::default();
    let l = late.clone();
    t.informer.on_change(move |_| *l.lock() += 1);
    assert_eq!(*late.lock(), 1);
}

/// Without this, a restarted controller would handle each change twice.
#[tokio::test(start_paused = true)]
async fn a_handler_ends_with_its_subscription() {
    let t = start();
    t.informer.synced().await;
    t.expect(&["d/a ->1", "d/b ->2"]).await;
    let calls: Arc<Mutex<usize>> = Arc::default();
    let c = calls.clone();
    let subscription = t.informer.subscribe(move |_| *c.lock() += 1);
    assert_eq!(*calls.lock(), 2, "a call per object in the cache");
    t.server.lock().put("a", 5, "x");
    t.expect(&["d/a 1>5"]).await;
    assert_eq!(*calls.lock(), 3);
    drop(subscription);
    t.server.lock().put("a", 6, "x");
    t.expect(&["d/a 5>6"]).await;
    assert_eq!(*calls.lock(), 3, "no call after the end");
}

#[tokio::test(start_paused = true)]
async fn a_broken_watch_resumes_at_its_revision() {
    let t = start();
    t.informer.synced().await;
    t.expect(&["d/a ->1", "d/b ->2"]).await;
    while t.server.lock().watchers.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    t.server.lock().watchers.clear();
    while t.server.lock().watchers.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    t.server.lock().put("c", 3, "x");
    t.expect(&["d/c ->3"]).await;
    let lists = t.server.lock().requests.iter().filter(|q| !q.contains("watch")).count();
    assert_eq!(lists, 1, "no second list");
}

#[tokio::test(start_paused = true)]
async fn a_lost_revision_causes_a_list_and_only_differences_are_delivered() {
    let t = start();
    t.informer.synced().await;
    t.expect(&["d/a ->1", "d/b ->2"]).await;
    {
        let mut s = t.server.lock();
        s.watchers.clear();
        s.put("a", 7, "x");
        s.delete("b");
        s.put("c", 3, "x");
        s.compacted = s.revision;
    }
    t.expect(&["d/b 2>-", "d/a 1>7", "d/c ->3"]).await;
}

/// Refuses requests while the server is down.
struct Gate {
    down: Arc<AtomicBool>,
    inner: Arc<dyn Transport>,
}

#[async_trait::async_trait]
impl Transport for Gate {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<crate::Body>, crate::Error> {
        if self.down.load(Relaxed) { Err(crate::Error::Send("down".into())) } else { self.inner.send(request).await }
    }
}

/// Delays that differ.
struct Varied(AtomicU64);

impl Rng for Varied {
    fn next_u64(&self) -> u64 {
        self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed)
    }
}

/// An informer of owners that recovered half a minute later than that of their dependents showed owners that were gone.
#[tokio::test(start_paused = true)]
async fn informers_recover_together() {
    let (server, down) = (Arc::<Mutex<Server>>::default(), Arc::<AtomicBool>::default());
    let (s, gate) = (server.clone(), down.clone());
    let service = InProcess(move |r: Request<Bytes>| {
        let answer = s.lock().answer(&r);
        async move { answer }
    });
    let client = Client::new(service, "test").over(|inner| Arc::new(Gate { down: gate, inner }));
    let (_trigger, shutdown) = crate::shutdown();
    let informers = Informers::new(client, Arc::new(Varied(AtomicU64::new(0))), shutdown);
    let all = ["owners", "dependents", "others"].map(|plural| {
        let resource = crate::ApiResource::named("", "v1", plural, "Thing", true);
        informers.informer::<()>(&resource, &Scope::default())
    });
    for informer in &all {
        informer.synced().await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    down.store(true, Relaxed);
    server.lock().watchers.clear();
    tokio::time::sleep(Duration::from_secs(200)).await;
    server.lock().put("a", 1, "x");
    for informer in &all {
        let connected = tokio::time::timeout(Duration::from_secs(1), informer.connected()).await;
        assert!(connected.is_err(), "the cache is old");
    }
    down.store(false, Relaxed);
    all[0].connected().await;
    let first = tokio::time::Instant::now();
    for informer in &all {
        informer.connected().await;
    }
    assert!(first.elapsed() <= Duration::from_secs(1), "{:?} later", first.elapsed());
}

/// An object without a view is skipped in lists and watches, and the others are delivered.
#[tokio::test(start_paused = true)]
async fn an_object_without_a_view_is_skipped() {
    let t = start();
    t.server.lock().put("c", -1, "x");
    t.informer.synced().await;
    t.expect(&["d/a ->1", "d/b ->2"]).await;
    while t.server.lock().watchers.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    {
        let mut s = t.server.lock();
        s.put("a", -1, "x");
        s.put("b", 3, "x");
        s.put("c", 4, "x");
        s.put("a", 5, "x");
        s.put("e", -1, "x");
        s.delete("e");
        s.put("b", 6, "x");
    }
    t.expect(&["d/a 1>-", "d/b 2>3", "d/c ->4", "d/a ->5", "d/b 3>6"]).await;
    let lists = t.server.lock().requests.iter().filter(|q| !q.contains("watch")).count();
    assert_eq!(lists, 1, "no second list");
}

fn stored(name: &str, revision: u64, value: &Bytes) -> Arc<Stored> {
    let labels = Labels::from_sorted(Arc::new([("app".into(), "web".into())]));
    let mark = value.iter().position(|b| *b == b'm').unwrap() + "metadata\":{".len();
    Arc::new(Stored::new(("d".into(), name.into()), labels, value.clone(), mark, revision).unwrap())
}

#[tokio::test(start_paused = true)]
async fn handed_over_objects_are_not_copied() {
    let value = Bytes::from(r#"{"metadata":{"uid":"u","name":"a"},"spec":{"n":4}}"#.to_owned());
    let bare = Bytes::from_static(br#"{"metadata":{},"spec":{"n":9}}"#);
    let (sender, receiver) = mpsc::channel(4);
    let receiver = Arc::new(Mutex::new(Some(receiver)));
    let first = value.clone();
    let client = Client::new(
        InProcess(move |r: Request<Bytes>| {
            assert!(r.extensions().get::<HandoverRequest>().is_some());
            let mut answer = Response::new(http_body_util::Empty::<Bytes>::new());
            if r.uri().query().unwrap_or_default().contains("watch=true") {
                Handover::give(answer.extensions_mut(), receiver.lock().take().unwrap());
            } else {
                let (resource_version, continue_token) = ("7".into(), String::new());
                let page = Page { objects: vec![stored("a", 5, &first)], resource_version, continue_token };
                Handover::give(answer.extensions_mut(), page);
            }
            async move { answer }
        }),
        "test",
    );
    let (_trigger, shutdown) = crate::shutdown();
    let informers = Informers::new(client, Arc::new(Zero), shutdown);
    let resource = crate::ApiResource::named("", "v1", "things", "Thing", true);
    let informer: Informer<Spec> = informers.informer(&resource, &Scope::default());
    informer.synced().await;
    let e = informer.get(&Key::new("d", "a")).unwrap();
    assert!(e.shares(&value), "no copy");
    assert_eq!(
        (&*e.meta.uid, &*e.meta.resource_version, e.meta.label("app"), e.view.spec.n),
        ("u", "5", Some("web"), 4)
    );
    let whole: Value = e.decode().unwrap();
    assert_eq!(whole, json!({"metadata": {"uid": "u", "name": "a", "resourceVersion": "5"}, "spec": {"n": 4}}));
    let events = vec![(Kind::Put, stored("b", 8, &bare)), (Kind::Deleted, stored("a", 9, &value))];
    sender.send(Batch::Events(events)).await.unwrap();
    while informer.get(&Key::new("d", "a")).is_some() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let b: Value = informer.get(&Key::new("d", "b")).unwrap().decode().unwrap();
    assert_eq!(b, json!({"metadata": {"resourceVersion": "8"}, "spec": {"n": 9}}));
}

#[test]
fn metadata_alone_is_a_view() {
    let e = Entry::<()>::new(Bytes::from_static(br#"{"metadata":{"name":"n","labels":null}}"#)).unwrap();
    assert_eq!((&*e.meta.name, e.meta.labels.len()), ("n", 0));
}

#[tokio::test(start_paused = true)]
async fn an_endless_list_is_an_error() {
    let t = start();
    t.informer.synced().await;
    {
        let mut s = t.server.lock();
        (s.endless, s.compacted) = (true, u64::MAX);
        s.requests.clear();
        s.watchers.clear();
    }
    let lists =
        || t.server.lock().requests.iter().filter(|q| !q.contains("watch=true") && !q.contains("continue=")).count();
    while lists() < 3 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    t.server.lock().endless = false;
    t.server.lock().compacted = 0;
    t.server.lock().put("a", 9, "x");
    while t.seen.lock().last().is_none_or(|l| l != "d/a 1>9") {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// A server that sends anything but the list: the cache keeps what it has, and recovers.
#[tokio::test(start_paused = true)]
async fn lists_of_hostile_servers_are_errors() {
    let pod = json!({"kind": "Pod", "metadata": {"name": "p"}});
    let stranger = json!({"kind": "ThingList", "metadata": {"resourceVersion": "9"},
        "items": [{"kind": "Pod", "metadata": {"name": "p", "namespace": "d"}, "spec": {"n": 1}}]});
    for instead in [Some(pod), Some(stranger), None] {
        let t = start();
        t.informer.synced().await;
        {
            let mut s = t.server.lock();
            (s.repeats, s.compacted) = (instead.is_none(), u64::MAX);
            s.instead = instead;
            s.requests.clear();
            s.watchers.clear();
        }
        let requests = || t.server.lock().requests.len();
        while requests() < 10 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(t.informer.cache().len(), 2, "nothing was replaced");
        {
            let mut s = t.server.lock();
            (s.repeats, s.instead, s.compacted) = (false, None, 0);
        }
        t.server.lock().put("a", 9, "x");
        while t.seen.lock().last().is_none_or(|l| l != "d/a 1>9") {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

/// A watch with garbage, or with an object of another kind, ends, and the next one continues where it was.
#[tokio::test(start_paused = true)]
async fn watches_of_hostile_servers_are_errors() {
    let t = start();
    t.informer.synced().await;
    t.expect(&["d/a ->1", "d/b ->2"]).await;
    let stranger = json!({"type": "ADDED", "object": {"kind": "Pod", "metadata": {"name": "p", "namespace": "d",
        "resourceVersion": "99"}, "spec": {"n": 1}}});
    for garbage in ["<html>\n", "{\"type\": 5}\n", "\u{0}\u{1}\n", &format!("{stranger}\n")] {
        while t.server.lock().watchers.is_empty() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        for w in std::mem::take(&mut t.server.lock().watchers) {
            let _ = w.send(Ok(http_body::Frame::data(Bytes::from(garbage.to_owned()))));
        }
    }
    while t.server.lock().watchers.is_empty() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    t.server.lock().put("a", 7, "x");
    t.expect(&["d/a 1>7"]).await;
    assert_eq!(t.informer.cache().len(), 2, "the stranger is not in the cache");
}

/// The limits of lists from servers that are not trusted.
#[tokio::test(start_paused = true)]
async fn lists_end_at_their_limits() {
    let server: Arc<Mutex<Server>> = Arc::default();
    let s = server.clone();
    let answer = move |r: Request<Bytes>| {
        let answer = s.lock().answer(&r);
        async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            answer
        }
    };
    let client = Client::new(InProcess(answer), "test");
    let api = client.dynamic(&crate::ApiResource::named("", "v1", "things", "Thing", true));
    let limits = crate::ListLimits { pages: 50, bytes: 1 << 20, time: Duration::from_secs(600) };
    let problem = async |limits: crate::ListLimits| {
        let listed = api.list_within(&crate::ListOptions::default(), &limits).await;
        listed.map(|items| items.len()).map_err(|e| e.to_string())
    };
    server.lock().put("a", 1, "x");
    assert_eq!(problem(limits).await, Ok(1));
    server.lock().endless = true;
    let failed = |why: &str| Err(format!("unexpected answer: {why}"));
    assert_eq!(problem(limits).await, failed("the list has more than 50 pages"));
    let slow = crate::ListLimits { time: Duration::from_secs(10), ..limits };
    assert_eq!(problem(slow).await, failed("the list did not end within 10s"));
    let small = crate::ListLimits { bytes: 100, ..limits };
    assert!(problem(small).await.is_err_and(|e| e.contains("the answer has more than")));
    server.lock().repeats = true;
    assert_eq!(problem(limits).await, failed("the list does not end: a page continues with itself"));
    server.lock().instead = Some(json!({"kind": "Pod", "metadata": {"name": "p"}}));
    assert_eq!(problem(limits).await, failed("the server sent a Pod in place of a list of things"));
}

#[test]
fn finds_controlled_objects_and_orphans_of_the_namespace() {
    let shared = super::cache::Shared::<()>::new();
    let put = |namespace: &str, name: &str, version: u64, controller: Option<&str>| {
        let owners: Vec<Value> = controller
            .map(|uid| json!({"apiVersion": "v1", "kind": "Thing", "name": "o", "uid": uid, "controller": true}))
            .into_iter()
            .collect();
        let metadata = json!({"namespace": namespace, "name": name, "uid": name,
            "resourceVersion": version.to_string(), "ownerReferences": owners});
        let object = json!({"apiVersion": "v1", "kind": "Thing", "metadata": metadata});
        shared.put(Entry::new(Bytes::from(object.to_string())).unwrap());
    };
    let found =
        || -> Vec<String> { shared.controlled_or_orphaned("x", "d").iter().map(|o| o.meta.name.to_string()).collect() };
    put("d", "orphan", 1, None);
    put("d", "own", 2, Some("x"));
    put("d", "foreign", 3, Some("y"));
    put("other", "elsewhere", 4, None);
    assert_eq!(found(), ["own", "orphan"]);
    put("d", "orphan", 5, Some("y"));
    put("d", "own", 6, None);
    put("d", "later", 7, None);
    assert_eq!(found(), ["later", "own"]);
    put("d", "later", 8, Some("x"));
    shared.remove(&Key::new("d", "own"), None);
    assert_eq!(found(), ["later"]);
}
