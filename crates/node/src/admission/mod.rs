//! Admission of pods by the node.
//!
//! Any client that may create pods can bind one to this node with `spec.nodeName`. So before a pod starts, the node checks it with
//! the scheduler's own filters (upstream `pkg/kubelet/lifecycle/predicate.go`). **Invariant.** The requests, host ports and number
//! of admitted pods stay within what the node has, however they were bound. A pod counts from its admission until all of its
//! containers have ended. Pods that an earlier agent admitted count first and are not checked again.
//!
//! A critical pod that lacks only resources is admitted and preempts other pods (see [`preemption`]); it waits until they have
//! ended. A pod that lacks only what terminating pods still hold waits for them too.

pub(crate) mod preemption;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use placement::untolerated;
use scheduler::cluster::{Cluster, NodeEntry};
use scheduler::resources::Resources;
use scheduler::{Failure, admission_check};
use tokio::sync::Notify;

use crate::resources::Qos;
use crate::resources::is_extended;
use preemption::{Candidate, Need};
use scheduler::pod::PodInfo;

/// The pod in the scheduler's representation, with the requests of its specification: the node knows itself what a pod has that is
/// resized, and its status, which the scheduler reads, is from before.
pub fn view(pod: &Pod) -> serde_json::Result<scheduler::pod::Pod> {
    let mut pod = pod.clone();
    if let Some(status) = &mut pod.status {
        (status.resources, status.allocated_resources) = (None, None);
        let containers = status.container_statuses.iter_mut().chain(&mut status.init_container_statuses);
        for c in containers.flatten() {
            (c.resources, c.allocated_resources) = (None, None);
        }
    }
    scheduler::pod::Pod::new(serde_json::to_vec(&pod)?.into())
}

/// Why the node rejects a pod: reason and message of its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub reason: String,
    pub message: String,
    /// Only labels of the node do not match, or one of its extended resources is short. The API may have newer ones.
    pub node_may_be_newer: bool,
}

impl Rejection {
    pub fn new(reason: impl Into<String>, message: impl Into<String>) -> Rejection {
        Rejection { reason: reason.into(), message: message.into(), node_may_be_newer: false }
    }
}

/// Why the node does not grant a resize: the message in the pod's status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// The resources may become free.
    Deferred(String),
    /// The node does not have as much.
    Infeasible(String),
}

/// Reason and message of a pod that was preempted.
pub const PREEMPTING: (&str, &str) = ("Preempting", "Preempted in order to admit critical pod");

/// The label with the operating system of a pod.
const OS_LABEL: &str = "kubernetes.io/os";
const NODE_AFFINITY: &str = "NodeAffinity";

/// An admitted pod.
struct Taken {
    pod: Arc<scheduler::pod::Pod>,
    qos: Qos,
    /// It is terminating, so other pods may wait for what it holds.
    ending: bool,
    preempted: bool,
    /// Its resize is deferred.
    deferred: bool,
    /// The pods that have to end before this one may start.
    waits_for: BTreeSet<String>,
}

/// Called with the UID of a pod whose worker has something to do.
type Wake = Arc<dyn Fn(&str) + Send + Sync>;

pub struct Admission {
    node_name: String,
    wake: Wake,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    node: Option<Arc<NodeEntry>>,
    /// Admitted pods by UID.
    taken: BTreeMap<String, Taken>,
}

/// An admitted pod. What it holds of the node is free again when this is dropped.
pub struct Admitted {
    admission: Arc<Admission>,
    uid: String,
}

impl Admitted {
    /// Whether other pods have to end before this one may start.
    pub fn waits(&self) -> bool {
        self.admission.state.lock().taken.get(&self.uid).is_some_and(|t| !t.waits_for.is_empty())
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut state = self.admission.state.lock();
        state.taken.remove(&self.uid);
        self.admission.changed.notify_one();
        let mut free = Vec::new();
        for (uid, other) in &mut state.taken {
            if other.waits_for.remove(&self.uid) && other.waits_for.is_empty() {
                free.push(uid.clone());
            }
            if other.deferred {
                free.push(uid.clone());
            }
        }
        drop(state);
        free.iter().for_each(|uid| (self.admission.wake)(uid));
    }
}

impl Admission {
    pub fn new(node_name: &str, wake: Wake) -> Admission {
        Admission { node_name: node_name.to_owned(), wake, state: Mutex::default(), changed: Notify::new() }
    }

    /// Sets the node, with its allocatable resources and taints, as the API has it.
    pub fn set_node(&self, node: Arc<NodeEntry>) {
        self.state.lock().node = Some(node);
    }

    /// Counts a pod that an earlier agent admitted, without checks.
    pub fn adopt(self: &Arc<Self>, pod: Arc<scheduler::pod::Pod>, qos: Qos) -> Admitted {
        self.take(&mut self.state.lock(), pod, qos, BTreeSet::new())
    }

