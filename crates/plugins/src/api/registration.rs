//! `pluginregistration.v1` of the kubelet (`k8s.io/kubelet/pkg/apis/pluginregistration/v1`): a plugin
//! returns what it is, and receives whether the kubelet accepts it.

use super::Method;

/// `GetInfo`: what the plugin is.
pub const GET_INFO: Method<InfoRequest, PluginInfo> = Method::new("/pluginregistration.Registration/GetInfo");
/// `NotifyRegistrationStatus`: whether the kubelet has accepted the plugin.
pub const NOTIFY_REGISTRATION_STATUS: Method<RegistrationStatus, RegistrationStatusResponse> =
    Method::new("/pluginregistration.Registration/NotifyRegistrationStatus");

/// [`PluginInfo::kind`] of CSI drivers.
pub const CSI_PLUGIN: &str = "CSIPlugin";
/// [`PluginInfo::kind`] of drivers of dynamic resource allocation.
pub const DRA_PLUGIN: &str = "DRAPlugin";
/// [`PluginInfo::kind`] of device plugins.
pub const DEVICE_PLUGIN: &str = "DevicePlugin";

/// The request of [`GET_INFO`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct InfoRequest {}

/// The response of [`GET_INFO`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PluginInfo {
    /// `type`: the API of the plugin, for example [`CSI_PLUGIN`].
    #[prost(string, tag = "1")]
    pub kind: String,
    /// The name of the plugin, unique for its type on the node.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The socket of the plugin's API; empty if it is the socket of the registration.
    #[prost(string, tag = "3")]
    pub endpoint: String,
    /// Versions of the API that the plugin supports.
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

/// The request of [`NOTIFY_REGISTRATION_STATUS`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RegistrationStatus {
    /// Whether the plugin is registered.
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    /// Why it is not.
    #[prost(string, tag = "2")]
    pub error: String,
}

/// The response of [`NOTIFY_REGISTRATION_STATUS`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RegistrationStatusResponse {}
