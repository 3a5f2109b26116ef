//! Simulated nodes: agents without containers, which report what containers of real ones would do.
//!
//! Invariant: a container starts only while no other container of a pod with the same name runs, on any node; what contradicts it is
//! recorded in [`Nodes::take_violations`]. Left out: images, probes, volumes, restarts of containers in a pod.

use crate::assumptions::{Assumptions, Course};
use crate::container::{Outcome, ended, running};
use crate::journal::{Journal, Note};
use crate::link::Link;
use crate::name::ObjectName;
pub use crate::node_spec::NodeSpec;
use client::{ApiResource, Client, DeleteOptions, Informer, Informers, Key, Patch, Scope, WriteOptions};
use meta::{Clock, Object, Value};
use parking_lot::Mutex;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use testkit::{SeededRng, VirtualClock};
use tokio::sync::Notify;
use tokio::time::Instant;

/// How often a node sends heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long an agent waits before it repeats a report that failed.
const RETRY: Duration = Duration::from_secs(1);

/// A pod's container on a node.
struct Container {
    key: Key,
    course: Course,
    started: bool,
    ready: bool,
    stopping: bool,
    /// It ended by itself, which is being reported.
    exited: bool,
}

/// Whether the machine of a node runs when its agent is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machine {
    Runs,
    Failed,
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
    /// The images that are on the node.
    images: BTreeSet<String>,
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
    assumptions: Assumptions,
    journal: Arc<Journal>,
    /// How often agents report the status of their nodes, besides their leases.
    status_period: Duration,
    /// UIDs of pods that run already when their node is attached.
    running_before: Mutex<BTreeSet<String>>,
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

fn node_resource() -> ApiResource {
    ApiResource::named("", "v1", "nodes", "Node", false)
}

fn pod_resource() -> ApiResource {
    ApiResource::named("", "v1", "pods", "Pod", true)
}

