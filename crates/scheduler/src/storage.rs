//! Persistent volumes, claims, and what else volume plugins read.

use crate::resources::quantity;
use client::informer::or_default;
use client::{Entry, Key};
use meta::LabelSelector;
use placement::NodeSelectorTerm;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::Arc;

pub type Claim = Entry<ClaimInfo>;
pub type Volume = Entry<VolumeInfo>;

const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
/// Marks a claim whose binding is complete.
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// Names the node for which a volume is provisioned.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawMetadata {
    annotations: Option<Map<String, Value>>,
}

impl RawMetadata {
    fn annotation(&self, key: &str) -> Option<Box<str>> {
        self.annotations.as_ref()?.get(key)?.as_str().map(Into::into)
    }
}

fn bytes(value: &Value) -> i64 {
    quantity(value).map_or(0, |q| q.value())
}

/// A persistent volume claim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "RawClaim")]
pub struct ClaimInfo {
    pub volume: Box<str>,
    pub class: Box<str>,
    pub modes: Vec<Box<str>>,
    /// Requested bytes; none without a request.
    pub size: Option<i64>,
    pub selector: Option<LabelSelector>,
    pub volume_mode: Box<str>,
    pub attributes_class: Box<str>,
    pub is_lost: bool,
    pub bind_completed: bool,
    /// The node for which a volume is provisioned.
    pub selected_node: Option<Box<str>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawClaim {
    metadata: RawMetadata,
    spec: RawClaimSpec,
    status: RawPhase,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawPhase {
    phase: Box<str>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawClaimSpec {
    volume_name: Box<str>,
    storage_class_name: Option<Box<str>>,
    #[serde(deserialize_with = "or_default")]
    access_modes: Vec<Box<str>>,
    resources: Value,
    selector: Option<Value>,
    volume_mode: Option<Box<str>>,
    volume_attributes_class_name: Option<Box<str>>,
}

impl From<RawClaim> for ClaimInfo {
    fn from(raw: RawClaim) -> Self {
        let s = raw.spec;
        let size = &s.resources["requests"]["storage"];
        Self {
            class: raw.metadata.annotation(CLASS_ANNOTATION).or(s.storage_class_name).unwrap_or_default(),
            volume: s.volume_name,
            modes: s.access_modes,
            size: (!size.is_null()).then(|| bytes(size)),
            selector: s.selector.map(|v| LabelSelector::from_value(Some(&v)).unwrap_or_else(|_| LabelSelector::none())),
            volume_mode: s.volume_mode.unwrap_or_else(|| "Filesystem".into()),
            attributes_class: s.volume_attributes_class_name.unwrap_or_default(),
            is_lost: &*raw.status.phase == "Lost",
            bind_completed: raw.metadata.annotation(BIND_COMPLETED).is_some(),
            selected_node: raw.metadata.annotation(SELECTED_NODE),
        }
    }
}

impl ClaimInfo {
    pub fn is_bound(&self) -> bool {
        !self.volume.is_empty() && self.bind_completed
    }
}

/// A persistent volume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "RawVolume")]
pub struct VolumeInfo {
    pub class: Box<str>,
    pub capacity: i64,
    pub modes: Vec<Box<str>>,
    pub volume_mode: Box<str>,
    pub attributes_class: Box<str>,
    pub is_available: bool,
    /// The claim that it is bound to or reserved for: namespace, name and UID (may be empty).
    pub claim: Option<(Box<str>, Box<str>, Box<str>)>,
    /// The nodes that reach it; none: all.
    pub nodes: Option<Vec<NodeSelectorTerm>>,
    /// Driver and handle of a CSI volume.
    pub csi: Option<(Box<str>, Box<str>)>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawVolume {
    metadata: RawMetadata,
    spec: RawVolumeSpec,
    status: RawPhase,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawVolumeSpec {
    storage_class_name: Box<str>,
    capacity: Value,
    #[serde(deserialize_with = "or_default")]
    access_modes: Vec<Box<str>>,
    volume_mode: Option<Box<str>>,
    volume_attributes_class_name: Option<Box<str>>,
    claim_ref: Value,
    node_affinity: Value,
    csi: Value,
}

impl From<RawVolume> for VolumeInfo {
    fn from(raw: RawVolume) -> Self {
        let s = raw.spec;
        let text = |v: &Value| -> Box<str> { v.as_str().unwrap_or_default().into() };
        let terms = s.node_affinity["required"]["nodeSelectorTerms"].as_array();
        let claim = &s.claim_ref;
        Self {
            class: raw.metadata.annotation(CLASS_ANNOTATION).unwrap_or(s.storage_class_name),
            capacity: bytes(&s.capacity["storage"]),
            modes: s.access_modes,
            volume_mode: s.volume_mode.unwrap_or_else(|| "Filesystem".into()),
            attributes_class: s.volume_attributes_class_name.unwrap_or_default(),
            is_available: &*raw.status.phase == "Available",
            claim: claim.is_object().then(|| (text(&claim["namespace"]), text(&claim["name"]), text(&claim["uid"]))),
            nodes: terms.map(|t| t.iter().map(NodeSelectorTerm::read).collect()),
            csi: s.csi.is_object().then(|| (text(&s.csi["driver"]), text(&s.csi["volumeHandle"]))),
        }
    }
}

impl VolumeInfo {
    /// Whether a node reaches the volume.
    pub fn reaches<'a>(&self, name: &'a str, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.nodes.as_ref().is_none_or(|terms| terms.iter().any(|t| t.matches(name, &label)))
    }

    /// Whether it is bound to or reserved for the claim.
    pub fn is_for(&self, claim: &Claim) -> bool {
        self.claim.as_ref().is_some_and(|(namespace, name, uid)| {
            **namespace == *claim.meta.namespace
                && **name == *claim.meta.name
                && (uid.is_empty() || **uid == *claim.meta.uid)
        })
    }
}

/// A storage class.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClassInfo {
    pub provisioner: Box<str>,
    volume_binding_mode: Option<Box<str>>,
    #[serde(deserialize_with = "or_default")]
    allowed_topologies: Vec<Value>,
}

impl ClassInfo {
    /// Whether volumes are bound once a pod needs them; none without a binding mode.
    pub fn waits(&self) -> Option<bool> {
        self.volume_binding_mode.as_ref().map(|mode| &**mode == "WaitForFirstConsumer")
    }

    /// Whether volumes can be provisioned for a node.
    pub fn allows<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        let matches = |e: &Value| {
            let value = e["key"].as_str().and_then(&label);
            e["values"].as_array().into_iter().flatten().any(|v| value.is_some_and(|value| *v == value))
        };
        let term = |t: &Value| t["matchLabelExpressions"].as_array().is_some_and(|all| all.iter().all(matches));
        self.allowed_topologies.is_empty() || self.allowed_topologies.iter().any(term)
    }
}

/// The CSI drivers of a node, with the number of volumes that each can attach.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "RawCsiNode")]
pub struct CsiNodeInfo {
    pub limits: HashMap<Box<str>, i64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawCsiNode {
    spec: Value,
}

impl From<RawCsiNode> for CsiNodeInfo {
    fn from(raw: RawCsiNode) -> Self {
        let drivers = raw.spec["drivers"].as_array().into_iter().flatten();
        let limit = |d: &Value| Some((d["name"].as_str()?.into(), d["allocatable"]["count"].as_i64()?));
        Self { limits: drivers.filter_map(limit).collect() }
    }
}

/// Whether the scheduler checks the free storage of a CSI driver.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiDriverInfo {
    spec: Value,
}

impl CsiDriverInfo {
    fn reports_capacity(&self) -> bool {
        self.spec["storageCapacity"] == true
    }
}

/// Free storage of a class on some nodes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CapacityInfo {
    storage_class_name: Box<str>,
    node_topology: Option<Value>,
    capacity: Option<Value>,
    maximum_volume_size: Option<Value>,
}

impl CapacityInfo {
    fn suffices<'a>(&self, class: &str, size: i64, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        let limit = self.maximum_volume_size.as_ref().or(self.capacity.as_ref());
        let topology = self.node_topology.as_ref().and_then(|v| LabelSelector::from_value(Some(v)).ok());
        &*self.storage_class_name == class
            && limit.is_some_and(|l| bytes(l) >= size)
            && topology.is_some_and(|t| t.matches(label))
    }
}

