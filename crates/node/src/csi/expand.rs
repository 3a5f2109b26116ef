//! Makes the file system of a volume larger after its driver has made the volume larger.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use plugins::api::csi::{self, CapacityRange, NodeCapability, NodeExpandVolumeRequest};

use super::Csi;
use super::driver::Usage;
use super::volume::Persistent;

/// The bytes of a quantity; 0 for one that is missing or cannot be read.
fn bytes(quantity: Option<&Quantity>) -> i64 {
    quantity.and_then(|q| meta::Quantity::parse(&q.0).ok()).map_or(0, |q| q.value())
}

/// The new size of the volume of a claim; `None` if the claim has it already.
fn new_size(claim: &PersistentVolumeClaim, volume: &Persistent<'_>) -> Option<(Quantity, i64)> {
    let capacity = volume.volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?;
    let has = claim.status.as_ref()?.capacity.as_ref()?.get("storage");
    let (size, has) = (bytes(Some(capacity)), bytes(has));
    (has > 0 && size > has).then(|| (capacity.clone(), size))
}

impl Csi {
    /// Makes the file system of a published volume as large as the volume, if the claim says that it is not. Emits an event.
    pub async fn expand(&self, volume: &Persistent<'_>, claim: &PersistentVolumeClaim, pod: &Pod) {
        let Some((capacity, size)) = new_size(claim, volume) else { return };
        let name = volume.name;
        match self.expand_to(volume, pod, size).await {
            Ok(false) => {}
            Ok(true) => match self.cluster.finish_expansion(claim, &capacity.0).await {
                Ok(()) => {
                    let node = &self.node_name;
                    let message = format!("MountVolume.NodeExpandVolume succeeded for volume {name:?} {node}");
                    self.cluster.event(pod, claim, false, "FileSystemResizeSuccessful", message);
                }
                Err(error) => tracing::warn!(volume = name, %error, "recording the size of a claim failed"),
            },
            Err(why) => {
                let message = format!("MountVolume.NodeExpandVolume failed for volume {name:?} : {why}");
                self.cluster.event(pod, claim, true, "VolumeResizeFailed", message);
            }
        }
    }

    /// Returns whether the driver has expanded the volume; it may have nothing to do.
    async fn expand_to(&self, volume: &Persistent<'_>, pod: &Pod, size: i64) -> Result<bool, String> {
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
        let (published, staged) = match usage.is_block {
            true => (self.layout.published_devices(volume.name).join(uid), self.layout.staged_device(volume.name)),
            false => (
                self.layout.pod_volume(uid, volume.name).join("mount"),
                self.layout.staged(&source.driver, &source.volume_handle).join("globalmount"),
            ),
        };
        let has_staging = driver.can(NodeCapability::StageUnstageVolume);
        let request = NodeExpandVolumeRequest {
            volume_id: source.volume_handle.clone(),
            volume_path: self.shown(&published),
            capacity_range: Some(CapacityRange { required_bytes: size, limit_bytes: 0 }),
            staging_target_path: if has_staging { self.shown(&staged) } else { String::new() },
            volume_capability: Some(driver.capability(&usage, None)),
            secrets: self.secrets(source.node_expand_secret_ref.as_ref(), "NodeExpandSecretRef").await?,
        };
        let expanded = driver.call(&csi::NODE_EXPAND_VOLUME, request).await;
        expanded.map_err(|e| format!("Expander.NodeExpand failed to expand the volume : {e}"))?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::PersistentVolume;
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
            let source = pv.spec.as_ref().unwrap().csi.as_ref().unwrap();
            let volume = Persistent { name: "pv", volume: &pv, source };
            assert_eq!(new_size(&claim, &volume).map(|(_, size)| size), expected, "{has} {is}");
        }
    }
}
