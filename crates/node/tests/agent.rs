//! An agent with the embedded runtime, in a network namespace of its own, against a small API.
#![allow(clippy::unwrap_used)] // helpers of tests

mod fake;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use fake::Fake;
use kemudi_node::{Agent, DnsOptions, Handle, Options};
use network::PodNetwork;
use runtime::Embedded;
use serde_json::{Value, json};

static NEXT: AtomicU32 = AtomicU32::new(0);
const PODS: &str = "api/v1/pods";

/// The time, and this many seconds.
struct Wall(i64);

impl meta::Clock for Wall {
    fn now(&self) -> jiff::Timestamp {
        let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_REALTIME).unwrap();
        jiff::Timestamp::new(now.tv_sec() + self.0, now.tv_nsec() as i32).unwrap()
    }
}

struct Count(AtomicU64);

impl meta::Rng for Count {
    fn next_u64(&self) -> u64 {
        self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }
}

struct Machine {
    directory: tempfile::TempDir,
    api: Fake,
    runtime: runtime::Options,
    network: network::Options,
    embedded: Embedded,
    node: PathBuf,
    seccomp_default: kemudi_node::SeccompDefault,
    max_pods: u32,
    /// Seconds by which the agent's clock is ahead of that of its shims.
    ahead: i64,
    agent: Option<(client::Trigger, tokio::task::JoinHandle<()>)>,
    handle: Option<Handle>,
    /// In place of the runtime, if there is one.
    held: Option<Arc<fake::held::Held>>,
}

impl Machine {
    async fn new() -> Machine {
        assert!(nix::unistd::geteuid().is_root(), "these tests start containers: run them as root");
        let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let directory = tempfile::Builder::new().prefix("kemudi-node-").tempdir_in(target).unwrap();
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("kemudi-node-test-{}-{n}", std::process::id());
        let clock: runtime::Clock = Arc::new(|| {
            let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_REALTIME).unwrap();
            runtime::Timestamp { secs: now.tv_sec() as u64, nanos: now.tv_nsec() as u32 }
        });
        let mut options = runtime::Options::new(directory.path().join("runtime"), prefix, clock);
        let program = PathBuf::from(env!("CARGO_BIN_EXE_kemudi-node-testbed"));
        options.shim_program = program.clone();
        let embedded = Embedded::open(options.clone()).await.unwrap();
        embedded.images().ensure_builtin("kemudi.local/demo", &program).unwrap();
        let node = directory.path().join("node-netns");
        network::namespace::create(&node, || Ok(())).unwrap();
        let up = ["--net", node.to_str().unwrap(), "ip", "link", "set", "lo", "up"];
        let up = std::process::Command::new("nsenter").arg(format!("--net={}", up[1])).args(&up[2..]).status();
        assert!(up.unwrap().success());
        let network = network::Options {
            id: format!("t{:x}", std::process::id() as u64 * 16 + u64::from(n)),
            state_directory: directory.path().join("network"),
            namespace_directory: directory.path().join("netns"),
            node_namespace: Some(node.clone()),
            pod_range: "10.201.0.0/24".parse().unwrap(),
            cluster_range: "10.201.0.0/16".parse().unwrap(),
            service_range: "10.202.0.0/16".parse().unwrap(),
            more_devices: Vec::new(),
            mtu: None,
            masquerade: false,
            forward: false,
        };
        let mut machine = Machine {
            directory,
            api: Fake::new(),
            runtime: options,
            network,
            embedded,
            node,
            seccomp_default: kemudi_node::SeccompDefault::default(),
            max_pods: 110,
            ahead: 0,
            agent: None,
            handle: None,
            held: None,
        };
        machine.start().await;
        machine
    }

    async fn start(&mut self) {
        let network = PodNetwork::open(self.network.clone()).await.unwrap();
        let agent = Agent::new(Options {
            client: self.api.client(),
            node_name: "n1".into(),
            node_ip: "192.0.2.7".parse().unwrap(),
            hostname: "machine".into(),
            runtime: match &self.held {
                Some(held) => held.clone(),
                None => Arc::new(self.embedded.clone()),
            },
            host: Arc::new(self.embedded.clone()),
            network: Some(network),
            node_namespace: Some(self.node.clone()),
            data_dir: self.directory.path().to_owned(),
            log_dir: self.directory.path().join("logs"),
            dns: DnsOptions { server: Some("10.202.0.10".into()), domain: "cluster.local".into(), node: String::new() },
            pod_cidr: Some("10.201.0.0/24".into()),
            max_pods: self.max_pods,
            sysctls: kemudi_node::Allowlist::default(),
            seccomp_default: self.seccomp_default,
            pod_pids_limit: None,
            address: [0, 0, 0, 0].into(),
            port: 10250,
            own_ports: vec![network::HostPort {
                address: None,
                protocol: network::Protocol::Tcp,
                port: 6443,
                target: 6443,
            }],
            version: "v1.36.0".into(),
            labels: BTreeMap::new(),
            clock: Arc::new(Wall(self.ahead)),
            rng: Arc::new(Count(AtomicU64::new(1))),
        });
        self.handle = Some(agent.handle());
        let (trigger, shutdown) = client::shutdown();
        let task = tokio::spawn(async move { agent.run(shutdown).await.unwrap() });
        self.agent = Some((trigger, task));
    }

    async fn stop(&mut self) {
        let (trigger, task) = self.agent.take().unwrap();
        trigger.trigger();
        task.await.unwrap();
    }

    fn pod(&self, name: &str, spec: Value) -> Value {
        let mut spec = spec;
        spec["nodeName"] = "n1".into();
        self.api.put(PODS, json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec}))
    }

    async fn until(&self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.api.until(PODS, "default", name, |p| p.is_some_and(&wanted)).await.unwrap()
    }

    async fn gone(&self, name: &str) {
        self.api.until(PODS, "default", name, |p| p.is_none()).await;
    }

    async fn finish(mut self) {
        self.stop().await;
        for e in std::fs::read_dir(self.directory.path().join("pods")).into_iter().flatten().flatten() {
            for kind in std::fs::read_dir(e.path().join("volumes")).into_iter().flatten().flatten() {
                for v in std::fs::read_dir(kind.path()).into_iter().flatten().flatten() {
                    let _ = nix::mount::umount2(&v.path(), nix::mount::MntFlags::MNT_DETACH);
                }
            }
        }
        Embedded::purge(&self.runtime).await.unwrap();
        PodNetwork::purge(&self.network).await.unwrap();
        network::namespace::remove(&self.node).unwrap();
    }
}

