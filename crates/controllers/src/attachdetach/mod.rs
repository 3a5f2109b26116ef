//! Attaches volumes of CSI drivers to the nodes whose pods need them, and detaches them (upstream `pkg/controller/volume/attachdetach`).
//!
//! An attachment is a VolumeAttachment, which the attacher of the driver carries out. A key is a volume, or a node whose
//! `status.volumesAttached` is written: the node mounts what is listed there. **Invariant.** Before an attachment is deleted, the
//! volume is removed from that list, and the response to that write says that the node does not use the volume; only a node that
//! is lost or out of service loses a volume that it may use. Left out: volumes of plugins that are not CSI drivers.

mod decide;
mod view;

use crate::context::{Context, Error};
use crate::controller::{Builder, Reconcile};
use crate::views::{Pod, PodEntry, pods};
use aws_lc_rs::digest::{SHA256, digest};
use client::{ApiResource, Change, DeleteOptions, Entry, Informer, Key, Outcome, Patch, Recorder, Regarding};
use client::{WorkQueue, WriteOptions};
use decide::{Attached, Step};
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use meta::Object;
use parking_lot::Mutex;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use view::{Attachment, Claim, Driver, Node, Volume};

const PODS_BY_CLAIM: &str = "attach claim";
const BY_DRIVER: &str = "attach driver";
const BY_VOLUME: &str = "attach volume";
const BY_NODE: &str = "attach node";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    /// The name of a persistent volume.
    Volume(String),
    /// The name of a node.
    Node(String),
}

struct Controller {
    context: Context,
    pods: Informer<Pod>,
    claims: Informer<Claim>,
    volumes: Informer<Volume>,
    drivers: Informer<Driver>,
    attachments: Informer<Attachment>,
    nodes: Informer<Node>,
    recorder: Recorder,
    /// Since when a volume has not been needed on a node that has it.
    unneeded: Mutex<BTreeMap<(String, String), Timestamp>>,
    /// Attachments that have succeeded, or failed with a message, and are not reported yet.
    news: Mutex<BTreeMap<(String, String), Option<Box<str>>>>,
    /// Volumes and nodes whose pods have the event that the volume is on another node.
    blocked: Mutex<BTreeSet<(String, String)>>,
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let mut builder = Builder::<Item>::new(&context);
    let c = Arc::new(Controller {
        pods: builder.watch(&pods()),
        claims: builder.watch(&ApiResource::typed::<core::PersistentVolumeClaim>()),
        volumes: builder.watch(&ApiResource::typed::<core::PersistentVolume>()),
        drivers: builder.watch(&ApiResource::typed::<CSIDriver>()),
        attachments: builder.watch(&ApiResource::typed::<VolumeAttachment>()),
        nodes: builder.watch(&ApiResource::typed::<core::Node>()),
        recorder: context.recorder_as("attachdetach-controller"),
        unneeded: Mutex::default(),
        news: Mutex::default(),
        blocked: Mutex::default(),
        context,
    });
    c.pods.index(PODS_BY_CLAIM, |pod| claim_keys(pod).map(|key| key.to_string()).collect());
    c.volumes.index(BY_DRIVER, |v| v.view.spec.csi.iter().map(|s| s.driver.to_string()).collect());
    c.attachments.index(BY_VOLUME, |a| own_volume(a).map(str::to_owned).into_iter().collect());
    c.attachments.index(BY_NODE, |a| own_volume(a).map(|_| a.view.spec.node_name.to_string()).into_iter().collect());
    builder.handle(&c, &c.pods, Controller::pod_changed);
    builder.handle(&c, &c.claims, Controller::claim_changed);
    builder.handle(&c, &c.attachments, Controller::attachment_changed);
    builder.handle(&c, &c.nodes, Controller::node_changed);
    builder.handle(&c, &c.drivers, Controller::driver_changed);
    builder.on_change(&c.volumes, |change: &Change<Volume>, queue| {
        if change.latest().view.spec.csi.is_some() {
            queue.add(Item::Volume(change.key().name.to_string()));
        }
    });
    builder.run(10, c).await;
}

fn claim_keys(pod: &Entry<Pod>) -> impl Iterator<Item = Key> {
    let claims = pod.view.spec.claims(&pod.meta.name);
    claims.map(|name| Key::new(pod.meta.namespace.clone(), &*name))
}

/// The name of the VolumeAttachment of a volume on a node.
fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    let hash = digest(&SHA256, format!("{handle}{driver}{node}").as_bytes());
    let hex: String = hash.as_ref().iter().map(|b| format!("{b:02x}")).collect();
    format!("csi-{hex}")
}

