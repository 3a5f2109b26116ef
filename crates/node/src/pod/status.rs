//! The status of a pod: a pure function of its spec, its containers and what probes and the worker found.
//!
//! Follows kubelet's `generateAPIPodStatus`, `getPhase` and `status/generate.go`, including their messages, which clients read.
//! Invariant: the same input gives the same status, times of transitions are kept where nothing changed, and a final phase does not
//! change.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container as Spec, ContainerState as State, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, ContainerUser, HostIP, LinuxContainerUser, Pod, PodCondition, PodIP, PodStatus,
    ResourceRequirements, ResourceStatus, VolumeMount, VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use runtime::{Container, ContainerState, HandlerFeatures, Runtime};

use super::plan::{KILLED, may_restart_all, restart_all_at, restarts};
use super::probes::Health;
use super::resize::{self, Allocation, ResizeCondition};
use super::totals;
use crate::bounded::{MAX_MESSAGE, MAX_WORD, cut};
use crate::configuration::KubeletConfiguration;
use crate::resources::{is_sidecar, qos};

/// Why a container waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub reason: String,
    pub message: String,
}

/// The input of [`status`].
pub struct Facts<'a> {
    /// The pod with its allocated resources.
    pub pod: &'a Pod,
    /// The actual resources of running containers, by container id.
    pub actuated: &'a BTreeMap<String, ResourceRequirements>,
    /// The resources that the pod's control group has.
    pub of_pod: &'a Allocation,
    pub resizing: &'a [ResizeCondition],
    /// The newest container of each name.
    pub newest: &'a BTreeMap<String, Container>,
    /// The container before it.
    pub previous: &'a BTreeMap<String, Container>,
    pub waiting: &'a BTreeMap<String, Waiting>,
    pub health: &'a BTreeMap<String, Health>,
    /// Ids of the containers that the agent has killed so that they start again.
    pub killed: &'a BTreeSet<String>,
    /// The health of devices, by name of the container.
    pub devices: &'a BTreeMap<String, Vec<ResourceStatus>>,
    /// Termination messages by container id.
    pub messages: &'a BTreeMap<String, String>,
    pub sandbox_ready: bool,
    pub pod_ips: &'a [String],
    pub host_ips: &'a [String],
    pub now: Timestamp,
    /// Why the agent ended the pod (`DeadlineExceeded`, `Evicted`), with the message.
    pub failed: Option<(&'a str, &'a str)>,
    /// The node has rejected the pod: it had no containers.
    pub rejected: bool,
    /// The message of the condition `DisruptionTarget`, if the agent ended the pod for the sake of the node.
    pub disruption: Option<&'a str>,
    /// The pod has ended: nothing of it runs or will run.
    pub has_ended: bool,
    pub details: Details,
    pub runtime: &'a RuntimeFacts,
}

/// What statuses show of the container runtime.
#[derive(Clone, Debug)]
pub struct RuntimeFacts {
    pub name: String,
    /// Whether it mounts volumes read-only with what is mounted below them.
    pub mounts_recursively: bool,
    /// Whether statuses show the signals that end containers (`ContainerStopSignals`).
    pub shows_signals: bool,
}

impl RuntimeFacts {
    pub fn of(runtime: &dyn Runtime, handler: HandlerFeatures, configuration: &KubeletConfiguration) -> Self {
        Self {
            name: runtime.version().0,
            mounts_recursively: handler.recursive_read_only_mounts,
            shows_signals: configuration.has_stop_signals(),
        }
    }

    /// The id of a container as the status shows it.
    pub fn container_id(&self, id: &str) -> String {
        format!("{}://{id}", self.name)
    }
}

/// How much of the specification a status repeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Details {
    #[default]
    All,
    /// Without resources, devices, mounts, users and long messages of containers, which would make the pod too large.
    Few,
}

/// Bytes of the message of a container that has ended: that of the runtime and its own.
const MAX_TERMINATION: usize = 2 * MAX_MESSAGE;
/// The reason of a container that ended unobserved.
const UNKNOWN_REASON: &str = "ContainerStatusUnknown";

fn time(t: Timestamp) -> Time {
    Time(Timestamp::from_second(t.as_second()).unwrap_or(t))
}

fn at(t: Option<runtime::Timestamp>) -> Option<Time> {
    t.map(|t| time(crate::instant(t)))
}

