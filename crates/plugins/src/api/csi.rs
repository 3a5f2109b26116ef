//! `csi.v1` of the Container Storage Interface: the node service, and what of the identity and controller services a driver needs at
//! least. Requests may hold secrets: they are not logged.

use std::collections::BTreeMap;

use super::Method;

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident: $service:ident / $method:ident ($request:ident) -> $response:ident;)*) => {$(
        $(#[$doc])*
        pub const $name: Method<$request, $response> =
            Method::new(concat!("/csi.v1.", stringify!($service), "/", stringify!($method)));
    )*};
}

methods! {
    /// The name of the driver.
    GET_PLUGIN_INFO: Identity/GetPluginInfo(Empty) -> GetPluginInfoResponse;
    /// Whether the driver is ready.
    PROBE: Identity/Probe(Empty) -> Empty;
    /// Creates a volume.
    CREATE_VOLUME: Controller/CreateVolume(CreateVolumeRequest) -> CreateVolumeResponse;
    /// Deletes a volume.
    DELETE_VOLUME: Controller/DeleteVolume(DeleteVolumeRequest) -> Empty;
    /// Attaches a volume to a node.
    CONTROLLER_PUBLISH_VOLUME: Controller/ControllerPublishVolume(ControllerPublishVolumeRequest) -> ControllerPublishVolumeResponse;
    /// Detaches a volume from a node.
    CONTROLLER_UNPUBLISH_VOLUME: Controller/ControllerUnpublishVolume(ControllerUnpublishVolumeRequest) -> Empty;
    /// Makes a volume larger.
    CONTROLLER_EXPAND_VOLUME: Controller/ControllerExpandVolume(ControllerExpandVolumeRequest) -> ControllerExpandVolumeResponse;
    /// Mounts a volume at its staging path, once on a node.
    NODE_STAGE_VOLUME: Node/NodeStageVolume(NodeStageVolumeRequest) -> Empty;
    /// Undoes [`NODE_STAGE_VOLUME`].
    NODE_UNSTAGE_VOLUME: Node/NodeUnstageVolume(NodeUnstageVolumeRequest) -> Empty;
    /// Mounts a volume for a pod.
    NODE_PUBLISH_VOLUME: Node/NodePublishVolume(NodePublishVolumeRequest) -> Empty;
    /// Undoes [`NODE_PUBLISH_VOLUME`].
    NODE_UNPUBLISH_VOLUME: Node/NodeUnpublishVolume(NodeUnpublishVolumeRequest) -> Empty;
    /// The usage of a volume.
    NODE_GET_VOLUME_STATS: Node/NodeGetVolumeStats(NodeGetVolumeStatsRequest) -> NodeGetVolumeStatsResponse;
    /// Makes the file system of a volume larger.
    NODE_EXPAND_VOLUME: Node/NodeExpandVolume(NodeExpandVolumeRequest) -> NodeExpandVolumeResponse;
    /// What the node service can do.
    NODE_GET_CAPABILITIES: Node/NodeGetCapabilities(Empty) -> NodeGetCapabilitiesResponse;
    /// The driver's view of the node.
    NODE_GET_INFO: Node/NodeGetInfo(Empty) -> NodeGetInfoResponse;
}

/// A message without fields that this crate needs.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Empty {}

/// The response of [`GET_PLUGIN_INFO`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct GetPluginInfoResponse {
    /// The name of the driver.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its version.
    #[prost(string, tag = "2")]
    pub vendor_version: String,
}

/// How a volume is used.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct VolumeCapability {
    /// As a device.
    #[prost(message, optional, tag = "1")]
    pub block: Option<Empty>,
    /// As a file system.
    #[prost(message, optional, tag = "2")]
    pub mount: Option<MountVolume>,
    /// By how many nodes and pods.
    #[prost(message, optional, tag = "3")]
    pub access_mode: Option<AccessMode>,
}

/// The use of a volume as a file system.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MountVolume {
    /// The type of the file system; empty for the driver's own choice.
    #[prost(string, tag = "1")]
    pub fs_type: String,
    /// Options of the mount.
    #[prost(string, repeated, tag = "2")]
    pub mount_flags: Vec<String>,
    /// The group that owns the files.
    #[prost(string, tag = "3")]
    pub volume_mount_group: String,
}

/// [`VolumeCapability::access_mode`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct AccessMode {
    /// The mode, a [`Mode`].
    #[prost(enumeration = "Mode", tag = "1")]
    pub mode: i32,
}

/// An access mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
#[allow(missing_docs)]
pub enum Mode {
    Unknown = 0,
    SingleNodeWriter = 1,
    SingleNodeReaderOnly = 2,
    MultiNodeReaderOnly = 3,
    MultiNodeSingleWriter = 4,
    MultiNodeMultiWriter = 5,
    SingleNodeSingleWriter = 6,
    SingleNodeMultiWriter = 7,
}

/// Bytes that a volume has.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct CapacityRange {
    /// At least.
    #[prost(int64, tag = "1")]
    pub required_bytes: i64,
    /// At most; 0 for no limit.
    #[prost(int64, tag = "2")]
    pub limit_bytes: i64,
}

