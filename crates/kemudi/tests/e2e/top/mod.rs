//! `kubectl top` with the metrics API: output for existing and for missing metrics.
//!
//! The API is a server of these tests, so that metrics are always the same. `answers.txt` has command lines and the output
//! of the real program, below a heading for the state of the server; each of its lines ends with a bar, because of trailing
//! spaces. Behind the cluster's API server, through an APIService, it takes the place of the cluster's own metrics API.

use crate::runner::Case;
use crate::story::Story;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

pub const TESTS: &[Case] = &[("top::usage_is_told", usage_is_told), ("top::usage_is_measured", usage_is_measured)];
/// These tests run alone: other tests read the cluster's own metrics.
pub const ALONE: &[Case] = &[("top::usage_comes_through_aggregation", usage_comes_through_aggregation)];

/// The state of the metrics server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Measured,
    /// There is no metrics API.
    Without,
    /// The API has no metrics yet.
    Early,
    /// The API has no metrics of pods that are years old.
    Late,
    /// The API for the cluster of these tests.
    Aggregated,
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
            let (line, expected) = case.split_once('\n').unwrap();
            let words: Vec<&str> = line.split(' ').chain([server.as_str()]).collect();
            let o = s.bare(&words).env("KUBECONFIG", s.dir.join("none")).output().unwrap();
            let stderr = |b: &[u8], mark: &str| -> String {
                String::from_utf8_lossy(b).lines().map(|l| format!("{mark}{}|\n", without_age(l))).collect()
            };
            let code = o.status.code().unwrap();
            let end = if code == 0 { String::new() } else { format!("exit {code}|\n") };
            let got = stderr(&o.stdout, "") + &stderr(&o.stderr, "! ") + &end;
            if got != expected {
                wrong.push(format!("{heading}: {line}\nexpected\n{expected}got\n{got}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A container that works, within its limit.
pub const BUSY: &str = "trap 'exit 0' TERM; while :; do :; done";

/// R07.top: the usage of a container is seen soon after its start.
fn usage_is_measured(s: &Story) {
    let limits = json!({"resources": {"limits": {"cpu": "100m", "memory": "32Mi"}}});
    s.shell_pod("busy", BUSY, json!({}), limits);
    s.ready("busy");
    let line = s.eventually("usage of the pod", || {
        let o = s.k(&["top", "pod", "busy", "--containers", "--no-headers"]);
        let line = String::from_utf8(o.stdout).unwrap();
        let cpu: u64 = line.split_whitespace().nth(2)?.strip_suffix('m')?.parse().ok()?;
        (o.status.success() && (60..=140).contains(&cpu)).then_some(line)
    });
    assert!(line.starts_with("busy   c   "), "{line}");
    let all = s.ok(&["top", "pod", "-l", "app=busy"]);
    assert!(all.starts_with("NAME   CPU(cores)   MEMORY(bytes)   \nbusy   "), "{all}");
    s.eventually("usage of the node", || {
        String::from_utf8_lossy(&s.k(&["top", "node"]).stdout).contains("\ne2e ").then_some(())
    });
    let table = s.ok(&["get", "pods.metrics.k8s.io"]);
    assert!(table.starts_with("NAME   CPU") && table.contains("\nbusy   "), "{table}");
    let missing = format!("Error from server (NotFound): podmetrics.metrics.k8s.io \"{}/nosuch\" not found\n", s.ns);
    assert_eq!(s.fails(&["top", "pod", "nosuch"]), missing);
}

/// P18.top, R07.metrics-server: a metrics server of the user takes the place of the cluster's own metrics.
fn usage_comes_through_aggregation(s: &Story) {
    let node = s.get_at("/api/v1/nodes/e2e");
    let address = node["status"]["addresses"].as_array().unwrap().iter().find(|a| a["type"] == "InternalIP").unwrap();
    let (port, ca) = serve_tls(&format!("metrics.{}.svc", s.ns));
    s.create("services", json!({"metadata": {"name": "metrics"}, "spec": {"ports": [{"port": 443}]}}));
    s.create(
        "endpointslices",
        json!({"metadata": {"name": "metrics", "labels": {"kubernetes.io/service-name": "metrics"}}, "addressType": "IPv4",
            "ports": [{"port": port}], "endpoints": [{"addresses": [address["address"]]}]}),
    );
    let name = "v1beta1.metrics.k8s.io";
    let services = "/apis/apiregistration.k8s.io/v1/apiservices";
    s.post(
        services,
        json!({"metadata": {"name": name}, "spec": {"group": "metrics.k8s.io", "version": "v1beta1", "caBundle": ca,
            "groupPriorityMinimum": 100, "versionPriority": 100, "service": {"namespace": s.ns, "name": "metrics"}}}),
    );
    s.ok(&["wait", "--for=condition=Available", "--timeout=30s", &format!("apiservice/{name}")]);
    let usage = s.ok(&["top", "node", "--no-headers"]);
    let words: Vec<&str> = usage.split_whitespace().collect();
    assert_eq!((words[0], words[1], words[3], words.len()), ("e2e", "250m", "64Mi", 5), "{usage}");
    assert!(words[2].ends_with('%') && words[4].ends_with('%'), "parts of the cluster's real node: {usage}");
    assert_eq!(s.ok(&["top", "pod"]), "NAME   CPU(cores)   MEMORY(bytes)   \nweb    7m           3Mi             \n");
    assert_eq!(s.ok(&["top", "pod", "web", "--containers", "--no-headers"]), "web   app   7m    3Mi   \n");
    let raw: Value = serde_json::from_str(&s.ok(&["get", "--raw", "/apis/metrics.k8s.io/v1beta1/nodes/e2e"])).unwrap();
    assert_eq!(raw["usage"]["cpu"], "250m");
    s.ok(&["delete", "apiservice", name]);
    s.eventually("the cluster's own metrics", || {
        let o = s.k(&["get", "--raw", "/apis/metrics.k8s.io/v1beta1/nodes/e2e"]);
        let own: Value = serde_json::from_slice(&o.stdout).ok()?;
        (own["window"] != "30s").then_some(())
    });
}

fn without_age(line: &str) -> String {
    line.split_once("age: ").map_or_else(|| line.to_owned(), |(l, _)| format!("{l}age: AGE"))
}

fn serve(state: State) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || talk(&mut stream.unwrap(), state));
        }
    });
    address
}

