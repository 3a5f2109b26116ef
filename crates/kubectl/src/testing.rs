//! Test support: a transport that answers from a table, and a shell that captures output.

use crate::shell::{Connect, Shell, Stream};
use async_trait::async_trait;
use bytes::Bytes;
use client::{Body, Client, Error, Transport, Upgrade};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use meta::Value;
use serde_json::json;
use std::io::Write;
use std::sync::{Arc, Mutex};

/// A request that the server received: method and path with query, and body.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedRequest {
    pub line: String,
    pub content_type: String,
    pub body: Value,
}

type Answer = (u16, Vec<u8>);
type Socket = tokio_tungstenite::WebSocketStream<tokio::io::DuplexStream>;
type SocketHandler = dyn Fn(Socket) -> futures::future::BoxFuture<'static, ()> + Send + Sync;

/// Answers by method and path with query. A repeated request gets the next of its answers; the last one repeats.
#[derive(Clone, Default)]
pub struct Server {
    answers: Arc<Mutex<Vec<(String, Vec<Answer>)>>>,
    pub requests: Arc<Mutex<Vec<ReceivedRequest>>>,
    handler: Option<Arc<SocketHandler>>,
    warnings: Vec<String>,
    /// Requests that are never answered.
    hanging: Vec<String>,
}

impl Server {
    pub fn new() -> Self {
        let s = Self::default();
        let scaled = |name: &str| matches!(name, "deployments" | "replicasets" | "replicationcontrollers");
        let resource = |name: &str, singular: &str, kind: &str, scope: &str, short: &[&str], categories: &[&str]| {
            json!({
                "resource": name, "responseKind": {"group": "", "version": "", "kind": kind}, "scope": scope,
                "singularResource": singular, "shortNames": short, "categories": categories,
                "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
                "subresources": if scaled(name) { json!([{"subresource": "scale", "verbs": ["get"]}, {"subresource": "status", "verbs": ["get"]}]) } else { json!([{"subresource": "status", "verbs": ["get"]}]) },
            })
        };
        let list = |items: Value| json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": items});
        let core = json!([{"metadata": {}, "versions": [{"version": "v1", "resources": [
            resource("configmaps", "configmap", "ConfigMap", "Namespaced", &["cm"], &[]),
            resource("events", "event", "Event", "Namespaced", &["ev"], &[]),
            resource("namespaces", "namespace", "Namespace", "Cluster", &["ns"], &[]),
            resource("nodes", "node", "Node", "Cluster", &["no"], &[]),
            resource("pods", "pod", "Pod", "Namespaced", &["po"], &["all"]),
            resource("secrets", "secret", "Secret", "Namespaced", &[], &[]),
            resource("services", "service", "Service", "Namespaced", &["svc"], &["all"]),
            resource("serviceaccounts", "serviceaccount", "ServiceAccount", "Namespaced", &["sa"], &[]),
            resource("replicationcontrollers", "replicationcontroller", "ReplicationController", "Namespaced", &["rc"], &["all"]),
        ]}]}]);
        let apps = json!([
            {"metadata": {"name": "apps"}, "versions": [{"version": "v1", "resources": [
                resource("daemonsets", "daemonset", "DaemonSet", "Namespaced", &["ds"], &["all"]),
                resource("deployments", "deployment", "Deployment", "Namespaced", &["deploy"], &["all"]),
                resource("replicasets", "replicaset", "ReplicaSet", "Namespaced", &["rs"], &["all"]),
            ]}]},
            {"metadata": {"name": "certificates.k8s.io"}, "versions": [{"version": "v1", "resources": [
                resource("certificatesigningrequests", "certificatesigningrequest", "CertificateSigningRequest", "Cluster", &["csr"], &[]),
            ]}]},
            {"metadata": {"name": "rbac.authorization.k8s.io"}, "versions": [{"version": "v1", "resources": [
                resource("clusterroles", "clusterrole", "ClusterRole", "Cluster", &[], &[]),
                resource("clusterrolebindings", "clusterrolebinding", "ClusterRoleBinding", "Cluster", &[], &[]),
            ]}]},
            {"metadata": {"name": "example.com"}, "versions": [{"version": "v1", "resources": [
                resource("widgets", "widget", "Widget", "Namespaced", &[], &[]),
            ]}]},
        ]);
        s.on("GET /api", 200, list(core)).on("GET /apis", 200, list(apps))
    }

