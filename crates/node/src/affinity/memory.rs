//! Memory of containers on NUMA nodes (upstream `memorymanager/policy_static.go`): pure but for the checkpoint of its caller.
//!
//! The memory and huge pages of a guaranteed pod's containers are counted against NUMA nodes, and the containers are bound to these nodes.
//! A node is used either for containers that fit on it, or together with the same other nodes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use meta::Quantity;
use serde::{Deserialize, Serialize};

use super::hints::{Hint, Hints, Nodes, subsets};
use super::topology::Topology;
use crate::pod::spec::text;
use crate::resources::{Qos, is_sidecar, qos};

/// Memory of a container on some NUMA nodes together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Block {
    pub numa_affinity: Vec<u32>,
    /// `memory`, or the name of huge pages.
    #[serde(rename = "type")]
    pub resource: String,
    /// Bytes.
    pub size: u64,
}

/// Bytes of a resource of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Table {
    pub total: u64,
    pub system_reserved: u64,
    pub allocatable: u64,
    pub reserved: u64,
    pub free: u64,
}

/// What of a NUMA node is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeState {
    pub number_of_assignments: usize,
    pub memory_map: BTreeMap<String, Table>,
    /// The nodes that are used together with this one, itself included.
    pub cells: Vec<u32>,
}

/// Who has which memory; the content of the checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryState {
    pub policy_name: String,
    pub machine_state: BTreeMap<u32, NodeState>,
    /// By UID of the pod and name of the container.
    #[serde(default)]
    pub entries: BTreeMap<String, BTreeMap<String, Vec<Block>>>,
}

/// Why a pod is not admitted. The texts are upstream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    #[error("[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available")]
    NoNodes,
    #[error("[memorymanager] failed to find the default preferred hint")]
    NoPreferred,
    #[error("[memorymanager] failed to find NUMA nodes to extend the current topology hint")]
    NoExtension,
    #[error("[memorymanager] failed to find the extended preferred hint")]
    NoPreferredExtension,
    #[error("[memorymanager] preferred hint violates NUMA node allocation")]
    Violation,
}

/// Reserved bytes by NUMA node and resource.
pub type ReservedMemory = BTreeMap<u32, BTreeMap<String, u64>>;

/// Bytes by resource.
type Requests = BTreeMap<String, u64>;

#[derive(Debug)]
pub struct StaticMemory {
    /// The nodes when nothing is taken.
    empty: BTreeMap<u32, NodeState>,
    state: MemoryState,
    /// What init containers of the pod that is being admitted had, for its next containers, by nodes.
    reusable: (String, BTreeMap<(Nodes, String), u64>),
}

pub const STATIC: &str = "Static";

fn is_memory(resource: &str) -> bool {
    resource == "memory" || resource.starts_with("hugepages-")
}

/// Whether the memory of the pod's containers is bound to nodes.
fn is_bound(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    // As upstream without its alpha feature.
    let own = spec.resources.as_ref().is_some_and(|r| r.requests.is_some() || r.limits.is_some());
    qos(spec) == Qos::Guaranteed && !own
}

fn requests(container: &Container) -> Requests {
    let resources = container.resources.as_ref();
    let (limits, requests) = (resources.and_then(|r| r.limits.as_ref()), resources.and_then(|r| r.requests.as_ref()));
    // A missing request equals the limit.
    let all = limits.into_iter().flatten().chain(requests.into_iter().flatten());
    let bytes = |text: &str| Quantity::parse(text).ok().and_then(|q| u64::try_from(q.value()).ok());
    all.filter(|(name, _)| is_memory(name)).filter_map(|(name, q)| Some((name.clone(), bytes(&q.0)?))).collect()
}

/// The most that a pod has at a time.
fn requests_of_pod(pod: &Pod) -> Requests {
    let Some(spec) = &pod.spec else { return Requests::new() };
    let (mut sidecars, mut starting, mut running) = (Requests::new(), Requests::new(), Requests::new());
    let add = |to: &mut Requests, more: Requests| {
        more.into_iter().for_each(|(name, n)| *to.entry(name).or_default() += n);
    };
    for c in spec.init_containers.iter().flatten() {
        if is_sidecar(c) {
            add(&mut sidecars, requests(c));
            continue;
        }
        for (name, n) in requests(c) {
            let now = sidecars.get(&name).copied().unwrap_or(0) + n;
            let most = starting.entry(name).or_default();
            *most = now.max(*most);
        }
    }
    spec.containers.iter().for_each(|c| add(&mut running, requests(c)));
    let most = |(name, n): (String, u64)| {
        let of = |all: &Requests| all.get(&name).copied().unwrap_or(0);
        let most = (n + of(&sidecars)).max(of(&starting));
        (name, most)
    };
    running.into_iter().map(most).collect()
}

