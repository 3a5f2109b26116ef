//! Keeps the limit of volumes of a driver in the CSINode up to date (`nodeAllocatableUpdatePeriodSeconds`; upstream
//! `pkg/volume/csi/csi_node_updater.go`).
//!
//! **Invariant.** A registered driver has one task, which asks it again as often as its CSIDriver says by now, or never.

use std::sync::{Arc, Weak};
use std::time::Duration;

use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use plugins::Code;
use plugins::api::csi::{self, Empty};

use super::Csi;
use super::cluster::Cluster;

/// How often the driver is asked again; `None` if it is not.
fn period(object: Option<&CSIDriver>) -> Option<Duration> {
    let seconds = object?.spec.node_allocatable_update_period_seconds?;
    u64::try_from(seconds).ok().filter(|s| *s > 0).map(Duration::from_secs)
}

/// Whether an attachment has failed because the node has as many volumes as it can have.
fn is_exhausted(attachment: &VolumeAttachment) -> bool {
    let error = attachment.status.as_ref().and_then(|s| s.attach_error.as_ref());
    error.and_then(|e| e.error_code) == Some(Code::ResourceExhausted as i32)
}

impl Csi {
    /// Begins to ask a driver that has registered.
    pub(super) fn begin_updates(self: &Arc<Self>, driver: &str) {
        let task = tokio::spawn(run(Arc::downgrade(self), self.cluster.clone(), driver.to_owned()));
        if let Some(old) = self.updates.lock().insert(driver.to_owned(), task.abort_handle()) {
            old.abort();
        }
    }

    pub(super) fn end_updates(&self, driver: &str) {
        if let Some(task) = self.updates.lock().remove(driver) {
            task.abort();
        }
    }

    /// Asks a driver for the limit of volumes of the node, and writes it into the CSINode. Errors with the reason.
    async fn update_allocatable(&self, name: &str) -> Result<(), String> {
        let driver = self.driver(name).await?;
        let info = driver.call(&csi::NODE_GET_INFO, Empty {}).await;
        let info = info.map_err(|e| format!("failed to get NodeGetInfo from driver {name:?}: {e}"))?;
        self.cluster.update(name, &info).await.map_err(|e| format!("failed to update driver {name:?}: {e}"))
    }

    /// Whether a volume is not attached because the node has no room for it, as far as its attacher tells. The limit is updated then. Only
    /// for drivers whose limit changes.
    pub(super) async fn is_exhausted(&self, driver: &str, object: Option<&CSIDriver>, attachment: &str) -> bool {
        if period(object).is_none() {
            return false;
        }
        let found = match self.cluster.attachment(attachment).await {
            Ok(found) => found.is_some_and(|a| is_exhausted(&a)),
            Err(error) => {
                tracing::warn!(attachment, %error, "reading the attachment of a volume failed");
                return false;
            }
        };
        if found && let Err(error) = self.update_allocatable(driver).await {
            tracing::warn!(driver, error, "updating the limit of volumes failed");
        }
        found
    }
}

impl Drop for Csi {
    fn drop(&mut self) {
        self.updates.get_mut().values().for_each(|task| task.abort());
    }
}

async fn run(agent: Weak<Csi>, cluster: Arc<dyn Cluster>, driver: String) {
    let mut current = None;
    loop {
        let differs = move |object: Option<&CSIDriver>| period(object) != current;
        let changes = cluster.wait_for_driver(&driver, &differs);
        let Some(delay) = current else {
            current = period(changes.await.as_ref());
            continue;
        };
        if let Ok(object) = tokio::time::timeout(delay, changes).await {
            current = period(object.as_ref());
            continue;
        }
        let Some(csi) = agent.upgrade() else { return };
        if let Err(error) = csi.update_allocatable(&driver).await {
            tracing::warn!(driver, error, "updating the limit of volumes failed; retrying in {delay:?}");
        }
    }
}