    /// Returns a server that also serves the metrics API.
    pub fn with_metrics() -> Self {
        let s = Self::new();
        let mut all = s.answers.lock().unwrap();
        for (_, answers) in all.iter_mut().filter(|(l, _)| l == "GET /apis") {
            let mut list: Value = serde_json::from_slice(&answers[0].1).unwrap();
            let resource = |name: &str, kind: &str, scope: &str| json!({"resource": name, "responseKind": {"group": "", "version": "", "kind": kind}, "scope": scope, "singularResource": "", "verbs": ["get", "list"]});
            list["items"].as_array_mut().unwrap().push(
                json!({"metadata": {"name": "metrics.k8s.io"}, "versions": [{"version": "v1beta1", "resources": [
                    resource("nodes", "NodeMetrics", "Cluster"), resource("pods", "PodMetrics", "Namespaced"),
                ]}]}),
            );
            answers[0].1 = list.to_string().into_bytes();
        }
        drop(all);
        s
    }

    /// Adds a JSON answer to a request line (method and path with query).
    #[must_use]
    pub fn on(self, line: &str, code: u16, answer: Value) -> Self {
        self.on_bytes(line, code, answer.to_string().into_bytes())
    }

    /// Adds this warning to every response except discovery.
    #[must_use]
    pub fn warning(mut self, text: &str) -> Self {
        self.warnings.push(format!("299 - {text:?}"));
        self
    }

    /// Never answers this request.
    #[must_use]
    pub fn hang(mut self, line: &str) -> Self {
        self.hanging.push(sort_query(line));
        self
    }

    /// Sets what the server does with a WebSocket.
    #[must_use]
    pub fn on_upgrade(
        mut self,
        handler: impl Fn(Socket) -> futures::future::BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        self.handler = Some(Arc::new(handler));
        self
    }

    /// Adds an answer of raw bytes to a request line.
    #[must_use]
    pub fn on_bytes(self, line: &str, code: u16, answer: Vec<u8>) -> Self {
        let line = &sort_query(line);
        let mut all = self.answers.lock().unwrap();
        match all.iter_mut().find(|(l, _)| l == line) {
            Some((_, answers)) => answers.push((code, answer)),
            None => all.push((line.to_owned(), vec![(code, answer)])),
        }
        drop(all);
        self
    }

    /// Replaces all answers of a request.
    pub fn replace(&self, line: &str, code: u16, answer: Value) {
        let line = &sort_query(line);
        let mut all = self.answers.lock().unwrap();
        all.retain(|(l, _)| l != line);
        all.push((line.to_owned(), vec![(code, answer.to_string().into_bytes())]));
    }

    /// Returns the received requests except discovery.
    pub fn requests(&self) -> Vec<String> {
        let all = self.requests.lock().unwrap();
        all.iter().map(|a| a.line.clone()).filter(|l| l != "GET /api" && l != "GET /apis").collect()
    }

    /// Returns the body of the first answer.
    pub fn answer(&self, line: &str) -> Vec<u8> {
        let line = &sort_query(line);
        let all = self.answers.lock().unwrap();
        all.iter().find(|(l, _)| l == line).map(|(_, a)| a[0].1.clone()).unwrap()
    }

    /// Returns the body of the last matching request.
    pub fn body_of(&self, line: &str) -> Value {
        let line = &sort_query(line);
        let all = self.requests.lock().unwrap();
        all.iter().rev().find(|a| a.line == *line).map(|a| a.body.clone()).unwrap_or_default()
    }
}

/// Sorts the query of a request line by name, as the client sends it.
fn sort_query(line: &str) -> String {
    let Some((path, query)) = line.split_once('?') else { return line.to_owned() };
    let mut pairs: Vec<&str> = query.split('&').collect();
    pairs.sort_by_key(|p| p.split('=').next().map(str::to_owned));
    format!("{path}?{}", pairs.join("&"))
}

#[async_trait]
impl Transport for Server {
    async fn upgrade(&self, r: Request<Bytes>) -> Result<Upgrade, Error> {
        let path = r.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
        let line = format!("{} {path}", r.method());
        let Some(handler) = self.handler.clone() else {
            let prepared = self.answers.lock().unwrap().iter().any(|(l, _)| *l == line);
            return if prepared { self.send(r).await.map(Upgrade::Refused) } else { Err(Error::NoUpgrade) };
        };
        self.requests.lock().unwrap().push(ReceivedRequest { line, content_type: String::new(), body: Value::Null });
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        tokio::spawn(async move {
            handler(
                Socket::from_raw_socket(theirs, tokio_tungstenite::tungstenite::protocol::Role::Server, None).await,
            )
            .await;
        });
        let offered =
            r.headers().get("sec-websocket-protocol").map(|v| v.to_str().unwrap().to_owned()).unwrap_or_default();
        let first = offered.split(", ").next().unwrap_or_default();
        let answer = Response::builder().status(101).header("sec-websocket-protocol", first);
        Ok(Upgrade::Switched(answer.body(()).unwrap().into_parts().0, Box::new(ours)))
    }

