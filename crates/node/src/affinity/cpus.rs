//! Exclusive processors of containers (upstream `cpumanager/policy_static.go`): pure but for the checkpoint of its caller.
//!
//! A container of a guaranteed pod that requests whole processors has them for itself. All other containers share the rest, which includes
//! the processors that are reserved for the system, unless the reservation is strict.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use meta::Quantity;
use serde::{Deserialize, Serialize};

use super::assign::{AssignError, Caches, distributed, packed, spread};
use super::cpuset::CpuSet;
use super::hints::{Hint, Hints, Nodes, subsets};
use super::topology::{Level, Topology};
use crate::pod::spec::text;
use crate::resources::{Qos, is_sidecar, qos};

/// The options of the static policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    pub full_cores_only: bool,
    pub distribute_across_numa: bool,
    pub align_by_socket: bool,
    pub distribute_across_cores: bool,
    pub strict_reservation: bool,
    pub prefer_align_by_cache: bool,
}

/// Who has which processors; the content of the checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuState {
    pub policy_name: String,
    /// The processors that containers share.
    pub default_cpu_set: CpuSet,
    /// By UID of the pod and name of the container.
    #[serde(default)]
    pub entries: BTreeMap<String, BTreeMap<String, CpuSet>>,
}

/// Why a pod is not admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuError {
    #[error("SMT Alignment Error: requested {requested} cpus not multiple cpus per core = {per_core}")]
    NoWholeCores { requested: usize, per_core: usize },
    #[error(
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {available}, requested CPUs = {requested}, \
         CPUs per core = {per_core}"
    )]
    NotEnoughCores { available: usize, requested: usize, per_core: usize },
    #[error(transparent)]
    Assign(#[from] AssignError),
}

/// The static policy.
#[derive(Debug)]
pub struct StaticCpus {
    topology: Topology,
    options: CpuOptions,
    reserved: CpuSet,
    /// All threads of cores of which a thread is reserved.
    reserved_cores: CpuSet,
    state: CpuState,
    /// What init containers of the pod that is being admitted had, for its next containers.
    reusable: (String, CpuSet),
}

pub const STATIC: &str = "static";

/// The whole processors that a container has for itself; 0 if it shares.
pub fn exclusive_cpus(pod: &Pod, container: &Container) -> usize {
    let Some(spec) = &pod.spec else { return 0 };
    // As upstream without its alpha feature, pods with resources of their own share.
    let own = spec.resources.as_ref().is_some_and(|r| r.requests.is_some() || r.limits.is_some());
    if qos(spec) != Qos::Guaranteed || own {
        return 0;
    }
    let resources = container.resources.as_ref();
    let find = |list: Option<&BTreeMap<_, _>>| {
        let quantity: &k8s_openapi::apimachinery::pkg::api::resource::Quantity = list?.get("cpu")?;
        Quantity::parse(&quantity.0).ok()
    };
    let request = resources.and_then(|r| find(r.requests.as_ref()).or_else(|| find(r.limits.as_ref())));
    request.filter(Quantity::is_integer).and_then(|q| usize::try_from(q.value()).ok()).unwrap_or(0)
}

/// The most exclusive processors that a pod has at a time.
fn exclusive_cpus_of_pod(pod: &Pod) -> usize {
    let Some(spec) = &pod.spec else { return 0 };
    let (mut sidecars, mut starting) = (0, 0);
    for c in spec.init_containers.iter().flatten() {
        let own = exclusive_cpus(pod, c);
        match is_sidecar(c) {
            true => sidecars += own,
            false => starting = starting.max(sidecars + own),
        }
    }
    let running: usize = spec.containers.iter().map(|c| exclusive_cpus(pod, c)).sum();
    starting.max(sidecars + running)
}

impl StaticCpus {
    /// `reserved` are the reserved processors, or how many. `saved` is the state of an earlier agent. Errors with upstream's texts.
    pub fn new(
        topology: Topology,
        options: CpuOptions,
        reserved: Result<CpuSet, usize>,
        saved: Option<CpuState>,
    ) -> Result<Self, String> {
        let mut policy = Self {
            topology,
            options,
            reserved: CpuSet::default(),
            reserved_cores: CpuSet::default(),
            state: CpuState::default(),
            reusable: Default::default(),
        };
        let wanted = reserved.as_ref().map_or_else(|n| *n, CpuSet::len);
        if wanted == 0 {
            return Err(
                "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero"
                    .into(),
            );
        }
        let all = policy.topology.all();
        policy.reserved = match reserved {
            Ok(set) => set,
            Err(count) => policy.choose(&all, count).unwrap_or_default(),
        };
        if policy.reserved.len() != wanted {
            return Err(format!(
                "[cpumanager] unable to reserve the required amount of CPUs (size of {} did not equal {wanted})",
                policy.reserved
            ));
        }
        if let Some(cpu) = policy.reserved.difference(&all).iter().next() {
            return Err(format!(
                "[cpumanager] unable to build the reserved physical CPUs from the reserved set: unknown CPU ID: {cpu}"
            ));
        }
        let cores: Vec<u32> = policy.topology.groups(&policy.reserved, Level::Core).into_iter().collect();
        policy.reserved_cores = policy.topology.within(&all, Level::Core, &cores);
        policy.state = match saved.filter(|s| !s.default_cpu_set.is_empty() || !s.entries.is_empty()) {
            Some(saved) => policy.validated(saved)?,
            None => CpuState {
                policy_name: STATIC.into(),
                default_cpu_set: if options.strict_reservation { all.difference(&policy.reserved) } else { all },
                entries: BTreeMap::new(),
            },
        };
        Ok(policy)
    }

