//! One volume for one pod: waits until it is attached, stages and publishes it, and undoes both.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, CSIVolumeSource, PersistentVolume, Pod, SecretReference};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use plugins::api::csi::{
    self, NodeCapability, NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
};
use serde_json::json;
use supervisor::blocking;

use super::Csi;
use super::driver::{Driver, Usage, is_final};
use super::paths::{Record, absent, attachment_name, inline_handle, is_driver_name, names, remove_mount_point};
use crate::volumes::{set_group, token::Tokens};

/// How long a pod waits for the attachment of a volume before the wait is reported (upstream's `podAttachAndMountTimeout`).
const ATTACH: Duration = Duration::from_secs(123);

/// Which step failed, in kubelet's words, and why.
#[derive(Debug)]
pub struct Failure {
    pub stage: &'static str,
    pub why: String,
}

impl Failure {
    pub(super) fn new(stage: &'static str, why: impl ToString) -> Self {
        Self { stage, why: why.to_string() }
    }
}

const SET_UP: &str = "MountVolume.SetUp";
const MOUNT_DEVICE: &str = "MountVolume.MountDevice";
const SET_UP_DEVICE: &str = "MapVolume.SetUpDevice";
const MAP_POD_DEVICE: &str = "MapVolume.MapPodDevice";
const ATTACHED: &str = "MountVolume.WaitForAttach";
/// The stage of a volume for which the node has no room: its pod is rejected with this reason.
pub const LIMIT_EXCEEDED: &str = "VolumeAttachmentLimitExceeded";
/// The stage of a volume whose attachment is not there in time.
pub const TIMED_OUT: &str = "timed out waiting for the condition";

/// A volume for a pod.
pub struct Request<'a, E> {
    pub pod: &'a Pod,
    pub is_read_only: bool,
    /// `fsGroup`.
    pub group: Option<u32>,
    /// Files keep their group if the root directory has it (`OnRootMismatch`).
    pub on_mismatch: bool,
    pub tokens: &'a dyn Tokens,
    /// Resolves when the pod terminates, which ends the operation.
    pub ends: E,
}

/// A persistent volume.
pub struct Persistent<'a> {
    pub name: &'a str,
    pub volume: &'a PersistentVolume,
    pub source: &'a CSIPersistentVolumeSource,
}

/// A volume that its driver makes for the pod.
pub struct Inline<'a> {
    pub name: &'a str,
    pub source: &'a CSIVolumeSource,
}

/// What both kinds of volumes have in common.
struct Plan {
    driver: String,
    handle: String,
    name: String,
    usage: Usage,
    mode: &'static str,
    publish_secret: Option<SecretReference>,
    stage_secret: Option<SecretReference>,
    object: Option<CSIDriver>,
    is_attachable: bool,
    is_single_pod: bool,
}

/// What a pod waits for before its volume is staged.
enum Attachment {
    /// `None`: the volume is not attached to nodes.
    Ready(Option<VolumeAttachment>),
    /// The driver does not attach its volumes any more.
    NotRequired(Option<CSIDriver>),
}

/// Whether volumes of a driver are attached before they are mounted.
fn requires_attachment(object: Option<&CSIDriver>) -> bool {
    object.and_then(|o| o.spec.attach_required) != Some(false)
}

impl Plan {
    fn record(&self, node: &str) -> Record {
        let (handle, driver) = (&self.handle, &self.driver);
        let attachment = self.is_attachable.then(|| attachment_name(handle, driver, node));
        Record {
            driver_name: driver.clone(),
            volume_handle: handle.clone(),
            name: self.name.clone(),
            node_name: node.to_owned(),
            attachment: attachment.unwrap_or_default(),
            volume_lifecycle_mode: self.mode.into(),
            single_pod: if self.is_single_pod { "true".into() } else { String::new() },
        }
    }

