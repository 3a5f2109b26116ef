//! Chooses processors for a container: pure (upstream `cpumanager/cpu_assignment.go`).
//!
//! [`packed`] takes whole sockets and NUMA nodes first, then cores, then single threads, and prefers the fullest groups, so that whole ones
//! stay free. [`spread`] takes single threads in the order of their numbers instead of whole cores. [`distributed`] divides what no single
//! NUMA node has evenly among as few nodes as possible.

use std::collections::BTreeMap;

use super::cpuset::CpuSet;
use super::topology::{Level, Topology};

/// Why no processors could be chosen. The texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssignError {
    #[error("not enough cpus available to satisfy request: requested={requested}, available={available}")]
    NotEnough { requested: usize, available: usize },
    #[error("failed to allocate cpus")]
    Failed,
    #[error("accounting error, not enough CPUs allocated, remaining: {0}")]
    Accounting(usize),
}

/// Whether processors that share a cache are preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caches {
    Ignored,
    Preferred,
}

struct Accumulator<'a> {
    topology: &'a Topology,
    free: CpuSet,
    needed: usize,
    taken: CpuSet,
}

impl<'a> Accumulator<'a> {
    fn new(topology: &'a Topology, available: &CpuSet, needed: usize) -> Result<Self, AssignError> {
        let free = available.intersection(&topology.all());
        if needed > free.len() {
            return Err(AssignError::NotEnough { requested: needed, available: available.len() });
        }
        Ok(Self { topology, free, needed, taken: CpuSet::default() })
    }

    fn is_satisfied(&self) -> bool {
        self.needed == 0
    }

    fn take(&mut self, cpus: &CpuSet) {
        self.taken = self.taken.union(cpus);
        self.free = self.free.difference(cpus);
        self.needed = self.needed.saturating_sub(cpus.len());
    }

    /// The groups of a level that have one of these processors, those with the fewest free ones first.
    fn sorted(&self, cpus: &CpuSet, level: Level) -> Vec<u32> {
        let mut groups: Vec<u32> = self.topology.groups(cpus, level).into_iter().collect();
        groups.sort_by_key(|g| (self.topology.within(&self.free, level, &[*g]).len(), *g));
        groups
    }

    /// The outer and the inner one of NUMA nodes and sockets.
    fn outer(&self) -> [Level; 2] {
        match self.topology.count(Level::Socket) >= self.topology.count(Level::Numa) {
            true => [Level::Numa, Level::Socket],
            false => [Level::Socket, Level::Numa],
        }
    }

    /// The groups of a level with free processors, sorted within the groups of outer levels.
    fn available(&self, level: Level) -> Vec<u32> {
        let [first, second] = self.outer();
        let below = |outer: Vec<u32>, at: Level| -> Vec<u32> {
            outer.into_iter().flat_map(|g| self.sorted(&self.topology.within(&self.free, at, &[g]), level)).collect()
        };
        match level {
            l if l == first => self.sorted(&self.free, first),
            l if l == second => below(self.available(first), first),
            Level::Cache => below(self.available(Level::Numa), Level::Numa),
            _ => below(self.available(second), second),
        }
    }

    /// Whether all processors of a group are free.
    fn is_free(&self, level: Level, group: u32) -> bool {
        let free = self.topology.within(&self.free, level, &[group]).len();
        let all = match level {
            // Upstream compares these with the average.
            Level::Socket | Level::Core => self.topology.per_group(level),
            Level::Numa | Level::Cache => self.topology.within(&self.topology.all(), level, &[group]).len(),
        };
        free == all
    }

    /// Takes whole free groups as long as that many processors are needed.
    fn take_full(&mut self, level: Level) {
        let free: Vec<u32> = self.available(level).into_iter().filter(|g| self.is_free(level, *g)).collect();
        for group in free {
            let cpus = self.topology.within(&self.topology.all(), level, &[group]);
            if self.needed >= cpus.len() {
                self.take(&cpus);
            }
        }
    }

    /// Takes whole free sockets and NUMA nodes.
    fn take_outer(&mut self) {
        for level in self.outer() {
            if !self.is_satisfied() {
                self.take_full(level);
            }
        }
    }

    /// Takes what is still needed as single processors, and returns all that were taken.
    fn taken_with_threads(mut self, level: Level) -> Result<CpuSet, AssignError> {
        if !self.is_satisfied() {
            self.take_threads(level);
        }
        if self.is_satisfied() { Ok(self.taken) } else { Err(AssignError::Failed) }
    }

