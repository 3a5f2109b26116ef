//! The volumes of a pod as paths of the host, below `DATA/pods/UID/volumes`.
//!
//! A type of volume is a file and a row of a table in [`types`]. **Invariant.** A volume exists before any container that mounts it
//! starts, survives restarts of containers, and is removed with the pod. Secrets, tokens and emptyDir volumes with the medium
//! `Memory` lie on file systems in memory. A claim is the `hostPath` directory of its persistent volume, a `local` directory or device
//! (`crate::local_volumes`), or a file of the node (`crate::file_volumes`). An image is mounted by the runtime, and volumes of drivers by [`crate::csi`]. Left out: network file systems without a driver; a pod with such a volume waits
//! with an event.

pub mod atomic;
mod contents;
mod files;
mod memory;
pub(crate) mod mount_program;
mod mounts;
pub mod token;
mod types;
pub mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{self as api, Pod};
use meta::Clock;
use parking_lot::Mutex;
use plugins::KubeletRoot;
use runtime::beneath;
use supervisor::blocking;
use tokio::sync::Semaphore;

use crate::claims::Claims;
use crate::csi::Csi;
use crate::env::{Budget, CachedSource, Source};
use crate::fields::NodeInfo;
use crate::file_volumes::FileVolumes;
use crate::local_volumes::LocalVolumes;
use crate::objects::Reference;
use crate::pod::worker::Inbox;
use contents::Contents;
pub use memory::Memory;
pub use mounts::{devices, mounts};
use token::Tokens;
pub(crate) use types::set_group;
use types::{TYPES, Type, Volume};
use usage::VolumeUsages;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Objects(#[from] crate::objects::Error),
    #[error(transparent)]
    Token(#[from] token::Error),
    #[error(transparent)]
    File(#[from] crate::file_volumes::Error),
    #[error(transparent)]
    Field(#[from] crate::fields::Error),
    #[error("{0}")]
    Content(String),
    #[error("{0} is not supported by this node")]
    Unsupported(&'static str),
    /// The claim has no volume that the pod can use.
    #[error("error processing PVC {claim}: {why}")]
    Claim { claim: String, why: String },
    /// The persistent volume of a claim cannot be mounted here.
    #[error("{stage} failed for volume {name:?} : {why}")]
    PersistentVolume { name: String, stage: &'static str, why: String },
    #[error("{what}: {source}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
}

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let what = what.into();
    move |source| Error::Io { what, source }
}

/// Bytes that all files which volumes of a pod show of objects take together. Several items may show the same large value, and
/// files in memory count for no container.
const MAX_CONTENT: usize = 64 << 20;
/// Volumes whose files are in memory at a time. Many pods may show large files, and refresh them often.
const MAX_WRITERS: usize = 2;

/// Which volume could not be set up, and why. Its text is that of kubelet's events.
#[derive(Debug, thiserror::Error)]
pub struct SetUpError {
    pub volume: String,
    #[source]
    pub source: Error,
}

impl fmt::Display for SetUpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { volume, source } = self;
        match source {
            Error::Claim { .. } => write!(
                f,
                "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], failed to process \
                 volumes=[{volume}]: {source}"
            ),
            Error::PersistentVolume { stage: crate::csi::TIMED_OUT, why, .. } => write!(
                f,
                "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], failed to process \
                 volumes=[]: {why}"
            ),
            Error::PersistentVolume { stage: crate::csi::LIMIT_EXCEEDED, why, .. } => write!(
                f,
                "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[{volume}], unattached volumes=[{volume}], \
                 failed to process volumes=[]: {why}"
            ),
            Error::PersistentVolume { .. } => write!(f, "{source}"),
            _ => write!(f, "MountVolume.SetUp failed for volume {volume:?} : {source}"),
        }
    }
}

impl SetUpError {
    /// The reason why the node rejects the pod; `None` if it tries again.
    pub fn rejection(&self) -> Option<&'static str> {
        match &self.source {
            Error::PersistentVolume { stage: reason @ crate::csi::LIMIT_EXCEEDED, .. } => Some(reason),
            _ => None,
        }
    }

    /// The reason of the event.
    pub fn reason(&self) -> &'static str {
        match &self.source {
            Error::PersistentVolume { stage, .. } if stage.starts_with("MapVolume.") => "FailedMapVolume",
            _ => "FailedMount",
        }
    }
}

