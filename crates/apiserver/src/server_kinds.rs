//! The kinds that the server itself reads or writes, apart from requests for them. No other file of this crate names a built-in kind.
//!
//! Names of resources are their storage names: `plural`, or `group/plural`.

/// In paths and attributes of namespaced objects.
pub(crate) const NAMESPACES: &str = "namespaces";
/// The kind of a namespace that an admission plugin creates.
pub(crate) const NAMESPACE_KIND: &str = "Namespace";
/// Kubelets, to which the server connects, and whose identities users may impersonate.
pub(crate) const NODES: &str = "nodes";
/// Accounts whose identities users may impersonate.
pub(crate) const SERVICE_ACCOUNTS: &str = "serviceaccounts";
/// Bootstrap tokens.
pub(crate) const SECRETS: &str = "secrets";
/// Quotas, which each write charges.
pub(crate) const RESOURCE_QUOTAS: &str = "resourcequotas";
/// Events that the server records.
pub(crate) const EVENTS: &str = "events";
pub(crate) const EVENT_KIND: &str = "Event";
/// Services of webhooks and API servers.
pub(crate) const SERVICES: &str = "services";
pub(crate) const ENDPOINT_SLICES: &str = "discovery.k8s.io/endpointslices";
/// Other API servers.
pub(crate) const API_SERVICES_GROUP: &str = "apiregistration.k8s.io";
pub(crate) const API_SERVICES_PLURAL: &str = "apiservices";
pub(crate) const API_SERVICES: &str = "apiregistration.k8s.io/apiservices";
pub(crate) const API_SERVICE_KIND: &str = "APIService";
/// The configuration of priority and fairness.
pub(crate) const FLOW_GROUP: &str = "flowcontrol.apiserver.k8s.io";
pub(crate) const FLOW_SCHEMAS: &str = "flowschemas";
pub(crate) const PRIORITY_LEVELS: &str = "prioritylevelconfigurations";
