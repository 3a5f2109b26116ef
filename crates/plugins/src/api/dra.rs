//! `dra.v1` and `dra.v1beta1` (`k8s.io/kubelet/pkg/apis/dra`): drivers that prepare the devices of claims on a node. The messages of both
//! versions are the same.

use std::collections::BTreeMap;

use super::Method;

/// The methods of one version.
#[derive(Clone, Copy, Debug)]
pub struct Version {
    /// The name by which a driver registers it.
    pub service: &'static str,
    /// Prepares the devices of claims.
    pub prepare: Method<Claims, PrepareResponse>,
    /// Undoes [`Version::prepare`].
    pub unprepare: Method<Claims, UnprepareResponse>,
}

/// The versions, the preferred one first.
pub const VERSIONS: [Version; 2] = [
    Version {
        service: "v1.DRAPlugin",
        prepare: Method::new("/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"),
        unprepare: Method::new("/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources"),
    },
    Version {
        service: "v1beta1.DRAPlugin",
        prepare: Method::new("/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources"),
        unprepare: Method::new("/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources"),
    },
];

/// Claims to prepare or to unprepare.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Claims {
    /// The claims.
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<Claim>,
}

/// A claim.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Claim {
    /// The namespace.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// The UID.
    #[prost(string, tag = "2")]
    pub uid: String,
    /// The name.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// The result of preparing, by UID of the claim.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PrepareResponse {
    /// The claims.
    #[prost(btree_map = "string, message", tag = "1")]
    pub claims: BTreeMap<String, PreparedClaim>,
}

/// A prepared claim.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PreparedClaim {
    /// The devices.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
    /// Why it could not be prepared; empty if it could.
    #[prost(string, tag = "2")]
    pub error: String,
}

/// A prepared device.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Device {
    /// The requests of the claim for which it was allocated.
    #[prost(string, repeated, tag = "1")]
    pub request_names: Vec<String>,
    /// The pool.
    #[prost(string, tag = "2")]
    pub pool_name: String,
    /// The name in the pool.
    #[prost(string, tag = "3")]
    pub device_name: String,
    /// Devices of the Container Device Interface.
    #[prost(string, repeated, tag = "4")]
    pub cdi_device_ids: Vec<String>,
    /// The share of the device, if it is shared.
    #[prost(string, optional, tag = "5")]
    pub share_id: Option<String>,
}

/// The result of unpreparing, by UID of the claim.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UnprepareResponse {
    /// The claims.
    #[prost(btree_map = "string, message", tag = "1")]
    pub claims: BTreeMap<String, UnpreparedClaim>,
}

/// A claim that is not prepared any more.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UnpreparedClaim {
    /// Why it could not be unprepared; empty if it could.
    #[prost(string, tag = "1")]
    pub error: String,
}