    /// Admits a pod, or returns why not. May preempt other pods.
    pub fn admit(self: &Arc<Self>, pod: Arc<scheduler::pod::Pod>, qos: Qos) -> Result<Admitted, Rejection> {
        let mut state = self.state.lock();
        let Some(node) = state.node.clone() else {
            return Err(Rejection::new("InvalidNodeInfo", "Kubelet cannot get node info."));
        };
        if pod.meta.label(OS_LABEL).is_some_and(|os| os != std::env::consts::OS) {
            let message = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
            return Err(Rejection::new("PodOSSelectorNodeLabelDoesNotMatch", message));
        }
        let requests = known_requests(&pod.view, &node.view.allocatable);
        let mut failures = self.failures(&state, &node, &pod, &requests, Counting::All);
        let mut waits_for = BTreeSet::new();
        if !failures.is_empty() && state.taken.values().any(|t| t.ending) {
            failures = self.failures(&state, &node, &pod, &requests, Counting::WithoutEnding);
            waits_for.extend(state.taken.iter().filter(|(_, t)| t.ending).map(|(uid, _)| uid.clone()));
        }
        let victims = self.preempt(&state, &pod, &mut failures)?;
        if let Some(first) = failures.first() {
            return Err(rejection(first, failures.len()));
        }
        for uid in &victims {
            if let Some(t) = state.taken.get_mut(uid) {
                (t.ending, t.preempted) = (true, true);
            }
        }
        waits_for.extend(victims.iter().cloned());
        let admitted = self.take(&mut state, pod, qos, waits_for);
        drop(state);
        victims.iter().for_each(|uid| (self.wake)(uid));
        Ok(admitted)
    }

    /// Grants an admitted pod other requests of CPU and memory, if they fit. A deferred one is woken when resources become free.
    pub fn resize(&self, pod: Arc<scheduler::pod::Pod>) -> Result<(), Unfit> {
        let mut state = self.state.lock();
        let uid = pod.meta.uid.to_string();
        let Some(node) = state.node.clone() else {
            return Err(Unfit::Deferred("Kubelet cannot get node info.".into()));
        };
        let (requested, has) = (&pod.view.requests, &node.view.allocatable);
        for (name, requested, has) in [("memory", requested.memory, has.memory), ("cpu", requested.cpu, has.cpu)] {
            if requested > has {
                let message =
                    format!("Node didn't have enough capacity: {name}, requested: {requested}, capacity: {has}");
                return Err(Unfit::Infeasible(message));
            }
        }
        let Some(own) = state.taken.remove(&uid) else { return Ok(()) };
        let failures = self.failures(&state, &node, &pod, requested, Counting::All);
        let short =
            failures.iter().find(|f| matches!(f, Failure::Insufficient(i) if matches!(&*i.resource, "cpu" | "memory")));
        let result = short.map_or(Ok(()), |f| Err(Unfit::Deferred(rejection(f, 1).message)));
        let view = if result.is_ok() { pod } else { own.pod.clone() };
        state.taken.insert(uid.clone(), Taken { pod: view, deferred: result.is_err(), ..own });
        self.changed.notify_one();
        // Deferred pods may fit if this one has become smaller.
        let waiting: Vec<String> = match result {
            Ok(()) => state.taken.iter().filter(|(_, t)| t.deferred).map(|(uid, _)| uid.clone()).collect(),
            Err(_) => Vec::new(),
        };
        drop(state);
        waiting.iter().for_each(|uid| (self.wake)(uid));
        result
    }

    /// Marks a pod as terminating: it has finished or is gone from the API, and its containers end.
    pub fn ends(&self, uid: &str) {
        if let Some(t) = self.state.lock().taken.get_mut(uid) {
            t.ending = true;
        }
    }

    /// The admitted pods with their priorities.
    pub fn priorities(&self) -> Vec<(String, i32)> {
        let state = self.state.lock();
        let priority = |taken: &Taken| i32::try_from(taken.pod.view.priority).unwrap_or(i32::MAX);
        state.taken.iter().map(|(uid, taken)| (uid.clone(), priority(taken))).collect()
    }

    /// The admitted pods that are not terminating.
    pub fn running(&self) -> Vec<Arc<scheduler::pod::Pod>> {
        let state = self.state.lock();
        state.taken.values().filter(|t| !t.ending).map(|t| t.pod.clone()).collect()
    }

    /// What the admitted burstable pods request of CPU, in thousandths.
    pub fn burstable_cpu(&self) -> i64 {
        let state = self.state.lock();
        let burstable = state.taken.values().filter(|t| t.qos == Qos::Burstable);
        burstable.fold(0, |sum, t| sum.saturating_add(t.pod.view.requests.cpu))
    }

    /// Waits until pods were admitted, resized or have ended since the last call. For one caller.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Whether a pod is admitted and has not ended.
    pub fn holds(&self, uid: &str) -> bool {
        self.state.lock().taken.contains_key(uid)
    }

