//! Which processors and NUMA nodes containers run on (`pkg/kubelet/cm`: the CPU, memory and topology managers).
//!
//! [`cpus`] and [`memory`] allocate, [`hints`] makes them agree, and [`assign`] chooses processors. All of these are pure. [`Managers`]
//! allocates for a pod before it is admitted, saves what it gave away, and tells with what limits a container starts.
//! [`run`] changes the processors of running containers that share them.
//!
//! **Invariant.** What a container was given stays its own until its pod has ended, also when the agent starts again: it is in a checkpoint
//! in the directory of the agent before the container is created. A checkpoint that does not fit the machine or the configuration stops
//! the agent, as upstream.
//!
//! Left out: managers for resources of whole pods (alpha in v1.36).

mod assign;
pub(crate) mod checkpoint;
pub(crate) mod cpus;
mod cpuset;
pub(crate) mod hints;
pub(crate) mod memory;
mod meters;
pub(crate) mod topology;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use parking_lot::Mutex;
use plugins::KubeletRoot;
use plugins::api::devices::{NumaNode, Topology as NumaTopology};
use plugins::api::pod_resources::ContainerMemory;
use runtime::{ContainerState, Resources, Runtime};
use supervisor::blocking;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::admission::Rejection;
use crate::configuration::KubeletConfiguration;
use crate::devices::{Devices, Wake};
use crate::pod::container::{CONTAINER_NAME, POD_UID};
use crate::pod::spec::{containers, text};
use checkpoint::Checkpoint;
use cpus::{CpuError, StaticCpus};
pub use cpuset::CpuSet;
use hints::{Hint, Hints, Policy, Scope, TopologyPolicy};
use memory::StaticMemory;
pub(crate) use meters::Meters;
use meters::Outcome;
pub use topology::{Sysfs, Topology, TopologySource};

/// The reason of pods whose resources are not on common NUMA nodes.
const TOPOLOGY: (&str, &str) = ("TopologyAffinityError", "Resources cannot be allocated with Topology locality");

/// A pod that a manager refuses for a reason of its own, or for an unexpected one.
pub fn unexpected(why: impl std::fmt::Display) -> Rejection {
    Rejection::new("UnexpectedAdmissionError", format!("Allocate failed due to {why}, which is unexpected"))
}

#[derive(Debug, Default)]
struct Allocations {
    cpus: Option<StaticCpus>,
    memory: Option<StaticMemory>,
}

/// The managers of processors, memory and topology.
pub struct Managers {
    policy: TopologyPolicy,
    allocations: Mutex<Allocations>,
    cpu_checkpoint: Arc<Checkpoint>,
    memory_checkpoint: Arc<Checkpoint>,
    /// Devices of plugins.
    pub devices: Arc<Devices>,
    /// Notified when the shared processors have changed.
    changed: Notify,
    meters: Arc<Meters>,
}