/// An attached volume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "RawAttachment")]
pub struct AttachmentInfo {
    pub node: Box<str>,
    pub driver: Box<str>,
    pub volume: Box<str>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawAttachment {
    spec: Value,
}

impl From<RawAttachment> for AttachmentInfo {
    fn from(raw: RawAttachment) -> Self {
        let text = |v: &Value| -> Box<str> { v.as_str().unwrap_or_default().into() };
        Self {
            node: text(&raw.spec["nodeName"]),
            driver: text(&raw.spec["attacher"]),
            volume: text(&raw.spec["source"]["persistentVolumeName"]),
        }
    }
}

/// An object that volume plugins read.
#[derive(Clone)]
pub enum StorageObject {
    Claim(Arc<Claim>),
    Volume(Arc<Volume>),
    Class(Arc<Entry<ClassInfo>>),
    CsiNode(Arc<Entry<CsiNodeInfo>>),
    CsiDriver(Arc<Entry<CsiDriverInfo>>),
    Capacity(Arc<Entry<CapacityInfo>>),
    Attachment(Arc<Entry<AttachmentInfo>>),
}

/// All objects that volume plugins read.
#[derive(Clone, Default)]
pub struct Storage {
    claims: HashMap<Key, Arc<Claim>>,
    volumes: HashMap<Arc<str>, Arc<Volume>>,
    classes: HashMap<Arc<str>, Arc<Entry<ClassInfo>>>,
    csi_nodes: HashMap<Arc<str>, Arc<Entry<CsiNodeInfo>>>,
    csi_drivers: HashMap<Arc<str>, Arc<Entry<CsiDriverInfo>>>,
    capacities: HashMap<Key, Arc<Entry<CapacityInfo>>>,
    attachments: HashMap<Arc<str>, Arc<Entry<AttachmentInfo>>>,
}

impl StorageObject {
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Claim(_) => "PersistentVolumeClaim",
            Self::Volume(_) => "PersistentVolume",
            Self::Class(_) => "StorageClass",
            Self::CsiNode(_) => "CSINode",
            Self::CsiDriver(_) => "CSIDriver",
            Self::Capacity(_) => "CSIStorageCapacity",
            Self::Attachment(_) => "VolumeAttachment",
        }
    }

    pub fn key(&self) -> Key {
        match self {
            Self::Claim(o) => o.key(),
            Self::Volume(o) => o.key(),
            Self::Class(o) => o.key(),
            Self::CsiNode(o) => o.key(),
            Self::CsiDriver(o) => o.key(),
            Self::Capacity(o) => o.key(),
            Self::Attachment(o) => o.key(),
        }
    }
}