/// Where a node is, or from where a volume can be used.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Topology {
    /// Labels of nodes.
    #[prost(btree_map = "string, string", tag = "1")]
    pub segments: BTreeMap<String, String>,
}

/// The request of [`NODE_STAGE_VOLUME`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NodeStageVolumeRequest {
    /// The handle of the volume.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// What attaching the volume has returned.
    #[prost(btree_map = "string, string", tag = "2")]
    pub publish_context: BTreeMap<String, String>,
    /// A directory that exists.
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    /// How the volume is used.
    #[prost(message, optional, tag = "4")]
    pub volume_capability: Option<VolumeCapability>,
    /// Secrets of this step.
    #[prost(btree_map = "string, string", tag = "5")]
    pub secrets: BTreeMap<String, String>,
    /// What creating the volume has returned.
    #[prost(btree_map = "string, string", tag = "6")]
    pub volume_context: BTreeMap<String, String>,
}

/// The request of [`NODE_UNSTAGE_VOLUME`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NodeUnstageVolumeRequest {
    /// The handle of the volume.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// The path of the staging.
    #[prost(string, tag = "2")]
    pub staging_target_path: String,
}

/// The request of [`NODE_PUBLISH_VOLUME`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NodePublishVolumeRequest {
    /// The handle of the volume.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// What attaching the volume has returned.
    #[prost(btree_map = "string, string", tag = "2")]
    pub publish_context: BTreeMap<String, String>,
    /// The path of the staging; empty if the driver stages nothing.
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    /// Where the volume is to appear. The directory above it exists.
    #[prost(string, tag = "4")]
    pub target_path: String,
    /// How the volume is used.
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    /// Whether the pod can only read the volume.
    #[prost(bool, tag = "6")]
    pub readonly: bool,
    /// Secrets of this step.
    #[prost(btree_map = "string, string", tag = "7")]
    pub secrets: BTreeMap<String, String>,
    /// What creating the volume has returned, and attributes of the pod.
    #[prost(btree_map = "string, string", tag = "8")]
    pub volume_context: BTreeMap<String, String>,
}

/// The request of [`NODE_UNPUBLISH_VOLUME`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NodeUnpublishVolumeRequest {
    /// The handle of the volume.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// The path at which it was published.
    #[prost(string, tag = "2")]
    pub target_path: String,
}

/// The request of [`NODE_GET_VOLUME_STATS`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NodeGetVolumeStatsRequest {
    /// The handle of the volume.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// A path at which the volume is published.
    #[prost(string, tag = "2")]
    pub volume_path: String,
    /// The path of the staging.
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
}

/// The response of [`NODE_GET_VOLUME_STATS`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NodeGetVolumeStatsResponse {
    /// The usage, once for each unit.
    #[prost(message, repeated, tag = "1")]
    pub usage: Vec<VolumeUsage>,
    /// The state of the volume.
    #[prost(message, optional, tag = "2")]
    pub volume_condition: Option<VolumeCondition>,
}

/// The usage of a volume in one unit.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct VolumeUsage {
    /// What is left.
    #[prost(int64, tag = "1")]
    pub available: i64,
    /// All.
    #[prost(int64, tag = "2")]
    pub total: i64,
    /// What is used.
    #[prost(int64, tag = "3")]
    pub used: i64,
    /// Bytes or inodes.
    #[prost(enumeration = "Unit", tag = "4")]
    pub unit: i32,
}

/// [`VolumeUsage::unit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
#[allow(missing_docs)]
pub enum Unit {
    Unknown = 0,
    Bytes = 1,
    Inodes = 2,
}

/// The state of a volume.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct VolumeCondition {
    /// Whether something is wrong.
    #[prost(bool, tag = "1")]
    pub abnormal: bool,
    /// What it is.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// The request of [`NODE_EXPAND_VOLUME`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NodeExpandVolumeRequest {
    /// The handle of the volume.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// A path at which the volume is published.
    #[prost(string, tag = "2")]
    pub volume_path: String,
    /// The new size.
    #[prost(message, optional, tag = "3")]
    pub capacity_range: Option<CapacityRange>,
    /// The path of the staging.
    #[prost(string, tag = "4")]
    pub staging_target_path: String,
    /// How the volume is used.
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    /// Secrets of this step.
    #[prost(btree_map = "string, string", tag = "6")]
    pub secrets: BTreeMap<String, String>,
}

/// The response of [`NODE_EXPAND_VOLUME`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct NodeExpandVolumeResponse {
    /// The size that the volume has now; 0 if the driver does not tell.
    #[prost(int64, tag = "1")]
    pub capacity_bytes: i64,
}

/// The response of [`NODE_GET_CAPABILITIES`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NodeGetCapabilitiesResponse {
    /// The capabilities.
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<NodeServiceCapability>,
}

/// A capability of the node service.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct NodeServiceCapability {
    /// A method, or an option of methods.
    #[prost(message, optional, tag = "1")]
    pub rpc: Option<NodeRpc>,
}

