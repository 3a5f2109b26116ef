//! `persistentVolumeClaim` and `ephemeral`: the persistent volume to which a claim is bound, a `hostPath` directory, a `local` directory or
//! device ([`local`]), a file of this node, or a volume of a CSI driver.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{self as api, PersistentVolume, PersistentVolumeClaim, Pod};
use placement::NodeSelectorTerm;
use runtime::beneath::give_to_group;
use supervisor::blocking;

use super::{Volume, host_path, nfs};
use crate::csi::{Persistent, Request, may_grow_on_node, new_size};
use crate::file_volumes::{Contents, FileVolume, TYPE_DIRECTORY};
use crate::local_volumes::LocalVolume;
use crate::volumes::usage::{ClaimedVolume, Place, PodVolume};
use crate::volumes::{Error, Plugins, PodContext, io_error};

#[path = "claim_local.rs"]
mod local;

const SET_UP: &str = "MountVolume.SetUp";
const MAP: &str = "MapVolume.MapPodDevice";

/// A volume of the type `persistentVolumeClaim`.
pub(super) struct Named(Claimed);

/// A volume of the type `ephemeral`: its claim is named after pod and volume, and belongs to the pod.
pub(super) struct Ephemeral(Claimed);

struct Claimed {
    /// The name of the volume in the pod.
    volume: String,
    /// The name of the claim; `None` for an ephemeral volume.
    claim: Option<String>,
    is_read_only: bool,
}

#[async_trait::async_trait]
impl Volume for Named {
    fn from_spec(volume: &api::Volume) -> Option<Self> {
        let source = volume.persistent_volume_claim.as_ref()?;
        let (claim, is_read_only) = (Some(source.claim_name.clone()), source.read_only == Some(true));
        Some(Self(Claimed { volume: volume.name.clone(), claim, is_read_only }))
    }

    async fn set_up(&self, pod: &PodContext<'_>, _: &Path) -> Result<PathBuf, Error> {
        self.0.set_up(pod).await
    }

    async fn refresh(&self, pod: &PodContext<'_>, _: &Path) -> Result<(), Error> {
        self.0.refresh(pod).await
    }

    fn is_read_only(&self) -> bool {
        self.0.is_read_only
    }
}

#[async_trait::async_trait]
impl Volume for Ephemeral {
    fn from_spec(volume: &api::Volume) -> Option<Self> {
        volume.ephemeral.as_ref()?;
        Some(Self(Claimed { volume: volume.name.clone(), claim: None, is_read_only: false }))
    }

    async fn set_up(&self, pod: &PodContext<'_>, _: &Path) -> Result<PathBuf, Error> {
        self.0.set_up(pod).await
    }

    async fn refresh(&self, pod: &PodContext<'_>, _: &Path) -> Result<(), Error> {
        self.0.refresh(pod).await
    }
}

impl Claimed {
    async fn set_up(&self, pod: &PodContext<'_>) -> Result<PathBuf, Error> {
        let (claim, volume) = self.find(pod).await?;
        let name = volume.metadata.name.clone().unwrap_or_default();
        let prepared = self.prepare(pod, &claim, volume.clone()).await;
        if prepared.is_ok() {
            self.record(pod, &claim, self.place(pod, &volume).await);
        }
        prepared.map_err(|(stage, why)| Error::PersistentVolume { name, stage, why })
    }

    /// Expands the file system of a volume that has grown, and publishes the volume again if its driver requests that.
    async fn refresh(&self, pod: &PodContext<'_>) -> Result<(), Error> {
        let Some(plugins) = &pod.volumes.plugins else { return Ok(()) };
        let (claim, volume) = self.find(pod).await?;
        self.record(pod, &claim, self.place(pod, &volume).await);
        let name = volume.metadata.name.clone().unwrap_or_default();
        if let Some(local) = LocalVolume::from_volume(&volume).filter(|_| plugins.files.recognize(&volume).is_none()) {
            self.grow_local(pod, &claim, &volume, &local).await;
        }
        let Some(source) = volume.spec.as_ref().and_then(|s| s.csi.as_ref()) else { return Ok(()) };
        let persistent = Persistent { name: &name, volume: &volume, source };
        let failed =
            |e: crate::csi::Failure| Error::PersistentVolume { name: name.clone(), stage: e.stage, why: e.why };
        if plugins.csi.follow_driver(&source.driver, pod.pod, &name).await.map_err(failed)? {
            plugins.csi.set_up(&persistent, self.request(pod)).await.map_err(failed)?;
        }
        plugins.csi.expand(&persistent, &claim, pod.pod).await;
        Ok(())
    }