impl Storage {
    pub fn set(&mut self, object: StorageObject) {
        match object {
            StorageObject::Claim(o) => drop(self.claims.insert(o.key(), o)),
            StorageObject::Volume(o) => drop(self.volumes.insert(o.meta.name.clone(), o)),
            StorageObject::Class(o) => drop(self.classes.insert(o.meta.name.clone(), o)),
            StorageObject::CsiNode(o) => drop(self.csi_nodes.insert(o.meta.name.clone(), o)),
            StorageObject::CsiDriver(o) => drop(self.csi_drivers.insert(o.meta.name.clone(), o)),
            StorageObject::Capacity(o) => drop(self.capacities.insert(o.key(), o)),
            StorageObject::Attachment(o) => drop(self.attachments.insert(o.meta.name.clone(), o)),
        }
    }

    pub fn remove(&mut self, object: &StorageObject) {
        match object {
            StorageObject::Claim(o) => drop(self.claims.remove(&o.key())),
            StorageObject::Volume(o) => drop(self.volumes.remove(&o.meta.name)),
            StorageObject::Class(o) => drop(self.classes.remove(&o.meta.name)),
            StorageObject::CsiNode(o) => drop(self.csi_nodes.remove(&o.meta.name)),
            StorageObject::CsiDriver(o) => drop(self.csi_drivers.remove(&o.meta.name)),
            StorageObject::Capacity(o) => drop(self.capacities.remove(&o.key())),
            StorageObject::Attachment(o) => drop(self.attachments.remove(&o.meta.name)),
        }
    }

    pub fn claim(&self, namespace: &Arc<str>, name: &str) -> Option<&Arc<Claim>> {
        self.claims.get(&Key::new(namespace.clone(), name))
    }

    pub fn volume(&self, name: &str) -> Option<&Arc<Volume>> {
        self.volumes.get(name)
    }

    pub fn class(&self, name: &str) -> Option<&ClassInfo> {
        self.classes.get(name).map(|c| &c.view)
    }

    pub fn csi_node(&self, name: &str) -> Option<&CsiNodeInfo> {
        self.csi_nodes.get(name).map(|n| &n.view)
    }

    pub fn volumes(&self) -> impl Iterator<Item = &Arc<Volume>> {
        self.volumes.values()
    }

    /// The volumes that are attached to a node.
    pub fn attached<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a AttachmentInfo> {
        self.attachments.values().map(|a| &a.view).filter(move |a| &*a.node == node)
    }

    /// Whether a driver has room for a volume on a node, as far as it reports that.
    pub fn has_room<'a>(
        &self,
        class: &str,
        provisioner: &str,
        size: Option<i64>,
        label: impl Fn(&str) -> Option<&'a str>,
    ) -> bool {
        let Some(size) = size else { return true };
        let reports = self.csi_drivers.get(provisioner).is_some_and(|d| d.view.reports_capacity());
        !reports || self.capacities.values().any(|c| c.view.suffices(class, size, &label))
    }
}