    fn is_ephemeral(&self) -> bool {
        self.mode == "Ephemeral"
    }
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// Errors if the driver does not say that it supports the volume's way of life.
fn check_lifecycle(object: Option<&CSIDriver>, driver: &str, mode: &str) -> Result<(), String> {
    match object {
        None if mode == "Persistent" => Ok(()),
        None => Err(format!("volume mode {mode:?} not supported by driver {driver} (no CSIDriver object)")),
        Some(o) => {
            let modes = o.spec.volume_lifecycle_modes.as_deref().unwrap_or_default();
            let supported =
                if modes.is_empty() { mode == "Persistent" } else { modes.iter().any(|m| m.as_str() == mode) };
            let listed = modes.join(" ");
            supported.then_some(()).ok_or_else(|| {
                format!("volume mode {mode:?} not supported by driver {driver} (only supports [{listed}])")
            })
        }
    }
}

/// Whether the agent gives the files of a volume to the pod's group.
fn applies_group(plan: &Plan, access_modes: &[String]) -> bool {
    if plan.usage.is_block {
        return false;
    }
    match plan.object.as_ref().and_then(|o| o.spec.fs_group_policy.as_deref()) {
        Some("None") => false,
        Some("File") => true,
        _ if plan.usage.fs_type.is_empty() => false,
        _ => plan.is_ephemeral() || access_modes.iter().any(|m| m == "ReadWriteOnce" || m == "ReadWriteOncePod"),
    }
}

impl Csi {
    /// Makes a persistent volume ready for a pod, or finds that it is.
    pub async fn set_up<E: Future<Output = ()> + Send>(
        &self,
        volume: &Persistent<'_>,
        request: Request<'_, E>,
    ) -> Result<PathBuf, Failure> {
        let spec = volume.volume.spec.clone().unwrap_or_default();
        let source = volume.source;
        let object = self.object(&source.driver).await?;
        let access_modes = spec.access_modes.clone().unwrap_or_default();
        let plan = Plan {
            driver: source.driver.clone(),
            handle: source.volume_handle.clone(),
            name: volume.name.to_owned(),
            usage: Usage::of_volume(&spec),
            mode: "Persistent",
            publish_secret: source.node_publish_secret_ref.clone(),
            stage_secret: source.node_stage_secret_ref.clone(),
            is_attachable: requires_attachment(object.as_ref()),
            is_single_pod: access_modes.iter().any(|m| m == "ReadWriteOncePod"),
            object,
        };
        self.run(plan, &access_modes, request).await
    }

    /// Makes an inline volume ready for a pod, or finds that it is.
    pub async fn set_up_inline<E: Future<Output = ()> + Send>(
        &self,
        volume: &Inline<'_>,
        request: Request<'_, E>,
    ) -> Result<PathBuf, Failure> {
        let source = volume.source;
        let object = self.object(&source.driver).await?;
        let namespace = request.pod.metadata.namespace.clone();
        let secret = source.node_publish_secret_ref.as_ref();
        let usage = Usage {
            fs_type: source.fs_type.clone().unwrap_or_default(),
            access_mode: "ReadWriteOnce".into(),
            context: source.volume_attributes.clone().unwrap_or_default(),
            ..Usage::default()
        };
        let plan = Plan {
            driver: source.driver.clone(),
            handle: inline_handle(uid(request.pod), volume.name),
            name: volume.name.to_owned(),
            usage,
            mode: "Ephemeral",
            publish_secret: secret.map(|s| SecretReference { name: Some(s.name.clone()), namespace }),
            stage_secret: None,
            is_attachable: false,
            is_single_pod: false,
            object,
        };
        self.run(plan, &[], request).await
    }

    /// Follows what the driver requires by now: its volumes may not be attached any more, and the next call publishes this one again if
    /// that is to happen regularly. Returns whether it is.
    pub async fn follow_driver(&self, driver: &str, pod: &Pod, name: &str) -> Result<bool, Failure> {
        let object = self.object(driver).await?;
        if object.as_ref().is_some_and(|o| o.spec.attach_required == Some(false)) {
            self.forget_attachment(pod, name).await?;
        }
        let requires = object.is_some_and(|o| o.spec.requires_republish == Some(true));
        if requires {
            self.published.lock().remove(&(uid(pod).to_owned(), name.to_owned()));
        }
        Ok(requires)
    }

    /// Reports a volume as not in use whose driver does not attach volumes any more, so that its attachment is removed.
    async fn forget_attachment(&self, pod: &Pod, name: &str) -> Result<(), Failure> {
        let failed = |e: std::io::Error| Failure::new(SET_UP, format!("failed to save volume info data: {e}"));
        let directories = [self.layout.pod_volume(uid(pod), name), self.layout.device_record(name)];
        let mut is_changed = false;
        for directory in directories {
            let at = directory.clone();
            let Some(record) = blocking(move || Record::read(&at)).await.map_err(failed)? else { continue };
            if record.attachment.is_empty() {
                continue;
            }
            let _guard = self.lock(&record.driver_name, &record.volume_handle).await;
            let record = Record { attachment: String::new(), ..record };
            let staged = self.layout.staged(&record.driver_name, &record.volume_handle);
            let written = blocking(move || -> std::io::Result<()> {
                if Record::read(&staged)?.is_some() {
                    record.write(&staged)?;
                }
                record.write(&directory)
            });
            written.await.map_err(failed)?;
            is_changed = true;
        }
        if is_changed {
            self.report_in_use().await.map_err(|e| Failure::new(SET_UP, e))?;
        }
        Ok(())
    }