fn demo(name: &str, args: Value) -> Value {
    json!({"name": name, "image": "kemudi.local/demo", "args": args})
}

fn is_ready(p: &Value) -> bool {
    let conditions = p["status"]["conditions"].as_array();
    conditions.is_some_and(|c| c.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
}

/// Clauses: P01.hostname P04 P06 P07 P08
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_runs_is_probed_and_goes() {
    let m = Machine::new().await;
    m.api.put(
        "api/v1/configmaps",
        json!({"metadata": {"name": "cm", "namespace": "default"}, "data": {"K": "from cm"}}),
    );
    let mut c = demo("web", json!(["--port", "8081"]));
    c["readinessProbe"] = json!({"httpGet": {"path": "/healthz", "port": 8081}, "periodSeconds": 1});
    c["env"] = json!([{"name": "K", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "K"}}}]);
    c["volumeMounts"] = json!([{"name": "v", "mountPath": "/config"}]);
    m.pod("web", json!({"containers": [c], "volumes": [{"name": "v", "configMap": {"name": "cm"}}]}));
    let p = m.until("web", is_ready).await;
    assert_eq!(p["status"]["phase"], "Running");
    assert_eq!(p["status"]["qosClass"], "BestEffort");
    assert_eq!(p["status"]["hostIP"], "192.0.2.7");
    assert!(p["status"]["podIP"].as_str().unwrap().starts_with("10.201.0."));
    let s = &p["status"]["containerStatuses"][0];
    assert!(s["containerID"].as_str().unwrap().starts_with("kemudi://"));
    assert_eq!((&s["ready"], &s["started"], &s["restartCount"]), (&json!(true), &json!(true), &json!(0)));

    let node = m.api.until("api/v1/nodes", "", "n1", |n| n.is_some_and(is_ready)).await.unwrap();
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], "n1");
    m.api.until("apis/coordination.k8s.io/v1/leases", "kube-node-lease", "n1", |l| l.is_some()).await;

    m.api.delete_gracefully(PODS, "default", "web", 30);
    m.gone("web").await;
    let left = m.embedded.clone();
    use runtime::Runtime;
    assert!(left.list_pods().await.unwrap().is_empty());
    m.finish().await;
}

/// Answers probes on a port of the node's loopback. Gives the heads of the requests, in order.
fn redirecting_server(m: &Machine, port: u16) -> Arc<std::sync::Mutex<Vec<String>>> {
    use std::io::{BufRead, Write};
    let listener =
        network::namespace::run_in(Some(&m.node), || std::net::TcpListener::bind(("127.0.0.1", port))).unwrap();
    let heads: Arc<std::sync::Mutex<Vec<String>>> = Arc::default();
    let seen = heads.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let lines = std::io::BufReader::new(&stream).lines().map_while(Result::ok);
            let head = lines.take_while(|l| !l.is_empty()).collect::<Vec<_>>().join("\n");
            let (status, location, body) = match head.split(' ').nth(1).unwrap_or_default() {
                "/local" => ("302 Found", "fine?q", ""),
                "/failing" => ("307 Temporary Redirect", "/500", ""),
                "/elsewhere" => ("301 Moved Permanently", "http://other.example/", "gone away"),
                "/round" => ("302 Found", "/round", ""),
                "/500" => ("500 Internal Server Error", "", ""),
                _ => ("200 OK", "", ""),
            };
            seen.lock().unwrap().push(head);
            let length = body.len();
            let location = if location.is_empty() { String::new() } else { format!("Location: {location}\r\n") };
            let _ = write!(stream, "HTTP/1.1 {status}\r\n{location}Content-Length: {length}\r\n\r\n{body}");
        }
    });
    heads
}

/// Any redirect was a success: a server that redirected to an error of its own was ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_follow_redirects_of_the_same_host() {
    let m = Machine::new().await;
    let heads = redirecting_server(&m, 8099);
    let containers: Vec<Value> = ["local", "failing", "elsewhere", "round"]
        .map(|name| {
            let mut c = demo(name, json!(["sleep"]));
            let headers = json!([{"name": "Host", "value": "probe.example"}, {"name": "X-Probe", "value": "1"}]);
            let get = json!({"host": "127.0.0.1", "path": format!("/{name}"), "port": 8099, "httpHeaders": headers});
            c["readinessProbe"] = json!({"httpGet": get, "periodSeconds": 1});
            c
        })
        .to_vec();
    m.pod("p", json!({"containers": containers}));
    let messages = || {
        let events = m.api.list("api/v1/events");
        let told = |e: &Value| format!("{} {} {}", e["type"], e["reason"], e["message"]).replace('"', "");
        events.iter().map(told).filter(|m| m.contains("probe")).collect::<std::collections::BTreeSet<_>>()
    };
    let begun = tokio::time::Instant::now();
    while messages().len() < 3 && begun.elapsed().as_secs() < 30 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let expected = [
        "Warning ProbeWarning Readiness probe warning: Probe terminated redirects, Response body: gone away",
        "Warning Unhealthy Readiness probe failed: Get \\/round\\: stopped after 10 redirects",
        "Warning Unhealthy Readiness probe failed: HTTP probe failed with statuscode: 500",
    ];
    assert_eq!(messages(), expected.map(str::to_owned).into());
    let ready = |p: &Value| {
        let statuses = p["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        let ready = statuses.iter().filter(|s| s["ready"] == true).map(|s| s["name"].as_str().unwrap().to_owned());
        ready.collect::<std::collections::BTreeSet<_>>()
    };
    m.until("p", |p| ready(p) == ["local".to_owned(), "elsewhere".to_owned()].into()).await;
    let heads = heads.lock().unwrap().clone();
    let last = heads.iter().find(|h| h.starts_with("GET /fine?q ")).unwrap().to_ascii_lowercase();
    for header in ["host: probe.example", "x-probe: 1", "referer: http://127.0.0.1:8099/local"] {
        assert!(last.lines().any(|l| l == header), "{header}: {last}");
    }
    m.finish().await;
}

