//! The processors and memory of a machine: sockets, NUMA nodes, caches and cores (`/sys/devices/system`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::cpuset::CpuSet;

/// The levels at which processors are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Numa,
    Socket,
    /// The last level of caches that cores share.
    Cache,
    Core,
}

/// Where a processor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub numa: u32,
    pub socket: u32,
    pub cache: u32,
    /// The lowest number of a processor of the core.
    pub core: u32,
}

impl Place {
    fn at(self, level: Level) -> u32 {
        match level {
            Level::Numa => self.numa,
            Level::Socket => self.socket,
            Level::Cache => self.cache,
            Level::Core => self.core,
        }
    }
}

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaNode {
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes in huge pages by name of the resource.
    pub hugepages: BTreeMap<String, u64>,
    /// The distances to all nodes, in their order.
    pub distances: Vec<u64>,
}

/// The topology of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    pub cpus: BTreeMap<u32, Place>,
    pub nodes: BTreeMap<u32, NumaNode>,
}

impl Topology {
    pub fn all(&self) -> CpuSet {
        self.cpus.keys().copied().collect()
    }

    /// The numbers of the groups of these processors.
    pub fn groups(&self, cpus: &CpuSet, level: Level) -> BTreeSet<u32> {
        cpus.iter().filter_map(|c| Some(self.cpus.get(&c)?.at(level))).collect()
    }

    /// Those of the processors that are in one of the groups.
    pub fn within(&self, cpus: &CpuSet, level: Level, groups: &[u32]) -> CpuSet {
        let is_in = |c: &u32| self.cpus.get(c).is_some_and(|place| groups.contains(&place.at(level)));
        cpus.iter().filter(is_in).collect()
    }

    pub fn count(&self, level: Level) -> usize {
        self.groups(&self.all(), level).len()
    }

    /// Processors in each group, if they are evenly distributed.
    pub fn per_group(&self, level: Level) -> usize {
        self.cpus.len().checked_div(self.count(level)).unwrap_or(0)
    }
}

/// Reads the topology of a machine.
pub trait TopologySource: Send + Sync {
    fn read(&self) -> std::io::Result<Topology>;
}

/// The topology in `/sys`.
pub struct Sysfs {
    root: PathBuf,
}

impl Default for Sysfs {
    fn default() -> Self {
        Self { root: "/sys/devices/system".into() }
    }
}

impl Sysfs {
    #[cfg(test)]
    fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }
}

fn text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|t| t.trim().to_owned())
}

fn list(path: &Path) -> Option<CpuSet> {
    text(path)?.parse().ok()
}

fn numa_node(directory: &Path) -> NumaNode {
    let info = text(&directory.join("meminfo")).unwrap_or_default();
    let total = info.lines().find_map(|l| l.split_once("MemTotal:")?.1.trim().strip_suffix("kB")?.trim().parse().ok());
    let distances = text(&directory.join("distance")).unwrap_or_default();
    NumaNode {
        memory: total.unwrap_or(0_u64) * 1024,
        hugepages: crate::hugepages::read(&directory.join("hugepages")),
        distances: distances.split_ascii_whitespace().filter_map(|d| d.parse().ok()).collect(),
    }
}