impl Managers {
    /// Opens the checkpoints in `directory`. Blocks. Errors with upstream's texts, also if a checkpoint fits neither the machine nor the
    /// configuration.
    pub fn open(
        configuration: &KubeletConfiguration,
        root: KubeletRoot,
        source: &dyn TopologySource,
        wake: Wake,
    ) -> Result<Self, String> {
        let directory = root.path.clone();
        let cpu_checkpoint =
            Arc::new(Checkpoint::new(directory.join("cpu_manager_state"), "CPU", configuration.cpu_policy()));
        let memory_checkpoint =
            Arc::new(Checkpoint::new(directory.join("memory_manager_state"), "memory", configuration.memory_policy()));
        let (saved_cpus, saved_memory) = (cpu_checkpoint.load()?, memory_checkpoint.load()?);
        let is_used = configuration.cpu_policy() == cpus::STATIC
            || configuration.memory_policy() == memory::STATIC
            || configuration.topology_policy()?.policy != Policy::None;
        let topology = match is_used {
            true => source.read().map_err(|e| format!("reading the topology of this machine: {e}"))?,
            false => Topology::default(),
        };
        let policy = configuration.topology_policy()?;
        let policy = policy.on(&topology)?;
        let mut allocations = Allocations::default();
        if configuration.cpu_policy() == cpus::STATIC {
            let options = configuration.cpu_options()?;
            if options.align_by_socket && policy.policy == Policy::SingleNumaNode {
                return Err("Topolgy manager single-numa-node policy is incompatible with CPUManager align-by-socket policy option".into());
            }
            let count = |level| topology.count(level);
            if options.align_by_socket && count(topology::Level::Socket) > count(topology::Level::Numa) {
                return Err("Align by socket is not compatible with hardware where number of sockets are more than number of NUMA".into());
            }
            let cpus = |saved| StaticCpus::new(topology.clone(), options, configuration.reserved_cpus()?, saved);
            // Without a state of an earlier agent, an error is one of the configuration.
            cpus(None).map_err(|e| format!("new static policy error: {e}"))?;
            allocations.cpus = Some(cpus(saved_cpus).map_err(|e| cpu_checkpoint.complaint(&e))?);
        }
        if configuration.memory_policy() == memory::STATIC {
            let reserved = configuration.reserved_by_node(&topology)?;
            StaticMemory::new(&topology, &reserved, None)?;
            let memory = StaticMemory::new(&topology, &reserved, saved_memory);
            allocations.memory = Some(memory.map_err(|e| memory_checkpoint.complaint(&e))?);
        }
        let meters = Arc::new(Meters::default());
        allocations.show(&meters);
        Ok(Self {
            policy,
            meters,
            allocations: Mutex::new(allocations),
            cpu_checkpoint,
            memory_checkpoint,
            devices: Arc::new(Devices::open(root, topology.nodes.keys().copied().collect(), wake)),
            changed: Notify::new(),
        })
    }

    /// Allocates processors, memory and devices for a new pod. Rejects it, and allocates nothing, if that is not possible.
    pub async fn admit(&self, pod: &Pod) -> Result<(), Rejection> {
        let begun = Instant::now();
        let result = self.allocate(pod).await;
        let outcome = match self.policy.policy {
            Policy::None => Outcome::Succeeded,
            _ => Outcome::from(&result),
        };
        self.meters.admitted(outcome, begun.elapsed());
        if result.is_err() {
            self.release(text(&pod.metadata.uid)).await;
        }
        self.save().await;
        result
    }

    async fn allocate(&self, pod: &Pod) -> Result<(), Rejection> {
        let Some(spec) = &pod.spec else { return Ok(()) };
        let merged = |hints: Vec<Hints>| {
            let merged = self.policy.merge(&hints);
            Some(merged.hint).filter(|_| merged.admitted).ok_or_else(|| Rejection::new(TOPOLOGY.0, TOPOLOGY.1))
        };
        let pod_hint = match (self.policy.policy, self.policy.scope) {
            (Policy::None, _) => Some(Hint { nodes: None, preferred: false }),
            (_, Scope::Pod) => {
                let devices = self.devices.pod_hints(pod);
                Some(merged([devices].into_iter().chain(self.allocations.lock().pod_hints(pod)).collect())?)
            }
            (_, Scope::Container) => None,
        };
        for container in containers(spec) {
            let hint = match pod_hint {
                Some(hint) => hint,
                None => {
                    let devices = self.devices.hints(pod, container);
                    merged([devices].into_iter().chain(self.allocations.lock().hints(pod, container)).collect())?
                }
            };
            self.devices.allocate(pod, container, hint.nodes).await.map_err(unexpected)?;
            if self.allocations.lock().allocate(pod, container, hint, &self.meters)? {
                self.changed.notify_one();
            }
        }
        Ok(())
    }

    /// Returns what a pod had that has ended.
    pub async fn release(&self, uid: &str) {
        self.devices.release(uid).await;
        if self.take_back(&[uid]) {
            self.save().await;
        }
    }

    /// Returns what all pods but these had, which ended while the agent did not run.
    pub async fn retain(&self, uids: &BTreeSet<String>) {
        self.devices.retain(uids).await;
        let gone: Vec<String> = {
            let all = self.allocations.lock();
            let cpus = all.cpus.iter().flat_map(|c| c.pods());
            let memory = all.memory.iter().flat_map(|m| m.pods());
            cpus.chain(memory).filter(|uid| !uids.contains(*uid)).cloned().collect()
        };
        if self.take_back(&gone.iter().map(String::as_str).collect::<Vec<_>>()) {
            self.save().await;
        }
    }