/// The volume mounts of a container, and whether read-only is recursive.
fn mounts(requested: Option<&Vec<VolumeMount>>, runtime: &RuntimeFacts) -> Option<Vec<VolumeMountStatus>> {
    let status = |m: &VolumeMount| {
        let below = match m.recursive_read_only.as_deref() {
            Some("Enabled") => true,
            Some("IfPossible") => runtime.mounts_recursively,
            _ => false,
        };
        let below = if below { "Enabled" } else { "Disabled" };
        VolumeMountStatus {
            name: m.name.clone(),
            mount_path: m.mount_path.clone(),
            read_only: m.read_only,
            recursive_read_only: (m.read_only == Some(true)).then(|| below.to_owned()),
            ..VolumeMountStatus::default()
        }
    };
    requested.filter(|all| !all.is_empty()).map(|all| all.iter().map(status).collect())
}

fn user(user: &runtime::ContainerUser) -> ContainerUser {
    let groups = user.groups.iter().map(|g| i64::from(*g)).collect();
    let linux = LinuxContainerUser { uid: user.uid.into(), gid: user.gid.into(), supplemental_groups: Some(groups) };
    ContainerUser { linux: Some(linux) }
}

/// The exit code of a container that ended, and the reason.
pub fn end(c: &Container) -> (i32, &str) {
    let unknown = c.state == ContainerState::Unknown;
    let code = c.exit_code.unwrap_or(if unknown { 137 } else { 128 });
    let reason = match (unknown, code) {
        (true, _) => UNKNOWN_REASON,
        (_, 0) => "Completed",
        _ => "Error",
    };
    (code, c.reason.as_deref().unwrap_or(reason))
}