impl Nodes {
    pub(crate) fn start(
        client: Client,
        informers: &Informers,
        clock: Arc<VirtualClock>,
        rng: Arc<SeededRng>,
        assumptions: Assumptions,
        journal: Arc<Journal>,
        status_period: Duration,
    ) -> Self {
        let informer = informers.informer::<Value>(&pod_resource(), &Scope::default());
        let shared = Arc::new(Shared {
            informer: informer.clone(),
            assumptions,
            journal,
            status_period,
            running_before: Mutex::default(),
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
        let nodes = self.client.dynamic(&node_resource());
        let options = WriteOptions::default();
        nodes.create(&options, &Object::from_value(spec.object()).unwrap_or_default()).await?;
        if !heartbeats {
            // Admission taints new nodes, and the controller that removes it is not there.
            let taints = if spec.taints.is_empty() { Value::Null } else { json!(spec.taints) };
            nodes.patch(&spec.name, &options, &Patch::Merge(json!({"spec": {"taints": taints}}))).await?;
        }
        self.attach(&spec.name, heartbeats, Machine::Runs);
        Ok(())
    }

    /// Pods that run already: their containers are not started again when their nodes are attached.
    pub(crate) fn adopt(&self, uids: impl IntoIterator<Item = String>) {
        self.shared.running_before.lock().extend(uids);
    }

    /// Starts the agent of a node that exists.
    pub(crate) fn attach(&self, name: &str, heartbeats: bool, machine: Machine) {
        let link = Link::new(self.shared.rng.clone());
        let client = self.client.clone().over(|inner| Arc::new(link.transport(inner)));
        let agent = Arc::new(Agent {
            name: name.to_owned(),
            link,
            clock: self.clock.fork(),
            state: Mutex::new(State { failed: machine == Machine::Failed, ..State::default() }),
            wake: Notify::new(),
            pods: client.dynamic(&pod_resource()),
            shared: self.shared.clone(),
        });
        self.agents.lock().insert(name.to_owned(), agent.clone());
        if heartbeats {
            tokio::spawn(agent.clone().send_heartbeats(client));
        }
        agent.resync();
        tokio::spawn(agent.run());
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
        self.shared.journal.write(Note::NodeDown(node.to_owned()));
        true
    }

    /// Starts a machine again, and heals its connection.
    pub fn heal(&self, node: &str) -> bool {
        let Some(agent) = self.agent(node) else { return false };
        if std::mem::take(&mut agent.state.lock().failed) {
            self.shared.journal.write(Note::NodeUp(node.to_owned()));
        }
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
            state.containers.remove(&uid);
            if pod.meta.is_deleting() {
                self.spawn(state.epoch, key, &uid, Work::Remove);
            }
            return;
        }
        let epoch = state.epoch;
        let not_ready = phase == "Running" && !is_ready(&pod.view);
        match state.containers.get_mut(&uid) {
            Some(c) if c.exited => {}
            Some(c) if pod.meta.is_deleting() => {
                if !std::mem::replace(&mut c.stopping, true) {
                    let grace = pod.view["metadata"]["deletionGracePeriodSeconds"].as_u64();
                    self.spawn(epoch, key, &uid, Work::Stop(grace.map(Duration::from_secs)));
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
                let mut course = self.course(pod);
                let image = image_of(&pod.view);
                if !state.images.insert(image.to_owned()) {
                    course.image_pull = Duration::ZERO;
                }
                let adopted = phase == "Running" && self.shared.running_before.lock().remove(&uid);
                let ready = adopted && is_ready(&pod.view);
                if adopted && !ready && course.outcome == Outcome::Runs {
                    course.outcome = Outcome::NeverReady;
                }
                let container =
                    Container { key: key.clone(), course, started: adopted, ready, stopping: false, exited: false };
                state.containers.insert(uid.clone(), container);
                if adopted {
                    self.shared.started(key, &uid, &self.name);
                }
                self.spawn(epoch, key, &uid, if adopted { Work::RunOn(course) } else { Work::Start(course) });
            }
        }
    }

    fn course(&self, pod: &client::Entry<Value>) -> Course {
        let image = image_of(&pod.view);
        let index = pod.view["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"].as_str();
        let index = index.and_then(|i| i.parse().ok()).unwrap_or(0);
        let outcome = match self.shared.broken.lock().contains(image) {
            true => Outcome::NeverReady,
            false => Outcome::parse(image, index, &*self.shared.rng),
        };
        let workload = workload(&pod.view);
        self.shared.assumptions.course(&pod.view, workload.as_ref(), outcome, &*self.shared.rng)
    }

    fn spawn(self: &Arc<Self>, epoch: u64, key: &Key, uid: &str, work: Work) {
        let task = Task { agent: self.clone(), epoch, key: key.clone(), uid: uid.to_owned() };
        tokio::spawn(task.run(work));
    }

    async fn send_heartbeats(self: Arc<Self>, client: Client) {
        let leases = ApiResource::named("coordination.k8s.io", "v1", "leases", "Lease", true);
        let leases = client.dynamic(&leases).namespace("kube-node-lease");
        let nodes = client.dynamic(&node_resource());
        let options = WriteOptions::default();
        // When the status is reported again; also after an interruption.
        let mut due = Instant::now();
        loop {
            if self.state.lock().failed {
                due = Instant::now();
            } else {
                let now = self.clock.now();
                let spec = json!({"holderIdentity": self.name, "renewTime": meta::time::format_micro(now)});
                let renewal = Patch::Merge(json!({"spec": spec}));
                if leases.patch(&self.name, &options, &renewal).await.is_err() {
                    due = Instant::now();
                    let lease = json!({
                        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                        "metadata": {"name": self.name, "namespace": "kube-node-lease"}, "spec": spec,
                    });
                    let _ = leases.create(&options, &Object::from_value(lease).unwrap_or_default()).await;
                }
                if Instant::now() >= due {
                    let condition = json!({"type": "Ready", "status": "True", "reason": "KubeletReady",
                        "lastHeartbeatTime": meta::time::format(now)});
                    let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
                    if nodes.patch_status(&self.name, &options, &patch).await.is_ok() {
                        due = Instant::now() + self.shared.status_period;
                    }
                }
            }
            tokio::time::sleep(HEARTBEAT).await;
        }
    }
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

fn image_of(pod: &Value) -> &str {
    pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default()
}

/// The workload of a pod, as its controller and its labels name it: a ReplicaSet of a Deployment has the hash of the template in its name.
fn workload(pod: &Value) -> Option<ObjectName> {
    let owners = pod["metadata"]["ownerReferences"].as_array()?;
    let owner = owners.iter().find(|o| o["controller"] == true)?;
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let mut found = ObjectName {
        api_version: text(&owner["apiVersion"]),
        kind: text(&owner["kind"]),
        namespace: text(&pod["metadata"]["namespace"]),
        name: text(&owner["name"]),
    };
    let hash = pod["metadata"]["labels"]["pod-template-hash"].as_str();
    if let (Some(hash), "ReplicaSet") = (hash, &*found.kind)
        && let Some(name) = found.name.strip_suffix(hash).and_then(|n| n.strip_suffix('-'))
    {
        found = ObjectName { kind: "Deployment".into(), name: name.to_owned(), ..found };
    }
    Some(found)
}

/// What an agent does with a pod.
enum Work {
    Start(Course),
    /// Its containers run already.
    RunOn(Course),
    /// Stops the containers within the grace period.
    Stop(Option<Duration>),
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
            Work::Start(course) => self.start(course).await,
            Work::RunOn(course) => self.run_to_end(course).await,
            Work::Stop(grace) => self.stop(grace).await,
            Work::Remove => self.remove().await,
            Work::ReportReady => self.report(Report::Ready).await,
            Work::ReportLost => {
                // A late cache may show a pod that has ended as running.
                if !self.has_ended().await {
                    self.report(Report::Exited(137)).await;
                }
            }
        }
    }

    async fn start(&self, course: Course) {
        tokio::time::sleep(course.image_pull + course.start).await;
        if !self.runs() {
            return;
        }
        let becomes_ready = course.outcome != Outcome::NeverReady;
        let ready = becomes_ready && course.ready.is_zero();
        self.update(|c| (c.started, c.ready) = (true, ready));
        self.agent.shared.started(&self.key, &self.uid, &self.agent.name);
        self.agent.shared.journal.write(Note::Started(self.uid.clone()));
        let n = self.agent.shared.addresses.fetch_add(1, Ordering::SeqCst) + 1;
        let address = format!("10.{}.{}.{}", n / 62_500, n / 250 % 250, n % 250 + 1);
        self.report(Report::Started { ready, address }).await;
        if becomes_ready && !ready && !matches!(course.outcome, Outcome::Exits(..)) {
            tokio::time::sleep(course.ready).await;
            if !self.runs() {
                return;
            }
            self.update(|c| c.ready = true);
            self.report(Report::Ready).await;
        }
        self.run_to_end(course).await;
    }

    /// Waits for the end of containers that end by themselves.
    async fn run_to_end(&self, course: Course) {
        if let Outcome::Exits(code, seconds) = course.outcome {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            if self.runs() {
                self.agent.shared.stopped(&self.key, &self.uid);
                self.update(|c| c.exited = true);
                // The container is remembered until the cache shows its end: a late cache shows a running pod.
                self.report(Report::Exited(code)).await;
            }
        }
    }

    fn update(&self, change: impl FnOnce(&mut Container)) {
        if let Some(c) = self.agent.state.lock().containers.get_mut(&self.uid) {
            change(c);
        }
    }

    async fn stop(&self, grace: Option<Duration>) {
        let course = self.agent.state.lock().containers.get(&self.uid).map(|c| c.course);
        let time = course.map(|c| c.stop).unwrap_or_default();
        tokio::time::sleep(grace.map_or(time, |grace| time.min(grace))).await;
        if !self.lives() {
            return;
        }
        let started = self.agent.state.lock().containers.get(&self.uid).is_some_and(|c| c.started);
        self.forget();
        // A pod whose containers have not started has no result to report.
        if started {
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

    /// Whether the server has the end of the pod already.
    async fn has_ended(&self) -> bool {
        let api = self.agent.pods.clone().namespace(&self.key.namespace);
        while self.lives() {
            let pod = api.get(&self.key.name).await;
            if !is_unanswered(&pod) {
                let phase = pod.as_ref().ok().and_then(|p| p.str_at(&["status", "phase"]));
                return matches!(phase, Some("Succeeded" | "Failed"));
            }
            tokio::time::sleep(RETRY).await;
        }
        true
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