    fn take_back(&self, uids: &[&str]) -> bool {
        let mut all = self.allocations.lock();
        let mut changed = false;
        for uid in uids {
            changed |= all.cpus.as_mut().is_some_and(|c| c.release(uid));
            changed |= all.memory.as_mut().is_some_and(|m| m.release(uid));
        }
        if changed {
            all.show(&self.meters);
            self.changed.notify_one();
        }
        changed
    }

    /// The metrics of the managers.
    pub fn meters(&self) -> Arc<Meters> {
        self.meters.clone()
    }

    async fn save(&self) {
        let (cpus, memory) = {
            let all = self.allocations.lock();
            (all.cpus.as_ref().map(|c| c.state().clone()), all.memory.as_ref().map(|m| m.state().clone()))
        };
        let files = (self.cpu_checkpoint.clone(), self.memory_checkpoint.clone());
        blocking(move || {
            if let Some(state) = cpus {
                files.0.save(&state);
            }
            if let Some(state) = memory {
                files.1.save(&state);
            }
        })
        .await;
    }

    /// Whether a container of the pod has processors for itself. Such pods have no quota of processor time, as upstream.
    pub fn has_exclusive_cpus(&self, uid: &str) -> bool {
        self.allocations.lock().cpus.as_ref().is_some_and(|c| c.has_exclusive(uid))
    }

    /// Whether the processors and the memory of the pod's containers are fixed, so that they cannot be resized.
    pub fn is_fixed(&self, pod: &Pod) -> Option<&'static str> {
        let all = self.allocations.lock();
        let spec = pod.spec.as_ref()?;
        if crate::resources::qos(spec) != crate::resources::Qos::Guaranteed {
            return None;
        }
        match (&all.cpus, &all.memory) {
            (Some(_), _) => Some("Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\""),
            (_, Some(_)) => Some("Resize is infeasible for Guaranteed Pods alongside Memory Manager policy \"Static\""),
            _ => None,
        }
    }

    /// Adds processors and memory nodes to the limits of a container that is created.
    pub fn apply(&self, uid: &str, container: &str, limits: &mut Resources) {
        let all = self.allocations.lock();
        if let Some(cpus) = &all.cpus {
            limits.cpuset_cpus = Some(cpus.cpus(uid, container).to_string()).filter(|c| !c.is_empty());
            if cpus.exclusive(uid, container).is_some() {
                limits.cpu_quota = None;
                limits.cpu_period = None;
            }
        }
        let nodes = all.memory.as_ref().and_then(|m| m.nodes(uid, container));
        if let Some(nodes) = nodes {
            limits.cpuset_mems = Some(nodes.to_string());
        }
    }

    /// The processors of a container; `None` if there is no manager of processors.
    pub fn cpus(&self, uid: &str, container: &str) -> Option<CpuSet> {
        self.allocations.lock().cpus.as_ref().map(|c| c.cpus(uid, container).clone())
    }

    /// The exclusive processors of a container, for the API of pod resources.
    pub fn exclusive_cpus(&self, uid: &str, container: &str) -> Vec<i64> {
        let all = self.allocations.lock();
        let cpus = all.cpus.as_ref().and_then(|c| c.exclusive(uid, container));
        cpus.into_iter().flat_map(CpuSet::iter).map(i64::from).collect()
    }

    /// The memory of a container, for the API of pod resources.
    pub fn memory(&self, uid: &str, container: &str) -> Vec<ContainerMemory> {
        let all = self.allocations.lock();
        let blocks = all.memory.as_ref().and_then(|m| m.blocks(uid, container)).into_iter().flatten();
        blocks.map(|b| container_memory(&b.resource, b.size, &b.numa_affinity)).collect()
    }

    /// The processors and the memory that containers may get.
    pub fn allocatable(&self) -> (Vec<i64>, Vec<ContainerMemory>) {
        let all = self.allocations.lock();
        let cpus = all.cpus.iter().flat_map(|c| c.allocatable().iter().map(i64::from).collect::<Vec<_>>()).collect();
        let nodes = all.memory.iter().flat_map(|m| &m.state().machine_state);
        let of_node = |(id, node): (&u32, &memory::NodeState)| -> Vec<ContainerMemory> {
            let some = node.memory_map.iter().filter(|(_, t)| t.allocatable > 0);
            some.map(|(name, t)| container_memory(name, t.allocatable, &[*id])).collect()
        };
        (cpus, nodes.flat_map(of_node).collect())
    }

    fn manages_cpus(&self) -> bool {
        self.allocations.lock().cpus.is_some()
    }
}

