//! `deviceplugin.v1beta1` (`k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1`): devices that a program offers to pods as an extended resource.

use std::collections::BTreeMap;

use super::Method;

/// A plugin announces itself to the kubelet.
pub const REGISTER: Method<RegisterRequest, Empty> = Method::new("/v1beta1.Registration/Register");
/// What the plugin wants to be asked.
pub const GET_OPTIONS: Method<Empty, PluginOptions> = Method::new("/v1beta1.DevicePlugin/GetDevicePluginOptions");
/// All devices, again each time that they change.
pub const LIST_AND_WATCH: Method<Empty, ListAndWatchResponse> = Method::new("/v1beta1.DevicePlugin/ListAndWatch");
/// Which of the available devices the plugin would choose.
pub const GET_PREFERRED_ALLOCATION: Method<PreferredAllocationRequest, PreferredAllocationResponse> =
    Method::new("/v1beta1.DevicePlugin/GetPreferredAllocation");
/// What a container needs to use devices.
pub const ALLOCATE: Method<AllocateRequest, AllocateResponse> = Method::new("/v1beta1.DevicePlugin/Allocate");
/// Called before each start of a container that has devices.
pub const PRE_START_CONTAINER: Method<DeviceIds, Empty> = Method::new("/v1beta1.DevicePlugin/PreStartContainer");

/// The version of the API.
pub const VERSION: &str = "v1beta1";
/// [`Device::health`] of a device that can be used.
pub const HEALTHY: &str = "Healthy";
/// [`Device::health`] of a device that cannot be used.
pub const UNHEALTHY: &str = "Unhealthy";

/// A message without fields.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Empty {}

/// What the plugin wants to be asked.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PluginOptions {
    /// Whether [`PRE_START_CONTAINER`] is called.
    #[prost(bool, tag = "1")]
    pub pre_start_required: bool,
    /// Whether [`GET_PREFERRED_ALLOCATION`] is called.
    #[prost(bool, tag = "2")]
    pub get_preferred_allocation_available: bool,
}

/// The request of [`REGISTER`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RegisterRequest {
    /// [`VERSION`].
    #[prost(string, tag = "1")]
    pub version: String,
    /// The name of the plugin's socket in the directory of the kubelet's one.
    #[prost(string, tag = "2")]
    pub endpoint: String,
    /// The extended resource.
    #[prost(string, tag = "3")]
    pub resource_name: String,
    /// The options, which `GetDevicePluginOptions` returns, too.
    #[prost(message, optional, tag = "4")]
    pub options: Option<PluginOptions>,
}

/// The response of [`LIST_AND_WATCH`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListAndWatchResponse {
    /// All devices.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

/// A device.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Device {
    /// The id, unique for the resource.
    #[prost(string, tag = "1")]
    pub id: String,
    /// [`HEALTHY`] or [`UNHEALTHY`].
    #[prost(string, tag = "2")]
    pub health: String,
    /// Where the device is.
    #[prost(message, optional, tag = "3")]
    pub topology: Option<Topology>,
}

/// The NUMA nodes of a device.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Topology {
    /// The nodes.
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<NumaNode>,
}

/// A NUMA node.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NumaNode {
    /// The number of the node.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// Ids of devices.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DeviceIds {
    /// The ids.
    #[prost(string, repeated, tag = "1")]
    pub ids: Vec<String>,
}

/// The request of [`GET_PREFERRED_ALLOCATION`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PreferredAllocationRequest {
    /// One for each container.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<ContainerPreferredAllocationRequest>,
}

/// Devices among which the plugin chooses.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerPreferredAllocationRequest {
    /// Those that are available.
    #[prost(string, repeated, tag = "1")]
    pub available: Vec<String>,
    /// Those that the container has in any case.
    #[prost(string, repeated, tag = "2")]
    pub must_include: Vec<String>,
    /// How many the container has in all.
    #[prost(int32, tag = "3")]
    pub size: i32,
}

/// The response of [`GET_PREFERRED_ALLOCATION`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PreferredAllocationResponse {
    /// One for each container.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<DeviceIds>,
}

/// The request of [`ALLOCATE`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AllocateRequest {
    /// One for each container.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<DeviceIds>,
}

/// The response of [`ALLOCATE`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AllocateResponse {
    /// One for each container.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<ContainerAllocateResponse>,
}

/// What a container needs.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerAllocateResponse {
    /// Environment variables.
    #[prost(btree_map = "string, string", tag = "1")]
    pub envs: BTreeMap<String, String>,
    /// Mounts.
    #[prost(message, repeated, tag = "2")]
    pub mounts: Vec<Mount>,
    /// Device nodes.
    #[prost(message, repeated, tag = "3")]
    pub devices: Vec<DeviceSpec>,
    /// Annotations of the container in the runtime.
    #[prost(btree_map = "string, string", tag = "4")]
    pub annotations: BTreeMap<String, String>,
    /// Devices of the Container Device Interface.
    #[prost(message, repeated, tag = "5")]
    pub cdi_devices: Vec<CdiDevice>,
}

/// A mount.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Mount {
    /// The path in the container.
    #[prost(string, tag = "1")]
    pub container_path: String,
    /// The path on the host.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// Whether it is read-only.
    #[prost(bool, tag = "3")]
    pub read_only: bool,
}

/// A device node.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DeviceSpec {
    /// The path in the container.
    #[prost(string, tag = "1")]
    pub container_path: String,
    /// The path on the host.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// Letters of `rwm`.
    #[prost(string, tag = "3")]
    pub permissions: String,
}

/// A device of the Container Device Interface.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CdiDevice {
    /// `vendor.com/class=name`.
    #[prost(string, tag = "1")]
    pub name: String,
}
