//! A node with an agent, the embedded runtime and a small API, in a network namespace of its own.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::fake::{self, Fake};
use network::PodNetwork;
use node::configuration::KubeletConfiguration;
use node::{Agent, DnsOptions, FileVolumes, Handle, Options};
use runtime::Embedded;
use serde_json::{Value, json};

pub static NEXT: AtomicU32 = AtomicU32::new(0);
pub const PODS: &str = "api/v1/pods";

/// The time, and this many seconds.
pub struct Wall(i64);

impl meta::Clock for Wall {
    fn now(&self) -> jiff::Timestamp {
        let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_REALTIME).unwrap();
        jiff::Timestamp::new(now.tv_sec() + self.0, now.tv_nsec() as i32).unwrap()
    }
}

pub struct Count(AtomicU64);

impl meta::Rng for Count {
    fn next_u64(&self) -> u64 {
        self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }
}

/// Takes manifests in JSON as they are.
struct Manifests;

impl node::PodDecoder for Manifests {
    fn decode(&self, manifest: &str) -> Result<Value, String> {
        serde_json::from_str(manifest).map_err(|e| e.to_string())
    }

    fn validate(&self, _: &Value) -> Result<(), String> {
        Ok(())
    }
}

pub struct Machine {
    pub directory: tempfile::TempDir,
    pub api: Fake,
    pub runtime: runtime::Options,
    pub network: network::Options,
    pub embedded: Embedded,
    pub node: PathBuf,
    pub seccomp_default: bool,
    pub max_pods: i32,
    /// Seconds by which the agent's clock is ahead of that of its shims.
    pub ahead: i64,
    /// The directory of pods, on a mount of its own, if it is not `directory`.
    pub data_dir: Option<PathBuf>,
    /// In place of the machine's own, if there is one.
    pub observer: Option<Arc<dyn node::NodeObserver>>,
    pub topology: Arc<dyn node::TopologySource>,
    /// Fields of the configuration that a test changes.
    pub configure: Arc<dyn Fn(&mut KubeletConfiguration) + Send + Sync>,
    pub agent: Option<(client::Trigger, tokio::task::JoinHandle<()>)>,
    pub handle: Option<Handle>,
    /// In place of the runtime, if there is one.
    pub held: Option<Arc<fake::held::Held>>,
}