    async fn object(&self, driver: &str) -> Result<Option<CSIDriver>, Failure> {
        if !is_driver_name(driver) {
            return Err(Failure::new(SET_UP, format!("invalid driver name {driver:?}")));
        }
        let found = self.cluster.driver(driver).await;
        found.map_err(|e| Failure::new(SET_UP, format!("failed to get the CSIDriver {driver}: {e}")))
    }

    async fn run<E: Future<Output = ()> + Send>(
        &self,
        mut plan: Plan,
        access_modes: &[String],
        request: Request<'_, E>,
    ) -> Result<PathBuf, Failure> {
        let Request { pod, is_read_only, group, on_mismatch, tokens, ends } = request;
        let path = match plan.usage.is_block {
            true => self.layout.published_devices(&plan.name).join(uid(pod)),
            false => self.layout.pod_volume(uid(pod), &plan.name).join("mount"),
        };
        let key = (uid(pod).to_owned(), plan.name.clone());
        if self.published.lock().contains(&key) {
            return Ok(path);
        }
        check_lifecycle(plan.object.as_ref(), &plan.driver, plan.mode).map_err(|e| {
            Failure::new(
                SET_UP,
                format!("kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: {e}"),
            )
        })?;
        let work = async {
            let attachment = loop {
                let record = plan.record(&self.node_name);
                self.begun.lock().entry(key.0.clone()).or_default().insert(key.1.clone(), record);
                match self.wait_for_attachment(&plan).await? {
                    Attachment::Ready(attachment) => break attachment,
                    Attachment::NotRequired(object) => (plan.object, plan.is_attachable) = (object, false),
                }
            };
            let plan = &plan;
            let context = attachment.and_then(|a| a.status?.attachment_metadata).unwrap_or_default();
            let _guard = self.lock(&plan.driver, &plan.handle).await;
            let driver = self.driver(&plan.driver).await;
            let driver = driver.map_err(|e| {
                let why = format!("kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: {e}");
                Failure::new(if plan.usage.is_block { MAP_POD_DEVICE } else { SET_UP }, why)
            })?;
            self.check_single_pod(plan, uid(pod)).await?;
            let staging = self.stage(plan, &driver, &context, group).await?;
            let publish = Publish { pod, is_read_only, group, tokens, staging, context, path: &path };
            self.publish(plan, &driver, publish).await?;
            let is_agents = !driver.can(NodeCapability::VolumeMountGroup) && !is_read_only;
            if let Some(group) = group.filter(|_| is_agents && applies_group(plan, access_modes)) {
                let root = path.clone();
                let changed = blocking(move || set_group(&root, Some(group), on_mismatch)).await;
                changed
                    .map_err(|e| Failure::new(SET_UP, format!("applyFSGroup failed for vol {}: {e}", plan.handle)))?;
            }
            self.published.lock().insert(key);
            Ok(path)
        };
        tokio::select! {
            done = work => done,
            // What the driver may have done is undone with the pod.
            () = ends => Err(Failure::new(SET_UP, "the pod is being deleted")),
        }
    }

    /// The attachment of an attachable volume, once it is attached.
    async fn wait_for_attachment(&self, plan: &Plan) -> Result<Attachment, Failure> {
        if !plan.is_attachable {
            return Ok(Attachment::Ready(None));
        }
        let failed = |why: String| Failure::new(ATTACHED, why);
        let record = plan.record(&self.node_name);
        let volume = record.unique_name();
        let awaited = Awaited::new(self, &volume);
        self.report_in_use().await.map_err(failed)?;
        let name = &record.attachment;
        let is_needless = |object: Option<&CSIDriver>| !requires_attachment(object);
        tokio::select! {
            () = self.cluster.attached(&volume) => {}
            object = self.cluster.wait_for_driver(&plan.driver, &is_needless) => {
                drop(awaited);
                self.report_in_use().await.map_err(failed)?;
                return Ok(Attachment::NotRequired(object));
            }
            () = tokio::time::sleep(ATTACH) => {
                let is_exhausted = self.is_exhausted(&plan.driver, plan.object.as_ref(), name).await;
                let stage = if is_exhausted { LIMIT_EXCEEDED } else { TIMED_OUT };
                return Err(Failure::new(stage, "context deadline exceeded"));
            }
        }
        let attachment = self.cluster.attachment(name).await.map_err(|e| failed(e.to_string()))?;
        let Some(attachment) = attachment else {
            return Err(failed(format!("volumeattachments.storage.k8s.io {name:?} not found")));
        };
        if attachment.metadata.deletion_timestamp.is_some() {
            return Err(failed("volume attachment is being deleted".into()));
        }
        if !attachment.status.as_ref().is_some_and(|s| s.attached) {
            return Err(failed(format!("volume {} has not been attached yet", plan.handle)));
        }
        // Recorded before it is not awaited any more, so that it stays in use.
        self.write_staged(plan).await?;
        Ok(Attachment::Ready(Some(attachment)))
    }