/// The volume of an attachment of this controller. Attachments with other names are somebody else's, and left alone.
fn own_volume(attachment: &Entry<Attachment>) -> Option<&str> {
    let hash = attachment.meta.name.strip_prefix("csi-")?;
    let is_own = hash.len() == 64 && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    attachment.view.spec.source.persistent_volume_name.as_deref().filter(|_| is_own)
}

fn failed(volume: &str, why: &str) -> String {
    format!("AttachVolume.Attach failed for volume {volume:?} : {why}")
}

impl Controller {
    fn pod_changed(&self, change: &Change<Pod>, queue: &WorkQueue<Item>) {
        let latest = change.latest();
        if latest.view.spec.node_name.is_empty() {
            return;
        }
        for key in claim_keys(latest) {
            if let Some(claim) = self.claims.get(&key).filter(|c| !c.view.spec.volume_name.is_empty()) {
                queue.add(Item::Volume(claim.view.spec.volume_name.to_string()));
            }
        }
    }

    fn claim_changed(&self, change: &Change<Claim>, queue: &WorkQueue<Item>) {
        let volume = &change.latest().view.spec.volume_name;
        if !volume.is_empty() {
            queue.add(Item::Volume(volume.to_string()));
        }
    }

    fn attachment_changed(&self, change: &Change<Attachment>, queue: &WorkQueue<Item>) {
        let latest = change.latest();
        let Some(volume) = own_volume(latest) else { return };
        let status = &latest.view.status;
        // What was there before this controller is no news.
        if let (Some(old), Some(_)) = (&change.old, &change.new) {
            let before = &old.view.status;
            let key = (volume.to_owned(), latest.view.spec.node_name.to_string());
            if status.attached && !before.attached {
                self.news.lock().insert(key, None);
            } else if let Some(error) =
                status.attach_error.as_ref().filter(|e| Some(*e) != before.attach_error.as_ref())
            {
                self.news.lock().insert(key, Some(error.message.clone().unwrap_or_default()));
            }
        }
        queue.add(Item::Volume(volume.to_owned()));
        queue.add(Item::Node(latest.view.spec.node_name.to_string()));
    }

    fn node_changed(&self, change: &Change<Node>, queue: &WorkQueue<Item>) {
        let name = change.key().name;
        let attachments = self.attachments.cache();
        let mut has_any = false;
        for attachment in attachments.by_index(BY_NODE, &name) {
            has_any = true;
            if let Some(volume) = &attachment.view.spec.source.persistent_volume_name {
                queue.add(Item::Volume(volume.to_string()));
            }
        }
        let is_new = change.old.is_none();
        let lists = |n: &Entry<Node>| !n.view.status.volumes_attached.is_empty();
        if has_any || change.new.as_ref().is_some_and(|n| lists(n)) {
            queue.add(Item::Node(name.to_string()));
        }
        drop(attachments);
        if is_new {
            // Its pods may have been there before.
            let pods = self.pods.cache();
            let on_node = pods.entries().filter(|p| *p.view.spec.node_name == *name);
            let keys: Vec<Key> = on_node.flat_map(|p| claim_keys(p).collect::<Vec<_>>()).collect();
            drop(pods);
            for claim in keys.iter().filter_map(|key| self.claims.get(key)) {
                queue.add(Item::Volume(claim.view.spec.volume_name.to_string()));
            }
        }
    }

    fn driver_changed(&self, change: &Change<Driver>, queue: &WorkQueue<Item>) {
        let volumes = self.volumes.cache();
        volumes.by_index(BY_DRIVER, &change.key().name).for_each(|v| queue.add(Item::Volume(v.meta.name.to_string())));
    }

    /// The pods that need a volume, by the name of their node.
    fn needed(&self, name: &str, volume: &Volume) -> BTreeMap<String, Vec<Arc<PodEntry>>> {
        let mut out: BTreeMap<String, Vec<Arc<PodEntry>>> = BTreeMap::new();
        let Some(reference) = &volume.spec.claim_ref else { return out };
        let key = Key::new(&*reference.namespace, &*reference.name);
        let is_bound = self.claims.get(&key).is_some_and(|c| {
            &*c.view.spec.volume_name == name && (reference.uid.is_empty() || *c.meta.uid == *reference.uid)
        });
        if !is_bound {
            return out;
        }
        let pods: Vec<Arc<PodEntry>> = self.pods.cache().by_index(PODS_BY_CLAIM, &key.to_string()).cloned().collect();
        for pod in pods {
            let node = &pod.view.spec.node_name;
            let Some(found) = self.nodes.get(&Key::new("", &**node)).filter(|n| n.view.is_managed()) else { continue };
            if !pod.view.is_terminal() || found.view.keeps_terminated() {
                out.entry(node.to_string()).or_default().push(pod);
            }
        }
        out
    }

