//! Resizing a running pod: which CPU and memory its containers are granted, and bringing their control groups to it.
//!
//! Follows kubelet's `pkg/kubelet/allocation` and `kuberuntime` (`doPodResizeAction`). What the specification asks for is *allocated*
//! when the node has room for it, and *actuated* when a running container has it. **Invariant.** The rest of the agent sees the pod as
//! allocated; an agent that starts again takes what the status reports as allocated. A pod's control group is never narrower than what
//! its containers have: it is widened before they are, and narrowed after them. Left out: the out-of-memory score, which stays, as
//! upstream has it; and after a restart of the agent, a pending resize of a pod whose status is too large to report resources.

use std::collections::BTreeMap;
use std::time::Duration;

use client::Severity;
use k8s_openapi::api::core::v1::{Container as Spec, ContainerStatus, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;
use meta::Quantity;
use runtime::{Container, Resources};
use serde::Serialize;
use tokio::time::Instant;

use super::plan::{Kill, Plan, Sandbox};
use super::status::ResizeCondition;
use super::worker::{Observed, Worker};
use crate::admission::Unfit;
use crate::blocking::blocking;
use crate::resources;

/// How long after a resize that failed it is tried again.
const RETRY: Duration = Duration::from_secs(10);
const PENDING: &str = "PodResizePending";
const IN_PROGRESS: &str = "PodResizeInProgress";
/// The conditions that a pod has only while it is resized.
pub const CONDITIONS: [&str; 2] = [PENDING, IN_PROGRESS];

/// The resources of a pod and its containers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allocation {
    pod: Option<ResourceRequirements>,
    containers: BTreeMap<String, ResourceRequirements>,
}

fn containers(spec: &PodSpec) -> impl Iterator<Item = &Spec> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

impl Allocation {
    /// What the specification asks for.
    pub fn of_spec(pod: &Pod) -> Self {
        let spec = pod.spec.as_ref();
        let all = spec.into_iter().flat_map(containers);
        Self {
            pod: spec.and_then(|s| s.resources.clone()),
            containers: all.map(|c| (c.name.clone(), c.resources.clone().unwrap_or_default())).collect(),
        }
    }

    /// What the status reports, and what the specification asks for where it reports nothing.
    pub fn of_status(pod: &Pod) -> Self {
        let mut allocation = Self::of_spec(pod);
        let status = pod.status.as_ref();
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

    /// The pod with these resources in place of those that it asks for.
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

    /// Whether the pod asks for these resources.
    pub fn is_asked_by(&self, pod: &Pod) -> bool {
        let asked = Self::of_spec(pod);
        let pods = [&self.pod, &asked.pod].map(|r| r.clone().unwrap_or_default());
        let own = |(name, asked): (&String, &ResourceRequirements)| same(self.of(name), asked);
        same(&pods[0], &pods[1]) && asked.containers.iter().all(own)
    }

    fn of(&self, container: &str) -> &ResourceRequirements {
        static NONE: ResourceRequirements = ResourceRequirements { claims: None, limits: None, requests: None };
        self.containers.get(container).unwrap_or(&NONE)
    }
}

fn amount(resources: &ResourceRequirements, name: &str) -> [Option<i128>; 2] {
    [&resources.requests, &resources.limits]
        .map(|list| Some(Quantity::parse(&list.as_ref()?.get(name)?.0).ok()?.nano_value()))
}

/// Whether requests and limits are the same amounts, however they are written.
fn same(a: &ResourceRequirements, b: &ResourceRequirements) -> bool {
    let lists = |r: &ResourceRequirements| [r.requests.clone(), r.limits.clone()];
    let names =
        |r: &ResourceRequirements| lists(r).into_iter().flatten().flat_map(|l| l.into_keys()).collect::<Vec<_>>();
    names(a).into_iter().chain(names(b)).all(|name| amount(a, &name) == amount(b, &name))
}

/// Whether the container wants to be started again for this change.
fn restarts(c: &Spec, old: &ResourceRequirements, new: &ResourceRequirements) -> bool {
    let policies = c.resize_policy.iter().flatten();
    policies
        .filter(|p| p.restart_policy == "RestartContainer")
        .any(|p| amount(old, &p.resource_name) != amount(new, &p.resource_name))
}

/// A limit of control groups that is none.
const UNLIMITED: i64 = -1;

/// What to set so that a control group has the limits of CPU and memory of `r`, and no others of these.
fn settings(r: &Resources) -> Resources {
    Resources {
        cpu_shares: r.cpu_shares,
        cpu_quota: r.cpu_quota.or(Some(UNLIMITED)),
        cpu_period: r.cpu_period,
        memory_limit: r.memory_limit.or(Some(UNLIMITED)),
        ..Resources::default()
    }
}

/// The limits that neither of two exceeds.
fn widest(a: &Resources, b: &Resources) -> Resources {
    let limit = |a: Option<i64>, b: Option<i64>| a.zip(b).map(|(a, b)| a.max(b));
    Resources {
        cpu_shares: a.cpu_shares.max(b.cpu_shares),
        cpu_quota: limit(a.cpu_quota, b.cpu_quota),
        cpu_period: a.cpu_period.or(b.cpu_period),
        memory_limit: limit(a.memory_limit, b.memory_limit),
        ..Resources::default()
    }
}

/// The message of an event: what the pod asks for.
fn message(what: &str, pod: &Pod, generation: Option<i64>, error: Option<&str>) -> String {
    #[derive(Serialize)]
    struct One<'a> {
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
        init_containers: Vec<One<'a>>,
        containers: Vec<One<'a>>,
        generation: i64,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a str>,
    }
    fn one(c: &Spec) -> One<'_> {
        let r = c.resources.as_ref();
        let (limits, requests) = (r.and_then(|r| r.limits.as_ref()), r.and_then(|r| r.requests.as_ref()));
        One { name: &c.name, resources: Amounts { limits, requests } }
    }
    let spec = pod.spec.as_ref();
    let summary = Summary {
        init_containers: spec.and_then(|s| s.init_containers.as_ref()).into_iter().flatten().map(one).collect(),
        containers: spec.into_iter().flat_map(|s| &s.containers).map(one).collect(),
        generation: generation.unwrap_or_default(),
        error,
    };
    let summary = serde_json::to_string(&summary).unwrap_or_default();
    format!("Pod resize {what}: {summary}")
}