    /// Who knows how full the volume is.
    async fn place(&self, pod: &PodContext<'_>, volume: &PersistentVolume) -> Option<Place> {
        let plugins = pod.volumes.plugins.as_ref()?;
        let uid = pod.pod.metadata.uid.as_deref().unwrap_or_default();
        let (name, spec) = (volume.metadata.name.as_deref().unwrap_or_default(), volume.spec.as_ref()?);
        if let Some(source) = &spec.csi {
            let published = plugins.csi.published(&Persistent { name, volume, source }, uid);
            return Some(Place::Driver(plugins.csi.clone(), published));
        }
        let in_pod = |directory: &str| pod.volumes.volumes_directory(uid).join(directory).join(name);
        let path = match (spec.volume_mode.as_deref(), &spec.local, &spec.host_path, &spec.nfs) {
            (Some("Block"), ..) => return None,
            (_, Some(_), ..) if plugins.files.recognize(volume).is_some() => in_pod(TYPE_DIRECTORY),
            (_, Some(_), ..) => pod.volumes.local.path(&LocalVolume::from_volume(volume)?, uid).await,
            (_, _, Some(host), _) => pod.machine_path(&host.path),
            (_, _, _, Some(_)) => in_pod("kubernetes.io~nfs"),
            _ => return None,
        };
        Some(Place::Directory(path))
    }

    /// Notes where the volume is, for statistics.
    fn record(&self, pod: &PodContext<'_>, claim: &PersistentVolumeClaim, place: Option<Place>) {
        let (Some(plugins), Some(place)) = (&pod.volumes.plugins, place) else { return };
        let text = |t: &Option<String>| t.clone().unwrap_or_default();
        let volume = PodVolume { pod: text(&pod.pod.metadata.uid), volume: self.volume.clone() };
        let (namespace, claim) = (text(&claim.metadata.namespace), text(&claim.metadata.name));
        plugins.usages.insert(volume, ClaimedVolume { namespace, claim, place });
    }

