//! The audit webhook: batches, retries, and blocking requests.

use crate::hook::Hook;
use crate::socket::server;
use apiserver::audit::{Audit, AuditBackend, Batch, Mode, Policy, Sink, Webhook};
use apiserver::{Options, Server};
use auth::remote::Remote;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use client::https::{Config, Roots};
use http::Request;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use testkit::Cluster;

const POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [ResponseStarted]
rules:
- level: Metadata
  resources: [{group: '', resources: [configmaps]}]
";

struct Audited {
    _cluster: Cluster,
    server: Arc<Server>,
}

impl Audited {
    async fn start(hook: &Hook, mode: Mode) -> Self {
        let cluster = Cluster::start(1).await;
        let roots = Roots::Pem(STANDARD.decode(&hook.ca).unwrap());
        let config = Config { roots, ..Config::new(format!("https://127.0.0.1:{}/events", hook.port)) };
        let remote = Remote::new(&config, Duration::from_secs(30)).unwrap();
        let webhook = Webhook { remote, initial_backoff: Duration::from_millis(1), rng: cluster.rng.clone() };
        let audit = Some(Audit {
            policy: Policy::parse(POLICY).unwrap(),
            to: vec![AuditBackend { sink: Sink::Webhook(webhook), mode, limits: None }],
        });
        let server = server(&cluster, Options { audit, ..Options::default() });
        Self { _cluster: cluster, server }
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let r = Request::get(path).header("authorization", "Bearer admin/system:masters").body(Bytes::new()).unwrap();
        let answer = self.server.handle(r).await;
        let code = answer.status().as_u16();
        (code, serde_json::from_slice(&answer.into_body().collect().await.unwrap()).unwrap_or_default())
    }

    async fn metric(&self, name: &str) -> String {
        let (_, text) = self.get("/metrics").await;
        assert_eq!(text, Value::Null);
        let r = Request::get("/metrics").header("authorization", "Bearer admin/system:masters");
        let answer = self.server.handle(r.body(Bytes::new()).unwrap()).await;
        let text = String::from_utf8(answer.into_body().collect().await.unwrap().to_vec()).unwrap();
        text.lines().find(|l| l.starts_with(name)).unwrap_or_default().to_owned()
    }
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn batch(size: usize) -> Mode {
    Mode::Batch(Batch { buffer: 100, size, wait: Duration::from_secs(3600), throttle: Some((1000.0, 10)) })
}

fn items(list: &Value) -> Vec<Value> {
    list["items"].as_array().unwrap().clone()
}

/// A batch goes when it is full, or when it is time; nothing is left behind at the end.
#[tokio::test]
async fn events_are_sent_in_batches() {
    let h = Hook::start(|_, _| Some(json!({}))).await;
    let a = Audited::start(&h, batch(3)).await;
    assert_eq!(a.get(MAPS).await.0, 200);
    assert!(h.heard.lock().is_empty(), "two events do not fill it");
    assert_eq!(a.get(&format!("{MAPS}/none")).await.0, 404);
    a.server.flush_audit().await;
    let heard: Vec<Value> = h.heard.lock().iter().map(|(_, v)| v.clone()).collect();
    assert_eq!(heard.iter().map(|l| items(l).len()).collect::<Vec<_>>(), [3, 1]);
    assert_eq!((&heard[0]["kind"], &heard[0]["apiVersion"]), (&json!("EventList"), &json!("audit.k8s.io/v1")));
    let first = &items(&heard[0])[0];
    assert_eq!((&first["stage"], &first["level"]), (&json!("RequestReceived"), &json!("Metadata")));
    assert_eq!((first.get("kind"), &first["requestURI"]), (None, &json!(MAPS)));
    assert_eq!(items(&heard[1])[0]["responseStatus"]["code"], 404);

    let soon = Batch { buffer: 9, size: 100, wait: Duration::from_millis(5), throttle: None };
    let a = Audited::start(&h, Mode::Batch(soon)).await;
    h.heard.lock().clear();
    a.get(MAPS).await;
    for _ in 0..2000 {
        if h.heard.lock().iter().map(|(_, l)| items(l).len()).sum::<usize>() == 2 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("a batch that is not full is sent in time");
}

/// What does not succeed is tried five times, whatever the answer was.
#[tokio::test]
async fn failed_batches_are_retried() {
    let tries = Arc::new(AtomicUsize::new(0));
    let count = tries.clone();
    let failing = move |_: &str, _: &Value| match count.fetch_add(1, Ordering::SeqCst) {
        4 => Some(json!({})),
        _ => Some(json!({"http": 400})),
    };
    let h = Hook::start(failing).await;
    let a = Audited::start(&h, batch(2)).await;
    a.get(MAPS).await;
    a.server.flush_audit().await;
    assert_eq!(tries.load(Ordering::SeqCst), 5);
    assert_eq!(a.metric("apiserver_audit_error_total").await, "", "the fifth succeeded");
    a.get(MAPS).await;
    a.server.flush_audit().await;
    assert_eq!(tries.load(Ordering::SeqCst), 10);
    assert_eq!(a.metric("apiserver_audit_error_total").await, "apiserver_audit_error_total{plugin=\"webhook\"} 2");
}

/// Blocking: the answer comes after the events. It comes without them too, unless that must not be.
#[tokio::test]
async fn blocking_mode_delays_requests() {
    let h = Hook::start(|_, _| Some(json!({}))).await;
    let a = Audited::start(&h, Mode::Blocking).await;
    assert_eq!(a.get(MAPS).await.0, 200);
    let stages: Vec<Value> = h.heard.lock().iter().map(|(_, l)| items(l)[0]["stage"].clone()).collect();
    assert_eq!(stages, ["RequestReceived", "ResponseComplete"]);

    let down = Hook::start(|_, _| Some(json!({"http": 503}))).await;
    let a = Audited::start(&down, Mode::Blocking).await;
    assert_eq!(a.get(MAPS).await.0, 200, "what is lost is lost");
    let a = Audited::start(&down, Mode::Strict).await;
    let (code, answer) = a.get(MAPS).await;
    assert_eq!(code, 500);
    let message = answer["message"].as_str().unwrap();
    assert!(
        message
            .ends_with("Internal Server Error: \"/api/v1/namespaces/default/configmaps\": failed to store audit event"),
        "{message}"
    );
    assert_eq!(a.get("/api/v1/namespaces/default/secrets").await.0, 200, "of which nothing is written down");
}