/// The status told what was asked for, and nothing was changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_pods_are_resized() {
    let mut m = Machine::new().await;
    let resources = |cpu: &str, memory: &str| json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}});
    let restart = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    let containers = |a: Value, b: Value| {
        let mut all = [demo("a", json!(["sleep"])), demo("b", json!(["sleep"]))];
        (all[0]["resources"], all[1]["resources"]) = (a, b);
        all[1]["resizePolicy"] = restart.clone();
        json!(all)
    };
    let small = resources("100m", "64Mi");
    m.pod("p", json!({"containers": containers(small.clone(), small.clone())}));
    let p = m.until("p", is_ready).await;
    let uid = p["metadata"]["uid"].as_str().unwrap().to_owned();
    let prefix = m.runtime.cgroup_prefix.clone();
    let limit = |container: &str, v1: &str, v2: &str| {
        let (controller, file) = v1.split_once('/').unwrap();
        let below = format!("{prefix}/kubepods/pod{uid}/{container}");
        let paths = [format!("/sys/fs/cgroup/{controller}/{below}/{file}"), format!("/sys/fs/cgroup/{below}/{v2}")];
        let text = paths.iter().find_map(|p| std::fs::read_to_string(p).ok()).unwrap();
        text.split_whitespace().next().unwrap().parse::<i64>().unwrap()
    };
    let limits = |container: &str| {
        let quota = limit(container, "cpu/cpu.cfs_quota_us", "cpu.max");
        (quota, limit(container, "memory/memory.limit_in_bytes", "memory.max") >> 20)
    };
    let status = |p: &Value, i: usize, key: &str| p["status"]["containerStatuses"][i][key].clone();
    let id = |p: &Value, i: usize| status(p, i, "containerID").as_str().unwrap().replace("kemudi://", "");
    let condition = |p: &Value, kind: &str| {
        let all = p["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|c| c["type"] == kind)
    };
    let generation = std::cell::Cell::new(1);
    let ask = |m: &Machine, a: Value, b: Value| {
        let mut p = m.api.get(PODS, "default", "p").unwrap();
        p["spec"]["containers"] = containers(a, b);
        generation.set(generation.get() + 1);
        p["metadata"]["generation"] = generation.get().into();
        m.api.put(PODS, p);
    };
    assert_eq!((limits(&id(&p, 0)), limits("")), ((10_000, 64), (20_000, 128)));

    // In place, up and down.
    for (cpu, memory, quota, mib) in [("200m", "128Mi", 20_000, 128), ("50m", "32Mi", 5_000, 32)] {
        let wanted = resources(cpu, memory);
        ask(&m, wanted.clone(), small.clone());
        let is_told = |p: &Value| status(p, 0, "resources") == wanted && condition(p, "PodResizeInProgress").is_none();
        let now = m.until("p", is_told).await;
        assert_eq!(status(&now, 0, "allocatedResources"), wanted["requests"]);
        assert_eq!((id(&now, 0), status(&now, 0, "restartCount")), (id(&p, 0), json!(0)));
        assert_eq!((limits(&id(&p, 0)), limits("")), ((quota, mib), (10_000 + quota, 64 + mib)));
    }

    // Less memory than is in use.
    let now = resources("50m", "32Mi");
    ask(&m, resources("50m", "4Ki"), small.clone());
    let is_told = |p: &Value| condition(p, "PodResizeInProgress").is_some_and(|c| c["reason"] == "Error");
    let failed = m.until("p", is_told).await;
    let why = condition(&failed, "PodResizeInProgress").unwrap()["message"].as_str().unwrap().to_owned();
    assert!(why.starts_with("attempting to set container \"a\" memory limit (4096) below current usage ("), "{why}");
    assert_eq!((status(&failed, 0, "resources"), limits(&id(&p, 0))), (now.clone(), (5_000, 32)));
    // The status that tells of it is no reason to try again.
    ask(&m, resources("50m", "4Ki"), small.clone());
    let later = m.until("p", |p| p["status"]["observedGeneration"] == generation.get()).await;
    assert_eq!(condition(&later, "PodResizeInProgress").unwrap()["message"], why.as_str());

    // What the node does not have.
    ask(&m, resources("5000", "32Mi"), small.clone());
    let pending = m.until("p", |p| condition(p, "PodResizePending").is_some()).await;
    let told = condition(&pending, "PodResizePending").unwrap();
    assert_eq!(
        (&told["status"], &told["reason"], &told["observedGeneration"]),
        (&json!("True"), &json!("Infeasible"), &json!(6))
    );
    let why = told["message"].as_str().unwrap();
    assert!(why.starts_with("Node didn't have enough capacity: cpu, requested: 5000100, capacity: "), "{why}");
    assert_eq!((status(&pending, 0, "resources"), limits(&id(&p, 0))), (now.clone(), (5_000, 32)));
    // Events are written behind the status: the agent may not stop before.
    let has_event = |reason: &str| m.api.list("api/v1/events").iter().any(|e| e["reason"] == reason);
    for reason in ["ResizeStarted", "ResizeCompleted", "ResizeError", "ResizeInfeasible"] {
        for _ in 0..3000 {
            if has_event(reason) {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert!(has_event(reason), "{reason}");
    }
    // An agent that starts again knows what is there. A container that wants it is started again, the other one is left alone.
    m.stop().await;
    m.start().await;
    ask(&m, now.clone(), resources("100m", "96Mi"));
    let is_told = |p: &Value| {
        let restarted = status(p, 1, "restartCount") == 1 && !status(p, 1, "state")["running"].is_null();
        restarted && condition(p, "PodResizePending").is_none() && condition(p, "PodResizeInProgress").is_none()
    };
    let last = m.until("p", is_told).await;
    assert_eq!(status(&last, 1, "resources"), resources("100m", "96Mi"));
    assert_eq!((id(&last, 0), status(&last, 0, "restartCount")), (id(&p, 0), json!(0)));
    assert_eq!((limits(&id(&last, 0)), limits(&id(&last, 1)), limits("")), ((5_000, 32), (10_000, 96), (15_000, 128)));
    m.finish().await;
}

/// `--seccomp-default`: containers without a profile have a filter, unless they are privileged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_have_the_default_profile() {
    let mut m = Machine::new().await;
    m.stop().await;
    m.seccomp_default = kemudi_node::SeccompDefault::RuntimeDefault;
    m.start().await;
    let unconfined = json!({"seccompProfile": {"type": "Unconfined"}});
    for (name, context, expected) in [
        ("none", json!({}), "Seccomp:\t2\n"),
        ("named", unconfined, "Seccomp:\t0\n"),
        ("privileged", json!({"privileged": true}), "Seccomp:\t0\n"),
    ] {
        let mut c = demo("c", json!(["grep", "Seccomp:", "/proc/self/status"]));
        c["command"] = json!(["/busybox"]);
        c["securityContext"] = context;
        c["volumeMounts"] = json!([{"name": "tool", "mountPath": "/busybox"}]);
        let volumes = json!([{"name": "tool", "hostPath": {"path": "/bin/busybox"}}]);
        m.pod(name, json!({"restartPolicy": "Never", "containers": [c], "volumes": volumes}));
        m.until(name, |p| p["status"]["phase"] == "Succeeded").await;
        let (_, log) = body(&m, &format!("/containerLogs/default/{name}/c")).await;
        assert_eq!(log, expected, "{name}");
    }
    m.finish().await;
}

async fn body(m: &Machine, path: &str) -> (u16, String) {
    use http_body_util::BodyExt;
    let request = http::Request::get(path).body(bytes::Bytes::new()).unwrap();
    let (head, body) = m.handle.as_ref().unwrap().handle(request).await.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    (head.status.as_u16(), String::from_utf8(bytes.to_vec()).unwrap())
}

/// Neither was there: how containers ended, and how the health checks of the agent did.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ends_of_containers_and_health_checks_are_counted() {
    let mut m = Machine::new().await;
    let mut c = demo("c", json!(["sh", "-c", "exit 139"]));
    c["command"] = json!(["/busybox"]);
    c["volumeMounts"] = json!([{"name": "tool", "mountPath": "/busybox"}]);
    let volumes = json!([{"name": "tool", "hostPath": {"path": "/bin/busybox"}}]);
    m.pod("p", json!({"restartPolicy": "Never", "containers": [c], "volumes": volumes}));
    m.until("p", |p| p["status"]["phase"] == "Failed").await;
    let ended =
        "kubelet_terminated_containers_total{container_type=\"container\",exit_code=\"139\",reason=\"Error\"} 1\n";
    let (_, text) = body(&m, "/metrics").await;
    assert!(text.contains(ended), "{text}");
    assert_eq!(body(&m, "/metrics/slis").await, (200, String::new()));
    assert_eq!(body(&m, "/healthz").await.0, 200);
    let (_, text) = body(&m, "/metrics/slis").await;
    for name in ["log", "ping", "syncloop"] {
        for line in [
            format!("kubernetes_healthcheck{{name=\"{name}\",type=\"healthz\"}} 1\n"),
            format!("kubernetes_healthchecks_total{{name=\"{name}\",status=\"success\",type=\"healthz\"}} 1\n"),
        ] {
            assert!(text.contains(&line), "{line}: {text}");
        }
    }
    m.stop().await;
    m.start().await;
    m.until("p", |p| p["status"]["phase"] == "Failed").await;
    assert!(!body(&m, "/metrics").await.1.contains("kubelet_terminated_containers_total{"));
    m.finish().await;
}