    /// Takes what is needed from one cache, if it has as much.
    fn take_part_of_cache(&mut self, cache: u32) {
        let per_core = self.topology.per_group(Level::Core).max(1);
        let in_cache = self.topology.within(&self.free, Level::Cache, &[cache]);
        let cores = self.topology.groups(&in_cache, Level::Core);
        let cores: Vec<u32> = cores.into_iter().take(self.needed.div_ceil(per_core)).collect();
        let mut cpus: Vec<u32> = self.topology.within(&self.free, Level::Core, &cores).iter().collect();
        // Of the last core, an odd request needs one thread.
        if !self.needed.is_multiple_of(2) && per_core > 1 && cpus.len() > self.needed {
            cpus.pop();
        }
        if cpus.len() == self.needed {
            self.take(&cpus.into_iter().collect());
        }
    }

    fn take_from_caches(&mut self) {
        for cache in self.available(Level::Cache) {
            if self.needed >= self.topology.per_group(Level::Cache) {
                self.take_full(Level::Cache);
            }
            if self.is_satisfied() {
                return;
            }
            self.take_part_of_cache(cache);
            if self.is_satisfied() {
                return;
            }
        }
    }

    /// Takes single processors, one group of the level after the other.
    fn take_threads(&mut self, level: Level) {
        let groups = self.available(level);
        let threads =
            groups.into_iter().flat_map(|g| self.topology.within(&self.free, level, &[g]).iter().collect::<Vec<_>>());
        let threads: CpuSet = threads.take(self.needed).collect();
        self.take(&threads);
    }
}

/// Chooses processors that are as close together as possible.
pub fn packed(topology: &Topology, available: &CpuSet, count: usize, caches: Caches) -> Result<CpuSet, AssignError> {
    let mut a = Accumulator::new(topology, available, count)?;
    a.take_outer();
    if !a.is_satisfied() && caches == Caches::Preferred {
        a.take_from_caches();
    }
    if !a.is_satisfied() {
        a.take_full(Level::Core);
    }
    a.taken_with_threads(Level::Core)
}

/// Chooses processors of different cores where possible: Linux numbers the first threads of all cores before the second ones. Requests
/// of whole sockets and NUMA nodes get these.
pub fn spread(topology: &Topology, available: &CpuSet, count: usize) -> Result<CpuSet, AssignError> {
    let mut a = Accumulator::new(topology, available, count)?;
    a.take_outer();
    a.taken_with_threads(Level::Socket)
}

/// Calls `visit` with each selection of `size` of the items, in lexical order of their indices.
fn combinations(items: &[u32], size: usize, visit: &mut dyn FnMut(&[u32])) {
    fn walk(items: &[u32], size: usize, chosen: &mut Vec<u32>, visit: &mut dyn FnMut(&[u32])) {
        if size == 0 {
            return visit(chosen);
        }
        for (i, item) in items.iter().enumerate().take((items.len() + 1).saturating_sub(size)) {
            chosen.push(*item);
            walk(&items[i + 1..], size - 1, chosen, visit);
            chosen.pop();
        }
    }
    if size > 0 && size <= items.len() {
        walk(items, size, &mut Vec::new(), visit);
    }
}

/// The standard deviation in thousandths.
fn imbalance(left: &BTreeMap<u32, usize>) -> u64 {
    let thousandths = |v: f64| (v * 1000.0).round() / 1000.0;
    let count = left.len().max(1) as f64;
    let mean = thousandths(left.values().map(|v| *v as f64).sum::<f64>() / count);
    let squares: f64 = left.values().map(|v| (*v as f64 - mean).powi(2)).sum();
    ((squares / count).sqrt() * 1000.0).round() as u64
}

/// How processors are divided among NUMA nodes.
struct Division {
    nodes: Vec<u32>,
    /// Those that get one group more.
    remainder: Vec<u32>,
    imbalance: u64,
}