    fn staging_record(&self, plan: &Plan) -> PathBuf {
        match plan.usage.is_block {
            true => self.layout.device_record(&plan.name),
            false => self.layout.staged(&plan.driver, &plan.handle),
        }
    }

    pub(super) fn staging_path(&self, record: &Record, is_block: bool) -> PathBuf {
        match is_block {
            true => self.layout.staged_device(&record.name),
            false => self.layout.staged(&record.driver_name, &record.volume_handle).join("globalmount"),
        }
    }

    async fn write_staged(&self, plan: &Plan) -> Result<(), Failure> {
        let (record, directory) = (plan.record(&self.node_name), self.staging_record(plan));
        let written = blocking(move || record.write(&directory)).await;
        written.map_err(|e| Failure::new(MOUNT_DEVICE, format!("failed to save volume info data: {e}")))
    }

    /// Errors if only one pod may use the volume and another one does.
    async fn check_single_pod(&self, plan: &Plan, own: &str) -> Result<(), Failure> {
        if !plan.is_single_pod {
            return Ok(());
        }
        let records = self.records().await.map_err(|e| Failure::new(SET_UP, e))?;
        let is_other =
            |(uid, r): &(String, Record)| uid != own && r.driver_name == plan.driver && r.volume_handle == plan.handle;
        match records.iter().any(is_other) {
            true => {
                let why = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
                Err(Failure::new(SET_UP, why))
            }
            false => Ok(()),
        }
    }

    /// Stages the volume, if its driver does that. Returns the path.
    async fn stage(
        &self,
        plan: &Plan,
        driver: &Driver,
        context: &BTreeMap<String, String>,
        group: Option<u32>,
    ) -> Result<Option<PathBuf>, Failure> {
        if plan.is_ephemeral() {
            return Ok(None);
        }
        let stage = if plan.usage.is_block { SET_UP_DEVICE } else { MOUNT_DEVICE };
        // Also of a driver that stages nothing: the volume is in use.
        self.write_staged(plan).await?;
        if !driver.can(NodeCapability::StageUnstageVolume) {
            return Ok(None);
        }
        let secrets = self.secrets(plan.stage_secret.as_ref(), "NodeStageSecretRef").await;
        let secrets = secrets.map_err(|e| Failure::new(stage, e))?;
        let record = plan.record(&self.node_name);
        let path = self.staging_path(&record, plan.usage.is_block);
        let directory = path.clone();
        let made = blocking(move || std::fs::create_dir_all(directory)).await;
        made.map_err(|e| Failure::new(stage, format!("failed to create dir {}: {e}", path.display())))?;
        let request = NodeStageVolumeRequest {
            volume_id: plan.handle.clone(),
            publish_context: context.clone(),
            staging_target_path: self.shown(&path),
            volume_capability: Some(driver.capability(&plan.usage, group)),
            secrets,
            volume_context: plan.usage.context.clone(),
        };
        let Err(error) = driver.call(&csi::NODE_STAGE_VOLUME, request).await else { return Ok(Some(path)) };
        if is_final(&error) && !self.has_pods(&record).await {
            let directory = self.staging_record(plan);
            let removed = blocking(move || remove_mount_point(&path).and_then(|()| Record::remove(&directory)));
            if let Err(error) = removed.await {
                tracing::debug!(%error, "removing the staging path of a volume failed; it is removed with the pod");
            }
        }
        Err(Failure::new(stage, error))
    }

    /// Whether a pod has the volume, as far as records tell.
    async fn has_pods(&self, record: &Record) -> bool {
        let records = self.records().await;
        // What cannot be read may be there.
        records.map_or(true, |all| all.iter().any(|(_, r)| r.is_same_volume(record)))
    }