fn is_init(pod: &Pod, container: &str) -> bool {
    let init = pod.spec.as_ref().and_then(|s| s.init_containers.as_ref()).into_iter().flatten();
    init.into_iter().any(|c| c.name == container && !is_sidecar(c))
}

fn best(hints: impl Iterator<Item = Hint>) -> Option<Hint> {
    hints.filter(|h| h.nodes.is_some()).reduce(|best, h| {
        let narrower = || h.nodes.unwrap_or_default().is_narrower_than(best.nodes.unwrap_or_default());
        if h.preferred && !best.preferred || h.preferred == best.preferred && narrower() { h } else { best }
    })
}

impl StaticMemory {
    /// `saved` is the state of an earlier agent. Errors with upstream's texts.
    pub fn new(topology: &Topology, reserved: &ReservedMemory, saved: Option<MemoryState>) -> Result<Self, String> {
        if reserved.values().filter_map(|r| r.get("memory")).sum::<u64>() == 0 {
            return Err("[memorymanager] you should specify the system reserved memory".into());
        }
        let empty: BTreeMap<u32, NodeState> = topology
            .nodes
            .iter()
            .map(|(id, node)| {
                let kept = |name: &str| reserved.get(id).and_then(|r| r.get(name)).copied().unwrap_or(0);
                let table = |total: u64, taken: u64, name: &str| {
                    let allocatable = total.saturating_sub(taken).saturating_sub(kept(name));
                    Table { total, system_reserved: kept(name), allocatable, reserved: 0, free: allocatable }
                };
                let pages: u64 = node.hugepages.values().sum();
                let mut memory_map: BTreeMap<String, Table> =
                    node.hugepages.iter().map(|(name, n)| (name.clone(), table(*n, 0, name))).collect();
                memory_map.insert("memory".into(), table(node.memory, pages, "memory"));
                (*id, NodeState { number_of_assignments: 0, memory_map, cells: vec![*id] })
            })
            .collect();
        let fresh = MemoryState { policy_name: STATIC.into(), machine_state: empty.clone(), entries: BTreeMap::new() };
        let mut out = Self { empty, state: fresh, reusable: Default::default() };
        if let Some(saved) = saved {
            out.take_over(saved)?;
        }
        Ok(out)
    }

    fn take_over(&mut self, saved: MemoryState) -> Result<(), String> {
        if saved.machine_state.is_empty() {
            return match saved.entries.is_empty() {
                true => Ok(()),
                false => Err("[memorymanager] machine state can not be empty when it has memory assignments".into()),
            };
        }
        for (pod, container, block) in saved
            .entries
            .iter()
            .flat_map(|(p, all)| all.iter().flat_map(move |(c, b)| b.iter().map(move |b| (p, c, b))))
        {
            let which = format!("[memorymanager] (pod: {pod}, container: {container}) the memory assignment uses");
            for node in &block.numa_affinity {
                let Some(node) = self.empty.get(node) else {
                    return Err(format!("{which} the NUMA that does not exist"));
                };
                if !node.memory_map.contains_key(&block.resource) {
                    return Err(format!("{which} memory resource that does not exist"));
                }
            }
        }
        let sizes = |state: &BTreeMap<u32, NodeState>| -> Vec<(u32, String, [u64; 3])> {
            let of_node = |(id, node): (&u32, &NodeState)| -> Vec<(u32, String, [u64; 3])> {
                let of = |t: &Table| [t.total, t.system_reserved, t.allocatable];
                node.memory_map.iter().map(|(name, t)| (*id, name.clone(), of(t))).collect()
            };
            state.iter().flat_map(of_node).collect()
        };
        if sizes(&saved.machine_state) != sizes(&self.empty) {
            return Err("[memorymanager] the expected machine state is different from the real one".into());
        }
        self.state.entries = saved.entries;
        self.count();
        Ok(())
    }