/// The best division among exactly these nodes; none if they have not enough.
fn divide(free: &BTreeMap<u32, usize>, nodes: &[u32], count: usize, group: usize) -> Option<Division> {
    let of = |node: &u32| free.get(node).copied().unwrap_or(0);
    let groups: usize = nodes.iter().map(|n| of(n) / group).sum();
    let each = count / nodes.len() / group * group;
    if nodes.iter().map(of).sum::<usize>() < count || groups * group < count || nodes.iter().any(|n| of(n) < each) {
        return None;
    }
    let mut left = free.clone();
    for node in nodes {
        left.entry(*node).and_modify(|n| *n -= each);
    }
    let remainder = count - each * nodes.len();
    if remainder == 0 {
        return Some(Division { nodes: nodes.to_vec(), remainder: Vec::new(), imbalance: imbalance(&left) });
    }
    let candidates: Vec<u32> = nodes.iter().copied().filter(|n| left.get(n).is_some_and(|l| *l >= group)).collect();
    let mut best: Option<Division> = None;
    for size in (1..=candidates.len()).rev() {
        combinations(&candidates, size, &mut |subset| {
            let (mut left, mut remainder) = (left.clone(), remainder);
            if subset.iter().filter_map(|n| left.get(n)).sum::<usize>() < remainder {
                return;
            }
            while remainder > 0 {
                let before = remainder;
                for node in subset {
                    let Some(n) = left.get_mut(node).filter(|n| **n >= group && remainder > 0) else { continue };
                    *n -= group;
                    remainder = remainder.saturating_sub(group);
                }
                if remainder == before {
                    return;
                }
            }
            let imbalance = imbalance(&left);
            if best.as_ref().is_none_or(|b| imbalance < b.imbalance) {
                best = Some(Division { nodes: nodes.to_vec(), remainder: subset.to_vec(), imbalance });
            }
        });
    }
    best
}

/// Chooses processors in groups of this size, evenly on as few NUMA nodes as have them.
pub fn distributed(topology: &Topology, available: &CpuSet, count: usize, group: usize) -> Result<CpuSet, AssignError> {
    let group = group.max(1);
    if !count.is_multiple_of(group) {
        return packed(topology, available, count, Caches::Ignored);
    }
    let mut a = Accumulator::new(topology, available, count)?;
    if a.is_satisfied() {
        return Ok(a.taken);
    }
    let nodes = a.available(Level::Numa);
    let free: BTreeMap<u32, usize> =
        nodes.iter().map(|n| (*n, topology.within(&a.free, Level::Numa, &[*n]).len())).collect();
    let groups = topology.cpus.len().div_ceil(group);
    let per_node = groups.div_ceil(topology.count(Level::Numa).max(1)).max(1);
    let needed = count.div_ceil(group);
    for size in needed.div_ceil(per_node)..=needed.min(nodes.len()) {
        let mut best: Option<Division> = None;
        combinations(&nodes, size, &mut |combination| {
            if best.as_ref().is_some_and(|b| b.imbalance == 0) {
                return;
            }
            let division = divide(&free, combination, count, group);
            if let Some(d) = division.filter(|d| best.as_ref().is_none_or(|b| d.imbalance < b.imbalance)) {
                best = Some(d);
            }
        });
        let Some(best) = best else { continue };
        let each = count / size / group * group;
        for node in &best.nodes {
            let cpus = packed(topology, &topology.within(&a.free, Level::Numa, &[*node]), each, Caches::Ignored)?;
            a.take(&cpus);
        }
        while !a.is_satisfied() {
            let before = a.needed;
            for node in &best.remainder {
                let there = topology.within(&a.free, Level::Numa, &[*node]);
                if !a.is_satisfied() && there.len() >= group {
                    let cpus = packed(topology, &there, group, Caches::Ignored)?;
                    a.take(&cpus);
                }
            }
            if a.needed == before {
                return Err(AssignError::Accounting(a.needed));
            }
        }
        return Ok(a.taken);
    }
    packed(topology, available, count, Caches::Ignored)
}

#[cfg(test)]
mod tests {
    use super::super::topology::machines::machine;
    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    /// One socket with hyper-threads: cores 0-3, threads 4-7. Two sockets: cores 0-2 and 3-5, threads 6-8 and 9-11. Two sockets with
    /// two nodes of four cores each and no hyper-threads.
    #[test]
    fn processors_are_packed() {
        let (one, two, four) = (machine(1, 1, 4, 2), machine(2, 1, 3, 2), machine(2, 2, 4, 1));
        for (topology, available, count, expected) in [
            (&one, "0-7", 1, "0"),
            (&one, "0-7", 2, "0,4"),
            (&one, "0-7", 3, "0-1,4"),
            (&one, "0-7", 8, "0-7"),
            // A thread of a core that is partly taken.
            (&one, "1-7", 1, "4"),
            (&one, "1-3,5-7", 2, "1,5"),
            (&two, "0-11", 2, "0,6"),
            (&two, "0-11", 6, "0-2,6-8"),
            (&two, "0-11", 8, "0-3,6-9"),
            // The socket with fewer free processors.
            (&two, "1-11", 1, "6"),
            (&two, "1-5,7-11", 2, "1,7"),
            // A whole socket is free, but too many for it.
            (&two, "1-5,7-11", 6, "3-5,9-11"),
            (&four, "0-15", 4, "0-3"),
            (&four, "0-15", 8, "0-7"),
            (&four, "1-15", 3, "1-3"),
            // A whole node of the socket that is fuller.
            (&four, "1-15", 4, "4-7"),
            (&four, "1-15", 8, "8-15"),
            (&one, "0-7", 0, ""),
        ] {
            let taken = packed(topology, &set(available), count, Caches::Ignored).unwrap();
            assert_eq!(taken.to_string(), expected, "{count} of {available}");
        }
        let error = packed(&one, &set("0-2"), 4, Caches::Ignored).unwrap_err().to_string();
        assert_eq!(error, "not enough cpus available to satisfy request: requested=4, available=3");
    }

