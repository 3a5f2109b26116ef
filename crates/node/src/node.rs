//! The node object and its lease: capacity, conditions and heartbeats.
//!
//! The status is written when it changes and every five minutes, the lease is renewed every ten seconds, unless configured otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use client::{Error, Patch, Recorder, Regarding, Severity, WriteOptions};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use runtime::image::Image;
use serde_json::{Value, json};
use supervisor::blocking;

use crate::configuration::{KubeletConfiguration, Pressure, Signal};
use crate::counts::Known;
use crate::devices::{Amounts, Devices};
use crate::hugepages;
use crate::options::Options;
use crate::resources::is_extended;
use crate::shutdown;

/// The features of v1.36 that this node declares, in the order of their names (`k8s.io/component-helpers/nodedeclaredfeatures`).
const FEATURES: [&str; 4] = [
    "ExtendWebSocketsToKubelet",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];
/// Names of each image in the status (kubelet's own limit).
const MAX_NAMES: usize = 5;
/// Handlers of the runtime in the status, and bytes of their names.
const MAX_HANDLERS: usize = 64;
const MAX_HANDLER: usize = 63;

/// The minimum time between two updates of the lease.
const MIN_FREQUENCY: Duration = Duration::from_millis(100);

/// The capacity of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    pub cpus: u64,
    pub memory: u64,
    pub disk: u64,
    pub pods: u32,
    pub hugepages: BTreeMap<String, u64>,
    pub reserved: Reserved,
}

/// What of the capacity is not for pods: reserved amounts and thresholds of eviction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// Thousandths of processors.
    pub cpu: u64,
    /// Bytes.
    pub memory: u64,
    /// Bytes.
    pub disk: u64,
}

impl Capacity {
    pub fn read(data_dir: &Path, configuration: &KubeletConfiguration) -> std::io::Result<Self> {
        let cpus = std::thread::available_parallelism()?.get() as u64;
        let disk = nix::sys::statvfs::statvfs(data_dir).map_err(std::io::Error::from)?;
        let hugepages = hugepages::read(Path::new(hugepages::DIRECTORY));
        let (memory, disk) = (meminfo("MemTotal")?, disk.blocks() * disk.fragment_size());
        let reserved = Reserved {
            cpu: configuration.reserved("cpu"),
            memory: configuration.reserved("memory") + configuration.hard_threshold(Signal::MemoryAvailable, memory),
            disk: configuration.reserved("ephemeral-storage")
                + configuration.hard_threshold(Signal::NodeFsAvailable, disk),
        };
        Ok(Self { cpus, memory, disk, pods: configuration.max_pods(cpus), hugepages, reserved })
    }

    fn capacity(&self) -> BTreeMap<String, String> {
        let mut out = BTreeMap::from([
            ("cpu".to_owned(), self.cpus.to_string()),
            ("memory".to_owned(), format!("{}Ki", self.memory / 1024)),
            ("ephemeral-storage".to_owned(), format!("{}Ki", self.disk / 1024)),
            ("pods".to_owned(), self.pods.to_string()),
        ]);
        for (name, bytes) in &self.hugepages {
            out.insert(name.clone(), hugepages::binary(*bytes).to_string());
        }
        out
    }

    /// The resources for pods: the capacity without what is reserved and the thresholds of eviction.
    pub fn allocatable(&self) -> BTreeMap<String, String> {
        let mut out = self.capacity();
        let taken: u64 = self.hugepages.values().sum();
        let reserved = self.reserved;
        out.insert("memory".into(), format!("{}Ki", self.memory.saturating_sub(reserved.memory + taken) / 1024));
        out.insert("ephemeral-storage".into(), self.disk.saturating_sub(reserved.disk).to_string());
        match (self.cpus * 1000).saturating_sub(reserved.cpu) {
            milli if milli % 1000 == 0 => out.insert("cpu".into(), (milli / 1000).to_string()),
            milli => out.insert("cpu".into(), format!("{milli}m")),
        };
        out
    }
}

pub fn meminfo(key: &str) -> std::io::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'));
    let kib = line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map(|k| k * 1024).ok_or_else(|| std::io::Error::other(format!("/proc/meminfo has no {key}")))
}