fn container_memory(resource: &str, size: u64, nodes: &[u32]) -> ContainerMemory {
    let nodes = nodes.iter().map(|n| NumaNode { id: i64::from(*n) }).collect();
    ContainerMemory { memory_type: resource.to_owned(), size, topology: Some(NumaTopology { nodes }) }
}

impl Allocations {
    /// Shows how many processors are allocated.
    fn show(&self, meters: &Meters) {
        let Some(cpus) = &self.cpus else { return };
        let shared = cpus.state().default_cpu_set.iter().filter(|cpu| cpus.allocatable().iter().any(|a| a == *cpu));
        let exclusive = cpus.state().entries.values().flat_map(BTreeMap::values).map(CpuSet::len);
        meters.cpus(shared.count(), exclusive.sum());
    }

    fn hints(&self, pod: &Pod, container: &Container) -> Vec<Hints> {
        let cpus = self.cpus.as_ref().map(|c| c.hints(pod, container));
        let memory = self.memory.as_ref().map(|m| m.hints(pod, container));
        [cpus, memory].into_iter().flatten().collect()
    }

    fn pod_hints(&self, pod: &Pod) -> Vec<Hints> {
        let cpus = self.cpus.as_ref().map(|c| c.pod_hints(pod));
        let memory = self.memory.as_ref().map(|m| m.pod_hints(pod));
        [cpus, memory].into_iter().flatten().collect()
    }

    /// Returns whether the shared processors have changed.
    fn allocate(&mut self, pod: &Pod, container: &Container, hint: Hint, meters: &Meters) -> Result<bool, Rejection> {
        let mut changed = false;
        if let Some(cpus) = &mut self.cpus {
            let result = cpus.allocate(pod, container, hint.nodes);
            // Most containers do not request any.
            if !matches!(result, Ok(false)) {
                meters.pinned_cpus(Outcome::from(&result));
            }
            changed = result.map_err(|error| match error {
                CpuError::NoWholeCores { .. } | CpuError::NotEnoughCores { .. } => {
                    Rejection::new("SMTAlignmentError", error.to_string())
                }
                CpuError::Assign(error) => unexpected(error),
            })?;
        }
        if let Some(memory) = &mut self.memory {
            let result = memory.allocate(pod, container, hint);
            if pod.spec.as_ref().is_some_and(|s| crate::resources::qos(s) == crate::resources::Qos::Guaranteed) {
                meters.pinned_memory(Outcome::from(&result));
            }
            result.map_err(unexpected)?;
        }
        self.show(meters);
        Ok(changed)
    }
}

/// Keeps running containers on their processors, for ever: on the shared ones, which change when pods come and go.
pub(crate) async fn run(managers: Arc<Managers>, runtime: Arc<dyn Runtime>, period: Duration) {
    if !managers.manages_cpus() {
        return std::future::pending().await;
    }
    let mut applied: BTreeMap<String, CpuSet> = BTreeMap::new();
    loop {
        match runtime.list_containers().await {
            Ok(all) => {
                applied.retain(|id, _| all.iter().any(|c| c.id == *id));
                for c in all.into_iter().filter(|c| c.state == ContainerState::Running) {
                    let label = |name: &str| c.labels.get(name).map(String::as_str).unwrap_or_default();
                    let Some(cpus) = managers.cpus(label(POD_UID), label(CONTAINER_NAME)) else { continue };
                    if cpus.is_empty() || applied.get(&c.id) == Some(&cpus) {
                        continue;
                    }
                    let limits = Resources { cpuset_cpus: Some(cpus.to_string()), ..Resources::default() };
                    match runtime.update_container(&c.id, limits).await {
                        Ok(()) => drop(applied.insert(c.id, cpus)),
                        Err(error) => {
                            tracing::warn!(container = c.id, %error, "changing the CPUs of a container failed; it is tried again");
                        }
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "listing containers failed; their CPUs are changed later"),
        }
        let _ = tokio::time::timeout(period, managers.changed.notified()).await;
    }
}

#[cfg(test)]
#[path = "managers_tests.rs"]
mod tests;
