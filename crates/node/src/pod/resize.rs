//! In-place resize: which CPU and memory the containers of a pod are granted, and the limits of their control groups.
//!
//! Follows kubelet's `pkg/kubelet/allocation` and `kuberuntime` (`doPodResizeAction`). Desired resources are *allocated* when the
//! node grants them, and *actuated* when a running container has them. **Invariant.** The rest of the agent sees the pod as
//! allocated; a new agent takes the resources in the status as allocated. A pod's control group is never narrower than what its
//! containers have: it is widened before they are, and narrowed after them. Left out: the out-of-memory score, which stays, as
//! upstream; and after a restart of the agent, a pending resize of a pod whose status is too large to report resources.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container as Spec, ContainerStatus, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;
use meta::Quantity;
use runtime::Resources;
use serde::Serialize;
use tokio::time::Instant;

use super::spec::containers;
use crate::resources::with_limits_of_pod;

/// The delay before a failed resize is tried again.
pub(super) const RETRY: Duration = Duration::from_secs(10);
const PENDING: &str = "PodResizePending";
const IN_PROGRESS: &str = "PodResizeInProgress";
/// The conditions of a pod during a resize.
pub const CONDITIONS: [&str; 2] = [PENDING, IN_PROGRESS];

/// The resources of a pod and its containers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allocation {
    pub pod: Option<ResourceRequirements>,
    pub containers: BTreeMap<String, ResourceRequirements>,
}

/// The reported amounts of the resources that the pod as a whole has. What is not reported was added by a resize that is pending.
fn reported(
    own: Option<BTreeMap<String, Amount>>,
    status: Option<&BTreeMap<String, Amount>>,
) -> Option<BTreeMap<String, Amount>> {
    let kept = own?.into_keys().filter_map(|name| Some((name.clone(), status?.get(&name)?.clone())));
    Some(kept.collect::<BTreeMap<_, _>>()).filter(|kept| !kept.is_empty())
}

impl Allocation {
    /// The desired resources: those of the specification.
    pub fn of_spec(pod: &Pod) -> Self {
        let spec = pod.spec.as_ref();
        let all = spec.into_iter().flat_map(containers);
        Self {
            pod: spec.and_then(|s| s.resources.clone()),
            containers: all.map(|c| (c.name.clone(), c.resources.clone().unwrap_or_default())).collect(),
        }
    }

    /// The resources in the status, and those of the specification where the status has none.
    pub fn of_status(pod: &Pod) -> Self {
        let mut allocation = Self::of_spec(pod);
        let status = pod.status.as_ref();
        // The status shows the overhead of the pod, too.
        let has_overhead = pod.spec.as_ref().is_some_and(|s| s.overhead.as_ref().is_some_and(|o| !o.is_empty()));
        let actual = status.and_then(|s| s.resources.as_ref()).filter(|_| !has_overhead);
        if let (Some(own), Some(actual)) = (&mut allocation.pod, actual) {
            own.limits = reported(own.limits.take(), actual.limits.as_ref());
            own.requests = reported(own.requests.take(), actual.requests.as_ref());
        }
        let lists = status.map(|s| [&s.init_container_statuses, &s.container_statuses]);
        let reported = |c: &ContainerStatus| Some((c.name.clone(), c.resources.clone()?));
        let reported: Vec<_> = lists.into_iter().flatten().flatten().flatten().filter_map(reported).collect();
        for (name, resources) in reported {
            if let Some(own) = allocation.containers.get_mut(&name) {
                *own = resources;
            }
        }
        allocation
    }

