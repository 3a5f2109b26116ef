//! What volumes of CSI drivers need of the API, with the identity of the node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use client::{Client, DeleteOptions, Informer, Key, Patch, Recorder, Regarding, Severity, WriteOptions};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, VolumeAttachment};
use meta::Clock;
use plugins::api::csi::NodeGetInfoResponse;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::node_info;
use crate::objects::Whole;
use crate::provisioner::growth::{self, Progress};

/// Tries of a write that conflicts with others.
const TRIES: usize = 10;

/// A condition for the object of a driver, which may have none.
pub type Condition<'a> = &'a (dyn Fn(Option<&CSIDriver>) -> bool + Send + Sync);

#[async_trait::async_trait]
pub trait Cluster: Send + Sync {
    /// `None` if the driver has no object.
    async fn driver(&self, name: &str) -> Result<Option<CSIDriver>, client::Error>;
    async fn attachment(&self, name: &str) -> Result<Option<VolumeAttachment>, client::Error>;
    async fn secret(&self, namespace: &str, name: &str) -> Result<Secret, client::Error>;
    /// Waits until the status of the node lists the volume as attached.
    async fn attached(&self, volume: &str);
    /// Sets `volumesInUse` of the node.
    async fn set_in_use(&self, volumes: &BTreeSet<String>) -> Result<(), client::Error>;
    /// Adds a driver to the node and its CSINode. Errors with the reason.
    async fn install(&self, driver: &str, info: &NodeGetInfoResponse) -> Result<(), String>;
    /// Replaces a driver in the CSINode. Errors with the reason.
    async fn update(&self, driver: &str, info: &NodeGetInfoResponse) -> Result<(), String>;
    /// Waits until the object of a driver, or that it has none, meets the condition. Returns that.
    async fn wait_for_driver(&self, name: &str, is: Condition<'_>) -> Option<CSIDriver>;
    /// Removes a driver from the node and its CSINode. Errors with the reason.
    async fn uninstall(&self, driver: &str) -> Result<(), String>;
    /// Records how far the growth of a claim is. Returns the claim with that.
    async fn report_growth(
        &self,
        claim: &PersistentVolumeClaim,
        progress: Progress<'_>,
    ) -> Result<PersistentVolumeClaim, client::Error>;
    /// Emits an event about the pod, and about the claim if there is one.
    fn event(&self, pod: &Pod, claim: Option<&PersistentVolumeClaim>, is_warning: bool, reason: &str, message: String);
}

/// Waits until `find` finds something, which it is asked after each change.
async fn wait_for<T>(changed: &Notify, find: impl Fn() -> Option<T>) -> T {
    loop {
        let changed = changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        if let Some(found) = find() {
            return found;
        }
        // The informer may be without a connection, and notifies of no change when it has one again.
        let _ = tokio::time::timeout(Duration::from_secs(10), changed).await;
    }
}

/// Reads and writes through the API.
pub struct ApiCluster {
    client: Client,
    node_name: String,
    recorder: Recorder,
    clock: Arc<dyn Clock>,
    node: Informer<Whole>,
    /// A change of the node.
    changed: Arc<Notify>,
    drivers: Informer<Whole>,
    /// A change of the object of a driver.
    drivers_changed: Arc<Notify>,
    _subscriptions: [client::informer::Subscription; 2],
}

impl ApiCluster {
    /// `node`: an informer of the node itself. `drivers`: one of all CSIDrivers.
    pub fn new(
        client: Client,
        node_name: String,
        recorder: Recorder,
        clock: Arc<dyn Clock>,
        node: Informer<Whole>,
        drivers: Informer<Whole>,
    ) -> Self {
        let (changed, drivers_changed): (Arc<Notify>, Arc<Notify>) = Default::default();
        let (notify, notify_of_drivers) = (changed.clone(), drivers_changed.clone());
        let subscriptions = [
            node.subscribe(move |_| notify.notify_waiters()),
            drivers.subscribe(move |_| notify_of_drivers.notify_waiters()),
        ];
        Self {
            client,
            node_name,
            recorder,
            clock,
            node,
            changed,
            drivers,
            drivers_changed,
            _subscriptions: subscriptions,
        }
    }

    fn is_attached(&self, volume: &str) -> bool {
        let Some(entry) = self.node.get(&Key::new("", &*self.node_name)) else { return false };
        let Ok(node) = entry.decode::<Node>() else { return false };
        let attached = node.status.and_then(|s| s.volumes_attached).unwrap_or_default();
        attached.iter().any(|v| v.name == volume)
    }

    /// Changes the node. `change` returns the metadata to merge; nothing if there is nothing to change.
    async fn change_node(&self, change: impl Fn(&Node) -> Result<Option<Value>, String>) -> Result<(), String> {
        let api = self.client.api::<Node>();
        for _ in 0..TRIES {
            let node = api.get(&self.node_name).await.map_err(|e| e.to_string())?;
            let Some(mut metadata) = change(&node)? else { return Ok(()) };
            metadata["resourceVersion"] = json!(node.metadata.resource_version);
            let patch = Patch::Merge(json!({"metadata": metadata}));
            match api.patch(&self.node_name, &WriteOptions::default(), &patch).await {
                Ok(_) => return Ok(()),
                Err(e) if e.is_conflict() => {}
                Err(e) => return Err(e.to_string()),
            }
        }
        Err("the node changes too often".into())
    }