    fn validated(&self, saved: CpuState) -> Result<CpuState, String> {
        let shared = &saved.default_cpu_set;
        if shared.is_empty() {
            return Err("default cpuset cannot be empty".into());
        }
        let kept = self.reserved.intersection(shared);
        if self.options.strict_reservation && !kept.is_empty() {
            return Err(format!(
                "some of strictly reserved cpus: \"{kept}\" are present in defaultCpuSet: \"{shared}\""
            ));
        }
        if !self.options.strict_reservation && kept != self.reserved {
            let reserved = &self.reserved;
            return Err(format!("not all reserved cpus: \"{reserved}\" are present in defaultCpuSet: \"{shared}\""));
        }
        let mut known = shared.clone();
        for (pod, containers) in &saved.entries {
            for (container, cpus) in containers {
                if !shared.intersection(cpus).is_empty() {
                    return Err(format!(
                        "pod: {pod}, container: {container} cpuset: \"{cpus}\" overlaps with default cpuset \"{shared}\""
                    ));
                }
                known = known.union(cpus);
            }
        }
        let mut all = self.topology.all();
        if self.options.strict_reservation {
            all = all.difference(&self.reserved);
        }
        if known != all {
            return Err(format!(
                "current set of available CPUs \"{all}\" doesn't match with CPUs in state \"{known}\""
            ));
        }
        Ok(saved)
    }

    pub fn state(&self) -> &CpuState {
        &self.state
    }

    /// The processors that containers may have for themselves.
    pub fn allocatable(&self) -> CpuSet {
        self.topology.all().difference(&self.reserved)
    }

    /// The exclusive processors of a container.
    pub fn exclusive(&self, uid: &str, container: &str) -> Option<&CpuSet> {
        self.state.entries.get(uid)?.get(container)
    }

    /// Whether a container of the pod has exclusive processors.
    pub fn has_exclusive(&self, uid: &str) -> bool {
        self.state.entries.contains_key(uid)
    }

    /// The processors of a container: its own, or the shared ones.
    pub fn cpus(&self, uid: &str, container: &str) -> &CpuSet {
        self.exclusive(uid, container).unwrap_or(&self.state.default_cpu_set)
    }

    fn choose(&self, available: &CpuSet, count: usize) -> Result<CpuSet, AssignError> {
        let o = self.options;
        if o.distribute_across_numa {
            let group = if o.full_cores_only { self.topology.per_group(Level::Core) } else { 1 };
            return distributed(&self.topology, available, count, group);
        }
        if o.distribute_across_cores {
            return spread(&self.topology, available, count);
        }
        let caches = if o.prefer_align_by_cache { Caches::Preferred } else { Caches::Ignored };
        packed(&self.topology, available, count, caches)
    }

    fn available(&self) -> CpuSet {
        self.state.default_cpu_set.difference(&self.reserved)
    }

    fn check_cores(&self, requested: usize) -> Result<(), CpuError> {
        if !self.options.full_cores_only {
            return Ok(());
        }
        let per_core = self.topology.per_group(Level::Core).max(1);
        if !requested.is_multiple_of(per_core) {
            return Err(CpuError::NoWholeCores { requested, per_core });
        }
        let available = self.state.default_cpu_set.difference(&self.reserved_cores).len();
        if requested > available {
            return Err(CpuError::NotEnoughCores { available, requested, per_core });
        }
        Ok(())
    }

    /// Gives a container its exclusive processors, if it gets any, on these NUMA nodes where possible. Returns whether anything changed.
    pub fn allocate(&mut self, pod: &Pod, container: &Container, nodes: Option<Nodes>) -> Result<bool, CpuError> {
        let uid = text(&pod.metadata.uid).to_owned();
        let count = exclusive_cpus(pod, container);
        if count == 0 {
            return Ok(false);
        }
        if self.reusable.0 != uid {
            self.reusable = (uid.clone(), CpuSet::default());
        }
        if let Some(has) = self.exclusive(&uid, &container.name).cloned() {
            self.reuse(pod, container, &has);
            return Ok(false);
        }
        self.check_cores(count)?;
        let available = self.available().union(&self.reusable.1);
        let mut taken = CpuSet::default();
        if let Some(nodes) = nodes {
            let aligned = self.aligned(nodes, &available);
            taken = self.choose(&aligned, count.min(aligned.len()))?;
        }
        let rest = self.choose(&available.difference(&taken), count - taken.len())?;
        taken = taken.union(&rest);
        self.state.default_cpu_set = self.state.default_cpu_set.difference(&taken);
        self.reuse(pod, container, &taken);
        self.state.entries.entry(uid).or_default().insert(container.name.clone(), taken);
        Ok(true)
    }

