//! `kubectl top` of a cluster that has the metrics API: what is said of measurements that are there, and of those that are not.
//!
//! The API is a server of these tests, so that measurements are always the same. `answers.txt` has command lines and what the
//! real program answers, below a heading for what the server has; each of its lines ends with a bar, for the gaps before it.

use crate::runner::Case;
use crate::story::Story;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

pub const TESTS: &[Case] = &[("top::usage_is_told", usage_is_told)];

/// What the server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Measured,
    /// No API of metrics.
    Without,
    /// An API that has measured nothing yet.
    Early,
    /// An API that has measured nothing of pods that are years old.
    Late,
}

const STATES: [(&str, State); 4] =
    [("measured", State::Measured), ("without", State::Without), ("early", State::Early), ("late", State::Late)];

fn usage_is_told(s: &Story) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/top/answers.txt");
    let text = std::fs::read_to_string(path).unwrap();
    let mut wrong = Vec::new();
    for part in text.split("# ").skip(1) {
        let (heading, cases) = part.split_once('\n').unwrap();
        let state = STATES.iter().find(|(n, _)| *n == heading).unwrap().1;
        let server = format!("--server=http://{}", serve(state));
        for case in cases.split("$ ").skip(1) {
            let (line, want) = case.split_once('\n').unwrap();
            let words: Vec<&str> = line.split(' ').chain([server.as_str()]).collect();
            let o = s.bare(&words).env("KUBECONFIG", s.dir.join("none")).output().unwrap();
            let said = |b: &[u8], mark: &str| -> String {
                String::from_utf8_lossy(b).lines().map(|l| format!("{mark}{}|\n", without_age(l))).collect()
            };
            let code = o.status.code().unwrap();
            let end = if code == 0 { String::new() } else { format!("exit {code}|\n") };
            let got = said(&o.stdout, "") + &said(&o.stderr, "! ") + &end;
            if got != want {
                wrong.push(format!("{heading}: {line}\nexpected\n{want}got\n{got}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn without_age(line: &str) -> String {
    line.split_once("age: ").map_or_else(|| line.to_owned(), |(l, _)| format!("{l}age: AGE"))
}

fn serve(state: State) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || talk(stream.unwrap(), state));
        }
    });
    address
}

/// One request of a connection, and no more.
fn talk(mut stream: TcpStream, state: State) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    let _ = lines.find(String::is_empty);
    let target = first.split(' ').nth(1).unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (media, body) = match path {
        "/api" => (DISCOVERY, groups(&json!([{"metadata": {}, "versions": [version("v1", "", ["Node", "Pod"])]}]))),
        "/apis" if state == State::Without => (DISCOVERY, groups(&json!([]))),
        "/apis" => {
            let measured = version("v1beta1", "Metrics", ["Node", "Pod"]);
            (DISCOVERY, groups(&json!([{"metadata": {"name": "metrics.k8s.io"}, "versions": [measured]}])))
        }
        p => ("application/json", objects(p, query, state)),
    };
    let code = body["code"].as_u64().unwrap_or(200);
    let body = body.to_string();
    let head = format!("HTTP/1.1 {code} -\r\nContent-Type: {media}\r\nContent-Length: {}\r\n", body.len());
    let _ = write!(stream, "{head}Connection: close\r\n\r\n{body}");
}

const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