    /// The pod with these resources in its specification.
    pub fn apply(&self, pod: &Pod) -> Pod {
        let mut pod = pod.clone();
        if let Some(spec) = &mut pod.spec {
            spec.resources = self.pod.clone();
            for c in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
                if let Some(own) = self.containers.get(&c.name)
                    && !same(own, c.resources.as_ref().unwrap_or(&ResourceRequirements::default()))
                {
                    c.resources = Some(own.clone());
                }
            }
        }
        pod
    }

    /// Whether these are the desired resources of the pod.
    pub fn is_desired_by(&self, pod: &Pod) -> bool {
        let desired = Self::of_spec(pod);
        let pods = [&self.pod, &desired.pod].map(|r| r.clone().unwrap_or_default());
        let own = |(name, desired): (&String, &ResourceRequirements)| same(self.container(name), desired);
        same(&pods[0], &pods[1]) && desired.containers.iter().all(own)
    }

    pub fn container(&self, container: &str) -> &ResourceRequirements {
        static NONE: ResourceRequirements = ResourceRequirements { claims: None, limits: None, requests: None };
        self.containers.get(container).unwrap_or(&NONE)
    }

    /// The resources of a container, with the limits of the pod where it has none.
    pub fn effective(&self, container: &str) -> ResourceRequirements {
        with_limits_of_pod(self.pod.as_ref(), self.container(container).clone())
    }
}

fn amount(resources: &ResourceRequirements, name: &str) -> [Option<i128>; 2] {
    [&resources.requests, &resources.limits]
        .map(|list| Some(Quantity::parse(&list.as_ref()?.get(name)?.0).ok()?.nano_value()))
}

/// Whether requests and limits are the same amounts, however they are written.
pub(super) fn same(a: &ResourceRequirements, b: &ResourceRequirements) -> bool {
    let lists = |r: &ResourceRequirements| [r.requests.clone(), r.limits.clone()];
    let names =
        |r: &ResourceRequirements| lists(r).into_iter().flatten().flat_map(|l| l.into_keys()).collect::<Vec<_>>();
    names(a).into_iter().chain(names(b)).all(|name| amount(a, &name) == amount(b, &name))
}

/// Whether the resize policy of the container requires a restart for this change.
pub(super) fn restarts(c: &Spec, old: &ResourceRequirements, new: &ResourceRequirements) -> bool {
    let policies = c.resize_policy.iter().flatten();
    policies
        .filter(|p| p.restart_policy == "RestartContainer")
        .any(|p| amount(old, &p.resource_name) != amount(new, &p.resource_name))
}

/// The value for no limit.
const UNLIMITED: i64 = -1;

/// The settings that give a control group the CPU and memory limits of `r`, and remove those that `r` does not have.
pub(super) fn settings(r: &Resources) -> Resources {
    Resources {
        cpu_shares: r.cpu_shares,
        cpu_quota: r.cpu_quota.or(Some(UNLIMITED)),
        cpu_period: r.cpu_period,
        memory_limit: r.memory_limit.or(Some(UNLIMITED)),
        ..Resources::default()
    }
}

/// The limits of which neither `a` nor `b` exceeds any.
pub(super) fn widest(a: &Resources, b: &Resources) -> Resources {
    let limit = |a: Option<i64>, b: Option<i64>| a.zip(b).map(|(a, b)| a.max(b));
    Resources {
        cpu_shares: a.cpu_shares.max(b.cpu_shares),
        cpu_quota: limit(a.cpu_quota, b.cpu_quota),
        cpu_period: a.cpu_period.or(b.cpu_period),
        memory_limit: limit(a.memory_limit, b.memory_limit),
        ..Resources::default()
    }
}

/// Errors if a memory limit is below what is in use.
pub(super) fn check_usage(what: &str, limit: i64, used: u64) -> Result<(), String> {
    if used <= limit.unsigned_abs() {
        return Ok(());
    }
    Err(format!("attempting to set {what} memory limit ({limit}) below current usage ({used})"))
}

/// The memory limit `new`, if it is below `old`.
pub(super) fn lowered(old: Option<i64>, new: Option<i64>) -> Option<i64> {
    new.filter(|new| old.is_none_or(|old| *new < old))
}

