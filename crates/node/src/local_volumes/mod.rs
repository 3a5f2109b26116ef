//! PersistentVolumes of the type `local`: directories and block devices of this node (upstream `pkg/volume/local`).
//!
//! A device with a file system is mounted once, at `plugins/kubernetes.io/local-volume/mounts/NAME`, and bound into each pod. **Invariants.** A pod
//! that has a volume, or may have it, has the directory `volumes/kubernetes.io~local-volume/NAME`, from before the device is mounted: what no
//! pod's directory names is unmounted, also by a new agent. Operations on a volume exclude each other, and so does formatting a device.
//! Only an empty device is formatted, that no pod has and nothing on the machine uses.
//!
//! [`device`] runs the machine's programs for file systems, [`raw`] notes which devices pods have without one.

mod device;
mod error;
mod raw;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use parking_lot::Mutex;
use supervisor::blocking;
use tokio::sync::OwnedMutexGuard;

use crate::csi::paths::is_mounted;
use crate::file_volumes::TYPE_DIRECTORY;
use crate::volumes::mount_program;
pub use error::Error;
use error::failed;

const DEFAULT_FILE_SYSTEM: &str = "ext4";

/// A `local` persistent volume that is a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalVolume {
    pub name: String,
    pub path: PathBuf,
    /// The file system of a device (`spec.local.fsType`).
    pub file_system: String,
    pub mount_options: Vec<String>,
}

/// What is at the path of a volume.
enum Source {
    Directory,
    Device(u64),
}

/// A volume that a pod can mount.
#[derive(Debug, PartialEq, Eq)]
pub struct Prepared {
    pub path: PathBuf,
    /// Another pod has the volume, too.
    pub is_shared: bool,
}

/// The `local` volumes of a node.
#[derive(Debug)]
pub struct LocalVolumes {
    /// Where devices are mounted.
    mounts: PathBuf,
    /// The directory of pods.
    pods: PathBuf,
    locks: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl LocalVolume {
    /// `None` if the volume is of another type, or a device for pods.
    pub fn from_volume(volume: &PersistentVolume) -> Option<Self> {
        let spec = volume.spec.as_ref().filter(|s| s.volume_mode.as_deref() != Some("Block"))?;
        let source = spec.local.as_ref()?;
        let file_system = source.fs_type.clone().filter(|t| !t.is_empty());
        Some(Self {
            name: volume.metadata.name.clone().filter(|n| is_plain(n))?,
            path: source.path.clone().into(),
            file_system: file_system.unwrap_or_else(|| DEFAULT_FILE_SYSTEM.into()),
            mount_options: spec.mount_options.clone().unwrap_or_default(),
        })
    }

    async fn source(&self) -> Result<Source, Error> {
        let path = self.path.clone();
        blocking(move || match fs::metadata(&path) {
            Ok(m) if m.is_dir() => Ok(Source::Directory),
            Ok(m) if m.file_type().is_block_device() => Ok(Source::Device(m.rdev())),
            Ok(_) => Err(Error::Unsupported),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(Error::Missing(path)),
            Err(source) => Err(Error::Unreadable { path, source }),
        })
        .await
    }
}

impl LocalVolumes {
    /// `pods`: the directory of pods, below that of the kubelet.
    pub fn new(pods: PathBuf) -> Self {
        let mounts = pods.with_file_name("plugins").join("kubernetes.io/local-volume/mounts");
        Self { mounts, pods, locks: Mutex::default() }
    }

    fn place(&self, pod: &str, name: &str) -> PathBuf {
        place_of(&self.pods, pod, name)
    }