    fn request<'a>(&self, pod: &'a PodContext<'_>) -> Request<'a, impl Future<Output = ()> + Send + 'a> {
        Request {
            pod: pod.pod,
            is_read_only: self.is_read_only,
            group: pod.group,
            on_mismatch: fs_group_change_policy(pod.pod) == Some("OnRootMismatch"),
            tokens: pod.tokens,
            ends: pod.ends(),
        }
    }

    /// The claim and its volume.
    async fn find(&self, pod: &PodContext<'_>) -> Result<(PersistentVolumeClaim, PersistentVolume), Error> {
        let namespace = pod.pod.metadata.namespace.as_deref().unwrap_or_default();
        let claim = match &self.claim {
            Some(name) => name.clone(),
            None => format!("{}-{}", pod.pod.metadata.name.as_deref().unwrap_or_default(), self.volume),
        };
        let found = self.bound_volume(pod, namespace, &claim).await;
        found.map_err(|why| Error::Claim { claim: format!("{namespace}/{claim}"), why })
    }

    /// The path of a persistent volume, ready to be mounted. Errors with the stage that failed, in kubelet's words, and the reason.
    async fn prepare(
        &self,
        pod: &PodContext<'_>,
        claim: &PersistentVolumeClaim,
        volume: PersistentVolume,
    ) -> Result<PathBuf, (&'static str, String)> {
        const AFFINITY: &str = "MountVolume.NodeAffinity check";
        let labels = pod.volumes.claims.node_labels().await;
        let labels = labels.map_err(|e| (AFFINITY, e.to_string()))?;
        if !reaches(&volume, &pod.node.node_name, |key| labels.get(key).map(String::as_str)) {
            return Err((AFFINITY, "no matching NodeSelectorTerms".into()));
        }
        if let Some(plugins) = &pod.volumes.plugins
            && let Some(source) = volume.spec.as_ref().and_then(|s| s.csi.as_ref())
        {
            let name = volume.metadata.name.as_deref().unwrap_or_default();
            let persistent = Persistent { name, volume: &volume, source };
            let ready = plugins.csi.set_up(&persistent, self.request(pod)).await;
            return ready.map_err(|e| (e.stage, e.why));
        }
        if let Some(plugins) = &pod.volumes.plugins
            && let Some(file) = plugins.files.recognize(&volume)
        {
            return self.prepare_file(pod, plugins, claim, (&volume, &file)).await;
        }
        let spec = volume.spec.clone().unwrap_or_default();
        let is_block = spec.volume_mode.as_deref() == Some("Block");
        let map = async |path: PathBuf| {
            let name = volume.metadata.name.as_deref().unwrap_or_default();
            let uid = pod.pod.metadata.uid.as_deref().unwrap_or_default();
            pod.volumes.local.map(name, &path, uid).await.map(|()| path).map_err(|e| (MAP, e))
        };
        if let Some(mut source) = spec.host_path {
            let path = pod.machine_path(&source.path);
            if is_block {
                return map(path).await;
            }
            source.path = path.to_string_lossy().into_owned();
            blocking(move || host_path::prepare(&source)).await.map_err(|e| (SET_UP, e.to_string()))?;
            return Ok(path);
        }
        if let Some(source) = spec.nfs {
            let name = volume.metadata.name.as_deref().unwrap_or_default();
            let uid = pod.pod.metadata.uid.as_deref().unwrap_or_default();
            let directory = pod.volumes.volumes_directory(uid).join("kubernetes.io~nfs").join(name);
            let is_read_only = self.is_read_only || source.read_only == Some(true);
            let options = spec.mount_options.unwrap_or_default();
            let mounted = nfs::mount(&source, &options, is_read_only, &directory).await;
            return mounted.map(|()| directory).map_err(|e| (SET_UP, e.to_string()));
        }
        let Some(source) = spec.local else {
            let why =
                "this kind of persistent volume is not supported by this node (only csi, hostPath, local and nfs are)";
            return Err(("MountVolume.FindPluginBySpec", why.into()));
        };
        match LocalVolume::from_volume(&volume) {
            Some(local) => self.prepare_local(pod, claim, (&volume, &local)).await,
            None => map(PathBuf::from(source.path)).await,
        }
    }

    /// Gives the files of a volume to the pod's group. Returns its path.
    async fn give_to_group(&self, pod: &PodContext<'_>, path: PathBuf) -> Result<PathBuf, (&'static str, String)> {
        let (changed, group) = (path.clone(), pod.group.filter(|_| !self.is_read_only));
        let on_mismatch = fs_group_change_policy(pod.pod) == Some("OnRootMismatch");
        let given = blocking(move || set_group(&changed, group, on_mismatch)).await;
        given.map(|()| path).map_err(|e| (SET_UP, e.to_string()))
    }

    /// The path of a volume that is a file of this node: its file system is mounted for the pod, or it is a device.
    async fn prepare_file(
        &self,
        pod: &PodContext<'_>,
        plugins: &Plugins,
        claim: &PersistentVolumeClaim,
        (volume, file): (&PersistentVolume, &FileVolume),
    ) -> Result<PathBuf, (&'static str, String)> {
        let uid = pod.pod.metadata.uid.as_deref().unwrap_or_default();
        if file.format.file_system().is_none() {
            return plugins.files.device(file, uid).await.map_err(|e| (MAP, e.to_string()));
        }
        let place = pod.volumes.volumes_directory(uid).join(TYPE_DIRECTORY).join(&file.name);
        let grown = new_size(claim, volume);
        let mounted = plugins.files.mount(file, &place, grown.is_some()).await;
        let contents = mounted.map_err(|e| ("MountVolume.MountDevice", e.to_string()))?;
        if let (Some((capacity, _)), Contents::AsLargeAsFile) = (grown, contents) {
            plugins.csi.finish_expansion(&file.name, claim, &capacity, pod.pod).await;
        }
        self.give_to_group(pod, place).await
    }

    /// The volume to which the claim is bound. Errors, with the reason, if it is not bound or cannot be used by the pod.
    async fn bound_volume(
        &self,
        pod: &PodContext<'_>,
        namespace: &str,
        claim: &str,
    ) -> Result<(PersistentVolumeClaim, PersistentVolume), String> {
        let claims = &pod.volumes.claims;
        let found = claims.claim(namespace, claim).await;
        let found = found.map_err(|e| format!("failed to fetch PVC from API server: {e}"))?;
        let volume = check_claim(&found)?;
        if self.claim.is_none() {
            check_owner(&found, pod.pod)?;
        }
        let volume_found = claims.volume(volume).await;
        let volume_found = volume_found.map_err(|e| format!("failed to fetch PV {volume} from API server: {e}"))?;
        check_reference(&volume_found, volume, found.metadata.uid.as_deref().unwrap_or_default())?;
        let mode = volume_found.spec.as_ref().and_then(|s| s.volume_mode.as_deref()).unwrap_or("Filesystem");
        check_mode(pod.pod, &self.volume, mode)?;
        Ok((found, volume_found))
    }
}