/// What the node does not grant yet, or at all.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pending {
    reason: &'static str,
    message: String,
    generation: Option<i64>,
}

/// What is granted, and not carried out yet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InProgress {
    generation: Option<i64>,
    error: Option<String>,
    /// When it failed last.
    failed: Option<Instant>,
}

/// The resources of one pod on this node.
#[derive(Default)]
pub(super) struct Resize {
    pub allocation: Allocation,
    /// By the ids of the containers that run.
    pub actuated: BTreeMap<String, ResourceRequirements>,
    pending: Option<Pending>,
    in_progress: Option<InProgress>,
}

impl Resize {
    pub fn new(allocation: Allocation) -> Self {
        Self { allocation, ..Self::default() }
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

/// A change of a running container.
struct Change {
    container: Container,
    spec: Spec,
    old: ResourceRequirements,
    new: ResourceRequirements,
}

impl Worker {
    /// Grants what the pod asks for if there is room, and gives it to what runs. What has to be started again for it is added to the
    /// plan, and when to look again.
    pub(super) async fn resize(&mut self, seen: &Observed, plan: &mut Plan) {
        let running: Vec<Container> = seen.running().filter(|c| c.pod == seen.id()).cloned().collect();
        self.resize.actuated.retain(|id, _| running.iter().any(|c| c.id == *id));
        for c in &running {
            let allocated = self.resize.allocation.of(&c.name);
            self.resize.actuated.entry(c.id.clone()).or_insert_with(|| allocated.clone());
        }
        self.allocate();
        if self.resize.in_progress.is_none() || plan.finished {
            return;
        }
        if seen.state() != Sandbox::Ready {
            // What starts has it from the beginning.
            self.resize.in_progress = None;
            return;
        }
        // What failed is not tried with every change of the pod: its own status, which tells of it, is one.
        let failed = self.resize.in_progress.as_ref().and_then(|p| p.failed);
        if let Some(left) = failed.and_then(|at| RETRY.checked_sub(at.elapsed())) {
            plan.wake = Some(plan.wake.map_or(left, |w| w.min(left)));
            return;
        }
        let change = |container: &Container| {
            let (old, new) = (self.resize.actuated.get(&container.id)?, self.resize.allocation.of(&container.name));
            let spec = self.spec_of(&container.name).filter(|_| !same(old, new))?;
            Some(Change { container: container.clone(), spec, old: old.clone(), new: new.clone() })
        };
        let changes: Vec<Change> = running.iter().filter_map(change).collect();
        let (restarted, updated): (Vec<Change>, Vec<Change>) =
            changes.into_iter().partition(|c| restarts(&c.spec, &c.old, &c.new));
        let result = self.actuate(&running, &updated, restarted.is_empty()).await;
        let error = result.err();
        if let Some(error) = &error {
            plan.wake = Some(plan.wake.map_or(RETRY, |w| w.min(RETRY)));
            tracing::debug!(pod = %self.name(), error, "a resize failed");
        }
        let failed_before = self.resize.in_progress.as_ref().and_then(|p| p.error.clone());
        let generation = self.resize.in_progress.as_ref().and_then(|p| p.generation);
        if let Some(why) = error.as_deref().filter(|_| error != failed_before) {
            let text = message("error", &self.pod, generation, Some(why));
            self.event(None, Severity::Warning, "ResizeError", text);
        }
        if error.is_none() && restarted.is_empty() {
            self.resize.in_progress = None;
            let text = message("completed", &self.pod, generation, None);
            self.event(None, Severity::Normal, "ResizeCompleted", text);
            return;
        }
        if let Some(p) = &mut self.resize.in_progress {
            p.failed = error.as_ref().map(|_| Instant::now());
            p.error = error;
        }
        for Change { container, .. } in restarted {
            if !plan.kill.iter().any(|k| k.id == container.id) {
                let message = format!("Container {} resize requires restart", container.name);
                plan.kill.push(Kill { name: container.name, id: container.id, message, grace: None });
            }
        }
        if !plan.kill.is_empty() {
            // Ending may take as long as the grace period.
            self.report(false).await;
        }
    }

    fn allocate(&mut self) {
        let generation = self.desired.metadata.generation;
        if self.resize.allocation.is_asked_by(&self.desired) {
            self.resize.pending = None;
            return;
        }
        let view = serde_json::to_vec(&*self.desired).map(|json| scheduler::pod::Pod::new(json.into()));
        let Ok(Ok(view)) = view else { return };
        let (reason, event, why) = match self.shared.admission.resize(view.into()) {
            Ok(()) => {
                self.resize.allocation = Allocation::of_spec(&self.desired);
                self.pod = self.desired.clone();
                self.resize.pending = None;
                self.resize.in_progress = Some(InProgress { generation, error: None, failed: None });
                let text = message("started", &self.pod, generation, None);
                self.event(None, Severity::Normal, "ResizeStarted", text);
                return;
            }
            Err(Unfit::Deferred(why)) => ("Deferred", "ResizeDeferred", why),
            Err(Unfit::Infeasible(why)) => ("Infeasible", "ResizeInfeasible", why),
        };
        let pending = Some(Pending { reason, message: why.clone(), generation });
        if self.resize.pending != pending {
            self.resize.pending = pending;
            let text = message(reason, &self.desired, generation, Some(&why));
            self.event(None, Severity::Warning, event, text);
        }
    }

    /// Sets the limits of running containers, and those of the pod's control group around them: to what is allocated once `all` of them
    /// have that.
    async fn actuate(&mut self, running: &[Container], changes: &[Change], all: bool) -> Result<(), String> {
        for Change { container, old, new, .. } in changes {
            let limits = [old, new].map(|r| resources::container(Some(r)).memory_limit);
            let [old_limit, Some(limit)] = limits else { continue };
            if old_limit.is_none_or(|old| limit < old) {
                let stats = self.shared.options.runtime.container_stats(&container.id).await;
                let used = stats.map_err(|e| e.to_string())?.usage.memory;
                if used > limit.unsigned_abs() {
                    return Err(format!(
                        "attempting to set container {:?} memory limit ({limit}) below current usage ({used})",
                        container.name
                    ));
                }
            }
        }
        let allocated = self.pod_resources(&self.resize.allocation);
        let mut actual = self.resize.allocation.clone();
        for c in running {
            if let Some(actuated) = self.resize.actuated.get(&c.id) {
                actual.containers.insert(c.name.clone(), actuated.clone());
            }
        }
        self.set_pod(widest(&allocated, &self.pod_resources(&actual))).await?;
        for Change { container, new, .. } in changes {
            let limits = settings(&resources::container(Some(new)));
            let updated = self.shared.options.runtime.update_container(&container.id, limits).await;
            updated.map_err(|e| e.to_string())?;
            self.resize.actuated.insert(container.id.clone(), new.clone());
        }
        if all { self.set_pod(allocated).await } else { Ok(()) }
    }

    fn pod_resources(&self, allocation: &Allocation) -> Resources {
        let pod = allocation.apply(&self.pod);
        pod.spec.as_ref().map(|s| resources::pod(s, None)).unwrap_or_default()
    }

    async fn set_pod(&self, limits: Resources) -> Result<(), String> {
        let Some(spec) = &self.pod.spec else { return Ok(()) };
        let (host, path) = (self.shared.options.host.clone(), resources::qos(spec).cgroup(&self.uid));
        blocking(move || host.set_cgroup(&path, &settings(&limits))).await.map_err(|e| e.to_string())
    }
}

#[cfg(test)]
#[path = "resize_tests.rs"]
mod tests;