    /// The nodes that have a volume, with what decides whether they keep it.
    fn attached(&self, name: &str, unique: Option<&str>, needed: &BTreeSet<String>) -> BTreeMap<String, Attached> {
        let now = self.context.now();
        let mut unneeded = self.unneeded.lock();
        let mut out = BTreeMap::new();
        for attachment in self.attachments.cache().by_index(BY_VOLUME, name) {
            let node = attachment.view.spec.node_name.to_string();
            let key = (name.to_owned(), node.clone());
            let since = match needed.contains(&node) {
                true => {
                    unneeded.remove(&key);
                    now
                }
                false => *unneeded.entry(key).or_insert(now),
            };
            let found = self.nodes.get(&Key::new("", &*node));
            let view = found.as_ref().map(|n| &n.view);
            let attached = Attached {
                is_deleting: attachment.meta.is_deleting(),
                is_in_use: view.is_some_and(|n| unique.is_some_and(|u| n.uses(u))),
                is_ready: view.is_some_and(Node::is_ready),
                is_out_of_service: view.is_some_and(Node::is_out_of_service),
                unneeded: Some(meta::time::left(since, now)),
            };
            out.insert(node, attached);
        }
        unneeded.retain(|(volume, node), _| volume != name || out.contains_key(node));
        out
    }

    async fn sync_volume(&self, name: &str) -> Result<Outcome, Error> {
        let volume = self.volumes.get(&Key::new("", name));
        let source = volume.as_ref().and_then(|v| v.view.spec.csi.clone());
        let is_attachable = source.as_ref().is_some_and(|s| {
            let driver = self.drivers.get(&Key::new("", &*s.driver));
            driver.is_none_or(|d| d.view.spec.attach_required != Some(false))
        });
        let needed = match &volume {
            Some(v) if is_attachable => self.needed(name, &v.view),
            _ => BTreeMap::new(),
        };
        let nodes: BTreeSet<String> = needed.keys().cloned().collect();
        let unique = source.as_ref().map(|s| s.unique_name());
        let attached = self.attached(name, unique.as_deref(), &nodes);
        self.report(name, &needed);
        let several = volume.as_ref().is_none_or(|v| v.view.allows_several_nodes());
        let mut outcome = Outcome::Done;
        for step in decide::steps(&nodes, &attached, several) {
            match step {
                Step::Attach(node) => {
                    let Some(source) = &source else { continue };
                    if let Err(e) = self.attach(name, source, &node).await {
                        for pod in needed.get(&node).into_iter().flatten() {
                            self.warn(pod, failed(name, &e.to_string()));
                        }
                        return Err(e.into());
                    }
                }
                Step::Detach(node, is_forced) => self.detach(name, unique.as_deref(), &node, is_forced).await?,
                Step::Blocked(node, others) => self.report_blocked(name, &needed, &node, &others),
                Step::Wait(delay) => outcome = Outcome::After(delay),
            }
        }
        self.blocked
            .lock()
            .retain(|(volume, node)| volume != name || nodes.contains(node) && !attached.contains_key(node));
        Ok(outcome)
    }

    fn warn(&self, pod: &PodEntry, message: String) {
        self.recorder.warning(Regarding::from_meta("v1", "Pod", &pod.meta), "FailedAttachVolume", message);
    }

    /// Emits the events about attachments of a volume that have succeeded or failed.
    fn report(&self, name: &str, needed: &BTreeMap<String, Vec<Arc<PodEntry>>>) {
        let news: Vec<(String, Option<Box<str>>)> = {
            let mut news = self.news.lock();
            let keys: Vec<_> = news.keys().filter(|(volume, _)| volume == name).cloned().collect();
            keys.into_iter().filter_map(|key| news.remove(&key).map(|n| (key.1, n))).collect()
        };
        for (node, error) in news {
            for pod in needed.get(&node).into_iter().flatten() {
                match &error {
                    Some(why) => self.warn(pod, failed(name, why)),
                    None => {
                        let message = format!("AttachVolume.Attach succeeded for volume {name:?} ");
                        let about = Regarding::from_meta("v1", "Pod", &pod.meta);
                        self.recorder.normal(about, "SuccessfulAttachVolume", message);
                    }
                }
            }
        }
    }

