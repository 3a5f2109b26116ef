//! Claims whose persistent volume is of the type `local`.

use super::*;
use crate::local_volumes::{LocalVolume, Prepared};

impl Claimed {
    /// The path of a directory or a device of this node, ready to be mounted.
    pub(super) async fn prepare_local(
        &self,
        pod: &PodContext<'_>,
        claim: &PersistentVolumeClaim,
        (volume, local): (&PersistentVolume, &LocalVolume),
    ) -> Result<PathBuf, (&'static str, String)> {
        let uid = pod.pod.metadata.uid.as_deref().unwrap_or_default();
        let prepared = pod.volumes.local.set_up(local, uid, self.is_read_only).await;
        let Prepared { path, is_shared } = prepared.map_err(|e| (e.stage(), e.to_string()))?;
        self.grow_local(pod, claim, volume, local).await;
        match pod.group.filter(|_| is_shared && !self.is_read_only) {
            // Another pod writes to the files with its own group.
            Some(group) => self.compare_group(pod, local, &path, group).await.map(|()| path),
            None => self.give_to_group(pod, path).await,
        }
    }

    /// Emits an event if a volume that other pods have, too, belongs to another group.
    async fn compare_group(
        &self,
        pod: &PodContext<'_>,
        local: &LocalVolume,
        path: &Path,
        group: u32,
    ) -> Result<(), (&'static str, String)> {
        let at = path.to_owned();
        let owner = blocking(move || fs::metadata(at)).await.map_err(|e| (SET_UP, e.to_string()))?.gid();
        if let Some(plugins) = pod.volumes.plugins.as_ref().filter(|_| owner != group) {
            let message = format!(
                "The requested fsGroup is {group}, but the volume {} has GID {owner}. The volume may not be shareable.",
                local.name
            );
            plugins.csi.warn(pod.pod, None, "AlreadyMountedVolume", message);
        }
        Ok(())
    }

    /// Makes the file system as large as its device if the persistent volume has grown.
    pub(super) async fn grow_local(
        &self,
        pod: &PodContext<'_>,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        local: &LocalVolume,
    ) {
        let Some(plugins) = &pod.volumes.plugins else { return };
        let Some((capacity, _)) = new_size(claim, volume).filter(|_| may_grow_on_node(claim)) else { return };
        match pod.volumes.local.grow(local).await {
            Ok(()) => plugins.csi.finish_expansion(&local.name, claim, &capacity, pod.pod).await,
            Err(error) => {
                let message = format!("{} failed for volume {:?} : {error}", error.stage(), local.name);
                plugins.csi.warn(pod.pod, Some(claim), "VolumeResizeFailed", message);
            }
        }
    }
}