/// Clauses: P06 P08 P10 P12
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_end_restart_and_outlive_the_agent() {
    let mut m = Machine::new().await;
    let bad = json!(["--nonsense"]);
    m.pod("job", json!({"restartPolicy": "Never", "containers": [demo("c", bad.clone())]}));
    m.pod(
        "done",
        json!({"restartPolicy": "Never", "initContainers": [demo("i", json!(["sleep", "0"]))],
        "containers": [demo("c", json!(["sleep", "0"]))]}),
    );
    m.pod("loop", json!({"containers": [demo("c", bad)]}));
    m.pod("stays", json!({"terminationGracePeriodSeconds": 1, "containers": [demo("c", json!([]))]}));
    m.pod("image", json!({"containers": [{"name": "c", "image": "nowhere.example/x:1"}]}));
    m.pod(
        "waits",
        json!({"containers": [demo("c", json!([]))],
        "volumes": [{"name": "v", "configMap": {"name": "late"}}]}),
    );
    let state = |p: &Value| p["status"]["containerStatuses"][0]["state"].clone();

    let p = m.until("job", |p| p["status"]["phase"] == "Failed").await;
    assert_eq!(
        (&state(&p)["terminated"]["exitCode"], &state(&p)["terminated"]["reason"]),
        (&json!(2), &json!("Error"))
    );
    let (code, log) = body(&m, "/containerLogs/default/job/c?tailLines=1").await;
    assert_eq!(code, 200);
    assert!(log.contains("unknown argument \"--nonsense\""), "{log}");
    m.until("done", |p| p["status"]["phase"] == "Succeeded").await;
    let p = m.until("loop", |p| state(p)["waiting"]["reason"] == "CrashLoopBackOff").await;
    let s = &p["status"]["containerStatuses"][0];
    assert_eq!((&p["status"]["phase"], &s["restartCount"]), (&json!("Running"), &json!(1)));
    assert_eq!(s["lastState"]["terminated"]["exitCode"], 2);
    m.until("image", |p| state(p)["waiting"]["reason"] == "ErrImagePull").await;

    // An object that comes late is seen at once.
    m.until("waits", |p| state(p)["waiting"]["reason"] == "ContainerCreating").await;
    let waiting = "container \"c\" in pod \"waits\" is waiting to start: ContainerCreating";
    assert_eq!(body(&m, "/containerLogs/default/waits/c").await, (400, waiting.into()));
    assert_eq!(body(&m, "/exec/default/waits/c?command=true").await, (500, "container not found (\"c\")".into()));
    assert_eq!(body(&m, "/attach/default/done/c").await, (500, "container not found (\"c\")".into()));
    let previous = "previous terminated container \"c\" in pod \"stays\" not found";
    m.until("stays", is_ready).await;
    assert_eq!(body(&m, "/containerLogs/default/stays/c?previous=true").await, (400, previous.into()));
    m.until("image", |p| state(p)["waiting"]["reason"] == "ImagePullBackOff").await;
    let pulling = "container \"c\" in pod \"image\" is waiting to start: trying and failing to pull image";
    assert_eq!(body(&m, "/containerLogs/default/image/c").await, (400, pulling.into()));
    m.api.put("api/v1/configmaps", json!({"metadata": {"name": "late", "namespace": "default"}, "data": {"a": "b"}}));
    m.until("waits", is_ready).await;

    let before = m.until("stays", is_ready).await;
    m.stop().await;
    m.start().await;
    m.pod("next", json!({"containers": [demo("c", json!([]))]}));
    m.until("next", is_ready).await;
    let after = m.until("stays", is_ready).await;
    let id = |p: &Value| p["status"]["containerStatuses"][0]["containerID"].clone();
    assert_eq!(id(&before), id(&after), "the container was adopted");
    assert_eq!(before["status"]["podIP"], after["status"]["podIP"]);
    m.api.delete_gracefully(PODS, "default", "stays", 1);
    m.gone("stays").await;
    assert_eq!(body(&m, "/healthz").await, (200, "ok".into()));
    assert_eq!(body(&m, "/containerLogs/default/none/c").await, (404, "pod \"none\" does not exist".into()));
    m.finish().await;
}

