//! ResourceSlices of drivers that are gone: they are deleted, so that nothing is scheduled to devices that nobody prepares (upstream
//! `cm/dra/plugin/dra_plugin_manager.go`). Drivers publish them again when they are back.

use std::sync::Arc;
use std::time::Duration;

use client::{DeleteOptions, ListOptions};
use k8s_openapi::api::resource::v1::ResourceSlice;

use super::{Dra, Task};

/// How long a driver may be gone, as during an upgrade.
const DELAY: Duration = Duration::from_secs(30);
/// The first and the longest pause after a failure.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(300);

impl Dra {
    /// Deletes the slices of this node, of one driver or of all; tries it until it works.
    pub async fn delete_slices(&self, driver: Option<&str>) {
        let mut field_selector = format!("spec.nodeName={}", self.node);
        if let Some(driver) = driver {
            field_selector += &format!(",spec.driver={driver}");
        }
        let list = ListOptions { field_selector, ..ListOptions::default() };
        let api = self.client.api::<ResourceSlice>();
        let mut retry = FIRST_RETRY;
        while let Err(error) = api.delete_collection(&DeleteOptions::default(), &list).await {
            if error.is_not_found() {
                return;
            }
            tracing::debug!(selector = list.field_selector, %error, "deleting ResourceSlices failed; it is tried again");
            tokio::time::sleep(retry).await;
            retry = (retry * 2).min(LAST_RETRY);
        }
    }

    /// Deletes the slices of a driver, unless it registers again in time.
    pub(super) fn delete_slices_later(self: &Arc<Self>, driver: &str) {
        let (dra, name) = (Arc::downgrade(self), driver.to_owned());
        let deletion = tokio::spawn(async move {
            tokio::time::sleep(DELAY).await;
            let Some(dra) = dra.upgrade() else { return };
            tracing::info!(driver = name, "a driver is gone; its ResourceSlices of this node are deleted");
            dra.delete_slices(Some(&name)).await;
        });
        self.state.lock().deletions.insert(driver.to_owned(), Task(deletion));
    }
}