    async fn publish(&self, plan: &Plan, driver: &Driver, p: Publish<'_>) -> Result<(), Failure> {
        let stage = if plan.usage.is_block { MAP_POD_DEVICE } else { SET_UP };
        let mut secrets = self
            .secrets(plan.publish_secret.as_ref(), "NodePublishSecretRef")
            .await
            .map_err(|e| Failure::new(stage, e))?;
        let mut context = plan.usage.context.clone();
        let spec = plan.object.as_ref().map(|o| &o.spec);
        if spec.is_some_and(|s| s.pod_info_on_mount == Some(true)) {
            context.extend(pod_info(p.pod, plan.is_ephemeral()));
        }
        if let Some(tokens) = self.tokens(plan, &p).await.map_err(|e| Failure::new(stage, e))? {
            let attribute = ("csi.storage.k8s.io/serviceAccount.tokens".to_owned(), tokens);
            match spec.is_some_and(|s| s.service_account_token_in_secrets == Some(true)) {
                true => secrets.extend([attribute]),
                false => context.extend([attribute]),
            }
        }
        let record = plan.record(&self.node_name);
        let (directory, parent) = match plan.usage.is_block {
            true => (self.layout.pod_devices(uid(p.pod)).join(&plan.name), self.layout.published_devices(&plan.name)),
            false => {
                let directory = self.layout.pod_volume(uid(p.pod), &plan.name);
                (directory.clone(), directory)
            }
        };
        let is_block = plan.usage.is_block;
        let had_record = blocking({
            let directory = directory.clone();
            move || -> std::io::Result<bool> {
                std::fs::create_dir_all(parent)?;
                if is_block {
                    let found = directory.exists();
                    std::fs::create_dir_all(directory)?;
                    return Ok(found);
                }
                let found = Record::read(&directory)?.is_some();
                record.write(&directory)?;
                Ok(found)
            }
        })
        .await
        .map_err(|e| Failure::new(stage, format!("failed to save volume info data: {e}")))?;
        let staging = p.staging.as_ref().map(|path| self.shown(path)).unwrap_or_default();
        let request = NodePublishVolumeRequest {
            volume_id: plan.handle.clone(),
            publish_context: p.context.clone(),
            staging_target_path: staging,
            target_path: self.shown(p.path),
            volume_capability: Some(driver.capability(&plan.usage, p.group)),
            readonly: p.is_read_only,
            secrets,
            volume_context: context,
        };
        let Err(error) = driver.call(&csi::NODE_PUBLISH_VOLUME, request).await else { return Ok(()) };
        if is_final(&error) && !had_record {
            let path = p.path.to_owned();
            let removed = blocking(move || {
                remove_mount_point(&path)?;
                Record::remove(&directory)
            });
            if let Err(error) = removed.await {
                tracing::debug!(%error, "removing the directory of a volume failed; it is removed with the pod");
            }
        }
        Err(Failure::new(stage, error))
    }

    /// Undoes what was done for a volume of a pod, whose record is in `directory`. Does nothing if there is none.
    async fn tear_down(self: &Arc<Self>, pod: &str, directory: &Path) -> Result<(), String> {
        let is_block = directory.starts_with(self.layout.pod_devices(pod));
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let at = if is_block { self.layout.device_record(&name) } else { directory.to_owned() };
        let Some(record) = blocking(move || Record::read(&at)).await.map_err(|e| e.to_string())? else {
            let directory = directory.to_owned();
            return blocking(move || absent(std::fs::remove_dir(directory))).await.map_err(|e| e.to_string());
        };
        let _guard = self.lock(&record.driver_name, &record.volume_handle).await;
        let driver = self
            .driver(&record.driver_name)
            .await
            .map_err(|e| format!("kubernetes.io/csi: Unmounter.TearDownAt failed to get CSI client: {e}"))?;
        let path = match is_block {
            true => self.layout.published_devices(&name).join(pod),
            false => directory.join("mount"),
        };
        let request =
            NodeUnpublishVolumeRequest { volume_id: record.volume_handle.clone(), target_path: self.shown(&path) };
        let unpublished = driver.call(&csi::NODE_UNPUBLISH_VOLUME, request).await;
        unpublished.map_err(|e| format!("kubernetes.io/csi: Unmounter.TearDownAt failed: {e}"))?;
        let directory = directory.to_owned();
        let removed = blocking(move || {
            remove_mount_point(&path)?;
            if is_block { absent(std::fs::remove_dir(directory)) } else { Record::remove(&directory) }
        });
        removed.await.map_err(|e| format!("kubernetes.io/csi: Unmounter.TearDownAt failed to clean mount dir: {e}"))?;
        self.published.lock().remove(&(pod.to_owned(), name));
        if record.volume_lifecycle_mode != "Ephemeral" {
            self.begin_unstage(record);
        }
        Ok(())
    }