/// The message of an event, with the desired resources.
pub(super) fn message(what: &str, pod: &Pod, generation: Option<i64>, error: Option<&str>) -> String {
    #[derive(Serialize)]
    struct Entry<'a> {
        name: &'a str,
        resources: Amounts<'a>,
    }
    #[derive(Serialize)]
    struct Amounts<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        limits: Option<&'a BTreeMap<String, Amount>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        requests: Option<&'a BTreeMap<String, Amount>>,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Summary<'a> {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        init_containers: Vec<Entry<'a>>,
        containers: Vec<Entry<'a>>,
        generation: i64,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a str>,
    }
    fn entry(c: &Spec) -> Entry<'_> {
        let r = c.resources.as_ref();
        let (limits, requests) = (r.and_then(|r| r.limits.as_ref()), r.and_then(|r| r.requests.as_ref()));
        Entry { name: &c.name, resources: Amounts { limits, requests } }
    }
    let spec = pod.spec.as_ref();
    let summary = Summary {
        init_containers: spec.and_then(|s| s.init_containers.as_ref()).into_iter().flatten().map(entry).collect(),
        containers: spec.into_iter().flat_map(|s| &s.containers).map(entry).collect(),
        generation: generation.unwrap_or_default(),
        error,
    };
    let summary = serde_json::to_string(&summary).unwrap_or_default();
    format!("Pod resize {what}: {summary}")
}

/// A condition of a pod during a resize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResizeCondition {
    pub kind: &'static str,
    pub reason: Option<&'static str>,
    pub message: Option<String>,
    /// The generation of the specification with the resize.
    pub generation: Option<i64>,
}

/// A resize that the node does not grant, now or at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    pub reason: &'static str,
    pub message: String,
    pub generation: Option<i64>,
}

/// A resize that is granted and not carried out yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InProgress {
    pub generation: Option<i64>,
    pub error: Option<String>,
    /// When it failed last.
    pub failed: Option<Instant>,
}

/// What is known of the limits of the containers that run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Limits {
    /// This agent has set them.
    #[default]
    Set,
    /// An earlier agent has set them, and may have ended before it reported the last ones.
    Adopted,
}

/// The resources of one pod on this node.
#[derive(Default)]
pub(super) struct Resize {
    pub allocation: Allocation,
    /// The resources of running containers, by container id.
    pub actuated: BTreeMap<String, ResourceRequirements>,
    /// The same, with the limits of the pod where they have none.
    pub effective: BTreeMap<String, ResourceRequirements>,
    /// What the pod's control group has, if that is not what is allocated.
    pub unchanged: Option<Allocation>,
    pub limits: Limits,
    pub pending: Option<Pending>,
    pub in_progress: Option<InProgress>,
}

impl Resize {
    pub fn new(allocation: Allocation, limits: Limits) -> Self {
        Self { allocation, limits, ..Self::default() }
    }

    /// Allocates other resources. The control groups have those of before until [`Resize::complete_pod`].
    pub fn allocate(&mut self, desired: Allocation) {
        let before = std::mem::replace(&mut self.allocation, desired);
        self.unchanged.get_or_insert(before);
    }

    /// The pod's control group has what is allocated.
    pub fn complete_pod(&mut self) {
        self.unchanged = None;
    }

    /// What the pod's control group has.
    pub fn of_pod(&self) -> &Allocation {
        self.unchanged.as_ref().unwrap_or(&self.allocation)
    }

    pub fn conditions(&self) -> Vec<ResizeCondition> {
        let pending = self.pending.as_ref().map(|p| ResizeCondition {
            kind: PENDING,
            reason: Some(p.reason),
            message: Some(p.message.clone()),
            generation: p.generation,
        });
        let in_progress = self.in_progress.as_ref().map(|p| ResizeCondition {
            kind: IN_PROGRESS,
            reason: p.error.as_ref().map(|_| "Error"),
            message: p.error.clone(),
            generation: p.generation,
        });
        pending.into_iter().chain(in_progress).collect()
    }
}

#[cfg(test)]
#[path = "resize_tests.rs"]
mod tests;
