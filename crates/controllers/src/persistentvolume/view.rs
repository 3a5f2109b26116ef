//! The fields of claims, volumes and storage classes that decide on their binding.

use client::Entry;
use client::informer::or_default;
use meta::{LabelSelector, Quantity};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Marks a claim whose binding is complete.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// Marks claims and volumes that the controller bound, not a user.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// Names the provisioner that made a volume.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Names the CSI driver that has replaced a built-in volume plugin.
pub const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
/// The node for which the scheduler wants a volume.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Names the provisioner that is to make a volume for a claim.
pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// The older name of [`STORAGE_PROVISIONER`].
pub const BETA_STORAGE_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// The older form of `storageClassName`, which goes before it.
const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
const BETA_DEFAULT_CLASS: &str = "storageclass.beta.kubernetes.io/is-default-class";

pub type Claim = Entry<ClaimView>;
pub type Volume = Entry<VolumeView>;
pub type Class = Entry<ClassView>;

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawMetadata {
    #[serde(deserialize_with = "or_default")]
    annotations: BTreeMap<Box<str>, Value>,
}

impl RawMetadata {
    fn annotation(&self, key: &str) -> Option<Box<str>> {
        self.annotations.get(key)?.as_str().map(Into::into)
    }

    fn has(&self, key: &str) -> bool {
        self.annotations.contains_key(key)
    }
}

fn quantity(value: &Value) -> Quantity {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Quantity::parse(&text).unwrap_or_else(|_| Quantity::from_int(0))
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawStatus {
    phase: Box<str>,
}

/// A claim.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "RawClaim")]
pub struct ClaimView {
    /// The volume that it is bound to or asks for; empty for any.
    pub volume: Box<str>,
    /// None: no class is set, so that it gets the default one. Empty: no class is wanted.
    pub class: Option<Box<str>>,
    pub modes: Vec<Box<str>>,
    pub size: Quantity,
    pub selector: Option<LabelSelector>,
    pub volume_mode: Box<str>,
    pub attributes_class: Box<str>,
    pub phase: Box<str>,
    pub is_bind_completed: bool,
    pub is_bound_by_controller: bool,
    pub is_node_selected: bool,
    /// The provisioner that it waits for.
    pub provisioner: Option<Box<str>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawClaim {
    metadata: RawMetadata,
    spec: RawClaimSpec,
    status: RawStatus,
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

impl From<RawClaim> for ClaimView {
    fn from(RawClaim { metadata, spec, status }: RawClaim) -> Self {
        Self {
            volume: spec.volume_name,
            class: metadata.annotation(BETA_CLASS).or(spec.storage_class_name),
            modes: spec.access_modes,
            size: quantity(&spec.resources["requests"]["storage"]),
            selector: spec
                .selector
                .map(|v| LabelSelector::from_value(Some(&v)).unwrap_or_else(|_| LabelSelector::none())),
            volume_mode: spec.volume_mode.unwrap_or_else(|| "Filesystem".into()),
            attributes_class: spec.volume_attributes_class_name.unwrap_or_default(),
            phase: status.phase,
            is_bind_completed: metadata.has(BIND_COMPLETED),
            is_bound_by_controller: metadata.has(BOUND_BY_CONTROLLER),
            is_node_selected: metadata.has(SELECTED_NODE),
            provisioner: metadata.annotation(STORAGE_PROVISIONER),
        }
    }
}

impl ClaimView {
    /// The name of its class; empty without one.
    pub fn class_name(&self) -> &str {
        self.class.as_deref().unwrap_or_default()
    }
}

/// A claim to which a volume refers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClaimReference {
    pub namespace: Box<str>,
    pub name: Box<str>,
    /// Empty: the volume is reserved for any claim of that name.
    pub uid: Box<str>,
}

/// A volume.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "RawVolume")]
pub struct VolumeView {
    pub class: Box<str>,
    pub capacity: Quantity,
    pub modes: Vec<Box<str>>,
    pub volume_mode: Box<str>,
    pub attributes_class: Box<str>,
    pub claim: Option<ClaimReference>,
    pub reclaim_policy: Box<str>,
    pub phase: Box<str>,
    pub is_bound_by_controller: bool,
    pub provisioned_by: Option<Box<str>>,
    pub is_migrated: bool,
    pub is_csi: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawVolume {
    metadata: RawMetadata,
    spec: RawVolumeSpec,
    status: RawStatus,
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
    claim_ref: Option<ClaimReference>,
    persistent_volume_reclaim_policy: Box<str>,
    csi: Option<serde::de::IgnoredAny>,
}

impl From<RawVolume> for VolumeView {
    fn from(RawVolume { metadata, spec, status }: RawVolume) -> Self {
        Self {
            class: metadata.annotation(BETA_CLASS).unwrap_or(spec.storage_class_name),
            capacity: quantity(&spec.capacity["storage"]),
            modes: spec.access_modes,
            volume_mode: spec.volume_mode.unwrap_or_else(|| "Filesystem".into()),
            attributes_class: spec.volume_attributes_class_name.unwrap_or_default(),
            claim: spec.claim_ref,
            reclaim_policy: spec.persistent_volume_reclaim_policy,
            phase: status.phase,
            is_bound_by_controller: metadata.has(BOUND_BY_CONTROLLER),
            provisioned_by: metadata.annotation(PROVISIONED_BY),
            is_migrated: metadata.annotation(MIGRATED_TO).is_some_and(|driver| !driver.is_empty()),
            is_csi: spec.csi.is_some(),
        }
    }
}

impl VolumeView {
    /// Whether it is bound to the claim, or reserved for it.
    pub fn is_for(&self, claim: &Claim) -> bool {
        self.claim.as_ref().is_some_and(|r| {
            *r.namespace == *claim.meta.namespace
                && *r.name == *claim.meta.name
                && (r.uid.is_empty() || *r.uid == *claim.meta.uid)
        })
    }
}

/// A storage class.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "RawClass")]
pub struct ClassView {
    pub provisioner: Box<str>,
    /// Volumes are bound once a pod needs them.
    pub is_delayed: bool,
    pub is_default: bool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawClass {
    metadata: RawMetadata,
    provisioner: Box<str>,
    volume_binding_mode: Box<str>,
}

impl From<RawClass> for ClassView {
    fn from(raw: RawClass) -> Self {
        let is_true = |key: &str| raw.metadata.annotation(key).is_some_and(|v| &*v == "true");
        Self {
            is_delayed: &*raw.volume_binding_mode == "WaitForFirstConsumer",
            is_default: is_true(DEFAULT_CLASS) || is_true(BETA_DEFAULT_CLASS),
            provisioner: raw.provisioner,
        }
    }
}