fn groups(items: &Value) -> Value {
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

fn version(name: &str, suffix: &str, kinds: [&str; 2]) -> Value {
    let resource = |k: &str| {
        let word = k.to_lowercase();
        json!({
            "resource": format!("{word}s"), "singularResource": word, "verbs": ["get", "list"],
            "responseKind": {"group": "", "version": "", "kind": format!("{k}{suffix}")},
            "scope": if k == "Node" { "Cluster" } else { "Namespaced" },
        })
    };
    json!({"version": name, "freshness": "Current", "resources": kinds.map(resource)})
}

/// A list, or an object of it.
fn objects(path: &str, query: &str, state: State) -> Value {
    let missing = |message: String| json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound", "code": 404, "message": message});
    let (metrics, rest) = match (path.strip_prefix("/apis/metrics.k8s.io/v1beta1/"), path.strip_prefix("/api/v1/")) {
        (Some(rest), _) => (true, rest),
        (_, Some(rest)) => (false, rest),
        _ => return missing("the server could not find the requested resource".into()),
    };
    let mut parts: Vec<&str> = rest.split('/').collect();
    let mut namespace = None;
    if parts[0] == "namespaces" {
        namespace = parts.get(1).copied();
        parts.drain(..2);
    }
    let (kind, mut items) = match parts[0] {
        "nodes" if metrics => ("NodeMetrics", measured_nodes()),
        "nodes" => ("Node", nodes()),
        _ if metrics => ("PodMetrics", measured_pods()),
        _ => ("Pod", pods(if state == State::Late { "2020-01-01T00:00:00Z" } else { "2099-01-01T00:00:00Z" })),
    };
    if metrics && state != State::Measured {
        items.clear();
    }
    items.retain(|o| namespace.is_none_or(|n| o["metadata"]["namespace"] == n));
    let version = if metrics { "metrics.k8s.io/v1beta1" } else { "v1" };
    if let Some(name) = parts.get(1) {
        let group = if metrics { ".metrics.k8s.io" } else { "" };
        let found = items.into_iter().find(|o| o["metadata"]["name"] == *name);
        return found.map_or_else(
            || missing(format!("{}{group} {name:?} not found", parts[0])),
            |mut o| {
                (o["kind"], o["apiVersion"]) = (kind.into(), version.into());
                o
            },
        );
    }
    for q in query.split('&') {
        let q = q.replace("%3D", "=");
        if let Some((label, value)) = q.strip_prefix("labelSelector=").and_then(|q| q.split_once('=')) {
            items.retain(|o| o["metadata"]["labels"][label] == value);
        }
        if let Some(name) = q.strip_prefix("fieldSelector=metadata.name=") {
            items.retain(|o| o["metadata"]["name"] == name);
        }
    }
    json!({"kind": format!("{kind}List"), "apiVersion": version, "metadata": {}, "items": items})
}

fn usage(cpu: &str, memory: &str, swap: &str) -> Value {
    let mut u = json!({"cpu": cpu, "memory": memory});
    if !swap.is_empty() {
        u["swap"] = swap.into();
    }
    u
}

fn container(name: &str, cpu: &str, memory: &str, swap: &str) -> Value {
    json!({"name": name, "usage": usage(cpu, memory, swap)})
}

/// Parts of thousandths of a processor, and of megabytes: they are rounded when they are shown, not before.
fn measured_pods() -> Vec<Value> {
    let pod = |ns: &str, name: &str, containers: Vec<Value>| json!({"metadata": {"name": name, "namespace": ns, "labels": {"app": name}}, "timestamp": "2026-01-01T00:00:00Z", "window": "30s", "containers": containers});
    vec![
        pod("a", "web", vec![container("app", "1500u", "10Mi", ""), container("side", "250000001n", "300Ki", "")]),
        pod("a", "db", vec![container("pg", "1", "2Gi", "5Mi")]),
        pod("b", "web", vec![container("app", "12345678n", "1234567", "")]),
    ]
}

fn pods(made: &str) -> Vec<Value> {
    let pod = |o: &Value| {
        let mut metadata = o["metadata"].clone();
        metadata["creationTimestamp"] = made.into();
        json!({"metadata": metadata, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}})
    };
    measured_pods().iter().map(pod).collect()
}

/// One of them is no node any more.
fn measured_nodes() -> Vec<Value> {
    let node = |name: &str, zone: &str, usage: Value| json!({"metadata": {"name": name, "labels": {"z": zone}}, "timestamp": "2026-01-01T00:00:00Z", "window": "30s", "usage": usage});
    vec![
        node("n1", "1", usage("500m", "1Gi", "100Mi")),
        node("n2", "2", usage("1999999999n", "3000000Ki", "")),
        node("ghost", "3", usage("1m", "1Mi", "")),
    ]
}

/// One of them is not measured.
fn nodes() -> Vec<Value> {
    let node = |name: &str, zone: &str, allocatable: Value, capacity: Value, info: Value| {
        json!({"metadata": {"name": name, "labels": {"z": zone}}, "spec": {},
            "status": {"allocatable": allocatable, "capacity": capacity, "nodeInfo": info}})
    };
    let swap = json!({"swap": {"capacity": 1 << 30}});
    vec![
        node("n1", "1", usage("2", "4Gi", ""), usage("4", "8Gi", ""), swap),
        node("n2", "2", usage("1500m", "3Gi", ""), usage("2", "4Gi", ""), json!({})),
        node("n3", "4", usage("1", "1Gi", ""), usage("1", "1Gi", ""), json!({})),
    ]
}