pub fn file(path: &str) -> String {
    std::fs::read_to_string(path).map(|t| t.trim().to_owned()).unwrap_or_default()
}

/// Go's name of this machine's architecture.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn os_image() -> String {
    let text = file("/etc/os-release");
    let name = text.lines().find_map(|l| l.strip_prefix("PRETTY_NAME="));
    name.map_or_else(|| "Linux".to_owned(), |n| n.trim_matches('"').to_owned())
}

/// Number of processes and threads of the machine.
pub fn processes() -> u64 {
    file("/proc/loadavg").split(['/', ' ']).nth(4).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// The limit of processes and threads of the machine.
pub fn most_pids() -> Option<u64> {
    ["pid_max", "threads-max"].iter().filter_map(|f| file(&format!("/proc/sys/kernel/{f}")).parse().ok()).min()
}

/// The limit of processes and threads of all pods together. The rest keeps the machine and the agent alive beside a pod that forks
/// endlessly. `None` if the limit of the machine is unknown.
pub fn pids_for_pods() -> Option<i64> {
    i64::try_from(most_pids()? / 10 * 9).ok()
}

/// Why the node is not ready, as kubelet joins the reasons.
fn not_ready(shuts_down: bool, problems: &[String]) -> Option<String> {
    let all: Vec<&str> = problems.iter().map(String::as_str).chain(shuts_down.then_some(shutdown::NOT_READY)).collect();
    match all.as_slice() {
        [] => None,
        [one] => Some((*one).to_owned()),
        all => Some(format!("[{}]", all.join(", "))),
    }
}

/// `(type, status, reason, message)` of the conditions, as kubelet orders and phrases them.
fn conditions<'a>(
    pressures: &BTreeSet<Pressure>,
    not_ready: Option<&'a str>,
) -> [(&'static str, bool, &'static str, &'a str); 4] {
    [
        match pressures.contains(&Pressure::Memory) {
            false => ("MemoryPressure", false, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            true => {
                ("MemoryPressure", true, "KubeletHasInsufficientMemory", "kubelet has insufficient memory available")
            }
        },
        match pressures.contains(&Pressure::Disk) {
            false => ("DiskPressure", false, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            true => ("DiskPressure", true, "KubeletHasDiskPressure", "kubelet has disk pressure"),
        },
        match pressures.contains(&Pressure::Pid) {
            false => ("PIDPressure", false, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            true => ("PIDPressure", true, "KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
        },
        match not_ready {
            None => ("Ready", true, "KubeletReady", "kubelet is posting ready status"),
            Some(why) => ("Ready", false, "KubeletNotReady", why),
        },
    ]
}

/// The images of the status: the largest `limit` first, digests before tags; no limit if it is negative.
fn images(mut all: Vec<Image>, limit: i32) -> Vec<Value> {
    all.sort_by(|a, b| (b.size, &b.id).cmp(&(a.size, &a.id)));
    all.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let entries = |i: Image| {
        let (mut names, tags): (Vec<_>, Vec<_>) = i.names.into_iter().partition(|n| n.contains('@'));
        names.extend(tags);
        names.truncate(MAX_NAMES);
        json!({"names": names, "sizeBytes": i.size})
    };
    all.into_iter().map(entries).collect()
}

/// The handlers that the runtime reports, as the status shows them. No RuntimeClass has a longer name.
fn handlers(all: runtime::Handlers) -> Vec<Value> {
    let entry = |(name, features): (String, runtime::HandlerFeatures)| {
        json!({"name": name, "features": {"recursiveReadOnlyMounts": features.recursive_read_only_mounts,
            "userNamespaces": features.user_namespaces}})
    };
    all.into_iter().filter(|(name, _)| name.len() <= MAX_HANDLER).take(MAX_HANDLERS).map(entry).collect()
}

/// What the parts of the node report.
struct State {
    images: Vec<Image>,
    pressures: BTreeSet<Pressure>,
    shuts_down: bool,
    /// Of the container runtime.
    problems: Vec<String>,
}

/// The status of the node, read from the machine. Blocks.
fn status(
    o: &Options,
    capacity: BTreeMap<String, String>,
    allocatable: BTreeMap<String, Value>,
    old: &[NodeCondition],
    state: State,
) -> Value {
    let now = meta::time::format(o.clock.now());
    let not_ready = not_ready(state.shuts_down, &state.problems);
    let conditions: Vec<Value> = conditions(&state.pressures, not_ready.as_deref())
        .into_iter()
        .map(|(kind, is, reason, message)| {
            let status = if is { "True" } else { "False" };
            let kept = old.iter().find(|c| c.type_ == kind && c.status == status);
            let since = kept.and_then(|c| c.last_transition_time.as_ref()).map(|t| meta::time::format(t.0));
            json!({"type": kind, "status": status, "reason": reason, "message": message,
                "lastHeartbeatTime": now, "lastTransitionTime": since.unwrap_or_else(|| now.clone())})
        })
        .collect();
    let images = images(state.images, o.configuration.node_status_max_images);
    let (runtime, version) = o.runtime.version();
    let kernel = file("/proc/sys/kernel/osrelease");
    json!({
        "addresses": addresses(o),
        "capacity": capacity,
        "allocatable": allocatable,
        "conditions": conditions,
        "daemonEndpoints": {"kubeletEndpoint": {"Port": o.port}},
        "images": images,
        "declaredFeatures": FEATURES,
        "features": {"supplementalGroupsPolicy": o.runtime.features().strict_groups},
        "runtimeHandlers": handlers(o.runtime.handlers()),
        "nodeInfo": {
            "machineID": file("/etc/machine-id"), "systemUUID": file("/sys/class/dmi/id/product_uuid"),
            "bootID": file("/proc/sys/kernel/random/boot_id"), "kernelVersion": kernel, "osImage": os_image(),
            "containerRuntimeVersion": format!("{runtime}://{version}"), "kubeletVersion": o.version,
            "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": architecture(),
        },
    })
}

/// The node as the object of events.
pub fn regarding(name: &str) -> Regarding {
    // The UID is the name, as in kubelet's events: it does not know the UID when it starts.
    Regarding { kind: "Node".into(), uid: name.to_owned(), name: name.to_owned(), ..Regarding::default() }
}

pub struct Reporter {
    options: Arc<Options>,
    capacity: Capacity,
    recorder: Recorder,
    known: Arc<Known>,
    devices: Arc<Devices>,
}

impl Reporter {
    pub fn new(
        options: Arc<Options>,
        capacity: Capacity,
        recorder: Recorder,
        known: Arc<Known>,
        devices: Arc<Devices>,
    ) -> Self {
        Self { options, capacity, recorder, known, devices }
    }

    /// Registers the node, then keeps its status and lease up to date, for ever.
    pub async fn run(&self) {
        let mut wait = Duration::from_millis(100);
        let mut node = loop {
            match self.register().await {
                Ok(node) => break node,
                Err(error) => tracing::warn!(%error, "registering the node failed; it is tried again"),
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_secs(7));
        };
        let about = regarding(&self.options.node_name);
        self.recorder.normal(about.clone(), "Starting", "Starting kubelet.");
        for complaint in self.options.host.complaints() {
            tracing::warn!("{complaint}");
            self.recorder.warning(about.clone(), "MissingPrivileges", complaint);
        }
        let mut sent: Option<tokio::time::Instant> = None;
        let mut lease: Option<Lease> = None;
        // Whether the shutdown of the node has been noticed.
        let mut shuts_down = false;
        let configuration = &self.options.configuration;
        let report_frequency = configuration.node_status_report_frequency.get();
        let mut pressures = self.known.evictions.subscribe();
        let mut ticks = tokio::time::interval(configuration.node_status_update_frequency.get().max(MIN_FREQUENCY));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                // Its sender lives as long as this.
                _ = pressures.changed() => {}
                () = self.devices.changed.notified() => {}
                () = self.known.shutdown.requested(), if !shuts_down => shuts_down = true,
            }
            self.known.beat();
            // Other clients change the node too, for example its extended resources.
            match self.options.client.api::<Node>().get_opt(&self.options.node_name).await {
                Ok(Some(now)) => node = now,
                Ok(None) => sent = None,
                Err(error) => tracing::debug!(%error, "reading the node failed"),
            }
            let status = self.status(&node).await;
            let due = sent.is_none_or(|at| at.elapsed() >= report_frequency);
            if due || self.differs(&node, &status) {
                match self.send(&status).await {
                    Ok(n) => {
                        self.emit_condition_changes(&node, &n);
                        node = n;
                        sent = Some(tokio::time::Instant::now());
                    }
                    // The node was deleted while its agent runs.
                    Err(e) if e.is_not_found() => match self.register().await {
                        Ok(n) => {
                            node = n;
                            sent = None;
                            ticks.reset_immediately();
                        }
                        Err(error) => {
                            tracing::warn!(%error, "registering the deleted node again failed; it is tried again")
                        }
                    },
                    Err(error) => {
                        tracing::warn!(%error, "the API did not accept the node's status; it is reported again")
                    }
                }
            }
            match self.renew(lease.take(), &node).await {
                Ok(l) => lease = Some(l),
                Err(error) => tracing::warn!(%error, "renewing the node's lease failed; it is tried again"),
            }
        }
    }

    /// The node as it registers, without its status.
    pub fn own_node(&self) -> Value {
        json!({"metadata": {"name": self.options.node_name, "labels": self.labels()}})
    }

    fn labels(&self) -> BTreeMap<String, String> {
        let mut out = self.options.labels.clone();
        for (key, value) in [("hostname", self.options.node_name.as_str()), ("os", "linux"), ("arch", architecture())] {
            out.insert(format!("kubernetes.io/{key}"), value.to_owned());
        }
        for (key, value) in [("os", "linux"), ("arch", architecture())] {
            out.insert(format!("beta.kubernetes.io/{key}"), value.to_owned());
        }
        out
    }

    fn annotations(&self) -> BTreeMap<&str, &str> {
        let own = self.options.annotations.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        own.chain([("volumes.kubernetes.io/controller-managed-attach-detach", "true")]).collect()
    }

    /// The specification of a new node.
    fn spec(&self) -> Value {
        let mut spec = match self.options.pod_cidrs.as_slice() {
            cidrs @ [first, ..] => json!({"podCIDR": first, "podCIDRs": cidrs}),
            [] => json!({}),
        };
        let taints = &self.options.configuration.register_with_taints;
        if !taints.is_empty() {
            spec["taints"] = json!(taints);
        }
        spec
    }

    /// Creates the node, or adopts an existing one.
    async fn register(&self) -> Result<Node, Error> {
        let api = self.options.client.api::<Node>();
        let name = &self.options.node_name;
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": self.labels(), "annotations": self.annotations()},
            "spec": self.spec(),
        }))
        .map_err(|source| Error::Encode { what: "Node", source })?;
        // Created with its status, the node is ready at once.
        let mut with_status = node.clone();
        let status = self.status(&node).await;
        with_status.status = serde_json::from_value(status).ok();
        match api.create(&WriteOptions::default(), &with_status).await {
            Err(e) if e.is_already_exists() => {
                let metadata = json!({"labels": self.labels(), "annotations": self.annotations()});
                let patch = Patch::Merge(json!({"metadata": metadata}));
                api.patch(name, &WriteOptions::default(), &patch).await
            }
            other => other,
        }
    }

    /// The current status, with the transition times of `before` where nothing changed.
    async fn status(&self, before: &Node) -> Value {
        let Amounts { capacity: devices, allocatable: healthy } = self.devices.amounts();
        let amounts = |all: BTreeMap<String, usize>| all.into_iter().map(|(name, n)| (name, n.to_string()));
        let (mut capacity, mut allocatable) = (self.capacity.capacity(), self.allocatable(before));
        capacity.extend(amounts(devices));
        allocatable.extend(amounts(healthy).map(|(name, n)| (name, Value::from(n))));
        let options = self.options.clone();
        let old = before.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
        let (pressures, shuts_down) = (self.known.evictions.pressures(), self.known.shutdown.is_active());
        // While the runtime does not answer, the status lists no images, as upstream.
        let images = options.images.list().await.unwrap_or_default();
        let problems = self.known.runtime.problems();
        let state = State { images, pressures, shuts_down, problems };
        blocking(move || status(&options, capacity, allocatable, &old, state)).await
    }

    /// The allocatable resources: those of the machine, and the extended ones that other clients have added to the capacity. One
    /// that they have removed is `null`.
    fn allocatable(&self, before: &Node) -> BTreeMap<String, Value> {
        let own = self.capacity.allocatable();
        let status = before.status.clone().unwrap_or_default();
        let (has, had) = (status.capacity.unwrap_or_default(), status.allocatable.unwrap_or_default());
        let gone = had.into_keys().filter(|name| !has.contains_key(name)).map(|name| (name, Value::Null));
        let kept = has.iter().map(|(name, quantity)| (name.clone(), Value::from(quantity.0.as_str())));
        let theirs = gone.chain(kept).filter(|(name, _)| is_extended(name));
        theirs.chain(own.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str())))).collect()
    }

    /// Whether `status` differs from the one in the API, heartbeats aside.
    fn differs(&self, node: &Node, status: &Value) -> bool {
        let without_times = |mut v: Value| {
            for c in v["conditions"].as_array_mut().into_iter().flatten() {
                c["lastHeartbeatTime"].take();
                c["lastTransitionTime"].take();
            }
            v
        };
        let has = without_times(serde_json::to_value(&node.status).unwrap_or_default());
        let new = without_times(status.clone());
        new.as_object().into_iter().flatten().any(|(key, value)| match key.as_str() {
            // Conditions and resources of other clients stay.
            "conditions" => {
                let empty = Vec::new();
                let theirs = has[key].as_array().unwrap_or(&empty);
                value.as_array().into_iter().flatten().any(|c| !theirs.contains(c))
            }
            "capacity" | "allocatable" => {
                value.as_object().into_iter().flatten().any(|(name, v)| has[key].get(name) != Some(v))
            }
            _ => has.get(key) != Some(value),
        })
    }

    async fn send(&self, status: &Value) -> Result<Node, Error> {
        let mut status = status.clone();
        if let Some(addresses) = status["addresses"].as_array_mut() {
            // Addresses are merged by type, of which a node may have two of one kind.
            addresses.push(json!({"$patch": "replace"}));
        }
        let patch = Patch::Strategic(json!({"status": status}));
        let api = self.options.client.api::<Node>();
        api.patch_subresource(&self.options.node_name, "status", &WriteOptions::default(), &patch).await
    }

    /// Emits an event for every condition that changed.
    fn emit_condition_changes(&self, before: &Node, after: &Node) {
        let list = |n: &Node| n.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
        let old = list(before);
        for c in list(after) {
            let was = old.iter().find(|o| o.type_ == c.type_);
            if was.is_some_and(|w| w.status == c.status && w.reason == c.reason) {
                continue;
            }
            let reason = match (c.type_.as_str(), c.status.as_str()) {
                ("MemoryPressure", "True") => "NodeHasInsufficientMemory",
                ("MemoryPressure", _) => "NodeHasSufficientMemory",
                ("DiskPressure", "True") => "NodeHasDiskPressure",
                ("DiskPressure", _) => "NodeHasNoDiskPressure",
                ("PIDPressure", "True") => "NodeHasInsufficientPID",
                ("PIDPressure", _) => "NodeHasSufficientPID",
                ("Ready", "True") => "NodeReady",
                ("Ready", _) => "NodeNotReady",
                _ => continue,
            };
            let message = format!("Node {} status is now: {reason}", self.options.node_name);
            self.recorder.event(regarding(&self.options.node_name), Severity::Normal, reason, message);
        }
    }

    async fn renew(&self, held: Option<Lease>, node: &Node) -> Result<Lease, Error> {
        let name = &self.options.node_name;
        let api = self.options.client.api::<Lease>().namespace("kube-node-lease");
        let now = MicroTime(truncated(self.options.clock.now()));
        let held = match held {
            Some(l) => Some(l),
            None => api.get_opt(name).await?,
        };
        let owner = node.metadata.uid.as_ref().map(|uid| OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: name.clone(),
            uid: uid.clone(),
            ..OwnerReference::default()
        });
        let fresh = held.is_none();
        let mut lease = held.unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some("kube-node-lease".into()),
                ..ObjectMeta::default()
            },
            spec: None,
        });
        lease.metadata.owner_references = owner.map(|o| vec![o]);
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        spec.holder_identity = Some(name.clone());
        spec.lease_duration_seconds = Some(self.options.configuration.node_lease_duration_seconds);
        spec.renew_time = Some(now);
        if fresh {
            api.create(&WriteOptions::default(), &lease).await
        } else {
            api.update(name, &WriteOptions::default(), &lease).await
        }
    }
}

