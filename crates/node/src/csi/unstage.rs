//! Unstages volumes that no pod has any more, beside the pods, again and again until their driver has done it.
//!
//! **Invariant.** A volume has one task at most, which ends when the volume is unstaged or a pod has it again. A task is begun, and
//! ends, only while the volume is locked.

use std::sync::{Arc, Weak};
use std::time::Duration;

use plugins::api::csi::{self, NodeCapability, NodeUnstageVolumeRequest};
use supervisor::blocking;

use super::Csi;
use super::paths::{Record, absent, remove_mount_point};

/// How long after a failure a volume is unstaged again; the delay doubles with each failure (upstream's `exponentialbackoff`).
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_MAX: Duration = Duration::from_secs(122);

/// What became of a volume that was to be unstaged.
enum Unstaged {
    Done,
    /// A pod has the volume, or waits for it.
    InUse,
}

impl Csi {
    /// Unstages a volume soon, unless a pod has it. The caller has locked it.
    pub(super) fn begin_unstage(self: &Arc<Self>, record: Record) {
        if self.unstaging.lock().insert(record.unique_name()) {
            tokio::spawn(run(Arc::downgrade(self), record));
        }
    }

    /// Unstages what was begun for a pod and not published. The pod's volumes are torn down.
    pub(super) async fn unstage_begun(self: &Arc<Self>, pod: &str) {
        let begun = self.begun.lock().remove(pod).unwrap_or_default();
        for record in begun.into_values().filter(|r| r.volume_lifecycle_mode != "Ephemeral") {
            let _guard = self.lock(&record.driver_name, &record.volume_handle).await;
            if self.has_stage(&record).await {
                self.begin_unstage(record);
            }
        }
    }

    /// Unstages volumes of a driver that no pod has: an earlier agent ended in between.
    pub(super) async fn unstage_unused(self: &Arc<Self>, name: &str) {
        let staged = match self.staged().await {
            Ok(staged) => staged,
            Err(error) => return tracing::warn!(%error, "reading the records of staged volumes failed"),
        };
        for (_, record) in staged.into_iter().filter(|(_, r)| r.driver_name == name) {
            let _guard = self.lock(&record.driver_name, &record.volume_handle).await;
            // The end of a pod may have unstaged it since it was listed.
            if self.has_stage(&record).await {
                self.begin_unstage(record);
            }
        }
        if let Err(error) = self.report_in_use().await {
            tracing::warn!(error, "reporting the volumes in use failed");
        }
    }

    async fn has_stage(&self, record: &Record) -> bool {
        let directories =
            [self.layout.device_record(&record.name), self.layout.staged(&record.driver_name, &record.volume_handle)];
        blocking(move || directories.iter().any(|d| Record::read(d).map_or(true, |r| r.is_some()))).await
    }

    /// Unstages a volume once. The caller has locked it.
    async fn unstage(&self, record: &Record) -> Result<Unstaged, String> {
        let published = self.records().await.map_err(|e| e.to_string())?;
        let is_awaited = self.awaited.lock().contains_key(&record.unique_name());
        if is_awaited || published.iter().any(|(_, r)| r.is_same_volume(record)) {
            return Ok(Unstaged::InUse);
        }
        let device = self.layout.device_record(&record.name);
        let is_block = blocking({
            let device = device.clone();
            move || Record::read(&device).is_ok_and(|r| r.is_some())
        })
        .await;
        let path = self.staging_path(record, is_block);
        let driver = self.driver(&record.driver_name).await.map_err(|e| {
            format!("kubernetes.io/csi: attacher.UnmountDevice failed to create newCsiDriverClient: {e}")
        })?;
        if driver.can(NodeCapability::StageUnstageVolume) {
            let request = NodeUnstageVolumeRequest {
                volume_id: record.volume_handle.clone(),
                staging_target_path: self.shown(&path),
            };
            let unstaged = driver.call(&csi::NODE_UNSTAGE_VOLUME, request).await;
            unstaged.map_err(|e| format!("kubernetes.io/csi: attacher.UnmountDevice failed: {e}"))?;
        }
        let (published, staged) = (
            self.layout.published_devices(&record.name),
            self.layout.staged(&record.driver_name, &record.volume_handle),
        );
        let removed = blocking(move || {
            if !is_block {
                return remove_mount_point(&path).and_then(|()| Record::remove(&staged));
            }
            remove_mount_point(&path)?;
            absent(std::fs::remove_dir(published))?;
            Record::remove(&device)?;
            absent(device.parent().map_or(Ok(()), std::fs::remove_dir))
        });
        removed.await.map_err(|e| format!("failed to clean up global mount: {e}"))?;
        Ok(Unstaged::Done)
    }
}

/// Unstages a volume until that succeeds, a pod has it, or the agent ends.
async fn run(agent: Weak<Csi>, record: Record) {
    let mut delay = AGAIN;
    while let Some(csi) = agent.upgrade() {
        let registered = {
            let _guard = csi.lock(&record.driver_name, &record.volume_handle).await;
            let registered = csi.registrations.subscribe();
            match csi.unstage(&record).await {
                Ok(done) => {
                    csi.unstaging.lock().remove(&record.unique_name());
                    if matches!(done, Unstaged::Done)
                        && let Err(error) = csi.report_in_use().await
                    {
                        tracing::warn!(
                            error,
                            "reporting the volumes in use failed; it is repeated with the next volume"
                        );
                    }
                    return;
                }
                Err(error) => {
                    let (driver, handle) = (&record.driver_name, &record.volume_handle);
                    tracing::warn!(driver, handle, error, "unstaging a volume failed; retrying in {delay:?}");
                    registered
                }
            }
        };
        drop(csi);
        wait(registered, delay).await;
        delay = delay.saturating_mul(2).min(AGAIN_MAX);
    }
}

/// Returns after the delay, or earlier if a driver registers.
async fn wait(mut registered: tokio::sync::watch::Receiver<u64>, delay: Duration) {
    let _ = tokio::time::timeout(delay, registered.changed()).await;
}
