//! The kubelet's API on port 10250, called directly and through the API server.

use crate::runner::Case;
use crate::story::Story;
use bytes::Bytes;
use client::client::{JSON, collect, request};
use client::https::{Credentials, Https};
use client::kubeconfig::{Overrides, Sources};
use client::{Client, Upgrade};
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, TcpStream};
use std::time::Duration;
use tokio::io::AsyncReadExt;

pub const TESTS: &[Case] = &[
    ("kubelet::health_and_configuration", health),
    ("kubelet::pods_and_their_usage", usage),
    ("kubelet::metrics_of_cadvisor_and_of_probes", cadvisor),
    ("kubelet::logs_and_commands", commands),
    ("kubelet::what_is_off_is_refused", refusals),
    ("kubelet::the_way_of_exec_and_logs", one_way),
    ("kubelet::proxies_of_nodes", proxies),
];

const FOREVER: &str = "echo ready; trap 'exit 0' TERM; while :; do sleep 0.1; done";

/// The agent itself, its certificate verified, with a token or, without one, the administrator's.
pub struct Agent<'a> {
    story: &'a Story,
    client: Client,
}

impl<'a> Agent<'a> {
    pub fn new(story: &'a Story, token: Option<&str>) -> Self {
        let sources = Sources { explicit: Some(story.cluster.kubeconfig.clone()), files: Vec::new() };
        let server = format!("https://{}", address(story));
        let client = story.cluster.runtime.block_on(async {
            let mut config = sources.resolve(&Overrides::default(), |_| None).unwrap().config().await.unwrap();
            config.server = server;
            if let Some(token) = token {
                config.credentials = Credentials::Bearer(token.into());
            }
            Client::new(Https::new(&config).unwrap(), "e2e")
        });
        Self { story, client }
    }

    pub fn call(&self, method: &str, path: &str) -> (StatusCode, String) {
        let r = request(Method::from_bytes(method.as_bytes()).unwrap(), path, JSON, None).unwrap();
        self.story.cluster.runtime.block_on(async {
            let answer = self.client.raw(r).await.unwrap_or_else(|e| panic!("{path}: {e}"));
            let code = answer.status();
            (code, String::from_utf8_lossy(&collect(answer.into_body()).await.unwrap()).into_owned())
        })
    }

    /// Reads a WebSocket until `end` has come; returns everything that came.
    fn web_socket(&self, path: &str, protocol: &str, end: &str) -> Vec<u8> {
        let r = Request::get(path)
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .header("sec-websocket-protocol", protocol);
        self.story.cluster.runtime.block_on(async {
            let upgrade = self.client.upgrade(r.body(Bytes::new()).unwrap()).await.unwrap();
            let Upgrade::Switched(_, mut stream) = upgrade else { panic!("{path}: the protocol was not changed") };
            let mut said = Vec::new();
            while !String::from_utf8_lossy(&said).contains(end) {
                let read = tokio::time::timeout(Duration::from_secs(60), stream.read_buf(&mut said)).await;
                let n = read.unwrap_or_else(|_| panic!("{path}: nothing more came after {said:?}")).unwrap();
                assert!(n > 0, "{path}: closed after {said:?}");
            }
            said
        })
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> String {
        let (code, text) = self.call("GET", path);
        assert_eq!(code, 200, "{path}: {text}");
        text
    }

    #[track_caller]
    pub fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.get(path)).unwrap()
    }
}

/// Host and port, as the node's status says.
pub fn address(s: &Story) -> String {
    let node = s.get_at("/api/v1/nodes/e2e");
    let port = &node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"];
    let all = node["status"]["addresses"].as_array().unwrap();
    let own = all.iter().find(|a| a["type"] == "InternalIP").unwrap();
    format!("{}:{port}", own["address"].as_str().unwrap())
}

