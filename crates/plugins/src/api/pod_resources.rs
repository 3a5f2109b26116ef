//! `podresources.v1` (`k8s.io/kubelet/pkg/apis/podresources/v1`): which devices, processors and memory the containers of pods have, for
//! programs that monitor them.

use super::Method;

/// All pods of the node.
pub const LIST: Method<Empty, ListResponse> = Method::new("/v1.PodResourcesLister/List");
/// What containers may get.
pub const GET_ALLOCATABLE: Method<Empty, AllocatableResponse> =
    Method::new("/v1.PodResourcesLister/GetAllocatableResources");
/// One pod.
pub const GET: Method<GetRequest, GetResponse> = Method::new("/v1.PodResourcesLister/Get");

/// A message without fields.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Empty {}

/// The response of [`GET_ALLOCATABLE`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AllocatableResponse {
    /// Devices.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<ContainerDevices>,
    /// Processors.
    #[prost(int64, repeated, tag = "2")]
    pub cpu_ids: Vec<i64>,
    /// Memory.
    #[prost(message, repeated, tag = "3")]
    pub memory: Vec<ContainerMemory>,
}

/// The response of [`LIST`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListResponse {
    /// The pods.
    #[prost(message, repeated, tag = "1")]
    pub pods: Vec<PodResources>,
}

/// The request of [`GET`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct GetRequest {
    /// The name of the pod.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its namespace.
    #[prost(string, tag = "2")]
    pub namespace: String,
}

/// The response of [`GET`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct GetResponse {
    /// The pod.
    #[prost(message, optional, tag = "1")]
    pub pod: Option<PodResources>,
}

/// The resources of a pod.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PodResources {
    /// The name of the pod.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its namespace.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// Its containers.
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<ContainerResources>,
}

/// The resources of a container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerResources {
    /// The name of the container.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Devices of device plugins.
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
    /// Exclusive processors.
    #[prost(int64, repeated, tag = "3")]
    pub cpu_ids: Vec<i64>,
    /// Memory of NUMA nodes.
    #[prost(message, repeated, tag = "4")]
    pub memory: Vec<ContainerMemory>,
    /// Devices of claims.
    #[prost(message, repeated, tag = "5")]
    pub dynamic_resources: Vec<DynamicResource>,
}

/// Memory on NUMA nodes.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerMemory {
    /// `memory`, or the name of huge pages.
    #[prost(string, tag = "1")]
    pub memory_type: String,
    /// Bytes.
    #[prost(uint64, tag = "2")]
    pub size: u64,
    /// The nodes.
    #[prost(message, optional, tag = "3")]
    pub topology: Option<super::devices::Topology>,
}

/// Devices of a resource.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerDevices {
    /// The extended resource.
    #[prost(string, tag = "1")]
    pub resource_name: String,
    /// The ids of devices.
    #[prost(string, repeated, tag = "2")]
    pub device_ids: Vec<String>,
    /// Their NUMA nodes.
    #[prost(message, optional, tag = "3")]
    pub topology: Option<super::devices::Topology>,
}

/// A claim with its devices.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DynamicResource {
    /// The name of the claim.
    #[prost(string, tag = "2")]
    pub claim_name: String,
    /// Its namespace.
    #[prost(string, tag = "3")]
    pub claim_namespace: String,
    /// Its devices.
    #[prost(message, repeated, tag = "4")]
    pub claim_resources: Vec<ClaimResource>,
}

/// A device of a claim.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ClaimResource {
    /// Devices of the Container Device Interface.
    #[prost(message, repeated, tag = "1")]
    pub cdi_devices: Vec<super::devices::CdiDevice>,
    /// The driver.
    #[prost(string, tag = "2")]
    pub driver_name: String,
    /// The pool of the device.
    #[prost(string, tag = "3")]
    pub pool_name: String,
    /// The device.
    #[prost(string, tag = "4")]
    pub device_name: String,
    /// The share of the device, if it is shared.
    #[prost(string, optional, tag = "5")]
    pub share_id: Option<String>,
}
