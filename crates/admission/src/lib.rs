//! Admission plugins: mutate and validate objects beyond the validation of their kinds.
//!
//! One plugin, one file, one trait. Plugins receive objects, look up others through [`Lookup`] and call the server
//! through [`Host`]; they do not depend on storage or serving. Names are upstream's.

mod always;
mod always_pull_images;
mod certificates;
mod choice;
mod configuration;
mod default_ingress_class;
mod default_storage_class;
mod default_toleration_seconds;
mod deny_service_external_ips;
mod evaluation;
mod event_rate_limit;
mod extended_resource_toleration;
mod grown;
mod image_policy;
mod limit_pod_hard_anti_affinity;
mod limit_ranger;
mod matching;
mod mirror_pod;
mod namespace_auto_provision;
mod namespace_exists;
mod namespace_lifecycle;
mod node_declared_features;
mod node_restriction;
mod owner_references;
mod pace;
mod persistent_volume_claim_resize;
mod plugin;
mod pod_node_selector;
mod pod_preset;
mod pod_resize;
mod pod_security;
mod pod_toleration_restriction;
mod pod_topology_labels;
mod policy;
mod priority;
mod remembered;
mod request;
mod resource_quota;
mod runtime_class;
mod service_account;
mod storage_object_in_use;
mod taint_nodes_by_condition;
mod webhook;

pub use choice::{chain, configured, default_plugins};
pub use configuration::Configuration;
pub use meta::{MutatedBy, Operation};
pub use plugin::{
    CallError, Chain, Event, FoundObject, Host, Labels, Lookup, MatchEvaluation, MatchOwner, Outcome, Plugin,
    PluginRun, PolicyDecision, ReadScope, Reinvocation, Reinvoked, Remote, Review, TOO_MANY_OUTSIDE, WebhookCall,
    WriteRequest, is_terminating,
};