    #[test]
    fn processors_are_spread_among_cores() {
        let (one, two, four) = (machine(1, 1, 4, 2), machine(2, 1, 3, 2), machine(2, 2, 2, 2));
        for (topology, available, count, expected) in [
            (&one, "0-7", 1, "0"),
            (&one, "0-7", 4, "0-3"),
            (&one, "1-7", 4, "1-4"),
            // More than there are cores.
            (&one, "0-7", 5, "0-4"),
            // The threads that are left are those of one core.
            (&one, "0,4", 2, "0,4"),
            (&two, "0-11", 3, "0-2"),
            // A whole socket is taken as such, and the rest from the other one.
            (&two, "0-11", 8, "0-4,6-8"),
            // The socket with fewer free processors first.
            (&two, "1-11", 2, "1-2"),
            (&two, "0-3,6-8,10-11", 2, "3,10"),
            (&four, "1-15", 4, "2-3,10-11"),
            (&four, "1-15", 3, "1-3"),
            (&one, "0-7", 0, ""),
        ] {
            let taken = spread(topology, &set(available), count).unwrap();
            assert_eq!(taken.to_string(), expected, "{count} of {available}");
        }
        let error = spread(&one, &set("0-2"), 4).unwrap_err().to_string();
        assert_eq!(error, "not enough cpus available to satisfy request: requested=4, available=3");
    }

    #[test]
    fn caches_are_kept_together() {
        // One node of sixteen cores, in four caches.
        let mut topology = machine(1, 1, 16, 1);
        for (cpu, place) in &mut topology.cpus {
            place.cache = cpu / 4;
        }
        for (available, count, plain, cached) in [
            ("0-15", 4, "0-3", "0-3"),
            ("0-15", 6, "0-5", "0-5"),
            // No cache has as many left as the second, of which less is free than of others.
            ("2-15", 4, "2-5", "4-7"),
            ("2-15", 2, "2-3", "2-3"),
            ("2-15", 3, "2-4", "4-6"),
            ("1-3,5-15", 6, "1-3,5-7", "1-2,8-11"),
        ] {
            let take = |caches| packed(&topology, &set(available), count, caches).unwrap().to_string();
            assert_eq!(
                (take(Caches::Ignored).as_str(), take(Caches::Preferred).as_str()),
                (plain, cached),
                "{available}"
            );
        }
    }

    #[test]
    fn processors_are_distributed() {
        let (two, four) = (machine(2, 1, 4, 1), machine(2, 2, 4, 1));
        for (topology, available, count, group, expected) in [
            (&two, "0-7", 4, 1, "0-3"),
            (&two, "0-7", 6, 1, "0-2,4-6"),
            (&two, "0-7", 5, 1, "0-2,4-5"),
            (&two, "0-7", 8, 1, "0-7"),
            // The second node has more.
            (&two, "2-7", 3, 1, "4-6"),
            (&two, "2-7", 5, 1, "2-3,4-6"),
            (&four, "0-15", 6, 1, "0-2,4-6"),
            (&four, "0-15", 12, 1, "0-11"),
            (&four, "0-15", 6, 2, "0-3,4-5"),
        ] {
            let taken = distributed(topology, &set(available), count, group).unwrap();
            assert_eq!(taken, set(expected), "{count} of {available} by {group}: {taken}");
        }
        let threads = machine(2, 1, 4, 2);
        let taken = distributed(&threads, &set("0-15"), 10, 2).unwrap();
        assert_eq!(taken, set("0-2,8-10,4-5,12-13"), "whole cores: {taken}");
        // It cannot be done in whole groups.
        assert_eq!(distributed(&threads, &set("0-15"), 3, 2).unwrap(), set("0-1,8"));
        assert!(distributed(&two, &set("0-2"), 4, 1).is_err());
    }
}
