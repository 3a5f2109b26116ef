//! Simulated nodes: agents without containers, which report what containers of real ones would do.
//!
//! Invariant: a container starts only while no other container of a pod with the same name runs, on any node; what contradicts it is
//! recorded in [`Nodes::take_violations`]. Left out: images, probes, volumes, restarts of containers in a pod.

use crate::container::{Outcome, ended, running};
use crate::link::Link;
use client::{ApiResource, Client, DeleteOptions, Informer, Informers, Key, Patch, Scope, WriteOptions};

use meta::{Clock, Object, Value};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use testkit::{SeededRng, VirtualClock};
use tokio::sync::Notify;

/// How long a container takes to start, and to stop.
const START: Duration = Duration::from_secs(1);
const STOP: Duration = Duration::from_secs(1);
/// How often a node sends heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long an agent waits before it repeats a report that failed.
const RETRY: Duration = Duration::from_secs(1);

/// A node and what it offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeSpec {
    /// The name of the node.
    pub name: String,
    /// Allocatable CPU.
    #[serde(default = "cpu")]
    pub cpu: String,
    /// Allocatable memory.
    #[serde(default = "memory")]
    pub memory: String,
    /// How many pods it runs.
    #[serde(default = "pods")]
    pub pods: u32,
    /// The labels of the node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

fn cpu() -> String {
    "8".into()
}

fn memory() -> String {
    "8Gi".into()
}

fn pods() -> u32 {
    110
}

impl NodeSpec {
    /// A node with 8 GiB of memory for 110 pods.
    pub fn new(name: &str, cpu: &str) -> Self {
        Self { name: name.into(), cpu: cpu.into(), memory: memory(), pods: pods(), labels: BTreeMap::new() }
    }
}

/// A pod's container on a node.
struct Container {
    key: Key,
    outcome: Outcome,
    ready: bool,
    stopping: bool,
}

#[derive(Default)]
struct State {
    failed: bool,
    /// The number of failures: what was begun before one does not continue after it.
    epoch: u64,
    /// Pods to look at.
    due: BTreeSet<Key>,
    /// By UID of the pod.
    containers: BTreeMap<String, Container>,
}

/// The agent of a node.
struct Agent {
    name: String,
    link: Arc<Link>,
    clock: Arc<VirtualClock>,
    state: Mutex<State>,
    wake: Notify,
    pods: client::Api<Object>,
    shared: Arc<Shared>,
}

/// What all nodes share.
struct Shared {
    informer: Informer<Value>,
    /// Images whose containers never become ready.
    broken: Mutex<BTreeSet<String>>,
    addresses: AtomicU32,
    rng: Arc<SeededRng>,
    /// The UID and the node of the container that runs for a pod of this name.
    running: Mutex<BTreeMap<Key, (String, String)>>,
    violations: Mutex<Vec<String>>,
}

/// A pod whose container runs.
pub struct RunningPod {
    pub key: Key,
    pub uid: String,
    pub node: String,
    /// Its label `app`.
    pub app: String,
}

/// All simulated nodes. Cheap to clone.
#[derive(Clone)]
pub struct Nodes {
    client: Client,
    clock: Arc<VirtualClock>,
    agents: Arc<Mutex<BTreeMap<String, Arc<Agent>>>>,
    shared: Arc<Shared>,
}

fn pod_resource() -> ApiResource {
    ApiResource::named("", "v1", "pods", "Pod", true)
}

impl Nodes {
    pub(crate) fn start(client: Client, informers: &Informers, clock: Arc<VirtualClock>, rng: Arc<SeededRng>) -> Self {
        let informer = informers.informer::<Value>(&pod_resource(), &Scope::default());
        let shared = Arc::new(Shared {
            informer: informer.clone(),
            broken: Mutex::default(),
            addresses: AtomicU32::new(0),
            rng,
            running: Mutex::default(),
            violations: Mutex::default(),
        });
        let agents: Arc<Mutex<BTreeMap<String, Arc<Agent>>>> = Arc::default();
        let notified = agents.clone();
        informer.on_change(move |change| {
            let agents = notified.lock();
            for entry in change.old.iter().chain(&change.new) {
                let node = entry.view["spec"]["nodeName"].as_str().unwrap_or_default();
                if let Some(agent) = agents.get(node) {
                    agent.state.lock().due.insert(entry.key());
                    agent.wake.notify_one();
                }
            }
        });
        Self { client, clock, agents, shared }
    }