impl Facts<'_> {
    fn terminated(&self, c: &Container) -> State {
        let (code, reason) = end(c);
        // The reason of the runtime wins, as upstream.
        let messages = [c.message.as_ref(), self.messages.get(&c.id)].into_iter().flatten();
        let messages: Vec<&str> = messages.map(String::as_str).filter(|m| !m.is_empty()).collect();
        let message = cut(&messages.join(": "), MAX_TERMINATION);
        let message = Some(message).filter(|m| !m.is_empty() && self.details == Details::All);
        State {
            terminated: Some(ContainerStateTerminated {
                container_id: Some(self.runtime.container_id(&c.id)),
                exit_code: code,
                finished_at: at(c.finished_at),
                message,
                reason: Some(cut(reason, MAX_WORD)),
                // Upstream's runtimes fold the signal into the exit code and leave this out.
                signal: None,
                // A container that never ran started at the epoch, as with upstream's runtimes.
                started_at: at(c.started_at).or(Some(Time(jiff::Timestamp::UNIX_EPOCH))),
            }),
            ..State::default()
        }
    }

    fn waiting_state(&self, reason: &str, message: Option<&str>) -> State {
        let most = if self.details == Details::All { MAX_MESSAGE } else { MAX_WORD };
        State {
            waiting: Some(ContainerStateWaiting {
                reason: Some(reason.to_owned()),
                message: message.filter(|m| !m.is_empty()).map(|m| cut(m, most)),
            }),
            ..State::default()
        }
    }

    /// Whether a container that has ended will be replaced by one of another image.
    fn is_replaced(&self, spec: Option<&Spec>, c: &Container) -> bool {
        let is_changed = spec.is_some_and(|s| s.image.as_deref().unwrap_or_default() != c.image);
        !self.has_ended && self.killed.contains(&c.id) && is_changed
    }

    /// The status of one container. `ready_rule` defines its readiness.
    fn container(&self, name: &str, image: &str, spec: Option<&Spec>, default_reason: &str) -> ContainerStatus {
        let newest = self.newest.get(name);
        let health = self.health.get(name).copied().unwrap_or_default();
        let mut out = ContainerStatus {
            name: name.to_owned(),
            image: image.to_owned(),
            started: Some(false),
            ..ContainerStatus::default()
        };
        if let Some(s) = spec.filter(|_| self.details == Details::All) {
            let resources = s.resources.clone().unwrap_or_default();
            out.allocated_resources = resources.requests.clone();
            let actuated = newest.and_then(|c| self.actuated.get(&c.id));
            out.resources = Some(actuated.cloned().unwrap_or(resources));
            out.volume_mounts = mounts(s.volume_mounts.as_ref(), self.runtime);
            out.allocated_resources_status = self.devices.get(name).cloned().filter(|all| !all.is_empty());
        }
        let waiting = self.waiting.get(name);
        let Some(c) = newest else {
            let state = match waiting {
                Some(w) => self.waiting_state(&w.reason, Some(&w.message)),
                None => self.waiting_state(default_reason, None),
            };
            out.state = Some(state);
            return out;
        };
        out.restart_count = c.attempt as i32;
        out.container_id = Some(self.runtime.container_id(&c.id));
        if !c.image.starts_with("sha256:")
            && let Ok(full) = runtime::image::normalize(&c.image)
        {
            out.image = full;
        }
        out.image_id = c.image_id.clone();
        // Its groups are those of the image.
        out.user = c.user.as_ref().filter(|_| self.details == Details::All).map(user);
        out.stop_signal = c.stop_signal.clone().filter(|_| self.runtime.shows_signals);
        out.last_state = self.previous.get(name).map(|p| self.terminated(p));
        match c.state {
            ContainerState::Running => {
                let running = ContainerStateRunning { started_at: at(c.started_at) };
                out.state = Some(State { running: Some(running), ..State::default() });
                out.started = Some(health.started);
                out.ready = health.ready && health.started;
            }
            ContainerState::Created => out.state = Some(self.waiting_state(default_reason, None)),
            ContainerState::Exited | ContainerState::Unknown => {
                let ended = self.terminated(c);
                match waiting {
                    // It will start again: its state is why it waits, and its last state how it ended.
                    Some(w) if !self.has_ended => {
                        out.state = Some(self.waiting_state(&w.reason, Some(&w.message)));
                        out.last_state = Some(ended);
                    }
                    // It was stopped because its image changed. Reported as ended, it could not run again under any policy.
                    None if self.is_replaced(spec, c) => {
                        out.state = Some(self.waiting_state(default_reason, None));
                        out.last_state = Some(ended);
                    }
                    _ => out.state = Some(ended),
                }
            }
        }
        out
    }

    fn statuses(&self) -> (Vec<ContainerStatus>, Vec<ContainerStatus>, Vec<ContainerStatus>) {
        let Some(spec) = &self.pod.spec else { return Default::default() };
        let init_specs = spec.init_containers.as_deref().unwrap_or_default();
        let default = if init_specs.is_empty() { "ContainerCreating" } else { "PodInitializing" };
        let image = |i: &Option<String>| i.clone().unwrap_or_default();
        let init = init_specs
            .iter()
            .map(|c| {
                let mut s = self.container(&c.name, &image(&c.image), Some(c), "PodInitializing");
                if !is_sidecar(c) {
                    // An init container is ready when it has succeeded.
                    s.ready = exit_code(&s) == Some(0);
                }
                s
            })
            .collect();
        let app = spec.containers.iter().map(|c| self.container(&c.name, &image(&c.image), Some(c), default)).collect();
        let ephemeral = spec
            .ephemeral_containers
            .iter()
            .flatten()
            .map(|c| {
                let mut s = self.container(&c.name, &image(&c.image), None, "ContainerCreating");
                s.started = None;
                s.ready = false;
                if self.details == Details::All {
                    s.volume_mounts = mounts(c.volume_mounts.as_ref(), self.runtime);
                }
                s
            })
            .collect();
        (init, app, ephemeral)
    }
}

fn exit_code(s: &ContainerStatus) -> Option<i32> {
    Some(s.state.as_ref()?.terminated.as_ref()?.exit_code)
}

fn is_running(s: &ContainerStatus) -> bool {
    s.state.as_ref().is_some_and(|s| s.running.is_some())
}

/// Whether a container that has ended starts again: by its own restart rules and policy, or with all containers of the pod.
fn starts_again(facts: &Facts<'_>, c: &Spec, s: &ContainerStatus, code: i32) -> bool {
    let known = facts.newest.values().chain(facts.previous.values());
    let is_stale = restart_all_at(facts.pod, known, facts.killed)
        .zip(facts.newest.get(&c.name))
        .is_some_and(|(at, newest)| newest.created_at < at);
    let id = s.container_id.as_deref().and_then(|id| Some(id.split_once("://")?.1));
    let code = if id.is_some_and(|id| facts.killed.contains(id)) { KILLED } else { code };
    is_stale || restarts(facts.pod, c, code)
}