/// Serves a backend of the cluster's API server under this name. Returns its port, and its CA as PEM in base64.
fn serve_tls(name: &str) -> (u16, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new([name.to_owned()]).unwrap().self_signed(&key).unwrap();
    let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], der)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = ServerConnection::new(config.clone()).unwrap();
            thread::spawn(move || {
                let mut stream = StreamOwned::new(connection, stream.unwrap());
                talk(&mut stream, State::Aggregated);
                stream.conn.send_close_notify();
                let _ = stream.flush();
            });
        }
    });
    (port, STANDARD.encode(certificate.pem()))
}

/// Serves a single request of a connection.
fn talk(stream: &mut (impl Read + Write), state: State) {
    let mut lines = BufReader::new(&mut *stream).lines().map_while(Result::ok);
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

/// Returns a list, or an object of it.
fn objects(path: &str, query: &str, state: State) -> Value {
    if path == "/apis/metrics.k8s.io/v1beta1" {
        return json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "metrics.k8s.io/v1beta1", "resources": []});
    }
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
        "nodes" if state == State::Aggregated => (
            "NodeMetrics",
            vec![json!({"metadata": {"name": "e2e"},
            "timestamp": "2026-01-01T00:00:00Z", "window": "30s", "usage": usage("250m", "64Mi", "")})],
        ),
        "pods" if state == State::Aggregated => (
            "PodMetrics",
            vec![json!({"metadata": {"name": "web", "namespace": namespace},
            "timestamp": "2026-01-01T00:00:00Z", "window": "30s", "containers": [container("app", "7m", "3Mi", "")]})],
        ),
        "nodes" if metrics => ("NodeMetrics", measured_nodes()),
        "nodes" => ("Node", nodes()),
        _ if metrics => ("PodMetrics", measured_pods()),
        _ => ("Pod", pods(if state == State::Late { "2020-01-01T00:00:00Z" } else { "2099-01-01T00:00:00Z" })),
    };
    if metrics && matches!(state, State::Early | State::Late) {
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

/// Fractions of thousandths of a CPU, and of megabytes: they are rounded when they are printed, not before.
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

/// One of them is no longer a node.
fn measured_nodes() -> Vec<Value> {
    let node = |name: &str, zone: &str, usage: Value| json!({"metadata": {"name": name, "labels": {"z": zone}}, "timestamp": "2026-01-01T00:00:00Z", "window": "30s", "usage": usage});
    vec![
        node("n1", "1", usage("500m", "1Gi", "100Mi")),
        node("n2", "2", usage("1999999999n", "3000000Ki", "")),
        node("ghost", "3", usage("1m", "1Mi", "")),
    ]
}

/// One of them has no metrics.
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