    /// Adds a node, whose agent sends heartbeats if `heartbeats` is set.
    pub async fn add(&self, spec: &NodeSpec, heartbeats: bool) -> Result<(), client::Error> {
        let amounts = json!({"cpu": spec.cpu, "memory": spec.memory, "pods": spec.pods.to_string()});
        let nodes = self.client.dynamic(&ApiResource::named("", "v1", "nodes", "Node", false));
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": spec.name, "labels": spec.labels},
            "status": {"allocatable": amounts, "capacity": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
        });
        let options = WriteOptions::default();
        nodes.create(&options, &Object::from_value(node).unwrap_or_default()).await?;
        if !heartbeats {
            // Admission taints new nodes, and the controller that removes it is not there.
            nodes.patch(&spec.name, &options, &Patch::Merge(json!({"spec": {"taints": null}}))).await?;
        }
        let link = Link::new(self.shared.rng.clone());
        let client = self.client.clone().over(|inner| Arc::new(link.transport(inner)));
        let agent = Arc::new(Agent {
            name: spec.name.clone(),
            link,
            clock: self.clock.fork(),
            state: Mutex::default(),
            wake: Notify::new(),
            pods: client.dynamic(&pod_resource()),
            shared: self.shared.clone(),
        });
        self.agents.lock().insert(spec.name.clone(), agent.clone());
        if heartbeats {
            tokio::spawn(agent.clone().send_heartbeats(client));
        }
        agent.resync();
        tokio::spawn(agent.run());
        Ok(())
    }

    fn agent(&self, node: &str) -> Option<Arc<Agent>> {
        self.agents.lock().get(node).cloned()
    }

    /// The names of the nodes.
    pub fn names(&self) -> Vec<String> {
        self.agents.lock().keys().cloned().collect()
    }

    /// Stops a machine: its containers end and its agent is silent. False: there is no such node.
    pub fn fail(&self, node: &str) -> bool {
        let Some(agent) = self.agent(node) else { return false };
        let ended = {
            let mut state = agent.state.lock();
            state.failed = true;
            state.epoch += 1;
            std::mem::take(&mut state.containers)
        };
        for (uid, container) in ended {
            self.shared.stopped(&container.key, &uid);
        }
        true
    }

    /// Starts a machine again, and heals its connection.
    pub fn heal(&self, node: &str) -> bool {
        let Some(agent) = self.agent(node) else { return false };
        agent.state.lock().failed = false;
        agent.link.set_cut(false);
        agent.resync();
        true
    }

    /// Cuts a node off from the API server: its containers run on.
    pub fn cut(&self, node: &str) -> bool {
        let Some(agent) = self.agent(node) else { return false };
        agent.link.set_cut(true);
        true
    }

    /// The clock of a node.
    pub fn clock(&self, node: &str) -> Option<Arc<VirtualClock>> {
        self.agent(node).map(|a| a.clock.clone())
    }

    /// Containers of this image never become ready from now on.
    pub fn break_image(&self, image: &str) {
        self.shared.broken.lock().insert(image.into());
    }

    /// The pods whose containers run, by namespace and name.
    pub fn running(&self) -> Vec<RunningPod> {
        let running = self.shared.running.lock();
        let pod = |(key, (uid, node)): (&Key, &(String, String))| {
            let app = self.shared.informer.get(key).and_then(|e| e.meta.label("app").map(str::to_owned));
            RunningPod { key: key.clone(), uid: uid.clone(), node: node.clone(), app: app.unwrap_or_default() }
        };
        running.iter().map(pod).collect()
    }

    /// Takes what contradicted the invariant of containers since the last call.
    pub fn take_violations(&self) -> Vec<String> {
        std::mem::take(&mut *self.shared.violations.lock())
    }
}

impl Shared {
    /// Records that a container of a pod runs on a node.
    fn started(&self, key: &Key, uid: &str, node: &str) {
        let before = self.running.lock().insert(key.clone(), (uid.to_owned(), node.to_owned()));
        if let Some((other, where_)) = before.filter(|(other, _)| other != uid) {
            let text = format!("pod {key} runs twice: {uid} started on {node} while {other} runs on {where_}");
            self.violations.lock().push(text);
        }
    }

    fn stopped(&self, key: &Key, uid: &str) {
        let mut running = self.running.lock();
        if running.get(key).is_some_and(|(other, _)| other == uid) {
            running.remove(key);
        }
    }
}

