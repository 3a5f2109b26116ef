//! Observes what a node has left of memory, file systems and process ids.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::configuration::Signal;
use crate::node::{meminfo, most_pids, processes};
use runtime::Host;

/// How the files of images, containers and pods are distributed among file systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// All of them are on one.
    OneFileSystem,
    /// Images and writable layers are on another one than volumes.
    ImagesApart,
    /// Images are on another one than writable layers and volumes.
    ContainersApart,
}

/// What is available of a resource, and the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    pub available: i64,
    pub capacity: i64,
}

/// What was observed at one time. A signal that could not be observed is missing.
pub type Observations = BTreeMap<Signal, Observation>;

/// Observes a node. Calls may block.
pub trait NodeObserver: Send + Sync {
    fn layout(&self) -> Layout;
    fn observe(&self) -> Observations;
}

/// Observes this machine.
pub struct MachineObserver {
    /// The directory of pods and volumes.
    data_dir: PathBuf,
    /// The directories of images and of writable layers.
    images: PathBuf,
    containers: PathBuf,
    /// Bytes of memory that are reserved for other programs than pods.
    reserved_memory: u64,
    host: Arc<dyn Host>,
}

impl MachineObserver {
    /// `runtime` is the directory of the runtime, and `reserved_memory` what is reserved for other programs than pods.
    pub fn new(data_dir: PathBuf, runtime: &Path, reserved_memory: u64, host: Arc<dyn Host>) -> Self {
        let (images, containers) = (runtime.join("images"), runtime.join("pods"));
        Self { data_dir, images, containers, reserved_memory, host }
    }
}

fn amount(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

impl NodeObserver for MachineObserver {
    fn layout(&self) -> Layout {
        let device = |path: &Path| std::fs::metadata(path).map(|m| m.dev()).ok();
        let [node, images, containers] = [&self.data_dir, &self.images, &self.containers].map(|p| device(p));
        match (images.is_some() && images != node, containers == images) {
            (false, _) => Layout::OneFileSystem,
            (true, true) => Layout::ImagesApart,
            (true, false) => Layout::ContainersApart,
        }
    }

    fn observe(&self) -> Observations {
        let mut out = Observations::new();
        let mut add = |signal, available: u64, capacity: u64| {
            out.insert(signal, Observation { available: amount(available), capacity: amount(capacity) });
        };
        if let (Ok(total), Ok(free), Ok(inactive)) =
            (meminfo("MemTotal"), meminfo("MemFree"), meminfo("Inactive(file)"))
        {
            // The working set, as cAdvisor counts that of the machine.
            let used = total.saturating_sub(free).saturating_sub(inactive);
            add(Signal::MemoryAvailable, total.saturating_sub(used), total);
            let for_pods = total.saturating_sub(self.reserved_memory);
            let by_pods = self.host.usage("kubepods").working_set;
            add(Signal::AllocatableMemoryAvailable, for_pods.saturating_sub(by_pods), for_pods);
        }
        for (path, bytes, inodes) in [
            (&self.data_dir, Signal::NodeFsAvailable, Signal::NodeFsInodesFree),
            (&self.images, Signal::ImageFsAvailable, Signal::ImageFsInodesFree),
            (&self.containers, Signal::ContainerFsAvailable, Signal::ContainerFsInodesFree),
        ] {
            let Ok(s) = nix::sys::statvfs::statvfs(path.as_path()) else { continue };
            let size = |blocks: u64| blocks.saturating_mul(s.fragment_size());
            add(bytes, size(s.blocks_available()), size(s.blocks()));
            // Some file systems have no limit of inodes, and say 0.
            if s.files() > 0 {
                add(inodes, s.files_free(), s.files());
            }
        }
        if let Some(most) = most_pids() {
            add(Signal::PidAvailable, most.saturating_sub(processes()), most);
        }
        out
    }
}