impl TopologySource for Sysfs {
    fn read(&self) -> std::io::Result<Topology> {
        let online = self.root.join("cpu/online");
        let unreadable = || std::io::Error::other(format!("{} has no list of processors", online.display()));
        let cpus = list(&online).ok_or_else(unreadable)?;
        let mut nodes = BTreeMap::new();
        let mut numa_of = BTreeMap::new();
        for node in list(&self.root.join("node/online")).unwrap_or_default().iter() {
            let directory = self.root.join(format!("node/node{node}"));
            numa_of.extend(list(&directory.join("cpulist")).unwrap_or_default().iter().map(|c| (c, node)));
            nodes.insert(node, numa_node(&directory));
        }
        if nodes.is_empty() {
            // A kernel without NUMA.
            let memory = crate::node::meminfo("MemTotal")?;
            nodes.insert(0, NumaNode { memory, distances: vec![10], ..NumaNode::default() });
        }
        let place = |cpu: u32| {
            let directory = self.root.join(format!("cpu/cpu{cpu}"));
            let siblings = ["core_cpus_list", "thread_siblings_list"];
            let siblings = siblings.iter().find_map(|f| list(&directory.join("topology").join(f)));
            let core = siblings.and_then(|s| s.iter().next()).unwrap_or(cpu);
            let socket = text(&directory.join("topology/physical_package_id")).and_then(|n| n.parse().ok());
            let socket = socket.unwrap_or(0);
            let cache = text(&directory.join("cache/index3/id")).and_then(|n| n.parse().ok());
            Place { numa: numa_of.get(&cpu).copied().unwrap_or(0), socket, cache: cache.unwrap_or(socket), core }
        };
        Ok(Topology { cpus: cpus.iter().map(|c| (c, place(c))).collect(), nodes })
    }
}

#[cfg(test)]
pub mod machines {
    use super::*;

    /// A machine of this many sockets, NUMA nodes in a socket, cores in a node and threads in a core. The threads of a core are as far
    /// apart as there are cores, as Linux numbers them. Each node has 8 GiB of memory.
    pub fn machine(sockets: u32, nodes: u32, cores: u32, threads: u32) -> Topology {
        let all_cores = sockets * nodes * cores;
        let mut cpus = BTreeMap::new();
        for core in 0..all_cores {
            let numa = core / cores;
            let place = Place { numa, socket: numa / nodes, cache: numa, core };
            cpus.extend((0..threads).map(|t| (core + t * all_cores, place)));
        }
        let all = sockets * nodes;
        let nodes = (0..all)
            .map(|n| {
                let distances = (0..all).map(|other| if n == other { 10 } else { 20 + u64::from(n.abs_diff(other)) });
                (n, NumaNode { memory: 8 << 30, distances: distances.collect(), ..NumaNode::default() })
            })
            .collect();
        Topology { cpus, nodes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_read_from_sys() {
        let directory = tempfile::tempdir().unwrap();
        let write = |path: &str, content: &str| {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{content}\n")).unwrap();
        };
        write("cpu/online", "0-3");
        for (cpu, package, siblings, cache) in [(0, 0, "0,2", 7), (1, 1, "1,3", 8), (2, 0, "0,2", 7), (3, 1, "1,3", 8)]
        {
            write(&format!("cpu/cpu{cpu}/topology/physical_package_id"), &package.to_string());
            write(&format!("cpu/cpu{cpu}/topology/core_cpus_list"), siblings);
            write(&format!("cpu/cpu{cpu}/cache/index3/id"), &cache.to_string());
        }
        write("node/online", "0-1");
        for (node, cpus) in [(0, "0,2"), (1, "1,3")] {
            write(&format!("node/node{node}/cpulist"), cpus);
            write(
                &format!("node/node{node}/meminfo"),
                &format!("Node {node} MemTotal:  1024 kB\nNode {node} MemFree: 1 kB"),
            );
            write(&format!("node/node{node}/distance"), "10 21");
            write(&format!("node/node{node}/hugepages/hugepages-2048kB/nr_hugepages"), "3");
        }
        let read = Sysfs::at(directory.path()).read().unwrap();
        let place = |numa, core| Place { numa, socket: numa, cache: 7 + numa, core };
        assert_eq!(read.cpus, [(0, place(0, 0)), (1, place(1, 1)), (2, place(0, 0)), (3, place(1, 1))].into());
        assert_eq!(read.nodes[&1].memory, 1 << 20);
        assert_eq!(read.nodes[&0].hugepages, [("hugepages-2Mi".to_owned(), 6 << 20)].into());
        assert_eq!(read.nodes[&0].distances, [10, 21]);
        assert_eq!((read.count(Level::Core), read.per_group(Level::Core)), (2, 2));
    }

    #[test]
    fn this_machine_has_processors() {
        let own = Sysfs::default().read().unwrap();
        assert!(!own.cpus.is_empty() && own.nodes.values().any(|n| n.memory > 0), "{own:?}");
    }
}