impl Agent {
    /// Looks at all pods of the node again.
    fn resync(&self) {
        let cache = self.shared.informer.cache();
        let own = cache.entries().filter(|e| e.view["spec"]["nodeName"].as_str() == Some(&self.name));
        let mut state = self.state.lock();
        state.due.extend(own.map(|e| e.key()));
        let kept: Vec<Key> = state.containers.values().map(|c| c.key.clone()).collect();
        state.due.extend(kept);
        drop(state);
        self.wake.notify_one();
    }

    async fn run(self: Arc<Self>) {
        loop {
            let next = {
                let mut state = self.state.lock();
                if state.failed || self.link.is_cut() { None } else { state.due.pop_first() }
            };
            match next {
                Some(key) => self.sync(&key),
                None => self.wake.notified().await,
            }
        }
    }

    /// Brings the containers of a pod to what its object says.
    fn sync(self: &Arc<Self>, key: &Key) {
        let entry = self.shared.informer.get(key);
        let current = entry.as_ref().filter(|e| e.view["spec"]["nodeName"].as_str() == Some(&self.name));
        let uid = current.map(|e| e.meta.uid.to_string()).unwrap_or_default();
        let mut state = self.state.lock();
        let old: Vec<String> =
            state.containers.iter().filter(|(u, c)| c.key == *key && **u != uid).map(|(u, _)| u.clone()).collect();
        for uid in old {
            state.containers.remove(&uid);
            self.shared.stopped(key, &uid);
        }
        let Some(pod) = current else { return };
        let phase = pod.view["status"]["phase"].as_str().unwrap_or("Pending");
        if matches!(phase, "Succeeded" | "Failed") {
            if pod.meta.is_deleting() {
                self.spawn(state.epoch, key, &uid, Work::Remove);
            }
            return;
        }
        let epoch = state.epoch;
        let not_ready = phase == "Running" && !is_ready(&pod.view);
        match state.containers.get_mut(&uid) {
            Some(c) if pod.meta.is_deleting() => {
                if !std::mem::replace(&mut c.stopping, true) {
                    self.spawn(epoch, key, &uid, Work::Stop);
                }
            }
            // Its connection was lost, and a controller changed what the agent reported.
            Some(c) => {
                if not_ready && c.ready {
                    self.spawn(epoch, key, &uid, Work::ReportReady);
                }
            }
            None if pod.meta.is_deleting() => self.spawn(epoch, key, &uid, Work::Remove),
            None if phase == "Running" && pod.view["spec"]["restartPolicy"] != "Always" => {
                self.spawn(epoch, key, &uid, Work::ReportLost);
            }
            None => {
                let outcome = self.outcome(pod);
                let container = Container { key: key.clone(), outcome, ready: false, stopping: false };
                state.containers.insert(uid.clone(), container);
                self.spawn(epoch, key, &uid, Work::Start(outcome));
            }
        }
    }

    fn outcome(&self, pod: &client::Entry<Value>) -> Outcome {
        let image = pod.view["spec"]["containers"][0]["image"].as_str().unwrap_or_default();
        if self.shared.broken.lock().contains(image) {
            return Outcome::NeverReady;
        }
        let index = pod.view["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"].as_str();
        Outcome::parse(image, index.and_then(|i| i.parse().ok()).unwrap_or(0), &self.shared.rng)
    }

    fn spawn(self: &Arc<Self>, epoch: u64, key: &Key, uid: &str, work: Work) {
        let task = Task { agent: self.clone(), epoch, key: key.clone(), uid: uid.to_owned() };
        tokio::spawn(task.run(work));
    }

