//! The fields of the CPU, memory and topology managers, with upstream's errors.

use std::collections::BTreeMap;

use meta::Quantity;
use serde::{Deserialize, Serialize};

use super::{KubeletConfiguration, Signal};
use crate::affinity::cpus::CpuOptions;
use crate::affinity::hints::{Nodes, Policy, Scope, TopologyPolicy};
use crate::affinity::memory::ReservedMemory;
use crate::affinity::{CpuSet, Topology};

/// Memory of a NUMA node that is reserved (`reservedMemory`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemoryReservation {
    pub numa_node: u32,
    pub limits: BTreeMap<String, String>,
}

/// NUMA nodes that the topology manager works with, unless more are allowed.
const MAX_NODES: usize = 8;

/// A truth value in Go's notations.
fn boolean(option: &str, text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("bad value for option \"{option}\": strconv.ParseBool: parsing \"{text}\": invalid syntax")),
    }
}

/// The options of the topology manager before the machine is known.
#[derive(Clone, Debug)]
pub struct TopologyOptions {
    pub policy: Policy,
    scope: Scope,
    prefer_closest: bool,
    most_nodes: usize,
}

impl TopologyOptions {
    /// The policy on a machine. Errors if it has too many nodes.
    pub fn on(&self, machine: &Topology) -> Result<TopologyPolicy, String> {
        let nodes: Nodes = machine.nodes.keys().copied().collect();
        if self.policy != Policy::None && machine.nodes.len() > self.most_nodes {
            return Err(format!("unsupported on machines with more than {} NUMA Nodes", self.most_nodes));
        }
        let distances = machine.nodes.iter().map(|(n, node)| (*n, node.distances.clone())).collect();
        let (policy, scope, prefer_closest) = (self.policy, self.scope, self.prefer_closest);
        Ok(TopologyPolicy { policy, scope, prefer_closest, nodes, distances })
    }
}

impl KubeletConfiguration {
    /// The policy of the CPU manager.
    pub fn cpu_policy(&self) -> &str {
        if self.cpu_manager_policy.is_empty() { "none" } else { &self.cpu_manager_policy }
    }

    /// The policy of the memory manager.
    pub fn memory_policy(&self) -> &str {
        if self.memory_manager_policy.is_empty() { "None" } else { &self.memory_manager_policy }
    }

    /// Whether containers may have stop signals of their own. Others have that of their image.
    pub fn has_stop_signals(&self) -> bool {
        self.has_gate("ContainerStopSignals", false)
    }

    fn has_gate(&self, name: &str, default: bool) -> bool {
        self.feature_gates.get(name).copied().unwrap_or(default)
    }

    /// The options of the CPU manager.
    pub fn cpu_options(&self) -> Result<CpuOptions, String> {
        let mut o = CpuOptions::default();
        for (name, value) in &self.cpu_manager_policy_options {
            let (field, level) = match name.as_str() {
                "full-pcpus-only" => (&mut o.full_cores_only, None),
                "strict-cpu-reservation" => (&mut o.strict_reservation, None),
                "prefer-align-cpus-by-uncorecache" => (&mut o.prefer_align_by_cache, None),
                "distribute-cpus-across-numa" => (&mut o.distribute_across_numa, Some(("Beta", true))),
                "align-by-socket" => (&mut o.align_by_socket, Some(("Alpha", false))),
                "distribute-cpus-across-cores" => (&mut o.distribute_across_cores, Some(("Alpha", false))),
                _ => return Err(format!("unknown CPU Manager Policy option: \"{name}\"")),
            };
            if let Some((level, _)) =
                level.filter(|(level, default)| !self.has_gate(&format!("CPUManagerPolicy{level}Options"), *default))
            {
                return Err(format!(
                    "CPU Manager Policy {level}-level Options not enabled, but option \"{name}\" provided"
                ));
            }
            *field = boolean(name, value)?;
        }
        for (a, b, names) in [
            (o.full_cores_only, o.distribute_across_cores, ["full-pcpus-only", "distribute-cpus-across-cores"]),
            (
                o.distribute_across_numa,
                o.distribute_across_cores,
                ["distribute-cpus-across-numa", "distribute-cpus-across-cores"],
            ),
            (
                o.prefer_align_by_cache,
                o.distribute_across_cores,
                ["prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"],
            ),
            (
                o.prefer_align_by_cache,
                o.distribute_across_numa,
                ["prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"],
            ),
        ] {
            if a && b {
                let [a, b] = names;
                return Err(format!("static policy options {a} and {b} can not be used at the same time"));
            }
        }
        Ok(o)
    }

    /// The reserved processors, or how many are reserved.
    pub fn reserved_cpus(&self) -> Result<Result<CpuSet, usize>, String> {
        if !self.reserved_system_cpus.is_empty() {
            return self.parse_reserved_cpus().map(Ok);
        }
        Ok(Err(usize::try_from(self.reserved("cpu").div_ceil(1000)).unwrap_or(usize::MAX)))
    }

    fn parse_reserved_cpus(&self) -> Result<CpuSet, String> {
        let text = &self.reserved_system_cpus;
        text.parse().map_err(|e| format!("unable to parse reservedSystemCPUs (--reserved-cpus) {text}, error: {e}"))
    }