    /// Counts what is taken of the nodes anew.
    fn count(&mut self) {
        let mut nodes = self.empty.clone();
        for block in self.state.entries.values().flat_map(BTreeMap::values).flatten() {
            let mut left = block.size;
            for id in &block.numa_affinity {
                let Some(node) = nodes.get_mut(id) else { continue };
                node.number_of_assignments += 1;
                node.cells.clone_from(&block.numa_affinity);
                let Some(table) = node.memory_map.get_mut(&block.resource) else { continue };
                let part = left.min(table.free);
                table.free -= part;
                table.reserved += part;
                left -= part;
            }
        }
        self.state.machine_state = nodes;
    }

    pub fn state(&self) -> &MemoryState {
        &self.state
    }

    /// The memory of a container by nodes.
    pub fn blocks(&self, uid: &str, container: &str) -> Option<&Vec<Block>> {
        self.state.entries.get(uid)?.get(container)
    }

    /// The NUMA nodes that a container is bound to.
    pub fn nodes(&self, uid: &str, container: &str) -> Option<Nodes> {
        let blocks = self.blocks(uid, container)?;
        let nodes: Nodes = blocks.iter().flat_map(|b| b.numa_affinity.iter().copied()).collect();
        (!nodes.is_empty()).then_some(nodes)
    }

    pub fn pods(&self) -> impl Iterator<Item = &String> {
        self.state.entries.keys()
    }

    fn free(&self, nodes: Nodes, resource: &str) -> u64 {
        let free =
            |n: u32| self.state.machine_state.get(&n).and_then(|n| n.memory_map.get(resource)).map_or(0, |t| t.free);
        nodes.iter().map(free).sum()
    }

    fn reusable(&self, uid: &str, nodes: Nodes, resource: &str) -> u64 {
        if self.reusable.0 != uid {
            return 0;
        }
        self.reusable.1.get(&(nodes, resource.to_owned())).copied().unwrap_or(0)
    }

    /// Whether nodes may be used together: none of them is used otherwise.
    fn may_group(&self, nodes: Nodes) -> bool {
        nodes.len() == 1
            || nodes
                .iter()
                .filter_map(|n| self.state.machine_state.get(&n))
                .all(|node| node.number_of_assignments == 0 || node.cells.iter().copied().collect::<Nodes>() == nodes)
    }

    /// Nodes that have enough for the requests.
    fn proposals(&self, uid: &str, requests: &Requests) -> Vec<Hint> {
        let all: Vec<u32> = self.empty.keys().copied().collect();
        let mut least = all.len() as u32;
        let mut found = Vec::new();
        for nodes in subsets(&all) {
            let allocatable = |name: &str| -> u64 {
                nodes.iter().filter_map(|n| self.empty.get(&n)?.memory_map.get(name)).map(|t| t.allocatable).sum()
            };
            if requests.iter().any(|(name, n)| allocatable(name) < *n) {
                continue;
            }
            least = least.min(nodes.len());
            let is_grouped = |n: u32| self.state.machine_state.get(&n).is_some_and(|n| n.cells.len() > 1);
            if nodes.len() == 1 && nodes.iter().any(is_grouped) || !self.may_group(nodes) {
                continue;
            }
            if requests.iter().all(|(name, n)| self.free(nodes, name) + self.reusable(uid, nodes, name) >= *n) {
                found.push(nodes);
            }
        }
        found.into_iter().map(|n| Hint { nodes: Some(n), preferred: n.len() == least }).collect()
    }

    fn hints_of(&self, uid: &str, requests: &Requests) -> Hints {
        let proposals = self.proposals(uid, requests);
        requests.keys().map(|name| (name.clone(), Some(proposals.clone()))).collect()
    }

    /// The hints of memory that a container has already.
    fn known(blocks: &[Block], requests: &Requests) -> Hints {
        let fits = |b: &Block| requests.get(&b.resource) == Some(&b.size);
        if blocks.len() != requests.len() || !blocks.iter().all(fits) {
            return Hints::new();
        }
        let hint = |b: &Block| Hint { nodes: Some(b.numa_affinity.iter().copied().collect()), preferred: true };
        blocks.iter().map(|b| (b.resource.clone(), Some(vec![hint(b)]))).collect()
    }