/// `MicroTime` has six digits.
fn truncated(t: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(t.as_microsecond()).unwrap_or(t)
}

/// The addresses of the node, as its status shows them.
fn addresses(o: &Options) -> Vec<Value> {
    let own = o.node_ips.iter().map(|ip| json!({"type": "InternalIP", "address": ip.to_string()}));
    own.chain([json!({"type": "Hostname", "address": o.node_name})]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_shows_a_bounded_number_of_handlers() {
        let some = runtime::HandlerFeatures { user_namespaces: true, ..Default::default() };
        let shown = handlers([(String::new(), some), ("x".repeat(64), some)].into());
        let features = json!({"recursiveReadOnlyMounts": false, "userNamespaces": true});
        assert_eq!(shown, [json!({"name": "", "features": features})]);
        let many = (0..1000).map(|i| (format!("h{i}"), some)).collect();
        assert_eq!(handlers(many).len(), MAX_HANDLERS);
    }

    #[test]
    fn allocatable_keeps_something_back() {
        let reserved = Reserved { cpu: 0, memory: 100 << 20, disk: 100 << 20 };
        let hugepages = BTreeMap::new();
        let c = Capacity { cpus: 2, memory: 1 << 30, disk: 1000 << 20, pods: 110, hugepages, reserved };
        assert_eq!(c.capacity()["memory"], "1048576Ki");
        assert_eq!(c.allocatable()["memory"], "946176Ki");
        assert_eq!(c.allocatable()["pods"], "110");
        assert_eq!(c.allocatable()["ephemeral-storage"], (900 << 20).to_string());
        assert_eq!(c.allocatable()["cpu"], "2");
        let reserved = Reserved { cpu: 500, ..reserved };
        assert_eq!(Capacity { reserved, ..c }.allocatable()["cpu"], "1500m");
    }

    /// The status lists no more images than kubelet's.
    #[test]
    fn reports_the_largest_images() {
        let image = |n: u64, names: &[&str]| Image {
            id: format!("sha256:{n:04}"),
            names: names.iter().map(|s| (*s).to_owned()).collect(),
            config: Default::default(),
            layers: Vec::new(),
            diff_ids: Vec::new(),
            size: n,
            access: None,
            pinned: false,
        };
        let mut all: Vec<Image> = (1..=60).map(|n| image(n, &[])).collect();
        all.push(image(1000, &["a:1", "a:2", "a:3", "a:4", "a:5", "b@sha256:1"]));
        let entries = images(all, 50);
        assert_eq!((entries.len(), &entries[1]["sizeBytes"], &entries[49]["sizeBytes"]), (50, &json!(60), &json!(12)));
        assert_eq!(entries[0], json!({"names": ["b@sha256:1", "a:1", "a:2", "a:3", "a:4"], "sizeBytes": 1000}));
    }

    #[test]
    fn reports_pressure_as_kubelet() {
        let calm = conditions(&BTreeSet::new(), None);
        assert!(calm.iter().all(|(kind, is, ..)| *is == (*kind == "Ready")));
        let bad = conditions(&[Pressure::Memory, Pressure::Disk, Pressure::Pid].into(), None);
        assert!(bad.iter().all(|(_, is, ..)| *is));
        let why = not_ready(true, &[]);
        let [.., ready] = conditions(&BTreeSet::new(), why.as_deref());
        assert_eq!(ready, ("Ready", false, "KubeletNotReady", "node is shutting down"));
    }
}