    /// Changes the CSINode, which is created if it is missing.
    async fn change_csi_node(&self, change: impl Fn(CSINode) -> CSINode) -> Result<(), client::Error> {
        let api = self.client.api::<CSINode>();
        let mut last = None;
        for _ in 0..TRIES {
            let written = match api.get_opt(&self.node_name).await? {
                Some(old) => {
                    let new = change(old.clone());
                    if new == old {
                        return Ok(());
                    }
                    api.update(&self.node_name, &WriteOptions::default(), &new).await
                }
                None => {
                    let node = self.client.api::<Node>().get(&self.node_name).await?;
                    let new = change(node_info::new_csi_node(&node));
                    api.create(&WriteOptions::default(), &new).await
                }
            };
            match written {
                Ok(_) => return Ok(()),
                Err(e) if e.is_conflict() || e.is_already_exists() || e.is_not_found() => last = Some(e),
                Err(e) => return Err(e),
            }
        }
        Err(last.unwrap_or_else(|| client::Error::Unexpected("the CSINode changes too often".into())))
    }

    /// Creates the CSINode of a node that has none. A node without drivers has one, too.
    pub async fn create_csi_node(&self) -> Result<(), client::Error> {
        let api = self.client.api::<CSINode>();
        let node = self.client.api::<Node>().get(&self.node_name).await?;
        if let Some(found) = api.get_opt(&self.node_name).await? {
            let mut owners = found.metadata.owner_references.iter().flatten();
            if owners.any(|o| Some(&o.uid) == node.metadata.uid.as_ref()) {
                return Ok(());
            }
            // It belongs to a node of this name that is gone.
            let uid = found.metadata.uid.unwrap_or_default();
            client::optional(api.delete(&self.node_name, &DeleteOptions::uid(&uid)).await)?;
        }
        match api.create(&WriteOptions::default(), &node_info::new_csi_node(&node)).await {
            Err(e) if !e.is_already_exists() => Err(e),
            _ => Ok(()),
        }
    }
}

#[async_trait::async_trait]
impl Cluster for ApiCluster {
    async fn driver(&self, name: &str) -> Result<Option<CSIDriver>, client::Error> {
        self.client.api::<CSIDriver>().get_opt(name).await
    }

    async fn attachment(&self, name: &str) -> Result<Option<VolumeAttachment>, client::Error> {
        self.client.api::<VolumeAttachment>().get_opt(name).await
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Secret, client::Error> {
        self.client.api::<Secret>().namespace(namespace).get(name).await
    }

    async fn attached(&self, volume: &str) {
        wait_for(&self.changed, || self.is_attached(volume).then_some(())).await;
    }

    async fn wait_for_driver(&self, name: &str, is: Condition<'_>) -> Option<CSIDriver> {
        let find = || {
            let found = self.drivers.get(&Key::new("", name)).and_then(|e| e.decode::<CSIDriver>().ok());
            is(found.as_ref()).then_some(found)
        };
        wait_for(&self.drivers_changed, find).await
    }

    async fn set_in_use(&self, volumes: &BTreeSet<String>) -> Result<(), client::Error> {
        let patch = Patch::Merge(json!({"status": {"volumesInUse": volumes}}));
        let api = self.client.api::<Node>();
        api.patch_status(&self.node_name, &WriteOptions::default(), &patch).await.map(drop)
    }

    async fn install(&self, driver: &str, info: &NodeGetInfoResponse) -> Result<(), String> {
        if info.node_id.is_empty() {
            return Err("error adding CSI driver node info: driverNodeID must not be empty".into());
        }
        let none = BTreeMap::new();
        let topology = info.accessible_topology.as_ref().map_or(&none, |t| &t.segments);
        self.change_node(|node| node_info::installed(node, driver, &info.node_id, topology))
            .await
            .map_err(|e| format!("error updating Node object with CSI driver node info: {e}"))?;
        self.update(driver, info).await
    }

    async fn update(&self, driver: &str, info: &NodeGetInfoResponse) -> Result<(), String> {
        self.change_csi_node(|node| node_info::with_driver(node, driver, info))
            .await
            .map_err(|e| format!("error updating CSINode object with CSI driver node info: {e}"))
    }

    async fn uninstall(&self, driver: &str) -> Result<(), String> {
        self.change_csi_node(|node| node_info::without_driver(node, driver))
            .await
            .map_err(|e| format!("error uninstalling CSI driver from CSINode object {e}"))?;
        self.change_node(|node| Ok(node_info::uninstalled(node, driver)))
            .await
            .map_err(|e| format!("error removing CSI driver node info from Node object {e}"))
    }

    async fn report_growth(
        &self,
        claim: &PersistentVolumeClaim,
        progress: Progress<'_>,
    ) -> Result<PersistentVolumeClaim, client::Error> {
        let Some(status) = growth::status(claim, progress, &meta::time::format(self.clock.now())) else {
            return Ok(claim.clone());
        };
        let meta = &claim.metadata;
        let (namespace, name) = (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref());
        let metadata = json!({"resourceVersion": meta.resource_version});
        let patch = Patch::Merge(json!({"metadata": metadata, "status": status}));
        let api = self.client.api::<PersistentVolumeClaim>().namespace(namespace);
        api.patch_status(name.unwrap_or_default(), &WriteOptions::default(), &patch).await
    }

    fn event(&self, pod: &Pod, claim: Option<&PersistentVolumeClaim>, is_warning: bool, reason: &str, message: String) {
        let severity = if is_warning { Severity::Warning } else { Severity::Normal };
        let claim = claim.map(|c| ("PersistentVolumeClaim", &c.metadata));
        for (kind, meta) in [("Pod", &pod.metadata)].into_iter().chain(claim) {
            let text = |t: &Option<String>| t.clone().unwrap_or_default();
            let about = Regarding {
                api_version: "v1".into(),
                kind: kind.into(),
                namespace: text(&meta.namespace),
                name: text(&meta.name),
                uid: text(&meta.uid),
                resource_version: text(&meta.resource_version),
                field_path: String::new(),
            };
            self.recorder.event(about, severity, reason, message.clone());
        }
    }
}