/// [`NodeServiceCapability::rpc`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct NodeRpc {
    /// A [`NodeCapability`].
    #[prost(enumeration = "NodeCapability", tag = "1")]
    pub kind: i32,
}

/// What a node service may be able to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
#[allow(missing_docs)]
pub enum NodeCapability {
    Unknown = 0,
    StageUnstageVolume = 1,
    GetVolumeStats = 2,
    ExpandVolume = 3,
    VolumeCondition = 4,
    SingleNodeMultiWriter = 5,
    VolumeMountGroup = 6,
}

impl From<NodeCapability> for NodeServiceCapability {
    fn from(capability: NodeCapability) -> Self {
        Self { rpc: Some(NodeRpc { kind: capability.into() }) }
    }
}

/// The response of [`NODE_GET_INFO`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NodeGetInfoResponse {
    /// The driver's name of the node.
    #[prost(string, tag = "1")]
    pub node_id: String,
    /// How many volumes the node can have; 0 for no limit.
    #[prost(int64, tag = "2")]
    pub max_volumes_per_node: i64,
    /// Where the node is.
    #[prost(message, optional, tag = "3")]
    pub accessible_topology: Option<Topology>,
}

/// The request of [`CREATE_VOLUME`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CreateVolumeRequest {
    /// A name that makes the request idempotent.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The size.
    #[prost(message, optional, tag = "2")]
    pub capacity_range: Option<CapacityRange>,
    /// How the volume may be used.
    #[prost(message, repeated, tag = "3")]
    pub volume_capabilities: Vec<VolumeCapability>,
    /// Parameters of the storage class.
    #[prost(btree_map = "string, string", tag = "4")]
    pub parameters: BTreeMap<String, String>,
    /// Secrets of this step.
    #[prost(btree_map = "string, string", tag = "5")]
    pub secrets: BTreeMap<String, String>,
}

/// The response of [`CREATE_VOLUME`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CreateVolumeResponse {
    /// The volume.
    #[prost(message, optional, tag = "1")]
    pub volume: Option<Volume>,
}

/// A volume of a driver.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Volume {
    /// The size.
    #[prost(int64, tag = "1")]
    pub capacity_bytes: i64,
    /// The handle.
    #[prost(string, tag = "2")]
    pub volume_id: String,
    /// What the driver needs when the volume is used.
    #[prost(btree_map = "string, string", tag = "3")]
    pub volume_context: BTreeMap<String, String>,
    /// From where the volume can be used.
    #[prost(message, repeated, tag = "5")]
    pub accessible_topology: Vec<Topology>,
}

/// The request of [`DELETE_VOLUME`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DeleteVolumeRequest {
    /// The handle of the volume.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// Secrets of this step.
    #[prost(btree_map = "string, string", tag = "2")]
    pub secrets: BTreeMap<String, String>,
}

/// The request of [`CONTROLLER_PUBLISH_VOLUME`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ControllerPublishVolumeRequest {
    /// The handle of the volume.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// The driver's name of the node.
    #[prost(string, tag = "2")]
    pub node_id: String,
    /// How the volume is used.
    #[prost(message, optional, tag = "3")]
    pub volume_capability: Option<VolumeCapability>,
    /// Whether the node can only read the volume.
    #[prost(bool, tag = "4")]
    pub readonly: bool,
    /// Secrets of this step.
    #[prost(btree_map = "string, string", tag = "5")]
    pub secrets: BTreeMap<String, String>,
    /// What creating the volume has returned.
    #[prost(btree_map = "string, string", tag = "6")]
    pub volume_context: BTreeMap<String, String>,
}

/// The response of [`CONTROLLER_PUBLISH_VOLUME`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ControllerPublishVolumeResponse {
    /// What the node service needs.
    #[prost(btree_map = "string, string", tag = "1")]
    pub publish_context: BTreeMap<String, String>,
}

/// The request of [`CONTROLLER_UNPUBLISH_VOLUME`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ControllerUnpublishVolumeRequest {
    /// The handle of the volume.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// The driver's name of the node.
    #[prost(string, tag = "2")]
    pub node_id: String,
    /// Secrets of this step.
    #[prost(btree_map = "string, string", tag = "3")]
    pub secrets: BTreeMap<String, String>,
}

/// The request of [`CONTROLLER_EXPAND_VOLUME`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ControllerExpandVolumeRequest {
    /// The handle of the volume.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// The new size.
    #[prost(message, optional, tag = "2")]
    pub capacity_range: Option<CapacityRange>,
    /// Secrets of this step.
    #[prost(btree_map = "string, string", tag = "3")]
    pub secrets: BTreeMap<String, String>,
    /// How the volume is used.
    #[prost(message, optional, tag = "4")]
    pub volume_capability: Option<VolumeCapability>,
}

/// The response of [`CONTROLLER_EXPAND_VOLUME`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ControllerExpandVolumeResponse {
    /// The new size.
    #[prost(int64, tag = "1")]
    pub capacity_bytes: i64,
    /// Whether the node has to make the file system larger.
    #[prost(bool, tag = "2")]
    pub node_expansion_required: bool,
}