    /// The policy of the topology manager.
    pub fn topology_policy(&self) -> Result<TopologyOptions, String> {
        let policy = match self.topology_manager_policy.as_str() {
            "" | "none" => Policy::None,
            "best-effort" => Policy::BestEffort,
            "restricted" => Policy::Restricted,
            "single-numa-node" => Policy::SingleNumaNode,
            other => {
                return Err(format!(
                    "topologyManagerPolicy (--topology-manager-policy) \"{other}\" must be one of: [\"none\" \"best-effort\" \
                     \"restricted\" \"single-numa-node\"]"
                ));
            }
        };
        let scope = match self.topology_manager_scope.as_str() {
            "" | "container" => Scope::Container,
            "pod" => Scope::Pod,
            other => {
                return Err(format!(
                    "topologyManagerScope (--topology-manager-scope) \"{other}\" must be one of: \"container\", or \"pod\""
                ));
            }
        };
        let mut out = TopologyOptions { policy, scope, prefer_closest: false, most_nodes: MAX_NODES };
        for (name, value) in &self.topology_manager_policy_options {
            match name.as_str() {
                "prefer-closest-numa-nodes" => out.prefer_closest = boolean(name, value)?,
                "max-allowable-numa-nodes" => {
                    out.most_nodes = value.parse().map_err(|_| {
                        format!(
                            "unable to convert policy option to integer \"{name}\": strconv.Atoi: parsing \"{value}\": invalid syntax"
                        )
                    })?;
                    if out.most_nodes < MAX_NODES {
                        return Err(format!("the minimum value of \"{name}\" should not be less than {MAX_NODES}"));
                    }
                }
                _ => return Err(format!("unknown Topology Manager Policy option: \"{name}\"")),
            }
        }
        Ok(out)
    }

    /// Reserved bytes by NUMA node. Errors unless they are in all what is not for pods.
    pub fn reserved_by_node(&self, machine: &Topology) -> Result<ReservedMemory, String> {
        let mut out = ReservedMemory::new();
        let mut sums: BTreeMap<&str, i64> = [("memory", 0)].into();
        for MemoryReservation { numa_node, limits } in &self.reserved_memory {
            if !machine.nodes.contains_key(numa_node) {
                return Err(format!(
                    "the reserved memory configuration references a NUMA node {numa_node} that does not exist on this machine"
                ));
            }
            for (resource, text) in limits {
                let bytes = Quantity::parse(text).map_err(|e| e.to_string())?.value();
                *sums.entry(resource).or_default() += bytes;
                let node = out.entry(*numa_node).or_default();
                *node.entry(resource.clone()).or_default() += u64::try_from(bytes).unwrap_or(0);
            }
        }
        let total = machine.nodes.values().map(|n| n.memory).sum();
        for (resource, sum) in sums {
            let kept = match resource {
                "memory" => self.reserved("memory") + self.hard_threshold(Signal::MemoryAvailable, total),
                _ => 0,
            };
            let kept = Quantity::binary(i64::try_from(kept).unwrap_or(i64::MAX));
            let sum = Quantity::binary(sum);
            if sum != kept {
                return Err(format!(
                    "the total amount \"{sum}\" of type \"{resource}\" is not equal to the value \"{kept}\" determined by Node \
                     Allocatable feature"
                ));
            }
        }
        Ok(out)
    }

    /// All errors of these fields.
    pub(super) fn manager_errors(&self) -> Vec<String> {
        let mut errors = Vec::new();
        let mut check = |result: Result<(), String>| errors.extend(result.err());
        let known = |policy: &str, all: [&str; 2]| match all.contains(&policy) {
            true => Ok(()),
            false => Err(format!("unknown policy: \"{policy}\"")),
        };
        check(known(self.cpu_policy(), ["none", "static"]));
        check(known(self.memory_policy(), ["None", "Static"]));
        check(self.cpu_options().map(drop));
        if self.cpu_policy() == "none" && !self.cpu_manager_policy_options.is_empty() {
            let options: Vec<String> =
                self.cpu_manager_policy_options.iter().map(|(k, v)| format!("{k}:{v}")).collect();
            check(Err(format!("None policy: received unsupported options=map[{}]", options.join(" "))));
        }
        check(self.topology_policy().map(drop));
        check(self.parse_reserved_cpus().map(drop));
        let mut seen = Vec::new();
        for MemoryReservation { numa_node, limits } in &self.reserved_memory {
            for (resource, text) in limits {
                let of = format!("for NUMA node {numa_node} and resource \"{resource}\"");
                if resource != "memory" && !resource.starts_with("hugepages-") {
                    check(Err(format!(
                        "the limit type \"{resource}\" for NUMA node {numa_node} is not supported, only [memory \
                         hugepages-<HugePageSize>] is accepted"
                    )));
                }
                match Quantity::parse(text) {
                    Ok(q) if q.sign() > 0 => {}
                    Ok(_) => check(Err(format!("reserved memory may not be zero {of}"))),
                    Err(e) => check(Err(format!("reservedMemory {text:?} {of}: {e}"))),
                }
                if seen.contains(&(numa_node, resource)) {
                    check(Err(format!("the reserved memory has a duplicate value {of}")));
                }
                seen.push((numa_node, resource));
            }
        }
        errors
    }
}