/// The phase by upstream's table (`getPhase`).
fn phase(facts: &Facts<'_>, init: &[ContainerStatus], app: &[ContainerStatus]) -> &'static str {
    let Some(spec) = &facts.pod.spec else { return "Pending" };
    let has_ended = facts.has_ended;
    let mut pending_init = 0;
    let mut failed_init = 0;
    for (c, s) in spec.init_containers.iter().flatten().zip(init) {
        let code = exit_code(s).or_else(|| Some(s.last_state.as_ref()?.terminated.as_ref()?.exit_code));
        if is_sidecar(c) {
            if !s.started.unwrap_or(false) && !has_ended {
                pending_init += 1;
            }
        } else {
            match code {
                _ if is_running(s) => pending_init += 1,
                Some(0) => {}
                Some(code) if !starts_again(facts, c, s, code) => failed_init += 1,
                _ => pending_init += 1,
            }
        }
    }
    let (mut running, mut waiting, mut stopped, mut succeeded, mut restartable) = (0, 0, 0, 0, false);
    for (c, s) in spec.containers.iter().zip(app) {
        if is_running(s) {
            running += 1;
        } else if let Some(code) = exit_code(s) {
            stopped += 1;
            succeeded += i32::from(code == 0);
            restartable |= starts_again(facts, c, s, code);
        } else if s.last_state.as_ref().is_some_and(|l| l.terminated.is_some()) {
            stopped += 1;
            restartable = true;
        } else {
            waiting += 1;
        }
    }
    if failed_init > 0 {
        return "Failed";
    }
    let begun = running + stopped > 0;
    if pending_init > 0 && !begun {
        return "Pending";
    }
    if waiting > 0 {
        return "Pending";
    }
    if running > 0 {
        return "Running";
    }
    if stopped > 0 {
        if restartable && !has_ended {
            return "Running";
        }
        let sidecars = spec.init_containers.iter().flatten().zip(init).any(|(c, s)| is_sidecar(c) && is_running(s));
        if sidecars {
            // Sidecars are still ending; the pod has ended after them.
            return "Running";
        }
        return if stopped == succeeded { "Succeeded" } else { "Failed" };
    }
    "Pending"
}

fn names(list: &[&str]) -> String {
    format!("[{}]", list.join(" "))
}

struct Verdict {
    status: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl Verdict {
    fn yes() -> Self {
        Self { status: true, reason: None, message: None }
    }

    fn no(reason: &'static str, message: String) -> Self {
        Self { status: false, reason: Some(reason), message: Some(message).filter(|m| !m.is_empty()) }
    }
}

fn initialized(pod: &Pod, init: &[ContainerStatus], phase: &str, begun: bool) -> Verdict {
    let specs = pod.spec.as_ref().and_then(|s| s.init_containers.as_deref()).unwrap_or_default();
    let incomplete: Vec<&str> = specs
        .iter()
        .zip(init)
        .filter(|(c, s)| if is_sidecar(c) { s.started != Some(true) } else { !s.ready })
        .map(|(c, _)| c.name.as_str())
        .collect();
    match phase {
        "Succeeded" => Verdict { reason: Some("PodCompleted"), ..Verdict::yes() },
        _ if incomplete.is_empty() || begun => Verdict::yes(),
        _ => Verdict::no(
            "ContainersNotInitialized",
            format!("containers with incomplete status: {}", names(&incomplete)),
        ),
    }
}

fn containers_ready(pod: &Pod, init: &[ContainerStatus], app: &[ContainerStatus], phase: &str) -> Verdict {
    match phase {
        "Succeeded" => return Verdict::no("PodCompleted", String::new()),
        "Failed" => return Verdict::no("PodFailed", String::new()),
        _ => {}
    }
    let specs = pod.spec.as_ref().and_then(|s| s.init_containers.as_deref()).unwrap_or_default();
    let sidecars = specs.iter().zip(init).filter(|(c, _)| is_sidecar(c)).map(|(_, s)| s);
    let unready: Vec<&str> = sidecars.chain(app).filter(|s| !s.ready).map(|s| s.name.as_str()).collect();
    if unready.is_empty() {
        return Verdict::yes();
    }
    Verdict::no("ContainersNotReady", format!("containers with unready status: {}", names(&unready)))
}

fn ready(pod: &Pod, containers: &Verdict) -> Verdict {
    if !containers.status {
        return Verdict { status: false, reason: containers.reason, message: containers.message.clone() };
    }
    let has = |gate: &str| {
        let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
        conditions.into_iter().flatten().find(|c| c.type_ == gate).map(|c| c.status.clone())
    };
    let missing: Vec<String> = pod
        .spec
        .iter()
        .flat_map(|s| s.readiness_gates.iter().flatten())
        .filter_map(|g| match has(&g.condition_type).as_deref() {
            Some("True") => None,
            Some(status) => {
                Some(format!("the status of pod readiness gate \"{}\" is not \"True\", but {status}", g.condition_type))
            }
            None => {
                Some(format!("corresponding condition of pod readiness gate \"{}\" does not exist.", g.condition_type))
            }
        })
        .collect();
    if missing.is_empty() {
        return Verdict::yes();
    }
    Verdict::no("ReadinessGatesNotReady", missing.join(", "))
}

/// The verdict on whether all containers restart because of a restart rule.
fn restarting(phase: &str, is_triggered: bool) -> Verdict {
    match phase {
        "Succeeded" => Verdict::no("PodCompleted", String::new()),
        "Failed" => Verdict::no("PodFailed", String::new()),
        _ if is_triggered => Verdict {
            status: true,
            reason: Some("RestartAllContainersStarted"),
            message: Some("container exited with restart policy rule".into()),
        },
        _ => Verdict { status: false, reason: None, message: None },
    }
}

/// The conditions the agent owns, in upstream's order.
pub const CONDITIONS: [&str; 5] =
    ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];

/// The status to report, without conditions of other clients.
pub fn status(facts: &Facts<'_>) -> PodStatus {
    let pod = facts.pod;
    let old = pod.status.as_ref();
    let (init, app, ephemeral) = facts.statuses();
    let was = old.and_then(|s| s.phase.as_deref()).unwrap_or("Pending");
    let mut phase = phase(facts, &init, &app);
    if facts.failed.is_some() || was == "Failed" {
        phase = "Failed";
    } else if was == "Succeeded" {
        phase = "Succeeded";
    }
    let begun = app.iter().any(|s| s.container_id.is_some());
    let containers = containers_ready(pod, &init, &app, phase);
    let generation = pod.metadata.generation;
    let condition = |kind: &str, v: Verdict| {
        let before = old.and_then(|s| s.conditions.as_ref()).into_iter().flatten().find(|c| c.type_ == kind);
        let status = if v.status { "True" } else { "False" };
        let since = before.filter(|b| b.status == status).and_then(|b| b.last_transition_time.clone());
        PodCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: v.reason.map(str::to_owned),
            message: v.message.map(|m| cut(&m, MAX_MESSAGE)),
            last_transition_time: Some(since.unwrap_or_else(|| time(facts.now))),
            last_probe_time: None,
            observed_generation: generation,
        }
    };
    let sandbox = Verdict { status: facts.sandbox_ready, reason: None, message: None };
    let mut conditions = vec![
        condition(CONDITIONS[0], sandbox),
        condition(CONDITIONS[1], initialized(pod, &init, phase, begun)),
        condition(CONDITIONS[2], ready(pod, &containers)),
        condition(CONDITIONS[3], containers),
        condition(CONDITIONS[4], Verdict::yes()),
    ];
    if let Some(message) = facts.disruption {
        let message = Some(message.to_owned());
        let verdict = Verdict { status: true, reason: Some("TerminationByKubelet"), message };
        conditions.push(condition("DisruptionTarget", verdict));
    }
    if may_restart_all(pod) {
        let trigger = restart_all_at(pod, facts.newest.values(), facts.killed);
        conditions.push(condition("AllContainersRestarting", restarting(phase, trigger.is_some())));
    }
    for r in facts.resizing {
        let verdict = Verdict { status: true, reason: r.reason, message: r.message.clone() };
        conditions.push(PodCondition { observed_generation: r.generation, ..condition(r.kind, verdict) });
    }
    let some = |v: Vec<ContainerStatus>| (!v.is_empty() && !facts.rejected).then_some(v);
    let host = pod.spec.as_ref().is_some_and(|s| s.host_network == Some(true));
    // A reported address stays while the pod terminates.
    let reported = || old.and_then(|s| s.pod_ips.clone()).unwrap_or_default();
    let pod_ips: Vec<PodIP> = match (facts.pod_ips, host) {
        ([], false) => reported(),
        (own, _) => (if host { facts.host_ips } else { own }).iter().map(|ip| PodIP { ip: ip.clone() }).collect(),
    };
    let host_ips: Vec<HostIP> = facts.host_ips.iter().map(|ip| HostIP { ip: ip.clone() }).collect();
    let spec = pod.spec.as_ref().filter(|_| facts.details == Details::All && !facts.rejected);
    let allocated = spec.and_then(totals::of_pod);
    // A resize that failed has changed nothing.
    let actual = spec.and_then(|_| totals::of_pod(facts.of_pod.apply(pod).spec.as_ref()?));
    PodStatus {
        phase: Some(phase.to_owned()),
        conditions: Some(conditions),
        reason: facts.failed.map(|(r, _)| r.to_owned()).or_else(|| old.and_then(|s| s.reason.clone())),
        message: facts.failed.map(|(_, m)| cut(m, MAX_MESSAGE)).or_else(|| old.and_then(|s| s.message.clone())),
        host_ip: host_ips.first().map(|h| h.ip.clone()),
        host_ips: (!host_ips.is_empty()).then_some(host_ips),
        pod_ip: pod_ips.first().map(|p| p.ip.clone()),
        pod_ips: (!pod_ips.is_empty()).then_some(pod_ips),
        start_time: old.and_then(|s| s.start_time.clone()).or_else(|| Some(time(facts.now))),
        qos_class: old
            .and_then(|s| s.qos_class.clone())
            .or_else(|| pod.spec.as_ref().map(|s| qos(s).as_str().to_owned())),
        init_container_statuses: some(init),
        container_statuses: some(app),
        ephemeral_container_statuses: some(ephemeral),
        observed_generation: generation,
        resources: actual,
        allocated_resources: allocated.and_then(|r| r.requests),
        ..PodStatus::default()
    }
}