/// The volumes of all pods of the node.
pub struct Volumes {
    /// `DATA/pods`.
    root: PathBuf,
    clock: Arc<dyn Clock>,
    memory: Memory,
    contents: Contents,
    writers: Semaphore,
    types: &'static [Type],
    claims: Arc<dyn Claims>,
    local: LocalVolumes,
    plugins: Option<Plugins>,
}

/// What volumes need to reach plugins, and volumes in files.
#[derive(Clone)]
pub struct Plugins {
    pub root: KubeletRoot,
    pub csi: Arc<Csi>,
    pub files: Arc<FileVolumes>,
    pub usages: Arc<VolumeUsages>,
}

/// What volumes of one pod are made from.
struct PodContext<'a> {
    pod: &'a Pod,
    node: &'a NodeInfo,
    objects: &'a dyn Source,
    tokens: &'a dyn Tokens,
    memory: Memory,
    /// The group that owns the volumes: `fsGroup`.
    group: Option<u32>,
    /// The user of all containers; `None` if they run as different ones.
    user: Option<u32>,
    /// What remains of [`MAX_CONTENT`].
    budget: Mutex<Budget>,
    volumes: &'a Volumes,
    /// The pod as the API has it, to notice that it terminates.
    inbox: Option<Inbox>,
}

impl PodContext<'_> {
    /// The path of the machine for a path of a pod's specification: that of the kubelet's files differs.
    fn machine_path(&self, path: &str) -> PathBuf {
        match &self.volumes.plugins {
            Some(plugins) => plugins.root.real(Path::new(path)),
            None => PathBuf::from(path),
        }
    }

    /// Resolves when the pod terminates.
    async fn ends(&self) {
        match self.inbox.clone() {
            Some(mut inbox) => drop(inbox.wait_for(crate::pod::worker::is_ending).await),
            None => std::future::pending().await,
        }
    }
}

impl Volumes {
    /// `max_content`: bytes that all files which volumes of all pods show of objects take together.
    pub fn new(
        root: PathBuf,
        clock: Arc<dyn Clock>,
        memory: Memory,
        max_content: usize,
        claims: Arc<dyn Claims>,
    ) -> Self {
        let writers = Semaphore::new(MAX_WRITERS);
        let local = LocalVolumes::new(root.clone());
        let contents = Contents::new(max_content);
        Self { root, clock, memory, contents, writers, types: TYPES, claims, local, plugins: None }
    }

    /// Also volumes of drivers, and the kubelet's files by their usual path.
    pub fn with_plugins(self, plugins: Plugins) -> Self {
        Self { plugins: Some(plugins), ..self }
    }

    /// The directory of a pod.
    pub fn pod_directory(&self, uid: &str) -> PathBuf {
        self.root.join(uid)
    }

    fn volumes_directory(&self, uid: &str) -> PathBuf {
        self.pod_directory(uid).join("volumes")
    }