    /// An init container leaves its processors to later containers of the pod.
    fn reuse(&mut self, pod: &Pod, container: &Container, cpus: &CpuSet) {
        let init = pod.spec.as_ref().and_then(|s| s.init_containers.as_ref()).into_iter().flatten();
        let ends = init.into_iter().any(|c| c.name == container.name && !is_sidecar(c));
        let reusable = &self.reusable.1;
        self.reusable.1 = if ends { reusable.union(cpus) } else { reusable.difference(cpus) };
    }

    fn aligned(&self, nodes: Nodes, available: &CpuSet) -> CpuSet {
        let nodes = nodes.to_vec();
        if self.options.align_by_socket {
            let there = self.topology.within(&self.topology.all(), Level::Numa, &nodes);
            let sockets: Vec<u32> = self.topology.groups(&there, Level::Socket).into_iter().collect();
            return self.topology.within(available, Level::Socket, &sockets);
        }
        self.topology.within(available, Level::Numa, &nodes)
    }

    /// Returns the processors of a pod to the others. Returns whether it had any.
    pub fn release(&mut self, uid: &str) -> bool {
        let Some(containers) = self.state.entries.remove(uid) else { return false };
        for cpus in containers.values() {
            self.state.default_cpu_set = self.state.default_cpu_set.union(cpus);
        }
        true
    }

    /// The pods that have exclusive processors.
    pub fn pods(&self) -> impl Iterator<Item = &String> {
        self.state.entries.keys()
    }

    /// The NUMA nodes that can meet a container's request.
    pub fn hints(&self, pod: &Pod, container: &Container) -> Hints {
        let uid = text(&pod.metadata.uid);
        let count = exclusive_cpus(pod, container);
        let has = self.exclusive(uid, &container.name);
        self.hints_of(uid, count, has.cloned(), CpuSet::default())
    }

    /// The NUMA nodes that can meet the requests of all containers of a pod.
    pub fn pod_hints(&self, pod: &Pod) -> Hints {
        let uid = text(&pod.metadata.uid);
        let count = exclusive_cpus_of_pod(pod);
        let assigned = self.state.entries.get(uid).map(|all| all.values().fold(CpuSet::default(), |a, c| a.union(c)));
        match assigned {
            Some(assigned) if assigned.len() == count => self.hints_of(uid, count, Some(assigned), CpuSet::default()),
            assigned => self.hints_of(uid, count, None, assigned.unwrap_or_default()),
        }
    }

    fn hints_of(&self, uid: &str, count: usize, has: Option<CpuSet>, assigned: CpuSet) -> Hints {
        if count == 0 {
            return Hints::new();
        }
        let hints = match has {
            Some(has) if has.len() != count => Vec::new(),
            Some(has) => self.proposals(&has, &CpuSet::default(), count),
            None => {
                let reusable = if self.reusable.0 == uid { self.reusable.1.clone() } else { CpuSet::default() };
                self.proposals(&self.available(), &reusable.union(&assigned), count)
            }
        };
        [("cpu".to_owned(), Some(hints))].into()
    }

    fn proposals(&self, available: &CpuSet, reusable: &CpuSet, count: usize) -> Vec<Hint> {
        let all = self.topology.all();
        let nodes: Vec<u32> = self.topology.groups(&all, Level::Numa).into_iter().collect();
        let within = |cpus: &CpuSet, nodes: Nodes| self.topology.within(cpus, Level::Numa, &nodes.to_vec()).len();
        let mut least = nodes.len() as u32;
        let mut found = Vec::new();
        for nodes in subsets(&nodes) {
            if within(&all, nodes) >= count {
                least = least.min(nodes.len());
            }
            // What is reused is on these nodes, or they are none.
            if within(reusable, nodes) == reusable.len() && within(available, nodes) + reusable.len() >= count {
                found.push(nodes);
            }
        }
        let is_preferred =
            |n: Nodes| n.len() == least || self.options.align_by_socket && self.is_aligned_to_sockets(n, least);
        found.into_iter().map(|n| Hint { nodes: Some(n), preferred: is_preferred(n) }).collect()
    }

    fn is_aligned_to_sockets(&self, nodes: Nodes, least: u32) -> bool {
        let per_socket = self.topology.count(Level::Numa) / self.topology.count(Level::Socket).max(1);
        if per_socket == 0 {
            return false;
        }
        let there = self.topology.within(&self.topology.all(), Level::Numa, &nodes.to_vec());
        self.topology.groups(&there, Level::Socket).len() == (least as usize).div_ceil(per_socket)
    }
}

#[cfg(test)]
#[path = "cpus_tests.rs"]
mod tests;