    async fn send_heartbeats(self: Arc<Self>, client: Client) {
        let leases = ApiResource::named("coordination.k8s.io", "v1", "leases", "Lease", true);
        let leases = client.dynamic(&leases).namespace("kube-node-lease");
        let nodes = client.dynamic(&ApiResource::named("", "v1", "nodes", "Node", false));
        let options = WriteOptions::default();
        loop {
            if !self.state.lock().failed {
                let now = self.clock.now();
                let spec = json!({"holderIdentity": self.name, "renewTime": meta::time::format_micro(now)});
                let renewal = Patch::Merge(json!({"spec": spec}));
                if leases.patch(&self.name, &options, &renewal).await.is_err() {
                    let lease = json!({
                        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                        "metadata": {"name": self.name, "namespace": "kube-node-lease"}, "spec": spec,
                    });
                    let _ = leases.create(&options, &Object::from_value(lease).unwrap_or_default()).await;
                }
                let condition = json!({"type": "Ready", "status": "True", "reason": "KubeletReady",
                    "lastHeartbeatTime": meta::time::format(now)});
                let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
                let _ = nodes.patch_status(&self.name, &options, &patch).await;
            }
            tokio::time::sleep(HEARTBEAT).await;
        }
    }
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

/// What an agent does with a pod.
enum Work {
    Start(Outcome),
    Stop,
    /// Deletes the object of a pod whose containers have ended.
    Remove,
    ReportReady,
    /// Reports the end of containers that a failure of the node ended.
    ReportLost,
}

/// Work on a pod that does not outlive the node.
struct Task {
    agent: Arc<Agent>,
    epoch: u64,
    key: Key,
    uid: String,
}

impl Task {
    /// Whether the node has not failed since.
    fn lives(&self) -> bool {
        self.agent.state.lock().epoch == self.epoch
    }

    /// Whether the container is still meant to run.
    fn runs(&self) -> bool {
        let state = self.agent.state.lock();
        state.epoch == self.epoch && state.containers.get(&self.uid).is_some_and(|c| !c.stopping)
    }

    async fn run(self, work: Work) {
        match work {
            Work::Start(outcome) => self.start(outcome).await,
            Work::Stop => self.stop().await,
            Work::Remove => self.remove().await,
            Work::ReportReady => self.report(Report::Ready).await,
            Work::ReportLost => self.report(Report::Exited(137)).await,
        }
    }

    async fn start(&self, outcome: Outcome) {
        tokio::time::sleep(START).await;
        if !self.runs() {
            return;
        }
        let ready = outcome != Outcome::NeverReady;
        if let Some(c) = self.agent.state.lock().containers.get_mut(&self.uid) {
            c.ready = ready;
        }
        self.agent.shared.started(&self.key, &self.uid, &self.agent.name);
        let n = self.agent.shared.addresses.fetch_add(1, Ordering::SeqCst) + 1;
        let address = format!("10.{}.{}.{}", n / 62_500, n / 250 % 250, n % 250 + 1);
        self.report(Report::Started { ready, address }).await;
        if let Outcome::Exits(code, seconds) = outcome {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            if self.runs() {
                self.forget();
                self.report(Report::Exited(code)).await;
            }
        }
    }

    async fn stop(&self) {
        tokio::time::sleep(STOP).await;
        if !self.lives() {
            return;
        }
        let exits = self.agent.state.lock().containers.get(&self.uid).map(|c| (c.outcome, c.ready));
        self.forget();
        // A pod whose containers have not started has no result to report.
        if exits.is_some_and(|(_, started)| started) {
            self.report(Report::Exited(137)).await;
        }
        self.remove().await;
    }

    fn forget(&self) {
        self.agent.state.lock().containers.remove(&self.uid);
        self.agent.shared.stopped(&self.key, &self.uid);
    }

    async fn remove(&self) {
        let api = self.agent.pods.clone().namespace(&self.key.namespace);
        let options = DeleteOptions::uid(&self.uid).with_grace(0);
        while self.lives() && is_unanswered(&api.delete(&self.key.name, &options).await) {
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Reports a status until the server has answered.
    async fn report(&self, report: Report) {
        let api = self.agent.pods.clone().namespace(&self.key.namespace);
        let options = WriteOptions::default();
        while self.lives() {
            let patch = json!({"metadata": {"uid": self.uid}, "status": report.status(self.agent.clock.now())});
            if !is_unanswered(&api.patch_status(&self.key.name, &options, &Patch::Strategic(patch)).await) {
                return;
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Whether a request failed on its way.
fn is_unanswered<T>(result: &Result<T, client::Error>) -> bool {
    matches!(result, Err(client::Error::Send(_)))
}

/// What an agent reports of a pod.
enum Report {
    Started { ready: bool, address: String },
    Ready,
    Exited(i64),
}

impl Report {
    fn status(&self, now: jiff::Timestamp) -> Value {
        match self {
            Self::Started { ready, address } => {
                let mut status = running(now, *ready);
                status["podIP"] = address.clone().into();
                status["podIPs"] = json!([{"ip": address}]);
                status
            }
            Self::Ready => json!({"conditions": running(now, true)["conditions"]}),
            Self::Exited(code) => ended(*code, now),
        }
    }
}