/// What failed to start left its records, its files and its logs, one after the other without end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starts_that_fail_leave_two_records() {
    use runtime::Runtime;
    let mut m = Machine::new().await;
    m.stop().await;
    // So that every back-off has passed.
    m.ahead = 3600;
    m.start().await;
    let mut c = demo("c", json!([]));
    c["command"] = json!(["/nope"]);
    m.pod("fails", json!({"terminationGracePeriodSeconds": 1, "containers": [c]}));
    let restarts = |p: &Value| p["status"]["containerStatuses"][0]["restartCount"].as_u64();
    let p = m.until("fails", |p| restarts(p) >= Some(5)).await;
    let status = &p["status"]["containerStatuses"][0];
    assert_eq!(status["lastState"]["terminated"]["reason"], "StartError");
    // The newest, the one before, and for a moment one that is removed or made.
    let left = m.embedded.list_containers().await.unwrap();
    assert!(left.len() <= 3, "{} records are left", left.len());
    let logs = left[0].log_path.parent().unwrap().to_owned();
    assert!(std::fs::read_dir(&logs).unwrap().count() <= 3, "logs are left in {logs:?}");
    m.api.delete_gracefully(PODS, "default", "fails", 1);
    m.gone("fails").await;
    m.finish().await;
}

/// A pod whose shim is killed whenever there is one was given a new sandbox at once, for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_that_is_lost_again_waits() {
    use runtime::Runtime;
    let m = Machine::new().await;
    m.pod(
        "lost",
        json!({"terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": "nowhere.example/x:1"}]}),
    );
    let mut events = m.embedded.subscribe();
    let ready = async |attempt: u32| {
        let wait = async {
            loop {
                let pods = m.embedded.list_pods().await.unwrap();
                let pod = pods.into_iter().find(|p| p.config.attempt == attempt);
                if let Some(shim) = pod.and_then(|p| p.shim_pid) {
                    return shim;
                }
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(30), wait).await.expect("a new sandbox")
    };
    for attempt in [0, 1] {
        let shim = nix::unistd::Pid::from_raw(ready(attempt).await);
        nix::sys::signal::kill(shim, nix::sys::signal::Signal::SIGKILL).unwrap();
        let gone = async { while !matches!(events.recv().await, Ok(runtime::Event::PodStopped { .. })) {} };
        tokio::time::timeout(std::time::Duration::from_secs(30), gone).await.unwrap();
    }
    let told = |e: &Value| e["message"] == "Back-off 10s re-creating the lost sandbox of pod default/lost";
    let begun = tokio::time::Instant::now();
    while !m.api.list("api/v1/events").iter().any(told) {
        assert!(begun.elapsed().as_secs() < 30, "{:#?}", m.api.list("api/v1/events"));
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let attempts = |pods: Vec<runtime::Pod>| pods.iter().map(|p| p.config.attempt).max();
    assert_eq!(attempts(m.embedded.list_pods().await.unwrap()), Some(1));
    // It comes back, later.
    let _ = ready(2).await;
    assert!(begun.elapsed().as_secs() >= 5, "after {:?}", begun.elapsed());
    m.api.delete_gracefully(PODS, "default", "lost", 1);
    m.gone("lost").await;
    m.finish().await;
}

/// What others add to the node's capacity is what pods may use, and an agent that starts again leaves it.
#[tokio::test(flavor = "multi_thread")]
async fn extended_resources_are_allocatable() {
    const NODES: &str = "api/v1/nodes";
    let mut m = Machine::new().await;
    let patch = |capacity: Value| {
        let mut node = m.api.get(NODES, "", "n1").unwrap();
        node["status"]["capacity"] = capacity;
        m.api.put(NODES, node);
    };
    let node = m.api.until(NODES, "", "n1", |n| n.is_some_and(|n| n["status"]["capacity"].is_object())).await.unwrap();
    let own = node["status"]["capacity"].clone();
    let with = |name: &str, value: &str| {
        let mut capacity = own.clone();
        capacity[name] = value.into();
        capacity
    };
    patch(with("example.com/dongle", "4"));
    m.api.until(NODES, "", "n1", |n| n.unwrap()["status"]["allocatable"]["example.com/dongle"] == "4").await;
    m.stop().await;
    m.start().await;
    let started = |n: Option<&Value>| n.unwrap()["metadata"]["labels"].is_object();
    let node = m.api.until(NODES, "", "n1", started).await.unwrap();
    assert_eq!(node["status"]["capacity"]["example.com/dongle"], "4");
    let patch = |capacity: Value| {
        let mut node = m.api.get(NODES, "", "n1").unwrap();
        node["status"]["capacity"] = capacity;
        m.api.put(NODES, node);
    };
    patch(with("example.com/dongle", "5"));
    m.api.until(NODES, "", "n1", |n| n.unwrap()["status"]["allocatable"]["example.com/dongle"] == "5").await;
    // One of the machine's own is not theirs to change.
    patch(with("pods", "7"));
    let node = m
        .api
        .until(NODES, "", "n1", |n| n.unwrap()["status"]["allocatable"].get("example.com/dongle").is_none())
        .await
        .unwrap();
    assert_eq!(node["status"]["allocatable"]["pods"], "110");
    m.finish().await;
}

/// A node has so many pods, whoever binds more; one that has ended makes room.
#[tokio::test(flavor = "multi_thread")]
async fn no_more_pods_than_the_node_has_room_for() {
    let mut m = Machine::new().await;
    m.stop().await;
    m.max_pods = 2;
    m.start().await;
    let spec = || json!({"containers": [demo("c", json!(["--port", "8081"]))]});
    for name in ["a", "b"] {
        m.pod(name, spec());
        m.until(name, is_ready).await;
    }
    m.pod("c", spec());
    let c = m.until("c", |p| p["status"]["phase"] == "Failed").await;
    assert_eq!(c["status"]["reason"], "OutOfpods");
    let said = "Pod was rejected: Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2";
    assert_eq!(c["status"]["message"], said);
    // A restart of the agent counts what runs.
    m.stop().await;
    m.start().await;
    m.pod("d", spec());
    m.until("d", |p| p["status"]["reason"] == "OutOfpods").await;
    // Not by force: the API would forget it before the node has ended it.
    m.api.delete_gracefully(PODS, "default", "a", 1);
    m.gone("a").await;
    m.pod("e", spec());
    m.until("e", is_ready).await;
    for name in ["b", "c", "d", "e"] {
        m.api.delete_gracefully(PODS, "default", name, 0);
        m.gone(name).await;
    }
    m.finish().await;
}

/// A pod that names its node has not been seen by the scheduler: the node itself refuses what does not fit.
///
/// Clauses: R02.overcommit K02.conflict
#[tokio::test(flavor = "multi_thread")]
async fn pods_bound_by_hand_are_held_against_what_the_node_has() {
    let mut m = Machine::new().await;
    let cpus = std::thread::available_parallelism().unwrap().get() as i64;
    let spec = |cpu: String, port: Option<u16>| {
        let mut c = demo("c", json!(["--port", "8081"]));
        c["resources"] = json!({"requests": {"cpu": cpu}});
        if let Some(port) = port {
            c["ports"] = json!([{"containerPort": 8081, "hostPort": port}]);
        }
        json!({"terminationGracePeriodSeconds": 1, "containers": [c]})
    };
    let refused = async |name: &str, reason: &str, message: &str| {
        let p = m.until(name, |p| p["status"]["phase"] == "Failed").await;
        let status = &p["status"];
        assert_eq!((&status["reason"], &status["message"]), (&json!(reason), &json!(message)));
        assert!(status["containerStatuses"][0]["containerID"].is_null(), "nothing of it ran");
    };
    m.pod("first", spec("200m".into(), Some(8088)));
    m.until("first", is_ready).await;
    let enough = |requested: i64| {
        let capacity = cpus * 1000;
        format!(
            "Pod was rejected: Node didn't have enough resource: cpu, requested: {requested}, used: 200, capacity: {capacity}"
        )
    };
    m.pod("large", spec(format!("{}m", cpus * 1000 - 100), None));
    refused("large", "OutOfcpu", &enough(cpus * 1000 - 100)).await;
    m.pod("port", spec("0".into(), Some(8088)));
    let why = "node(s) didn't have free ports for the requested pod ports";
    refused("port", "NodePorts", &format!("Pod was rejected: Predicate NodePorts failed: {why}")).await;
    let elsewhere = |name: &str| {
        let mut spec = spec("0".into(), None);
        spec["nodeSelector"] = json!({"zone": "b"});
        m.pod(name, spec)
    };
    elsewhere("elsewhere");
    let why = "node(s) didn't match Pod's node affinity/selector";
    refused("elsewhere", "NodeAffinity", &format!("Pod was rejected: Predicate NodeAffinity failed: {why}")).await;
    // A label that was just given counts at once.
    let mut node = m.api.get("api/v1/nodes", "", "n1").unwrap();
    node["metadata"]["labels"]["zone"] = "b".into();
    m.api.put("api/v1/nodes", node);
    elsewhere("here");
    m.until("here", is_ready).await;

    // What runs comes first when the agent starts again, whatever came meanwhile.
    m.stop().await;
    let early = json!({"metadata": {"name": "early", "namespace": "default", "creationTimestamp": "2001-01-01T00:00:00Z"},
        "spec": spec(format!("{cpus}"), None)});
    let mut early = early;
    early["spec"]["nodeName"] = "n1".into();
    m.api.put(PODS, early);
    m.start().await;
    let p = m.until("early", |p| p["status"]["phase"] == "Failed").await;
    assert_eq!(p["status"]["message"], enough(cpus * 1000));
    assert!(is_ready(&m.api.get(PODS, "default", "first").unwrap()));

    // A critical pod makes another one end, and starts when it has.
    m.pod("filler", spec(format!("{}m", cpus * 1000 - 300), None));
    m.until("filler", is_ready).await;
    let mut critical = spec("500m".into(), None);
    critical["priority"] = 2_000_000_000.into();
    m.pod("critical", critical);
    let p = m.until("filler", |p| p["status"]["phase"] == "Failed").await;
    let status = &p["status"];
    assert_eq!(
        (&status["reason"], &status["message"]),
        (&json!("Preempting"), &json!("Preempted in order to admit critical pod"))
    );
    let conditions = status["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|c| c["type"] == "DisruptionTarget" && c["reason"] == "TerminationByKubelet"));
    m.until("critical", is_ready).await;
    for name in ["first", "large", "port", "elsewhere", "here", "early", "filler", "critical"] {
        m.api.delete_gracefully(PODS, "default", name, 0);
        m.gone(name).await;
    }
    m.finish().await;
}

/// Many pods bound at once: a few start at a time, the others wait for their turn, and one that is deleted does not.
#[tokio::test(flavor = "multi_thread")]
async fn starts_wait_for_their_turn_and_deletions_do_not() {
    let mut m = Machine::new().await;
    m.stop().await;
    let held = Arc::new(fake::held::Held::new(m.embedded.clone()));
    m.held = Some(held.clone());
    m.start().await;
    let names: Vec<String> = (0..20).map(|n| format!("p{n:02}")).collect();
    for name in &names {
        m.pod(name, json!({"containers": [demo("c", json!(["--port", "8081"]))]}));
    }
    let bound = 2 * std::thread::available_parallelism().unwrap().get().max(2);
    held.until(bound).await;
    // One that waits says so, and is gone at once when it is to go.
    let waits = |p: &Value| p["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "ContainerCreating";
    let find = async {
        loop {
            let waiting = m.api.list(PODS).iter().find(|p| waits(p)).map(|p| p["metadata"]["name"].clone());
            match waiting {
                Some(name) => break name.as_str().unwrap().to_owned(),
                None => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
            }
        }
    };
    let waiting = tokio::time::timeout(std::time::Duration::from_secs(20), find).await.unwrap();
    m.api.delete_gracefully(PODS, "default", &waiting, 1);
    m.gone(&waiting).await;
    assert_eq!(held.most(), bound, "as many at a time as there are places");
    held.release();
    for name in names.iter().filter(|n| **n != waiting) {
        m.until(name, is_ready).await;
        m.api.delete_gracefully(PODS, "default", name, 0);
    }
    assert_eq!(held.most(), bound);
    for name in &names {
        m.gone(name).await;
    }
    m.finish().await;
}

/// Each step of each pod listed all pods and containers of the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_costs_nothing_for_the_others() {
    let mut m = Machine::new().await;
    m.stop().await;
    let held = Arc::new(fake::held::Held::new(m.embedded.clone()));
    held.release();
    m.held = Some(held.clone());
    m.start().await;
    let names: Vec<String> = (0..5).map(|n| format!("p{n}")).collect();
    for name in &names {
        m.pod(name, json!({"containers": [demo("c", json!(["--port", "8081"]))]}));
    }
    for name in &names {
        m.until(name, is_ready).await;
        m.api.delete_gracefully(PODS, "default", name, 0);
    }
    for name in &names {
        m.gone(name).await;
    }
    assert_eq!(held.listings(), 1, "what an earlier agent left is looked for once");
    m.finish().await;
}

/// A container that failed a probe and ignored signals kept its pod as long as it had been promised, whatever the deletion said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_takes_its_time_does_not_hold_up_the_end() {
    use runtime::Runtime;
    let m = Machine::new().await;
    let spec = |probe: &str| {
        let mut c = demo("c", json!(["sh", "-c", "trap '' TERM; while :; do /busybox sleep 1; done"]));
        c["command"] = json!(["/busybox"]);
        c["volumeMounts"] = json!([{"name": "tool", "mountPath": "/busybox"}]);
        c[probe] = json!({"exec": {"command": ["/busybox", "false"]}, "periodSeconds": 1, "failureThreshold": 1});
        let volumes = json!([{"name": "tool", "hostPath": {"path": "/bin/busybox"}}]);
        json!({"terminationGracePeriodSeconds": 1_000_000, "containers": [c], "volumes": volumes})
    };
    for (name, probe, force) in [("live", "livenessProbe", false), ("starts", "startupProbe", true)] {
        m.pod(name, spec(probe));
        let killing = |e: &Value| e["reason"] == "Killing" && e["involvedObject"]["name"] == name;
        let killed = async {
            while !m.api.list("api/v1/events").iter().any(killing) {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(30), killed).await.unwrap();
        if force {
            let api = m.api.client();
            let pods = api.api::<k8s_openapi::api::core::v1::Pod>().namespace("default");
            pods.delete(name, &client::DeleteOptions::default()).await.unwrap();
        } else {
            m.api.delete_gracefully(PODS, "default", name, 1);
        }
        m.gone(name).await;
        let removed = async {
            while !m.embedded.list_pods().await.unwrap().is_empty() {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(30), removed).await.unwrap();
    }
    m.finish().await;
}

/// A process that another container of the pod held up on its way to its program held up the deletion too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_without_an_end_does_not_hold_up_the_end() {
    let mut m = Machine::new().await;
    m.stop().await;
    let held = Arc::new(fake::held::Held::stuck(m.embedded.clone()));
    m.held = Some(held.clone());
    m.start().await;
    m.pod("stuck", json!({"containers": [demo("c", json!([]))]}));
    held.until_stuck(true).await;
    m.api.delete_gracefully(PODS, "default", "stuck", 1);
    held.until_stuck(false).await; // it has been killed
    m.gone("stuck").await;
    m.finish().await;
}

/// The agent behind a socket on loopback, for clients that turn connections into something else.
async fn listening(handle: Handle) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let handle = handle.clone();
            let service = hyper::service::service_fn(move |mut r: http::Request<hyper::body::Incoming>| {
                let handle = handle.clone();
                async move {
                    let upgrade = hyper::upgrade::on(&mut r);
                    let (parts, _) = r.into_parts();
                    let mut r = http::Request::from_parts(parts, bytes::Bytes::new());
                    r.extensions_mut().insert(upgrade);
                    Ok::<_, std::convert::Infallible>(handle.handle(r).await)
                }
            });
            let io = hyper_util::rt::TokioIo::new(tcp);
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(io, service).with_upgrades());
        }
    });
    address
}

