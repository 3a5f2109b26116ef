//! Makes the file system of a volume larger after its driver has made the volume larger, and asks how full it is.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use plugins::api::csi::{
    self, CapacityRange, NodeCapability, NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
};
use plugins::{Code, Error};
use std::path::PathBuf;

use super::Csi;
use super::driver::{Usage, is_final};
use super::volume::Persistent;
use crate::provisioner::growth::Progress;

/// The bytes of a quantity; 0 for one that is missing or cannot be read.
fn bytes(quantity: Option<&Quantity>) -> i64 {
    quantity.and_then(|q| meta::Quantity::parse(&q.0).ok()).map_or(0, |q| q.value())
}

/// The new size of the volume of a claim; `None` if the claim has it already.
pub(crate) fn new_size(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<(Quantity, i64)> {
    let capacity = volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?;
    let has = claim.status.as_ref()?.capacity.as_ref()?.get("storage");
    let (size, has) = (bytes(Some(capacity)), bytes(has));
    (has > 0 && size > has).then(|| (capacity.clone(), size))
}

/// The bytes that a claim requests.
fn requested(claim: &PersistentVolumeClaim) -> i64 {
    let resources = claim.spec.as_ref().and_then(|s| s.resources.as_ref());
    bytes(resources.and_then(|r| r.requests.as_ref()?.get("storage")))
}

/// Whether the node has its turn: the controller has done its part, and the node has not found that the size is infeasible. A controller
/// that reports no progress leaves it to the sizes.
pub(crate) fn may_grow_on_node(claim: &PersistentVolumeClaim) -> bool {
    let statuses = claim.status.as_ref().and_then(|s| s.allocated_resource_statuses.as_ref());
    statuses
        .and_then(|s| s.get("storage"))
        .is_none_or(|s| matches!(s.as_str(), "NodeResizePending" | "NodeResizeInProgress"))
}

/// Whether the driver can never expand the volume to this size.
fn is_infeasible(error: &Error) -> bool {
    matches!(error, Error::Status(_))
        && matches!(error.code(), Code::InvalidArgument | Code::OutOfRange | Code::NotFound)
}

/// Where a volume is published for a pod.
#[derive(Clone, Debug)]
pub struct Published {
    pub driver: String,
    pub handle: String,
    pub path: PathBuf,
    pub staging: PathBuf,
}

impl Csi {
    /// Makes the file system of a published volume as large as the volume, if the claim says that it is not. Emits an event.
    pub async fn expand(&self, volume: &Persistent<'_>, claim: &PersistentVolumeClaim, pod: &Pod) {
        let Some((capacity, size)) = new_size(claim, volume.volume) else { return };
        let (name, mut claim) = (volume.name, claim.clone());
        match self.expand_to(volume, &mut claim, pod, size).await {
            Ok(false) => {}
            Ok(true) => self.finish_expansion(name, &claim, &capacity, pod).await,
            Err(why) => {
                let message = format!("MountVolume.NodeExpandVolume failed for volume {name:?} : {why}");
                self.cluster.event(pod, Some(&claim), true, "VolumeResizeFailed", message);
            }
        }
    }

    /// Records that the claim has the capacity of its volume, and emits an event.
    pub async fn finish_expansion(&self, volume: &str, claim: &PersistentVolumeClaim, capacity: &Quantity, pod: &Pod) {
        match self.cluster.report_growth(claim, Progress::Finished(capacity)).await {
            Ok(_) => {
                self.failed_growth.lock().remove(volume);
                let node = &self.node_name;
                let message = format!("MountVolume.NodeExpandVolume succeeded for volume {volume:?} {node}");
                self.cluster.event(pod, Some(claim), false, "FileSystemResizeSuccessful", message);
            }
            Err(error) => tracing::warn!(volume, %error, "recording the size of a claim failed"),
        }
    }

    /// Emits a warning about a volume of a pod and its claim.
    pub fn warn(&self, pod: &Pod, claim: Option<&PersistentVolumeClaim>, reason: &str, message: String) {
        self.cluster.event(pod, claim, true, reason, message);
    }

    /// Where a persistent volume is published for a pod.
    pub fn published(&self, volume: &Persistent<'_>, uid: &str) -> Published {
        let (driver, handle) = (volume.source.driver.clone(), volume.source.volume_handle.clone());
        let is_block = volume.volume.spec.as_ref().and_then(|s| s.volume_mode.as_deref()) == Some("Block");
        let (path, staging) = match is_block {
            true => (self.layout.published_devices(volume.name).join(uid), self.layout.staged_device(volume.name)),
            false => (
                self.layout.pod_volume(uid, volume.name).join("mount"),
                self.layout.staged(&driver, &handle).join("globalmount"),
            ),
        };
        Published { driver, handle, path, staging }
    }

    /// How full a volume is; `None` if its driver does not tell.
    pub async fn usage(&self, volume: &Published) -> Option<NodeGetVolumeStatsResponse> {
        let driver = self.drivers.lock().get(&volume.driver).cloned()?;
        if !driver.can(NodeCapability::GetVolumeStats) {
            return None;
        }
        let has_staging = driver.can(NodeCapability::StageUnstageVolume);
        let request = NodeGetVolumeStatsRequest {
            volume_id: volume.handle.clone(),
            volume_path: self.shown(&volume.path),
            staging_target_path: if has_staging { self.shown(&volume.staging) } else { String::new() },
        };
        let answer = driver.call(&csi::NODE_GET_VOLUME_STATS, request).await;
        answer.inspect_err(|error| tracing::debug!(driver = volume.driver, %error, "no usage of a volume")).ok()
    }

    /// Returns whether the driver has expanded the volume; it may have nothing to do. Keeps the status of the claim up to date.
    async fn expand_to(
        &self,
        volume: &Persistent<'_>,
        claim: &mut PersistentVolumeClaim,
        pod: &Pod,
        size: i64,
    ) -> Result<bool, String> {
        if !may_grow_on_node(claim) {
            return Ok(false);
        }
        let source = volume.source;
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if !self.published.lock().contains(&(uid.to_owned(), volume.name.to_owned())) {
            return Ok(false);
        }
        let _guard = self.lock(&source.driver, &source.volume_handle).await;
        let driver = self.driver(&source.driver).await?;
        if !driver.can(NodeCapability::ExpandVolume) {
            return Ok(false);
        }
        let usage = Usage::of_volume(&volume.volume.spec.clone().unwrap_or_default());
        let Published { path: published, staging: staged, .. } = self.published(volume, uid);
        let has_staging = driver.can(NodeCapability::StageUnstageVolume);
        let request = NodeExpandVolumeRequest {
            volume_id: source.volume_handle.clone(),
            volume_path: self.shown(&published),
            capacity_range: Some(CapacityRange { required_bytes: size, limit_bytes: 0 }),
            staging_target_path: if has_staging { self.shown(&staged) } else { String::new() },
            volume_capability: Some(driver.capability(&usage, None)),
            secrets: self.secrets(source.node_expand_secret_ref.as_ref(), "NodeExpandSecretRef").await?,
        };
        let unreported = |e: client::Error| format!("failed to mark node expansion in progress: {e}");
        *claim = self.cluster.report_growth(claim, Progress::OnNode).await.map_err(unreported)?;
        let Err(error) = driver.call(&csi::NODE_EXPAND_VOLUME, request).await else { return Ok(true) };
        let why = format!("Expander.NodeExpand failed to expand the volume : {error}");
        if is_final(&error) {
            // A claim that wants another size by now is the controller's again.
            let failed_before = !self.failed_growth.lock().insert(volume.name.to_owned());
            let is_infeasible = is_infeasible(&error) || (failed_before && requested(claim) != size);
            match self.cluster.report_growth(claim, Progress::FailedOnNode { is_infeasible, why: &why }).await {
                Ok(reported) => *claim = reported,
                Err(error) => tracing::warn!(volume = volume.name, %error, "recording a failed expansion failed"),
            }
        }
        Err(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_a_volume_that_has_grown_is_expanded() {
        let cases = [
            (json!({"storage": "1Gi"}), json!({"storage": "2Gi"}), Some(2 << 30)),
            (json!({"storage": "2Gi"}), json!({"storage": "2147483648"}), None),
            (json!({"storage": "2Gi"}), json!({"storage": "1Gi"}), None),
            (json!({}), json!({"storage": "1Gi"}), None),
        ];
        for (has, is, expected) in cases {
            let claim: PersistentVolumeClaim = serde_json::from_value(json!({"status": {"capacity": has}})).unwrap();
            let spec = json!({"capacity": is, "csi": {"driver": "d", "volumeHandle": "h"}});
            let pv: PersistentVolume = serde_json::from_value(json!({"spec": spec})).unwrap();
            assert_eq!(new_size(&claim, &pv).map(|(_, size)| size), expected, "{has} {is}");
        }
    }
}