    /// Whether the pod is preempted.
    pub fn is_preempted(&self, uid: &str) -> bool {
        self.state.lock().taken.get(uid).is_some_and(|t| t.preempted)
    }

    fn take(
        self: &Arc<Self>,
        state: &mut State,
        pod: Arc<scheduler::pod::Pod>,
        qos: Qos,
        waits_for: BTreeSet<String>,
    ) -> Admitted {
        let uid = pod.meta.uid.to_string();
        state
            .taken
            .insert(uid.clone(), Taken { pod, qos, ending: false, preempted: false, deferred: false, waits_for });
        self.changed.notify_one();
        Admitted { admission: self.clone(), uid }
    }

    /// Every check that the pod fails.
    fn failures(
        &self,
        state: &State,
        node: &Arc<NodeEntry>,
        pod: &scheduler::pod::Pod,
        requests: &Resources,
        counting: Counting,
    ) -> Vec<Failure> {
        let mut cluster = Cluster::default();
        cluster.set_node(node.clone());
        for t in state.taken.values().filter(|t| counting == Counting::All || !t.ending) {
            cluster.add_pod(t.pod.clone(), &self.node_name);
        }
        let mut failures = admission_check(pod, requests, &cluster, &self.node_name);
        if untolerated(&node.view.taints, &["NoExecute"], &pod.view.tolerations).is_some() {
            let reason = "node(s) had taints that the pod didn't tolerate".into();
            failures.push(Failure::Predicate { name: "TaintToleration", reason });
        }
        failures
    }

    /// The pods to preempt so that a critical one fits, and then `failures` is empty. Failures other than missing resources stay.
    fn preempt(
        &self,
        state: &State,
        pod: &scheduler::pod::Pod,
        failures: &mut Vec<Failure>,
    ) -> Result<Vec<String>, Rejection> {
        let priority = pod.view.priority;
        if failures.is_empty() || !preemption::is_critical(priority) {
            return Ok(Vec::new());
        }
        let (resources, others): (Vec<_>, Vec<_>) =
            failures.drain(..).partition(|f| matches!(f, Failure::Insufficient(_)));
        if !others.is_empty() {
            *failures = others;
            return Ok(Vec::new());
        }
        let insufficient = resources.iter().filter_map(|f| match f {
            Failure::Insufficient(i) => Some(i),
            Failure::Predicate { .. } => None,
        });
        let needs: Vec<Need> = insufficient.map(Need::from).collect();
        let may_end = |t: &&Taken| !t.ending && preemption::may_preempt(priority, t.pod.view.priority);
        let candidates: Vec<Candidate<'_>> = state
            .taken
            .values()
            .filter(may_end)
            .map(|t| Candidate { uid: &t.pod.meta.uid, qos: t.qos, requests: &t.pod.view.requests })
            .collect();
        match preemption::victims(&candidates, &needs) {
            Ok(victims) => Ok(victims.into_iter().map(str::to_owned).collect()),
            Err(left) => {
                let left: String = left.iter().map(|n| format!("(res: {}, q: {}), ", n.resource, n.quantity)).collect();
                let message = format!(
                    "Unexpected error while attempting to recover from admission failure: preemption: error finding a set \
                     of pods to preempt: no set of running pods found to reclaim resources: [{left}]"
                );
                Err(Rejection::new("UnexpectedAdmissionError", message))
            }
        }
    }
}

/// Which pods count against the node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counting {
    All,
    WithoutEnding,
}

/// The requests without extended resources that the node does not have, as the cluster may have them, and without those that are
/// devices of a claim.
fn known_requests(pod: &PodInfo, allocatable: &Resources) -> Resources {
    let mut known = pod.requests.clone();
    let is_claimed = |name: &str| pod.claimed_resources.iter().any(|claimed| **claimed == *name);
    let has = |name: &str| allocatable.extended.iter().any(|(n, _)| **n == *name);
    known.extended.retain(|(name, _)| !is_claimed(name) && (!is_extended(name) || has(name)));
    known
}

/// The reason and message for the first of `count` failures.
fn rejection(first: &Failure, count: usize) -> Rejection {
    match first {
        Failure::Insufficient(i) => {
            let message = format!(
                "Node didn't have enough resource: {}, requested: {}, used: {}, capacity: {}",
                i.resource, i.requested, i.used, i.capacity
            );
            Rejection {
                node_may_be_newer: count == 1 && is_extended(&i.resource),
                ..Rejection::new(format!("OutOf{}", i.resource), message)
            }
        }
        Failure::Predicate { name, reason } => Rejection {
            node_may_be_newer: count == 1 && *name == NODE_AFFINITY,
            ..Rejection::new(*name, format!("Predicate {name} failed: {reason}"))
        },
    }
}

#[cfg(test)]
mod tests;