    async fn send(&self, r: Request<Bytes>) -> Result<Response<Body>, Error> {
        let path = r.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
        let line = format!("{} {path}", r.method());
        self.requests.lock().unwrap().push(ReceivedRequest {
            line: line.clone(),
            content_type: r.headers().get("content-type").map(|v| v.to_str().unwrap().to_owned()).unwrap_or_default(),
            body: serde_json::from_slice(r.body()).unwrap_or_default(),
        });
        if self.hanging.contains(&line) {
            return std::future::pending().await;
        }
        let mut all = self.answers.lock().unwrap();
        let (code, bytes) = match all.iter_mut().find(|(l, _)| *l == line) {
            Some((_, answers)) if answers.len() > 1 => answers.remove(0),
            Some((_, answers)) => answers[0].clone(),
            None => {
                let part = |i: usize| path.split(['/', '?']).nth(i).unwrap_or_default().to_owned();
                let core = path.starts_with("/api/");
                let at = if core { 3 } else { 4 }
                    + if path.contains("/namespaces/") && !part(if core { 5 } else { 6 }).is_empty() { 2 } else { 0 };
                let group = if core { String::new() } else { format!(".{}", part(2)) };
                let message = format!("{}{group} {:?} not found", part(at), part(at + 1));
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404, "message": message});
                (404, status.to_string().into_bytes())
            }
        };
        let answer = Response::builder().header("content-type", "application/json");
        let text = |bytes: Vec<u8>| Full::new(Bytes::from(bytes)).map_err(|e| match e {}).boxed_unsync();
        if line == "GET /api" || line == "GET /apis" {
            let etag = format!("\"{}\"", bytes.iter().map(|b| u64::from(*b)).sum::<u64>());
            let same = r.headers().get("if-none-match").is_some_and(|t| t == &etag);
            let (code, bytes) = if same { (304, Vec::new()) } else { (code, bytes) };
            return Ok(answer.status(code).header("etag", etag).body(text(bytes)).unwrap());
        }
        let answer = self.warnings.iter().fold(answer, |a, w| a.header("warning", w));
        Ok(answer.status(code).body(text(bytes)).unwrap())
    }
}

/// A writer that captures its input.
#[derive(Clone, Default)]
pub struct Sink(Arc<Mutex<Vec<u8>>>);

impl Sink {
    /// Returns the captured text.
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Sink {
    fn write(&mut self, b: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(b);
        Ok(b.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

struct FixedClock;

impl meta::Clock for FixedClock {
    fn now(&self) -> jiff::Timestamp {
        "2026-11-21T12:00:00Z".parse().unwrap()
    }
}

struct FixedRng;

impl meta::Rng for FixedRng {
    fn next_u64(&self) -> u64 {
        7
    }
}

/// Runs a command line and returns exit code, standard output and standard error.
pub async fn run_with(server: &Server, line: &[&str], input: &str) -> (u8, String, String) {
    run_in(server, line, input, |_| None).await
}

/// [`run_with`] with environment variables.
pub async fn run_in(
    server: &Server,
    line: &[&str],
    input: &str,
    environment: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
) -> (u8, String, String) {
    let (shell, out, err) = shell(server, input, environment);
    let args = std::iter::once("kubectl").chain(line.iter().copied()).map(Into::into).collect();
    let code = crate::run(args, shell).await;
    (code, out.text(), err.text())
}

/// Returns a shell that captures its output.
pub fn shell(
    server: &Server,
    input: &str,
    environment: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
) -> (Shell, Sink, Sink) {
    let (out, err) = (Sink::default(), Sink::default());
    let shell = Shell {
        out: Stream::new(out.clone()),
        err: Stream::new(err.clone()),
        input: Box::new(std::io::Cursor::new(input.as_bytes().to_vec())),
        environment: Box::new(environment),
        clock: Arc::new(FixedClock),
        rng: Arc::new(FixedRng),
        zone: jiff::tz::TimeZone::UTC,
        connect: Connect::Given(Client::new(server.clone(), "kubectl")),
        terminal: false,
    };
    (shell, out, err)
}

/// [`run_with`] for a line of words; returns one text, as a terminal and `$?` would show it.
pub async fn snapshot(server: &Server, line: &str, input: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (code, out, err) = run_with(server, &words, input).await;
    let mut text = out;
    for l in err.lines() {
        text.push_str(&format!("! {l}\n"));
    }
    if code != 0 {
        text.push_str(&format!("exit {code}\n"));
    }
    text
}