    /// The NUMA nodes that can meet a container's request.
    pub fn hints(&self, pod: &Pod, container: &Container) -> Hints {
        let (uid, requests) = (text(&pod.metadata.uid), requests(container));
        match self.blocks(uid, &container.name) {
            _ if !is_bound(pod) => Hints::new(),
            Some(blocks) => Self::known(blocks, &requests),
            None => self.hints_of(uid, &requests),
        }
    }

    /// The NUMA nodes that can meet the requests of all containers of a pod.
    pub fn pod_hints(&self, pod: &Pod) -> Hints {
        let (uid, requests) = (text(&pod.metadata.uid), requests_of_pod(pod));
        let has = self.state.entries.get(uid).and_then(|all| all.values().next());
        match has {
            _ if !is_bound(pod) => Hints::new(),
            Some(blocks) => Self::known(blocks, &requests),
            None => self.hints_of(uid, &requests),
        }
    }

    /// Gives a container its memory. `hint` is what the managers of all resources agreed on. Returns whether anything changed.
    pub fn allocate(&mut self, pod: &Pod, container: &Container, hint: Hint) -> Result<bool, MemoryError> {
        if !is_bound(pod) {
            return Ok(false);
        }
        let uid = text(&pod.metadata.uid).to_owned();
        if self.reusable.0 != uid {
            self.reusable = (uid.clone(), BTreeMap::new());
        }
        if let Some(blocks) = self.blocks(&uid, &container.name).cloned() {
            self.reuse(pod, container, &blocks);
            return Ok(false);
        }
        let requests = requests(container);
        let mut chosen = match hint.nodes {
            Some(_) => hint,
            None => {
                let default = best(self.proposals(&uid, &requests).into_iter()).ok_or(MemoryError::NoNodes)?;
                if hint.preferred && !default.preferred {
                    return Err(MemoryError::NoPreferred);
                }
                default
            }
        };
        let nodes = chosen.nodes.unwrap_or_default();
        if requests.iter().any(|(name, n)| self.free(nodes, name) < *n) {
            let wider =
                self.proposals(&uid, &requests).into_iter().filter(|h| h.nodes.is_some_and(|n| n.covers(nodes)));
            let wider = best(wider).ok_or(MemoryError::NoExtension)?;
            if chosen.preferred && !wider.preferred {
                return Err(MemoryError::NoPreferredExtension);
            }
            chosen = wider;
        }
        let nodes = chosen.nodes.unwrap_or_default();
        if !self.may_group(nodes) {
            return Err(MemoryError::Violation);
        }
        let block = |(resource, size)| Block { numa_affinity: nodes.to_vec(), resource, size };
        let blocks: Vec<Block> = requests.into_iter().map(block).collect();
        self.shrink_init_containers(pod, container, &blocks);
        self.reuse(pod, container, &blocks);
        self.state.entries.entry(uid).or_default().insert(container.name.clone(), blocks);
        self.count();
        Ok(true)
    }

    /// An init container leaves its memory to later containers of the pod.
    fn reuse(&mut self, pod: &Pod, container: &Container, blocks: &[Block]) {
        let ends = is_init(pod, &container.name);
        for b in blocks {
            let key = (b.numa_affinity.iter().copied().collect(), b.resource.clone());
            let has = self.reusable.1.entry(key).or_default();
            *has = if ends { b.size.max(*has) } else { has.saturating_sub(b.size) };
        }
    }

    /// Counts memory that init containers leave to a container only once.
    fn shrink_init_containers(&mut self, pod: &Pod, container: &Container, blocks: &[Block]) {
        let Some(entries) = self.state.entries.get_mut(text(&pod.metadata.uid)) else { return };
        let init = pod.spec.as_ref().and_then(|s| s.init_containers.as_ref()).into_iter().flatten();
        let before: Vec<&Container> =
            init.take_while(|c| c.name != container.name).filter(|c| !is_sidecar(c)).collect();
        for block in blocks {
            let mut left = block.size;
            for c in &before {
                let theirs = entries.get_mut(&c.name).into_iter().flatten();
                for b in theirs.filter(|b| b.resource == block.resource && b.numa_affinity == block.numa_affinity) {
                    let part = left.min(b.size);
                    b.size -= part;
                    left -= part;
                }
            }
        }
    }

    /// Returns the memory of a pod. Returns whether it had any.
    pub fn release(&mut self, uid: &str) -> bool {
        let had = self.state.entries.remove(uid).is_some();
        if had {
            self.count();
        }
        had
    }
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
