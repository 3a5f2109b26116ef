//! Volumes with a size: files below the directory of the node's volumes, which loop devices show as file systems or as devices.
//!
//! The file of the volume `pvc-UID` is `pvc-UID.img`. A file system is mounted for each pod, at a directory of the pod, and its loop device
//! goes with the last mount. A device of a pod (`volumeMode: Block`) has a record in the directory of the pod, and is detached with the
//! last record. **Invariants.** A file has one loop device at a time: operations on a file exclude each other. A file with its final name
//! is complete. A file that was never used by a pod is read-only, so that it is known whether a killed agent left it or a pod has data in it.
//! Programs of pods may detach a loop device that they have as a device: the agent keeps it open, and never gives the number that
//! one pod had to a volume of another one.
//!
//! [`making`], [`growth`], [`mounts`] and [`devices`] are what is done with a volume; [`files`] is what that does on the disk.
//!
//! Left out: snapshots, and copies of volumes that pods use.

mod devices;
mod error;
mod files;
mod format;
mod growth;
mod making;
mod mounts;
mod programs;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;
use parking_lot::Mutex;
use runtime::beneath::unmount_below;
use runtime::loop_device::LoopDevice;
use supervisor::blocking;
use tokio::sync::OwnedMutexGuard;

pub use devices::TYPE_DIRECTORY;
use devices::records;
pub use error::Error;
use files::{FILE, TEMPORARY, UNFINISHED, UNUSED, open, split};
pub use format::{FileOptions, Format};
pub use growth::Contents;
use programs::run;

/// A volume of this node that is a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileVolume {
    pub name: String,
    pub format: Format,
}

/// The volumes of a node that are files.
#[derive(Debug)]
pub struct FileVolumes {
    /// The directory of the volumes of the node, an absolute path without links.
    root: PathBuf,
    /// The directory of pods, with the records of their devices.
    pods: PathBuf,
    allocation: Arc<files::Allocation>,
    locks: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Devices that pods have, open as long as they do.
    held: Mutex<BTreeMap<String, LoopDevice>>,
}

/// Whether a file can have this name: `pvc-` and a UID.
pub fn is_volume_name(name: &str) -> bool {
    let uid = name.strip_prefix("pvc-").unwrap_or_default();
    (1..=64).contains(&uid.len()) && uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// Why this machine cannot make volumes of this format; `None` if it can.
pub fn obstacle(format: Format) -> Option<String> {
    if let Err(e) = runtime::loop_device::check_available() {
        return Some(e.to_string());
    }
    let place = Path::new("/");
    let programs = [format.make(place, false), format.check(place, false), format.grow(place, Some(place))];
    let missing = programs.into_iter().flatten().map(|(p, _)| p).find(|p| !programs::is_installed(*p))?;
    Some(format!("{} is not installed (package {})", missing.name, missing.package))
}

impl FileVolumes {
    pub fn new(root: PathBuf, pods: PathBuf) -> Self {
        Self { root, pods, allocation: Arc::default(), locks: Mutex::default(), held: Mutex::default() }
    }

    /// The path of the file of a volume.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(format!("{name}.{FILE}"))
    }

    /// The volume if it is a file of this node: its path is the one that belongs to its name.
    pub fn recognize(&self, volume: &PersistentVolume) -> Option<FileVolume> {
        let name = volume.metadata.name.clone().filter(|n| is_volume_name(n))?;
        let spec = volume.spec.as_ref()?;
        let local = spec.local.as_ref().filter(|l| Path::new(&l.path) == self.path(&name))?;
        let format = match spec.volume_mode.as_deref() {
            Some("Block") => Format::Raw,
            _ => Format::parse(local.fs_type.as_deref().unwrap_or_default())?,
        };
        Some(FileVolume { name, format })
    }

    /// Excludes other operations on the file.
    async fn lock(&self, name: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.locks.lock();
            locks.retain(|_, l| Arc::strong_count(l) > 1);
            locks.entry(name.to_owned()).or_default().clone()
        };
        lock.lock_owned().await
    }

    /// Removes what a killed agent left unfinished, and opens the devices that pods have.
    pub async fn recover(&self) {
        let root = self.root.clone();
        blocking(move || {
            if let Err(error) = unmount_below(&root) {
                tracing::warn!(%error, "unmounting an unfinished volume failed");
            }
            for entry in fs::read_dir(&root).into_iter().flatten().flatten() {
                match split(&entry.path()) {
                    Some((_, UNFINISHED)) => drop(fs::remove_file(entry.path())),
                    Some((_, TEMPORARY)) => drop(fs::remove_dir(entry.path())),
                    _ => {}
                }
            }
        })
        .await;
        let pods = self.pods.clone();
        for (_, name) in blocking(move || records(&pods)).await {
            let _guard = self.lock(&name).await;
            let path = self.path(&name);
            let found = blocking(move || open(&path).ok().and_then(|f| LoopDevice::find(&f).ok().flatten())).await;
            if let Some(device) = found {
                self.held.lock().insert(name, device);
            }
        }
    }

    /// The names of volumes whose files no pod has used.
    pub async fn unused(&self) -> Vec<String> {
        let root = self.root.clone();
        blocking(move || {
            let entries = fs::read_dir(root).into_iter().flatten().flatten();
            let is_unused = |p: &Path| fs::symlink_metadata(p).is_ok_and(|m| m.mode() & 0o7777 == UNUSED);
            let names = entries.map(|e| e.path()).filter(|p| is_unused(p));
            names.filter_map(|p| Some(split(&p).filter(|(_, kind)| *kind == FILE)?.0.to_owned())).collect()
        })
        .await
    }

    /// Repairs a file system that is not mounted. Errors if that needs a person.
    async fn check(&self, format: Format, is_full: bool, file: &Path, shown: &Path) -> Result<(), Error> {
        let Some((program, arguments)) = format.check(file, is_full) else { return Ok(()) };
        let ended = match run(program, &arguments).await {
            // As kubelet does: the kernel refuses what it cannot mount.
            Err(Error::Missing { .. }) if !is_full => return Ok(()),
            ended => ended?,
        };
        let device = shown.display().to_string();
        match ended.status.code() {
            Some(0) => Ok(()),
            Some(1..=3) => {
                tracing::info!(device, output = ended.output, "the file system of a volume was repaired");
                Ok(())
            }
            Some(code) if code & 4 != 0 => Err(Error::Damaged { device, output: ended.output }),
            _ => Err(ended.failed(program)),
        }
    }
}

#[cfg(test)]
mod tests;