    async fn lock(&self, key: String) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.locks.lock();
            locks.retain(|_, l| Arc::strong_count(l) > 1);
            locks.entry(key).or_default().clone()
        };
        lock.lock_owned().await
    }

    /// Where a pod finds the files of a volume.
    pub async fn path(&self, volume: &LocalVolume, pod: &str) -> PathBuf {
        let place = self.place(pod, &volume.name);
        let bound = place.clone();
        if blocking(move || is_mounted(&bound)).await { place } else { volume.path.clone() }
    }

    /// Makes a volume ready for a pod.
    pub async fn set_up(&self, volume: &LocalVolume, pod: &str, is_read_only: bool) -> Result<Prepared, Error> {
        let _guard = self.lock(volume.name.clone()).await;
        let source = volume.source().await?;
        let place = self.place(pod, &volume.name);
        // A directory without options is used where it is. Everything else a pod has only once it is mounted for it.
        let is_mounted_for_pods = matches!(source, Source::Device(_)) || !volume.mount_options.is_empty();
        let (pods, own, name, at) = (self.pods.clone(), pod.to_owned(), volume.name.clone(), place.clone());
        let (is_shared, is_bound) = blocking(move || {
            make_directory(&at)?;
            let others = users(&pods, &name).into_iter().filter(|other| *other != own);
            let mut places = others.map(|other| place_of(&pods, &other, &name));
            let is_shared = places.any(|place| !is_mounted_for_pods || is_mounted(&place));
            Ok::<_, Error>((is_shared, is_mounted(&at)))
        })
        .await?;
        let bound = |path| Ok(Prepared { path, is_shared });
        if is_bound {
            return bound(place);
        }
        match source {
            Source::Directory if volume.mount_options.is_empty() => bound(volume.path.clone()),
            Source::Directory => {
                let options = ["bind".to_owned()].into_iter().chain(volume.mount_options.iter().cloned());
                let options: Vec<String> = options.collect();
                let text = |p: &Path| p.to_string_lossy().into_owned();
                let arguments = ["-o".to_owned(), options.join(","), text(&volume.path), text(&place)];
                mount_program::run(&arguments).await.map_err(Error::Bind)?;
                bound(place)
            }
            Source::Device(number) => {
                let global = self.mounts.join(&volume.name);
                self.mount_device(volume, number, &global, is_read_only).await?;
                let at = place.clone();
                blocking(move || {
                    mount(Some(&global), &at, None::<&str>, MsFlags::MS_BIND, None::<&str>)
                        .map_err(|e| failed(at.display())(e.into()))
                })
                .await?;
                bound(place)
            }
        }
    }

    /// Mounts a device of the node, unless it is mounted.
    async fn mount_device(
        &self,
        volume: &LocalVolume,
        number: u64,
        global: &Path,
        is_read_only: bool,
    ) -> Result<(), Error> {
        let at = global.to_owned();
        let is_ready = blocking(move || make_directory(&at).map(|()| is_mounted(&at))).await?;
        if is_ready {
            if !is_read_only {
                device::allow_writing(volume, global).await;
            }
            return Ok(());
        }
        let _guard = self.lock(format!("device/{number}")).await;
        let pods = self.pods.clone();
        let user = move || raw::pod_with_device(&pods, number);
        let mounted = device::format_and_mount(volume, global, is_read_only, user).await;
        if mounted.is_err() {
            let at = global.to_owned();
            drop(blocking(move || fs::remove_dir(at)).await);
        }
        mounted.map_err(|source| Error::Device {
            device: volume.path.clone(),
            place: global.to_owned(),
            file_system: volume.file_system.clone(),
            source,
        })
    }

    /// Makes the file system of a volume as large as its device. A directory has no size of its own.
    pub async fn grow(&self, volume: &LocalVolume) -> Result<(), Error> {
        let _guard = self.lock(volume.name.clone()).await;
        match volume.source().await? {
            Source::Directory => Ok(()),
            Source::Device(_) => {
                device::grow(&volume.path, &self.mounts.join(&volume.name)).await.map_err(Error::Growth)
            }
        }
    }

    /// Unmounts the devices that no pod has.
    pub async fn release_unused(&self) {
        let mounts = self.mounts.clone();
        for name in blocking(move || names(&mounts)).await {
            let _guard = self.lock(name.clone()).await;
            let (pods, global) = (self.pods.clone(), self.mounts.join(&name));
            let released = blocking(move || if users(&pods, &name).is_empty() { unmount(&global) } else { Ok(()) });
            if let Err(error) = released.await {
                tracing::warn!(%error, "unmounting the device of a local volume failed; it is repeated with the next pod");
            }
        }
    }
}

fn place_of(pods: &Path, pod: &str, name: &str) -> PathBuf {
    pods.join(pod).join("volumes").join(TYPE_DIRECTORY).join(name)
}

/// The pods that have a volume, or may have it.
fn users(pods: &Path, name: &str) -> BTreeSet<String> {
    let has = |pod: &String| place_of(pods, pod, name).exists();
    names(pods).into_iter().filter(has).collect()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().into_string().ok()).collect()
}

/// Whether a name is one part of a path.
fn is_plain(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains('/')
}

fn make_directory(path: &Path) -> Result<(), Error> {
    fs::DirBuilder::new().recursive(true).mode(0o750).create(path).map_err(failed(path.display()))
}

/// Unmounts a device and removes the directory. One that somebody uses is unmounted when that ends.
fn unmount(global: &Path) -> io::Result<()> {
    while is_mounted(global) {
        umount2(global, MntFlags::UMOUNT_NOFOLLOW)
            .or_else(|_| umount2(global, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH))?;
    }
    fs::remove_dir(global)
}

#[cfg(test)]
mod tests;
