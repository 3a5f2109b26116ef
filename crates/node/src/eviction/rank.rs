//! The order in which pods are evicted: pure (upstream `rankMemoryPressure` and its siblings).
//!
//! Pods that use more than they request come first, then those of lower priority, then those that use most beyond their requests. A pod
//! whose usage is unknown comes before all others. Nobody requests process ids: if these are short, priority comes first, also before
//! unknown usage.

use std::cmp::Reverse;

use super::observe::Layout;
use crate::configuration::{Signal, Starved};

/// Bytes and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    pub bytes: i64,
    pub inodes: i64,
}

impl std::ops::Add for Disk {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_add(other.bytes), inodes: self.inodes.saturating_add(other.inodes) }
    }
}

/// What a container uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerUsage {
    pub name: String,
    /// Bytes of its working set.
    pub memory: i64,
    /// Its writable layer.
    pub layer: Disk,
    pub log: Disk,
}

/// What a pod uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodUsage {
    /// Bytes of its working set.
    pub memory: i64,
    pub processes: i64,
    pub containers: Vec<ContainerUsage>,
    /// Its volumes on the node's disk.
    pub volumes: Disk,
}

/// A pod that may be evicted.
#[derive(Clone, Debug, Default)]
pub struct Candidate {
    pub uid: String,
    pub priority: i64,
    /// Bytes that it requests.
    pub memory: i64,
    pub storage: i64,
    /// `None` if it is unknown.
    pub usage: Option<PodUsage>,
}

/// The parts of a pod's usage of disk that count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Parts {
    layers: bool,
    logs_and_volumes: bool,
}

fn parts(signal: Signal, layout: Layout) -> Parts {
    let is_image = matches!(signal, Signal::ImageFsAvailable | Signal::ImageFsInodesFree);
    let is_node = matches!(signal, Signal::NodeFsAvailable | Signal::NodeFsInodesFree);
    match layout {
        Layout::OneFileSystem => Parts { layers: true, logs_and_volumes: true },
        Layout::ImagesApart => Parts { layers: !is_node, logs_and_volumes: is_node },
        Layout::ContainersApart => Parts { layers: !is_image, logs_and_volumes: !is_image },
    }
}

impl PodUsage {
    fn disk(&self, parts: Parts) -> Disk {
        let of_container = |c: &ContainerUsage| {
            let layer = if parts.layers { c.layer } else { Disk::default() };
            let log = if parts.logs_and_volumes { c.log } else { Disk::default() };
            layer + log
        };
        let volumes = if parts.logs_and_volumes { self.volumes } else { Disk::default() };
        self.containers.iter().map(of_container).fold(volumes, |sum, d| sum + d)
    }
}

/// Usage and request of what the signal measures.
fn amounts(candidate: &Candidate, signal: Signal, layout: Layout) -> Option<(i64, i64)> {
    let usage = candidate.usage.as_ref()?;
    Some(match signal.starved() {
        Starved::Memory => (usage.memory, candidate.memory),
        Starved::Storage => (usage.disk(parts(signal, layout)).bytes, candidate.storage),
        Starved::Inodes => (usage.disk(parts(signal, layout)).inodes, 0),
        Starved::Pids => (usage.processes, 0),
    })
}

/// Sorts pods, the first to evict first.
pub fn rank(candidates: &mut [Candidate], signal: Signal, layout: Layout) {
    let compare = |a: &Candidate, b: &Candidate| {
        let known = (amounts(a, signal, layout), amounts(b, signal, layout));
        let priority = a.priority.cmp(&b.priority);
        if signal.starved() == Starved::Pids {
            let used = |c: Option<(i64, i64)>| Reverse(c.map_or(i64::MAX, |(used, _)| used));
            return priority.then(used(known.0).cmp(&used(known.1)));
        }
        let (Some((a_used, a_request)), Some((b_used, b_request))) = known else {
            return known.0.is_some().cmp(&known.1.is_some()).then(priority);
        };
        let exceeds = Reverse(a_used > a_request).cmp(&Reverse(b_used > b_request));
        // Upstream subtracts the request of bytes from inodes, too.
        let request = |c: &Candidate, own: i64| if signal.starved() == Starved::Inodes { c.storage } else { own };
        let beyond = |c: &Candidate, used: i64, own: i64| Reverse(used.saturating_sub(request(c, own)));
        let usage = beyond(a, a_used, a_request).cmp(&beyond(b, b_used, b_request));
        exceeds.then(priority).then(usage)
    };
    candidates.sort_by(compare);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, priority, requested memory and storage, used memory, layer, log with volumes, processes.
    fn candidate(
        (uid, priority, memory, storage, used): (&str, i64, i64, i64, Option<(i64, i64, i64, i64)>),
    ) -> Candidate {
        let usage = used.map(|(memory, layer, volumes, processes)| {
            let disk = |bytes| Disk { bytes, inodes: bytes };
            let container = ContainerUsage { name: "c".into(), memory, layer: disk(layer), log: Disk::default() };
            PodUsage { memory, processes, containers: vec![container], volumes: disk(volumes) }
        });
        Candidate { uid: uid.into(), priority, memory, storage, usage }
    }

    #[test]
    fn pods_are_ranked_by_excess_priority_and_usage() {
        let all = || -> Vec<Candidate> {
            [
                ("modest", 0, 100, 100, Some((90, 10, 10, 1))),
                ("greedy", 0, 100, 100, Some((300, 200, 10, 3))),
                ("greedier", 0, 10, 0, Some((250, 10, 300, 2))),
                ("important", 10, 0, 0, Some((900, 900, 900, 9))),
                ("within", -5, 1000, 1000, Some((999, 5, 5, 5))),
                ("unknown", 100, 0, 0, None),
            ]
            .map(candidate)
            .into()
        };
        use Layout::{ContainersApart, ImagesApart, OneFileSystem};
        for (signal, layout, expected) in [
            (Signal::MemoryAvailable, OneFileSystem, "unknown greedier greedy important within modest"),
            (Signal::AllocatableMemoryAvailable, OneFileSystem, "unknown greedier greedy important within modest"),
            (Signal::NodeFsAvailable, OneFileSystem, "unknown greedier greedy important within modest"),
            // Only volumes and logs count.
            (Signal::NodeFsAvailable, ImagesApart, "unknown greedier important within modest greedy"),
            // Only writable layers count.
            (Signal::ImageFsAvailable, ImagesApart, "unknown greedy greedier important within modest"),
            (Signal::ContainerFsAvailable, ImagesApart, "unknown greedy greedier important within modest"),
            // Nothing of a pod counts.
            (Signal::ImageFsAvailable, ContainersApart, "unknown within greedier modest greedy important"),
            (Signal::ContainerFsAvailable, ContainersApart, "unknown greedier greedy important within modest"),
            // Everything is more than no request; then usage less the request of storage.
            (Signal::NodeFsInodesFree, OneFileSystem, "unknown within greedier greedy modest important"),
            (Signal::PidAvailable, OneFileSystem, "within greedy greedier modest important unknown"),
        ] {
            let mut ranked = all();
            rank(&mut ranked, signal, layout);
            let names: Vec<&str> = ranked.iter().map(|c| c.uid.as_str()).collect();
            assert_eq!(names.join(" "), expected, "{signal:?} {layout:?}");
        }
    }
}