impl Machine {
    pub async fn new() -> Machine {
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
            pod_ranges: "10.201.0.0/24".parse().unwrap(),
            cluster_ranges: "10.201.0.0/16".parse().unwrap(),
            service_ranges: "10.202.0.0/16".parse().unwrap(),
            load_balancer_ranges: None,
            interfaces: network::PodInterfaces::Bridge,
            tunnel: None,
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
            seccomp_default: false,
            max_pods: 110,
            ahead: 0,
            data_dir: None,
            observer: None,
            topology: Arc::new(node::Sysfs::default()),
            configure: Arc::new(|_| {}),
            agent: None,
            handle: None,
            held: None,
        };
        machine.start().await;
        machine
    }

    pub async fn start(&mut self) {
        let network = PodNetwork::open(self.network.clone()).await.unwrap();
        let mut configuration = KubeletConfiguration {
            max_pods: self.max_pods,
            seccomp_default: self.seccomp_default,
            static_pod_path: self.manifests().display().to_string(),
            // The disk of the machine may be fuller than a node's should be.
            eviction_hard: [("memory.available".to_owned(), "10Mi".to_owned())].into(),
            ..KubeletConfiguration::default()
        };
        (self.configure)(&mut configuration);
        let agent = Agent::new(Options {
            client: self.api.client(),
            node_name: "n1".into(),
            node_ips: vec!["192.0.2.7".parse().unwrap()],
            hostname: "machine".into(),
            runtime: match &self.held {
                Some(held) => held.clone(),
                None => Arc::new(self.embedded.clone()),
            },
            host: Arc::new(self.embedded.clone()),
            observer: self.observer.clone().unwrap_or_else(|| self.own_observer()),
            topology: self.topology.clone(),
            images: Arc::new(distribution::EmbeddedImages { runtime: self.embedded.clone(), puller: self.puller() }),
            network: Some(node::Network::Own(network)),
            node_namespace: Some(self.node.clone()),
            data_dir: self.data_dir(),
            file_volumes: Arc::new(FileVolumes::new(self.data_dir().join("volumes"), self.data_dir().join("pods"))),
            kubelet_root: "/var/lib/kubelet".into(),
            cdi_directories: vec![self.directory.path().join("cdi")],
            log_dir: self.directory.path().join("logs"),
            credential_plugins: node::credentials::Plugins::default(),
            dns: DnsOptions {
                servers: vec!["10.202.0.10".into()],
                domain: "cluster.local".into(),
                node: String::new(),
            },
            pod_cidrs: vec!["10.201.0.0/24".into()],
            configuration,
            decoder: Arc::new(Manifests),
            sysctls: node::Allowlist::default(),
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
            annotations: BTreeMap::new(),
            clock: Arc::new(Wall(self.ahead)),
            rng: Arc::new(Count(AtomicU64::new(1))),
        });
        self.handle = Some(agent.handle());
        let (trigger, shutdown) = client::shutdown();
        let task = tokio::spawn(async move { Arc::new(agent).run(shutdown).await.unwrap() });
        self.agent = Some((trigger, task));
    }

    fn own_observer(&self) -> Arc<dyn node::NodeObserver> {
        let (data_dir, runtime) = (self.data_dir(), self.directory.path().join("runtime"));
        Arc::new(node::MachineObserver::new(data_dir, &runtime, 0, Arc::new(self.embedded.clone())))
    }

    fn puller(&self) -> distribution::Puller {
        let configuration = self.directory.path().join("registries.yaml");
        let limits = distribution::Limits { response: std::time::Duration::from_secs(2), ..Default::default() };
        distribution::Puller::new(self.embedded.images().clone(), configuration, limits)
    }

    fn data_dir(&self) -> PathBuf {
        self.data_dir.clone().unwrap_or_else(|| self.directory.path().to_owned())
    }

    /// The directory of static pods.
    pub fn manifests(&self) -> PathBuf {
        self.directory.path().join("manifests")
    }

    pub async fn stop(&mut self) {
        let (trigger, task) = self.agent.take().unwrap();
        trigger.trigger();
        task.await.unwrap();
    }

    pub fn pod(&self, name: &str, spec: Value) -> Value {
        let mut spec = spec;
        spec["nodeName"] = "n1".into();
        self.api.put(PODS, json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec}))
    }

    pub async fn until(&self, name: &str, is_met: impl Fn(&Value) -> bool) -> Value {
        self.api.until(PODS, "default", name, |p| p.is_some_and(&is_met)).await.unwrap()
    }

    pub async fn gone(&self, name: &str) {
        self.api.until(PODS, "default", name, |p| p.is_none()).await;
    }

    /// The files of a control group below `kubepods`, for each layout of the hierarchies.
    fn cgroup_files(&self, path: &str, v1: &str, v2: &str) -> [PathBuf; 2] {
        let (controller, file) = v1.split_once('/').unwrap();
        let below = format!("{}/kubepods/{path}", self.runtime.cgroup_prefix);
        let root = std::path::Path::new("/sys/fs/cgroup");
        [root.join(controller).join(&below).join(file), root.join(&below).join(v2)]
    }

    /// The quota of CPU (-1 for none) and the limit of memory in MiB of a control group below `kubepods`.
    pub fn limits(&self, path: &str) -> (i64, i64) {
        let read = |v1: &str, v2: &str| {
            let files = self.cgroup_files(path, v1, v2);
            let text = files.iter().find_map(|p| std::fs::read_to_string(p).ok()).unwrap();
            text.split_whitespace().next().unwrap().parse().unwrap_or(-1)
        };
        (read("cpu/cpu.cfs_quota_us", "cpu.max"), read("memory/memory.limit_in_bytes", "memory.max") >> 20)
    }

    /// The range of shares that have the weight of a control group below `kubepods`: one on version 1. Empty if there is no such group.
    fn shares(&self, path: &str) -> std::ops::Range<u64> {
        let number = |file: &std::path::Path| std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
        let [v1, v2] = self.cgroup_files(path, "cpu/cpu.shares", "cpu.weight");
        let shares = |weight: u64| 2 + ((weight - 1) * 262_142).div_ceil(9_999);
        let of_version_2 = || number(&v2).map(|weight| shares(weight)..shares(weight + 1));
        number(&v1).map(|n| n..n + 1).or_else(of_version_2).unwrap_or_default()
    }

    /// Waits until a control group below `kubepods` has the weight of these shares.
    pub async fn until_weight(&self, path: &str, shares: u64) {
        for _ in 0..6000 {
            if self.shares(path).contains(&shares) {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("{path} has the weight of {:?} shares, not {shares}", self.shares(path));
    }

    /// A file of a control group of version 2 below `kubepods`, if there is one.
    pub fn cgroup_file(&self, path: &str, file: &str) -> Option<String> {
        let [_, v2] = self.cgroup_files(path, "memory/none", file);
        Some(std::fs::read_to_string(v2).ok()?.trim().to_owned())
    }

    /// The processors of a control group below `kubepods`.
    pub fn cpus(&self, path: &str) -> String {
        let files = self.cgroup_files(path, "cpuset/cpuset.cpus", "cpuset.cpus");
        files.iter().find_map(|p| std::fs::read_to_string(p).ok()).unwrap_or_default().trim().to_owned()
    }

    /// Whether there is a control group below `kubepods`.
    pub fn has_cgroup(&self, path: &str) -> bool {
        self.cgroup_files(path, "cpu/cpu.shares", "cgroup.procs").iter().any(|p| p.exists())
    }

    pub async fn finish(mut self) {
        self.stop().await;
        for e in std::fs::read_dir(self.data_dir().join("pods")).into_iter().flatten().flatten() {
            for kind in std::fs::read_dir(e.path().join("volumes")).into_iter().flatten().flatten() {
                for v in std::fs::read_dir(kind.path()).into_iter().flatten().flatten() {
                    let _ = nix::mount::umount2(&v.path(), nix::mount::MntFlags::MNT_DETACH);
                }
            }
        }
        Embedded::purge(&self.runtime).await.unwrap();
        PodNetwork::purge(&self.network).await.unwrap();
        network::namespace::remove(&self.node).unwrap();
        if let Some(disk) = &self.data_dir {
            nix::mount::umount2(disk, nix::mount::MntFlags::MNT_DETACH).unwrap();
        }
    }
}

pub fn demo(name: &str, args: Value) -> Value {
    json!({"name": name, "image": "kemudi.local/demo", "args": args})
}

pub fn is_ready(p: &Value) -> bool {
    let conditions = p["status"]["conditions"].as_array();
    conditions.is_some_and(|c| c.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
}

pub async fn body(m: &Machine, path: &str) -> (u16, String) {
    use http_body_util::BodyExt;
    let request = http::Request::get(path).body(bytes::Bytes::new()).unwrap();
    let (head, body) = m.handle.as_ref().unwrap().handle(request).await.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    (head.status.as_u16(), String::from_utf8(bytes.to_vec()).unwrap())
}