    /// Tells the pods of a node, once, which pods of other nodes have the volume.
    fn report_blocked(&self, name: &str, needed: &BTreeMap<String, Vec<Arc<PodEntry>>>, node: &str, others: &[String]) {
        if !self.blocked.lock().insert((name.to_owned(), node.to_owned())) {
            return;
        }
        let users: Vec<&Arc<PodEntry>> = others.iter().filter_map(|n| needed.get(n)).flatten().collect();
        for pod in needed.get(node).into_iter().flatten() {
            let (local, elsewhere): (Vec<&Arc<PodEntry>>, Vec<&Arc<PodEntry>>) =
                users.iter().copied().partition(|p| p.meta.namespace == pod.meta.namespace);
            let local: Vec<String> = local.iter().map(|p| p.meta.name.to_string()).collect();
            self.warn(pod, decide::multi_attach(name, &local, elsewhere.len()));
        }
    }

    async fn attach(&self, name: &str, source: &view::Source, node: &str) -> Result<(), client::Error> {
        let resource = ApiResource::typed::<VolumeAttachment>();
        let attachment = Object::from_value(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
            "metadata": {"name": attachment_name(&source.volume_handle, &source.driver, node)},
            "spec": {"attacher": source.driver, "nodeName": node, "source": {"persistentVolumeName": name}},
        }))
        .unwrap_or_default();
        match self.context.client.dynamic(&resource).create(&WriteOptions::default(), &attachment).await {
            Err(e) if e.is_already_exists() => Ok(()),
            other => other.map(drop),
        }
    }

    async fn detach(&self, name: &str, unique: Option<&str>, node: &str, is_forced: bool) -> Result<(), Error> {
        let attachments: Vec<_> = {
            let cache = self.attachments.cache();
            cache.by_index(BY_VOLUME, name).filter(|a| *a.view.spec.node_name == *node).cloned().collect()
        };
        let api = self.context.client.api::<VolumeAttachment>();
        for attachment in attachments {
            let written = self.write_node(node, Some(&attachment.meta.name)).await?;
            let uses = |n: &core::Node| {
                let used = n.status.as_ref().and_then(|s| s.volumes_in_use.as_deref()).unwrap_or_default();
                unique.is_some_and(|unique| used.iter().any(|v| v == unique))
            };
            if !is_forced && written.as_ref().is_some_and(uses) {
                // The node has begun to use it again. It is listed again.
                self.write_node(node, None).await?;
                continue;
            }
            client::optional(api.delete(&attachment.meta.name, &DeleteOptions::uid(&attachment.meta.uid)).await)?;
        }
        Ok(())
    }

    /// Writes `volumesAttached` of a node without the attachment `except`, if it differs or `except` is given. Returns the node; `None` if it does
    /// not exist.
    async fn write_node(&self, name: &str, except: Option<&str>) -> Result<Option<core::Node>, client::Error> {
        let Some(node) = self.nodes.get(&Key::new("", name)) else { return Ok(None) };
        let mut names = BTreeSet::new();
        {
            let cache = self.attachments.cache();
            let of_node = cache.by_index(BY_NODE, name);
            for a in
                of_node.filter(|a| a.view.status.attached && !a.meta.is_deleting() && Some(&*a.meta.name) != except)
            {
                let volume = a.view.spec.source.persistent_volume_name.as_deref().unwrap_or_default();
                let source = self.volumes.get(&Key::new("", volume)).and_then(|v| v.view.spec.csi.clone());
                names.extend(source.map(|s| s.unique_name()));
            }
        }
        let listed: BTreeSet<String> = node.view.status.volumes_attached.iter().map(|v| v.name.to_string()).collect();
        if except.is_none() && listed == names {
            return Ok(None);
        }
        let list: Vec<_> = names.iter().map(|name| json!({"name": name, "devicePath": ""})).collect();
        let list = if list.is_empty() { serde_json::Value::Null } else { list.into() };
        let patch = Patch::Merge(json!({"status": {"volumesAttached": list}}));
        let api = self.context.client.api::<core::Node>();
        client::optional(api.patch_status(name, &WriteOptions::default(), &patch).await)
    }
}

impl Reconcile for Controller {
    type Key = Item;

    async fn reconcile(&self, item: Item) -> Result<Outcome, Error> {
        match item {
            Item::Volume(name) => self.sync_volume(&name).await,
            Item::Node(name) => {
                self.write_node(&name, None).await?;
                Ok(Outcome::Done)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::attachment_name;

    #[test]
    fn attachments_have_upstreams_names() {
        let name = "csi-4af94228ee9d441e02225497584706bfc975bdb4d2db3571d8c5db2668c1e969";
        assert_eq!(attachment_name("vol", "driver", "node"), name);
    }
}