/// Everything that a server says over a WebSocket: messages as bytes, and which subprotocol it chose.
async fn said(
    address: std::net::SocketAddr,
    path: &str,
    protocol: &str,
    say: Option<Vec<u8>>,
) -> (String, Vec<Vec<u8>>) {
    use futures::{SinkExt, StreamExt};
    use tokio_tungstenite::tungstenite::{Message, client::IntoClientRequest};
    let mut request = format!("ws://{address}{path}").into_client_request().unwrap();
    if !protocol.is_empty() {
        request.headers_mut().insert("sec-websocket-protocol", protocol.parse().unwrap());
    }
    let tcp = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut socket, answer) = tokio_tungstenite::client_async(request, tcp).await.unwrap();
    let chosen = answer.headers().get("sec-websocket-protocol").map(|v| v.to_str().unwrap().to_owned());
    if let Some(bytes) = say {
        socket.send(Message::Binary(bytes.into())).await.unwrap();
    }
    let mut all = Vec::new();
    while let Some(Ok(m)) = socket.next().await {
        match m {
            Message::Binary(b) => all.push(b.to_vec()),
            Message::Text(t) => all.push(t.as_bytes().to_vec()),
            _ => {}
        }
    }
    (chosen.unwrap_or_default(), all)
}

/// The subprotocols of older clients: none, `channel.k8s.io` and its base64 form for commands, `binary.k8s.io` for logs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_websockets_are_spoken() {
    use base64::Engine;
    let m = Machine::new().await;
    let mut c = demo("c", json!(["sh", "-c", "echo logged; read x; echo got $x"]));
    c["command"] = json!(["/busybox"]);
    (c["stdin"], c["stdinOnce"]) = (true.into(), true.into());
    c["volumeMounts"] = json!([{"name": "tool", "mountPath": "/busybox"}]);
    let volumes = json!([{"name": "tool", "hostPath": {"path": "/bin/busybox"}}]);
    m.pod("p", json!({"restartPolicy": "Never", "containers": [c], "volumes": volumes}));
    m.until("p", is_ready).await;
    let address = listening(m.handle.clone().unwrap()).await;
    let run = |script: &str| {
        let script = script.replace(' ', "+").replace(';', "%3B").replace('>', "%3E").replace('&', "%26");
        format!("/exec/default/p/c?command=/busybox&command=sh&command=-c&command={script}&stdout=true&stderr=true")
    };
    let (good, bad) = (run("echo hello"), run("echo hello; exit 3"));
    let failure = "command terminated with non-zero exit code: command terminated with exit code 3";
    let plain = |channel: u8, text: &str| [&[channel][..], text.as_bytes()].concat();
    let encoded =
        |channel: u8, text: &str| plain(b'0' + channel, &base64::engine::general_purpose::STANDARD.encode(text));
    for protocol in ["", "channel.k8s.io"] {
        let want = vec![plain(1, ""), plain(1, "hello\n")];
        assert_eq!(said(address, &good, protocol, None).await, (protocol.to_owned(), want.clone()));
        let want = [want, vec![plain(3, failure)]].concat();
        assert_eq!(said(address, &bad, protocol, None).await, (protocol.to_owned(), want));
    }
    let want = vec![encoded(1, ""), encoded(1, "hello\n"), encoded(3, failure)];
    assert_eq!(said(address, &bad, "base64.channel.k8s.io", None).await, ("base64.channel.k8s.io".into(), want));
    for protocol in ["v4.channel.k8s.io", "v5.channel.k8s.io"] {
        let (chosen, all) = said(address, &bad, protocol, None).await;
        let end: Value = serde_json::from_slice(&all.last().unwrap()[1..]).unwrap();
        assert_eq!((&*chosen, &end["reason"], all.last().unwrap()[0]), (protocol, &json!("NonZeroExitCode"), 3));
    }

    let log = "/containerLogs/default/p/c";
    for protocol in ["", "binary.k8s.io"] {
        let want = vec![Vec::new(), b"logged\n".to_vec()];
        assert_eq!(said(address, log, protocol, None).await, (protocol.to_owned(), want));
    }
    let want = vec![Vec::new(), base64::engine::general_purpose::STANDARD.encode("logged\n").into_bytes()];
    assert_eq!(said(address, log, "base64.binary.k8s.io", None).await, ("base64.binary.k8s.io".into(), want));

    let attach = "/attach/default/p/c?stdin=true&stdout=true&stderr=true";
    let (chosen, all) = said(address, attach, "channel.k8s.io", Some(plain(0, "me\n"))).await;
    let out: Vec<u8> = all.iter().filter(|m| m[0] == 1).flat_map(|m| m[1..].to_vec()).collect();
    assert_eq!((&*chosen, String::from_utf8_lossy(&out)), ("channel.k8s.io", "got me\n".into()));
    assert!(all.iter().all(|m| m[0] == 1), "nothing is said of a success: {all:?}");
    m.finish().await;
}