    /// Unpublishes the volumes of a pod whose containers have ended. Staged volumes that no other pod has are unstaged afterwards: the pod
    /// does not wait for that, as upstream.
    pub async fn tear_down_pod(self: &Arc<Self>, pod: &str) -> Result<(), String> {
        let layout = self.layout.clone();
        let (volumes, devices) = (layout.pod_volumes(pod), layout.pod_devices(pod));
        for parent in [volumes, devices] {
            let directory = parent.clone();
            let found = blocking(move || names(&directory)).await.map_err(|e| e.to_string())?;
            for name in found {
                self.tear_down(pod, &parent.join(name)).await?;
            }
        }
        self.unstage_begun(pod).await;
        Ok(())
    }

    pub(super) fn shown(&self, path: &Path) -> String {
        self.root.shown(path).to_string_lossy().into_owned()
    }

    /// The data of a secret. Errors with the reason.
    pub(super) async fn secrets(
        &self,
        reference: Option<&SecretReference>,
        field: &str,
    ) -> Result<BTreeMap<String, String>, String> {
        let Some(reference) = reference else { return Ok(BTreeMap::new()) };
        let (namespace, name) = (reference.namespace.as_deref(), reference.name.as_deref());
        let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
        let secret = self.cluster.secret(namespace, name).await;
        let secret = secret.map_err(|e| format!("fetching {field} {namespace}/{name} failed: {e}"))?;
        let data = secret.data.into_iter().flatten();
        Ok(data.map(|(k, v)| (k, String::from_utf8_lossy(&v.0).into_owned())).collect())
    }

    /// The pod's tokens that the driver requests, as JSON.
    async fn tokens(&self, plan: &Plan, p: &Publish<'_>) -> Result<Option<String>, String> {
        let requests = plan.object.as_ref().and_then(|o| o.spec.token_requests.as_deref()).unwrap_or_default();
        if requests.is_empty() {
            return Ok(None);
        }
        let mut out = serde_json::Map::new();
        for request in requests {
            let audience = &request.audience;
            let token = p.tokens.issue(p.pod, Some(audience), request.expiration_seconds).await;
            let token = token.map_err(|e| {
                format!("kubernetes.io/csi: mounter.SetUpAt failed to get service accoount token attributes: {e}")
            })?;
            let expires = meta::time::format(token.expires);
            out.insert(audience.clone(), json!({"token": token.token, "expirationTimestamp": expires}));
        }
        Ok(Some(serde_json::Value::Object(out).to_string()))
    }
}

/// What publishing needs beyond the plan.
struct Publish<'a> {
    pod: &'a Pod,
    is_read_only: bool,
    group: Option<u32>,
    tokens: &'a dyn Tokens,
    staging: Option<PathBuf>,
    context: BTreeMap<String, String>,
    path: &'a Path,
}

/// The pod in the attributes of a volume (`podInfoOnMount`).
fn pod_info(pod: &Pod, is_ephemeral: bool) -> [(String, String); 5] {
    let m = &pod.metadata;
    let account = pod.spec.as_ref().and_then(|s| s.service_account_name.clone());
    [
        ("csi.storage.k8s.io/pod.name", m.name.clone().unwrap_or_default()),
        ("csi.storage.k8s.io/pod.namespace", m.namespace.clone().unwrap_or_default()),
        ("csi.storage.k8s.io/pod.uid", m.uid.clone().unwrap_or_default()),
        ("csi.storage.k8s.io/serviceAccount.name", account.unwrap_or_default()),
        ("csi.storage.k8s.io/ephemeral", is_ephemeral.to_string()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
}

/// A volume that is in use although it has no record yet.
struct Awaited<'a>(&'a Csi, String);

impl<'a> Awaited<'a> {
    fn new(csi: &'a Csi, volume: &str) -> Self {
        *csi.awaited.lock().entry(volume.to_owned()).or_default() += 1;
        Self(csi, volume.to_owned())
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        let mut awaited = self.0.awaited.lock();
        if let Some(count) = awaited.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                awaited.remove(&self.1);
            }
        }
    }
}
