//! Volumes of CSI drivers on this node: registration of drivers, staging and publishing.
//!
//! [`Csi`] is shared by all pods. [`volume`] makes and removes volumes for pods, [`unstage`] what they shared, [`registration`] follows drivers, and
//! [`allocatable`] how many volumes they can have. [`paths`] has upstream's paths
//! and the records, [`driver`] the calls, and [`cluster`] what is read from and written to the API.
//!
//! **Invariants.** What a driver may have mounted has a record on the disk, from before the call until after it is undone: a new agent
//! finds it, and asks the driver again, whose calls are idempotent. A volume is unstaged only if no pod has a record of it; calls for
//! one volume exclude each other. The node lists a volume as in use before it looks whether it is attached, and until it is unstaged.

mod allocatable;
pub mod cluster;
mod driver;
mod expand;
mod node_info;
pub(crate) mod paths;
mod registration;
mod unstage;
mod volume;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use plugins::KubeletRoot;
use supervisor::blocking;
use tokio::sync::{OwnedMutexGuard, watch};

use cluster::Cluster;
use driver::Driver;
pub use expand::Published;
pub(crate) use expand::{may_grow_on_node, new_size};
use paths::{Layout, Record};
pub use registration::Registration;
pub use volume::{Failure, Inline, Persistent, Request};
pub use volume::{LIMIT_EXCEEDED, TIMED_OUT};

/// How long an operation waits for a driver that is not registered: after a start of the agent drivers register again.
const PATIENCE: Duration = Duration::from_secs(5);

/// The volumes of CSI drivers of the node.
pub struct Csi {
    root: KubeletRoot,
    layout: Layout,
    node_name: String,
    cluster: Arc<dyn Cluster>,
    drivers: Mutex<BTreeMap<String, Driver>>,
    /// Tasks that ask drivers for the limit of volumes.
    updates: Mutex<BTreeMap<String, tokio::task::AbortHandle>>,
    /// How many times a driver has registered.
    registrations: watch::Sender<u64>,
    locks: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// What this agent has published: UID of the pod and name of the volume.
    published: Mutex<BTreeSet<(String, String)>>,
    /// What was begun for pods, by the name of the volume, until they are gone.
    begun: Mutex<BTreeMap<String, BTreeMap<String, Record>>>,
    /// Volumes that are being unstaged, by their unique names.
    unstaging: Mutex<BTreeSet<String>>,
    /// Attachable volumes that are about to be staged, with the number of pods.
    awaited: Mutex<BTreeMap<String, usize>>,
    /// Volumes that drivers could not make larger.
    failed_growth: Mutex<BTreeSet<String>>,
    /// What the node reports as in use; `None` before the first report.
    reported: tokio::sync::Mutex<Option<BTreeSet<String>>>,
}

impl Csi {
    pub fn new(root: KubeletRoot, node_name: &str, cluster: Arc<dyn Cluster>) -> Self {
        Self {
            layout: Layout { root: root.path.clone() },
            root,
            node_name: node_name.to_owned(),
            cluster,
            drivers: Mutex::default(),
            updates: Mutex::default(),
            registrations: watch::Sender::new(0),
            unstaging: Mutex::default(),
            locks: Mutex::default(),
            published: Mutex::default(),
            begun: Mutex::default(),
            awaited: Mutex::default(),
            failed_growth: Mutex::default(),
            reported: tokio::sync::Mutex::default(),
        }
    }

    /// A registered driver. Waits a little for one that is not.
    async fn driver(&self, name: &str) -> Result<Driver, String> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let mut registrations = self.registrations.subscribe();
            if let Some(driver) = self.drivers.lock().get(name) {
                return Ok(driver.clone());
            }
            if tokio::time::timeout_at(deadline, registrations.changed()).await.is_err() {
                return Err(format!("driver name {name} not found in the list of registered CSI drivers"));
            }
        }
    }

    /// Excludes other calls for the volume.
    async fn lock(&self, driver: &str, handle: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.locks.lock();
            locks.retain(|_, l| Arc::strong_count(l) > 1);
            locks.entry(paths::unique_name(driver, handle)).or_default().clone()
        };
        lock.lock_owned().await
    }

    /// Volumes that are published for pods, or may be.
    async fn records(&self) -> std::io::Result<Vec<(String, Record)>> {
        let layout = self.layout.clone();
        blocking(move || layout.published()).await
    }

    /// Whether a pod has volumes that are published, or may be.
    pub async fn has_volumes(&self, pod: &str) -> bool {
        let directories = [self.layout.pod_volumes(pod), self.layout.pod_devices(pod)];
        let is_used = |d: &PathBuf| paths::names(d).map_or(true, |names| !names.is_empty());
        blocking(move || directories.iter().any(is_used)).await
    }

    /// Volumes that are staged, or may be.
    async fn staged(&self) -> std::io::Result<Vec<(PathBuf, Record)>> {
        let layout = self.layout.clone();
        blocking(move || layout.all_staged()).await
    }

    /// Reports the attachable volumes that the node uses, if they have changed.
    async fn report_in_use(&self) -> Result<(), String> {
        let mut reported = self.reported.lock().await;
        let published = self.records().await.map_err(|e| e.to_string())?.into_iter().map(|(_, r)| r);
        let staged = self.staged().await.map_err(|e| e.to_string())?.into_iter().map(|(_, r)| r);
        let records = published.chain(staged).filter(|r| !r.attachment.is_empty());
        let mut in_use: BTreeSet<String> = records.map(|r| r.unique_name()).collect();
        in_use.extend(self.awaited.lock().keys().cloned());
        if reported.as_ref() == Some(&in_use) {
            return Ok(());
        }
        let written = self.cluster.set_in_use(&in_use).await;
        written.map_err(|e| format!("failed to report the volumes in use: {e}"))?;
        *reported = Some(in_use);
        Ok(())
    }

    /// Repeats the report after the node was registered, as a new node has none.
    pub async fn node_registered(&self) {
        *self.reported.lock().await = None;
        if let Err(error) = self.report_in_use().await {
            tracing::warn!(error, "reporting the volumes in use failed; it is repeated with the next volume");
        }
    }
}

#[cfg(test)]
mod tests;