/// The name of the volume of a claim that is bound.
fn check_claim(claim: &PersistentVolumeClaim) -> Result<&str, String> {
    let finalizers = claim.metadata.finalizers.iter().flatten();
    let is_protected = finalizers.into_iter().any(|f| f == "kubernetes.io/pvc-protection");
    if claim.metadata.deletion_timestamp.is_some() && !is_protected {
        return Err("PVC is being deleted".into());
    }
    if claim.status.as_ref().and_then(|s| s.phase.as_deref()) != Some("Bound") {
        return Err("PVC is not bound".into());
    }
    let volume = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).filter(|n| !n.is_empty());
    volume.ok_or_else(|| "PVC has empty pvc.Spec.VolumeName".into())
}

/// Errors if the claim of an ephemeral volume belongs to another pod.
fn check_owner(claim: &PersistentVolumeClaim, pod: &Pod) -> Result<(), String> {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    if owners.any(|o| o.controller == Some(true) && Some(&o.uid) == pod.metadata.uid.as_ref()) {
        return Ok(());
    }
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let (claim, pod) = (claim.metadata.name.as_deref(), pod.metadata.name.as_deref());
    let (claim, pod) = (claim.unwrap_or_default(), pod.unwrap_or_default());
    Err(format!("PVC {namespace}/{claim} was not created for pod {namespace}/{pod} (pod is not owner)"))
}

fn check_reference(volume: &PersistentVolume, name: &str, claim_uid: &str) -> Result<(), String> {
    let Some(reference) = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) else {
        return Err(format!(
            "found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
        ));
    };
    let uid = reference.uid.as_deref().unwrap_or_default();
    if uid != claim_uid {
        return Err(format!(
            "found PV object {name} but its pv.Spec.ClaimRef.UID {uid} does not point to claim.UID {claim_uid}"
        ));
    }
    Ok(())
}

/// Errors if containers use a file system as a device, or the reverse.
fn check_mode(pod: &Pod, volume: &str, mode: &str) -> Result<(), String> {
    let spec = pod.spec.iter();
    let containers = || spec.clone().flat_map(|s| s.init_containers.iter().flatten().chain(&s.containers));
    let mounted = containers().any(|c| c.volume_mounts.iter().flatten().any(|m| m.name == volume));
    let as_device = containers().any(|c| c.volume_devices.iter().flatten().any(|d| d.name == volume));
    if mounted && mode != "Filesystem" {
        return Err(format!("volume {volume} has volumeMode {mode}, but is specified in volumeMounts"));
    }
    if as_device && mode != "Block" {
        return Err(format!("volume {volume} has volumeMode {mode}, but is specified in volumeDevices"));
    }
    Ok(())
}

/// Whether the volume can be used on a node.
fn reaches<'a>(volume: &PersistentVolume, node: &'a str, label: impl Fn(&str) -> Option<&'a str>) -> bool {
    let affinity = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref()?.required.as_ref());
    let Some(selector) = affinity else { return true };
    let matches = |term| {
        let term = serde_json::to_value(term).unwrap_or_default();
        NodeSelectorTerm::read(&term).matches(node, &label)
    };
    selector.node_selector_terms.iter().any(matches)
}

pub(super) fn fs_group_change_policy(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.security_context.as_ref()?.fs_group_change_policy.as_deref()
}

/// Gives the directory to the group (`fsGroup`), with all that is in it. `on_mismatch`: not if it belongs to the group already.
pub(crate) fn set_group(path: &Path, group: Option<u32>, on_mismatch: bool) -> Result<(), Error> {
    let Some(group) = group else { return Ok(()) };
    let error = || io_error(path.display().to_string());
    // The path is that of a persistent volume, which administrators create: links in it are followed.
    let path = path.canonicalize().map_err(error())?;
    let root = fs::metadata(&path).map_err(error())?;
    if on_mismatch && root.gid() == group && root.permissions().mode() & 0o2770 == 0o2770 {
        return Ok(());
    }
    give_to_group(&path, group).map_err(error())
}

#[cfg(test)]
#[path = "claim_tests.rs"]
mod tests;