/// The strategic merge patch from `old` to `new`; `None` if they are equal. Conditions are merged by type, so those of other clients
/// stay; a removed field is `null`.
pub fn patch(uid: &str, old: Option<&PodStatus>, new: &PodStatus) -> Option<serde_json::Value> {
    use serde_json::{Map, Value, json};
    let object = |s: Option<&PodStatus>| match s.map(serde_json::to_value) {
        Some(Ok(Value::Object(m))) => m,
        _ => Map::new(),
    };
    let (old, new) = (object(old), object(Some(new)));
    let mut changed = Map::new();
    for (key, value) in &new {
        if key == "conditions" {
            let before = old.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            let all = value.as_array().map(Vec::as_slice).unwrap_or_default();
            let mut differing: Vec<Value> = all
                .iter()
                .filter_map(|c| {
                    let b = before.iter().find(|b| b["type"] == c["type"]);
                    let mut c = c.as_object()?.clone();
                    for gone in b.and_then(Value::as_object).into_iter().flat_map(Map::keys) {
                        c.entry(gone.clone()).or_insert(Value::Null);
                    }
                    // A field that the server writes as null is absent.
                    let same = b.is_some_and(|b| c.iter().all(|(k, v)| b.get(k).unwrap_or(&Value::Null) == v));
                    (!same).then_some(Value::Object(c))
                })
                .collect();
            let has = |list: &[Value], kind: &str| list.iter().any(|c| c["type"] == kind);
            let ended = resize::CONDITIONS.iter().filter(|kind| has(before, kind) && !has(all, kind));
            differing.extend(ended.map(|kind| json!({"$patch": "delete", "type": kind})));
            if !differing.is_empty() {
                changed.insert(key.clone(), Value::Array(differing));
            }
        } else if old.get(key) != Some(value) {
            changed.insert(key.clone(), value.clone());
        }
    }
    for key in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
        if old.contains_key(key) && !new.contains_key(key) {
            changed.insert(key.to_owned(), Value::Null);
        }
    }
    // The lists of addresses are merged by address: replace them when they change.
    for (key, patch) in [("podIPs", "podIPs"), ("hostIPs", "hostIPs")] {
        if let Some(list) = changed.get_mut(key).and_then(Value::as_array_mut)
            && old.contains_key(patch)
        {
            list.push(json!({"$patch": "replace"}));
        }
    }
    (!changed.is_empty()).then(|| json!({"metadata": {"uid": uid}, "status": changed}))
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
