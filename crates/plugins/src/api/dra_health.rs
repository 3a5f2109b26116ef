//! `dra-health.v1alpha1` (`k8s.io/kubelet/pkg/apis/dra-health`): drivers report the health of their devices.

use super::Method;

/// Streams the health of all devices of a driver, again after each change.
pub const WATCH: Method<WatchRequest, WatchResponse> = Method::new("/v1alpha1.DRAResourceHealth/NodeWatchResources");

/// Asks for all devices.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct WatchRequest {}

/// The devices of a driver.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct WatchResponse {
    /// All devices; one that is missing becomes unknown after a while.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<DeviceHealth>,
}

/// The health of a device.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DeviceHealth {
    /// The device.
    #[prost(message, optional, tag = "1")]
    pub device: Option<DeviceIdentifier>,
    /// Its health.
    #[prost(enumeration = "HealthStatus", tag = "2")]
    pub health: i32,
    /// When the driver found this out, in seconds since 1970.
    #[prost(int64, tag = "3")]
    pub last_updated_time: i64,
    /// For how long the report counts; 30 seconds if it is not positive.
    #[prost(int64, tag = "4")]
    pub health_check_timeout_seconds: i64,
    /// Details for people.
    #[prost(string, tag = "5")]
    pub message: String,
}

/// A device of a driver.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DeviceIdentifier {
    /// The pool.
    #[prost(string, tag = "1")]
    pub pool_name: String,
    /// The name in the pool.
    #[prost(string, tag = "2")]
    pub device_name: String,
}

/// How a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum HealthStatus {
    /// It cannot be found out.
    Unknown = 0,
    /// It works.
    Healthy = 1,
    /// It has a problem.
    Unhealthy = 2,
}