/// The value of the sample whose name and labels these are.
fn sample(text: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let line = |l: &&str| {
        let rest = l.strip_prefix(name).filter(|r| r.starts_with(['{', ' ']));
        rest.is_some_and(|r| labels.iter().all(|(k, v)| r.contains(&format!("{k}=\"{v}\""))))
    };
    let line = text.lines().find(line)?;
    let values = line.rsplit_once('}').map_or_else(|| line.split_once(' ').unwrap().1, |(_, v)| v.trim());
    values.split(' ').next()?.parse().ok()
}

fn health(s: &Story) {
    let agent = Agent::new(s, None);
    for path in ["/healthz", "/healthz/ping", "/healthz/log", "/healthz/syncloop"] {
        assert_eq!(agent.get(path), "ok", "{path}");
    }
    let all = agent.get("/healthz?verbose");
    assert_eq!(all, "[+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n");
    let config = &agent.json("/configz")["kubeletconfig"];
    assert_eq!(config["kind"], "KubeletConfiguration");
    assert_eq!(config["authentication"]["anonymous"]["enabled"], false);
    assert_eq!(config["authorization"]["mode"], "Webhook");
    assert_eq!((&config["maxPods"], &config["podPidsLimit"]), (&json!(110), &json!(512)));
    // Those of the file, and a default.
    assert_eq!((&config["shutdownGracePeriod"], &config["nodeStatusMaxImages"]), (&json!("20s"), &json!(40)));
    assert_eq!((&config["imageMinimumGCAge"], &config["kubeReserved"]["memory"]), (&json!("2m0s"), &json!("64Mi")));
    assert!(s.cluster.log().contains("these fields have no effect on this node: syncFrequency"));
    assert_eq!(config["port"], s.get_at("/api/v1/nodes/e2e")["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]);
}

/// Lets the pod send something: nothing listens there, which it says.
fn talk(pod: &Value) {
    let address: IpAddr = pod["status"]["podIP"].as_str().unwrap().parse().unwrap();
    let refused = TcpStream::connect_timeout(&(address, 1).into(), Duration::from_secs(10)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

fn usage(s: &Story) {
    s.shell_pod("p", FOREVER, json!({}), json!({"resources": {"limits": {"memory": "64Mi"}}}));
    let pod = s.ready("p");
    let agent = Agent::new(s, None);
    talk(&pod);
    let is = |p: &&Value| p["metadata"]["uid"] == pod["metadata"]["uid"];
    let pods = agent.json("/pods");
    let own = pods["items"].as_array().unwrap().iter().find(is).unwrap();
    assert_eq!((&pods["kind"], &own["spec"]["nodeName"]), (&json!("PodList"), &json!("e2e")));
    let running = agent.json("/runningpods/");
    let own = running["items"].as_array().unwrap().iter().find(is).unwrap();
    assert_eq!(own["spec"]["containers"][0]["name"], "c");

    let summary = s.eventually("rates of usage", || {
        let all = agent.json("/stats/summary");
        (!all["node"]["cpu"]["usageNanoCores"].is_null()).then_some(all)
    });
    let node = &summary["node"];
    assert_eq!(node["nodeName"], "e2e");
    let positive = |v: &Value, what: &[&str]| {
        for path in what {
            let at = path.split('.').fold(v, |v, k| &v[k]);
            assert!(at.as_u64().is_some_and(|n| n > 0), "{path}: {at} in {v:#}");
        }
    };
    positive(node, &["cpu.usageCoreNanoSeconds", "memory.workingSetBytes", "memory.availableBytes", "rlimit.maxpid"]);
    positive(node, &["fs.capacityBytes", "fs.availableBytes", "fs.usedBytes", "runtime.imageFs.usedBytes"]);
    assert_eq!(node["systemContainers"][0]["name"], "pods");
    let find = |all: &Value| {
        let uid = &pod["metadata"]["uid"];
        all["pods"].as_array().unwrap().iter().find(|p| p["podRef"]["uid"] == *uid).cloned().unwrap()
    };
    let own = find(&summary);
    assert_eq!(own["podRef"]["namespace"], s.ns);
    positive(
        &own,
        &["cpu.usageCoreNanoSeconds", "memory.usageBytes", "memory.workingSetBytes", "process_stats.process_count"],
    );
    positive(&own, &["network.rxBytes", "network.txBytes", "ephemeral-storage.usedBytes"]);
    assert_eq!(own["network"]["interfaces"][0]["name"], "eth0");
    let c = &own["containers"][0];
    positive(c, &["cpu.usageCoreNanoSeconds", "memory.workingSetBytes", "rootfs.capacityBytes", "logs.usedBytes"]);
    let (free, used) = (&c["memory"]["availableBytes"], &c["memory"]["workingSetBytes"]);
    assert_eq!(free.as_u64().unwrap() + used.as_u64().unwrap(), 64 << 20, "what is left of the limit");
    let little = agent.json("/stats/summary?only_cpu_and_memory=true");
    let own = find(&little);
    assert!(own["network"].is_null() && own["containers"][0]["rootfs"].is_null() && little["node"]["fs"].is_null());
    positive(&own, &["cpu.usageCoreNanoSeconds"]);

    let text = agent.get("/metrics/resource");
    let labels = [("namespace", s.ns.as_str()), ("pod", "p")];
    let of_container = [("container", "c"), ("namespace", s.ns.as_str()), ("pod", "p")];
    for (name, labels) in [
        ("node_cpu_usage_seconds_total", &[][..]),
        ("node_memory_working_set_bytes", &[]),
        ("pod_cpu_usage_seconds_total", &labels),
        ("pod_memory_working_set_bytes", &labels),
        ("container_cpu_usage_seconds_total", &of_container),
        ("container_memory_working_set_bytes", &of_container),
        ("container_start_time_seconds", &of_container),
    ] {
        assert!(sample(&text, name, labels).is_some_and(|v| v > 0.0), "{name} in {text}");
    }
    assert_eq!(sample(&text, "container_swap_usage_bytes", &of_container), Some(0.0), "{text}");
    assert_eq!(sample(&text, "resource_scrape_error", &[]), Some(0.0), "{text}");
    // Time goes on with what is used.
    let used = |text: &str| sample(text, "container_cpu_usage_seconds_total", &of_container).unwrap();
    let before = used(&text);
    s.sh("p", "i=0; while test $i -lt 100000; do i=$((i+1)); done");
    assert!(used(&agent.get("/metrics/resource")) > before);
}

fn cadvisor(s: &Story) {
    let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let resources = json!({"limits": {"cpu": "200m"}, "requests": {"cpu": "100m"}});
    s.shell_pod("p", FOREVER, json!({}), json!({"readinessProbe": probe, "resources": resources}));
    let made = s.ready("p");
    let uid = made["metadata"]["uid"].as_str().unwrap().to_owned();
    let agent = Agent::new(s, None);
    talk(&made);
    s.sh("p", "i=0; while test $i -lt 100000; do i=$((i+1)); done");
    let text = agent.get("/metrics/cadvisor");
    let ns = s.ns.as_str();
    let container = [("container", "c"), ("namespace", ns), ("pod", "p"), ("image", crate::story::IMAGE)];
    let pod = [("container", ""), ("namespace", ns), ("pod", "p"), ("interface", "eth0")];
    for (name, labels) in [
        ("container_cpu_usage_seconds_total", &container[..]),
        ("container_cpu_cfs_periods_total", &container),
        ("container_cpu_cfs_throttled_periods_total", &container),
        ("container_cpu_cfs_throttled_seconds_total", &container),
        ("container_memory_working_set_bytes", &container),
        ("container_memory_max_usage_bytes", &container),
        ("container_threads", &container),
        ("container_fs_limit_bytes", &container),
        ("container_network_receive_bytes_total", &pod),
        ("container_network_transmit_packets_total", &pod),
        ("machine_cpu_cores", &[]),
        ("machine_memory_bytes", &[]),
    ] {
        assert!(sample(&text, name, labels).is_some_and(|v| v > 0.0), "{name} in {text}");
    }
    let of_container = |name: &str| sample(&text, name, &container).unwrap_or_default();
    let names = ["container_spec_cpu_quota", "container_spec_cpu_period", "container_spec_cpu_shares"];
    assert_eq!(names.map(of_container), [20_000.0, 100_000.0, 102.0]);
    // Without a limit nothing is held back.
    let pod_names = text.lines().filter(|l| l.starts_with("container_cpu_cfs") && l.contains("id=\"/\""));
    assert_eq!(pod_names.count(), 0, "{text}");
    let labels = [("probe_type", "Readiness"), ("container", "c"), ("pod", "p"), ("pod_uid", uid.as_str())];
    let good = [&labels[..], &[("result", "successful")]].concat();
    let counted = || sample(&agent.get("/metrics/probes"), "prober_probe_total", &good);
    let before = counted().unwrap();
    s.eventually("another probe", || counted().filter(|n| *n > before));
    let text = agent.get("/metrics");
    for (name, labels) in [
        ("kubelet_node_name", &[("node", "e2e")][..]),
        ("kubelet_running_containers", &[("container_state", "running")]),
        ("kubelet_pod_start_duration_seconds_count", &[]),
        ("kubelet_started_containers_total", &[("container_type", "container")]),
        ("kubelet_http_requests_total", &[("path", "metrics/probes"), ("method", "GET")]),
        ("process_resident_memory_bytes", &[]),
    ] {
        assert!(sample(&text, name, labels).is_some_and(|v| v > 0.0), "{name} in {text}");
    }
    s.k(&["delete", "pod", "p", "--now"]);
    s.eventually("the probes of a pod that is gone are forgotten", || counted().is_none().then_some(()));
}

fn commands(s: &Story) {
    s.shell_pod("p", FOREVER, json!({}), json!({}));
    let pod = s.ready("p");
    s.logged("p", "ready");
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    let agent = Agent::new(s, None);
    let ns = &s.ns;
    assert_eq!(agent.get(&format!("/containerLogs/{ns}/p/c")), "ready\n");
    assert_eq!(agent.call("GET", &format!("/containerLogs/{ns}/none/c")).0, 404);
    let run = |path: &str, command: &str| agent.call("POST", &format!("/run/{ns}/{path}?cmd={command}"));
    assert_eq!(run("p/c", "echo%20a%20b"), (StatusCode::OK, "a b\n".into()));
    assert_eq!(run(&format!("p/{uid}/c"), "echo"), (StatusCode::OK, "\n".into()));
    let (code, said) = run("p/c", "ls%20/none");
    assert!(code == 500 && said.starts_with("command 'ls /none' exited with 1: "), "{said}");
    for absent in ["p/none", "none/c", "p/other-uid/c"] {
        assert_eq!(run(absent, "echo").0, 500, "{absent}");
    }
    let path = format!("/exec/{ns}/p/c?command=echo&command=inside&stdout=true&stderr=true");
    for protocol in ["v5.channel.k8s.io", "v4.channel.k8s.io"] {
        let said = agent.web_socket(&path, protocol, "\"status\":");
        let is = |part: &[u8]| said.windows(part.len()).any(|w| w == part);
        assert!(is(b"\x01inside\n") && is(b"\"status\":\"Success\""), "{protocol}: {said:?}");
    }
    // Ports forwarded by messages: each channel begins with the port, here in base64.
    s.sh("p", "/bin/busybox nc -ll -p 7000 -e /bin/busybox echo from-the-port >/dev/null 2>&1 &");
    s.eventually("the port listens", || {
        s.k(&["exec", "p", "--", "/bin/busybox", "grep", ":1B58", "/proc/net/tcp", "/proc/net/tcp6"])
            .status
            .success()
            .then_some(())
    });
    let path = format!("/portForward/{ns}/p?port=7000");
    for (protocol, number, line) in [
        ("v4.channel.k8s.io", &b"\x00\x58\x1b"[..], "\0from-the-port\n"),
        ("v4.base64.channel.k8s.io", b"0WBs=", "0ZnJvbS10aGUtcG9ydAo="),
    ] {
        let sent = agent.web_socket(&path, protocol, line);
        assert!(sent.windows(number.len()).any(|w| w == number), "{protocol}: {sent:?}");
    }
    // Without an upgrade there is no stream.
    for path in ["exec", "attach"] {
        let (code, said) = agent.call("POST", &format!("/{path}/{ns}/p/c?command=true&stdout=true"));
        assert_eq!(code, 400, "{path}: {said}");
    }
}

fn refusals(s: &Story) {
    let agent = Agent::new(s, None);
    for (method, path, code, said) in [
        ("POST", "/pods", 405, "Method Not Allowed"),
        ("POST", "/stats/summary", 405, "Method Not Allowed"),
        ("DELETE", "/containerLogs/a/b/c", 405, "Method Not Allowed"),
        ("GET", "/run/a/b/c", 405, "Method Not Allowed"),
        ("GET", "/debug/pprof/", 405, "profiling endpoint is disabled.\n"),
        ("PUT", "/debug/flags/v", 405, "flags endpoint is disabled.\n"),
        ("POST", "/checkpoint/a/b/c", 404, "pod does not exist"),
        ("GET", "/checkpoint/a/b/c", 405, "Method Not Allowed"),
        ("GET", "/healthz/none", 404, "404 page not found\n"),
        ("GET", "/none", 404, "404 page not found\n"),
        ("GET", "/", 404, "404 page not found\n"),
        ("GET", "/logs/none", 404, "404 page not found\n"),
        ("GET", "/logs/..%2f..%2fetc%2fpasswd", 404, "404 page not found\n"),
        ("GET", "/logs/../../etc/passwd", 404, "404 page not found\n"),
    ] {
        assert_eq!(agent.call(method, path), (StatusCode::from_u16(code).unwrap(), said.into()), "{method} {path}");
    }
}

/// What users do with pods comes to the agent through its own API.
fn one_way(s: &Story) {
    s.shell_pod("p", FOREVER, json!({}), json!({}));
    s.ready("p");
    s.logged("p", "ready");
    let agent = Agent::new(s, None);
    let count = || -> BTreeMap<&str, f64> {
        let text = agent.get("/metrics");
        ["exec", "containerLogs"]
            .map(|p| {
                (p, sample(&text, "kubelet_http_requests_total", &[("path", p), ("method", "GET")]).unwrap_or(0.0))
            })
            .into()
    };
    let before = count();
    assert_eq!(s.sh("p", "echo inside"), "inside\n");
    assert_eq!(s.logs("p"), "ready\n");
    let after = count();
    assert!(before.iter().all(|(path, n)| after[path] > *n), "{before:?} {after:?}");
}

fn proxies(s: &Story) {
    let raw = |node: &str, path: &str| s.ok(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy{path}")]);
    for node in ["e2e", "e2e:10250", "https:e2e:10250"] {
        assert_eq!(raw(node, "/healthz"), "ok", "{node}");
        assert!(raw(node, "/logs/").contains("<pre>"), "{node}");
    }
    assert!(raw("e2e", "/metrics").contains("kubelet_node_name{node=\"e2e\"} 1"));
    assert!(raw("e2e", "/metrics/resource").contains("node_cpu_usage_seconds_total"));
    assert!(raw("e2e", "/metrics/cadvisor").contains("machine_cpu_cores"));
    for (path, key) in [("/stats/summary", "node"), ("/configz", "kubeletconfig"), ("/pods", "items")] {
        let v: Value = serde_json::from_str(&raw("e2e", path)).unwrap();
        assert!(!v[key].is_null(), "{path}");
    }
    let said = s.fails(&["get", "--raw", "/api/v1/nodes/none/proxy/healthz"]);
    assert!(said.contains("nodes \"none\" not found"), "{said}");
}