    fn context<'a>(
        &'a self,
        pod: &'a Pod,
        objects: &'a dyn Source,
        tokens: &'a dyn Tokens,
        node: &'a NodeInfo,
        inbox: Option<Inbox>,
    ) -> PodContext<'a> {
        let group = pod.spec.as_ref().and_then(|s| s.security_context.as_ref()?.fs_group);
        PodContext {
            pod,
            node,
            objects,
            tokens,
            memory: self.memory,
            group: group.and_then(valid_id),
            user: common_user(pod),
            budget: Mutex::new(Budget::new(MAX_CONTENT)),
            volumes: self,
            inbox,
        }
    }

    /// The volume that `spec` describes, and its directory.
    fn find(&self, pod: &Pod, spec: &api::Volume) -> Result<(Box<dyn Volume>, PathBuf), Error> {
        let (kind, volume) = types::find(self.types, spec).ok_or(Error::Unsupported("this kind of volume"))?;
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let directory = format!("kubernetes.io~{}", kind.directory);
        Ok((volume, self.volumes_directory(uid).join(directory).join(&spec.name)))
    }

    /// The directory of a volume of a pod; `None` if this kind of volume has none.
    pub fn directory(&self, pod: &Pod, spec: &api::Volume) -> Option<PathBuf> {
        self.find(pod, spec).ok().map(|(_, directory)| directory)
    }

    /// Sets up every volume of the pod and returns their paths by name.
    pub async fn set_up(
        &self,
        pod: &Pod,
        objects: &dyn Source,
        tokens: &dyn Tokens,
        node: &NodeInfo,
        inbox: Option<Inbox>,
    ) -> Result<BTreeMap<String, PathBuf>, SetUpError> {
        let mut paths = BTreeMap::new();
        let objects = CachedSource::new(objects);
        let context = self.context(pod, &objects, tokens, node, inbox);
        for spec in specs(pod) {
            let set_up = async {
                let (volume, directory) = self.find(pod, spec)?;
                volume.set_up(&context, &directory).await
            };
            paths.insert(spec.name.clone(), set_up.await.map_err(|e| set_up_error(spec, e))?);
        }
        Ok(paths)
    }

    /// Updates the volumes of a pod that runs.
    pub async fn refresh(
        &self,
        pod: &Pod,
        objects: &dyn Source,
        tokens: &dyn Tokens,
        node: &NodeInfo,
        inbox: Option<Inbox>,
    ) -> Result<(), SetUpError> {
        let objects = CachedSource::new(objects);
        let context = self.context(pod, &objects, tokens, node, inbox);
        for spec in specs(pod) {
            let refresh = async {
                let (volume, directory) = self.find(pod, spec)?;
                volume.refresh(&context, &directory).await
            };
            refresh.await.map_err(|e| set_up_error(spec, e))?;
        }
        Ok(())
    }

    /// Tears down the volumes of a pod whose containers have ended, and removes its directory. The pod may be gone from the API.
    pub async fn tear_down(&self, uid: &str) -> Result<(), Error> {
        self.tear_down_volumes(uid).await?;
        let directory = self.pod_directory(uid);
        blocking(move || beneath::remove_tree(&directory)).await.map_err(io_error("removing a pod's directory"))
    }

    /// Tears down the volumes of a pod whose containers have ended for good. The rest of its directory stays until the pod is deleted.
    pub async fn tear_down_volumes(&self, uid: &str) -> Result<(), Error> {
        if let Some(plugins) = &self.plugins {
            plugins.usages.remove(uid);
            plugins.csi.tear_down_pod(uid).await.map_err(Error::Content)?;
            plugins.files.release(uid).await?;
        }
        let volumes = self.volumes_directory(uid);
        for (type_directory, volume) in blocking(move || volume_directories(&volumes)).await {
            let found = self.types.iter().find(|t| type_directory == format!("kubernetes.io~{}", t.directory));
            if let Some(kind) = found
                && let Err(error) = (kind.tear_down)(volume).await
            {
                tracing::warn!(uid, volume_type = kind.field, %error, "tearing down a volume failed; it is tried again");
                return Err(error);
            }
        }
        let (directory, volumes) = (self.pod_directory(uid), self.volumes_directory(uid));
        blocking(move || {
            beneath::unmount_below(&directory)?;
            beneath::remove_tree(&volumes)
        })
        .await
        .map_err(io_error("removing a pod's volumes"))?;
        self.local.release_unused().await;
        self.contents.release(uid);
        Ok(())
    }

    /// Unmounts devices of the node that no pod has: an earlier agent ended in between.
    pub async fn release_unused_devices(&self) {
        self.local.release_unused().await;
    }

    /// Whether volumes are left of a pod.
    pub async fn has_volumes(&self, uid: &str) -> bool {
        let directory = self.volumes_directory(uid);
        blocking(move || directory.exists()).await
    }

    /// Whether volumes of drivers are left of a pod.
    pub async fn has_driver_volumes(&self, uid: &str) -> bool {
        match &self.plugins {
            Some(plugins) => plugins.csi.has_volumes(uid).await,
            None => false,
        }
    }

    /// UIDs of the pods that have a directory here.
    pub async fn pods(&self) -> Vec<String> {
        let root = self.root.clone();
        blocking(move || {
            let entries = fs::read_dir(&root).into_iter().flatten().flatten();
            entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
        })
        .await
    }
}

fn set_up_error(spec: &api::Volume, source: Error) -> SetUpError {
    SetUpError { volume: spec.name.clone(), source }
}

fn specs(pod: &Pod) -> impl Iterator<Item = &api::Volume> {
    pod.spec.iter().flat_map(|s| s.volumes.iter().flatten())
}

fn supported(pod: &Pod) -> impl Iterator<Item = Box<dyn Volume>> {
    specs(pod).filter_map(|spec| Some(types::find(TYPES, spec)?.1))
}

/// The objects that volumes of the pod read.
pub fn references(pod: &Pod) -> BTreeSet<Reference> {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let mut out = BTreeSet::new();
    for volume in supported(pod) {
        for (kind, name) in volume.references() {
            out.insert(Reference { kind, namespace: namespace.clone(), name: name.to_owned() });
        }
    }
    out
}

/// Whether a volume of the pod shows the pod's labels or annotations.
pub fn shows_metadata(pod: &Pod) -> bool {
    supported(pod).any(|v| v.shows_metadata())
}

/// The image volumes that a container mounts, by name and without repetition.
pub fn images<'a>(pod: &'a Pod, container: &api::Container) -> Vec<(&'a str, &'a api::ImageVolumeSource)> {
    let mounted = |name: &str| container.volume_mounts.iter().flatten().any(|m| m.name == name);
    let images = specs(pod).filter_map(|v| Some((v.name.as_str(), v.image.as_ref()?)));
    images.filter(|(name, _)| mounted(name)).collect()
}

/// Whether a volume of the pod may wait for an attachment or a driver, for as long as those take.
pub fn may_wait(pod: &Pod) -> bool {
    specs(pod).any(|v| v.persistent_volume_claim.is_some() || v.ephemeral.is_some() || v.csi.is_some())
}

/// How many volumes of the pod are file systems in memory.
pub fn count_in_memory(pod: &Pod) -> usize {
    supported(pod).filter(|v| v.is_in_memory()).count()
}

/// The directories of volumes in the directory `volumes` of a pod, each with the name of the directory of its type.
fn volume_directories(volumes: &Path) -> Vec<(String, PathBuf)> {
    let directories = |path: &Path| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
    };
    let mut out = Vec::new();
    for kind in directories(volumes) {
        let name = kind.file_name().to_string_lossy().into_owned();
        out.extend(directories(&kind.path()).map(|volume| (name.clone(), volume.path())));
    }
    out
}

/// The user that all containers run as; `None` if they run as different ones.
fn common_user(pod: &Pod) -> Option<u32> {
    let spec = pod.spec.as_ref()?;
    let default = spec.security_context.as_ref().and_then(|c| c.run_as_user);
    let mut users = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
        .map(|c| c.security_context.as_ref().and_then(|s| s.run_as_user).or(default));
    let first = users.next()??;
    users.all(|u| u == Some(first)).then(|| valid_id(first)).flatten()
}

/// The id of a user or group. A container with another one is not created.
fn valid_id(id: i64) -> Option<u32> {
    u32::try_from(id).ok().filter(|id| *id <= runtime::MAX_ID)
}

#[cfg(test)]
mod tests;
