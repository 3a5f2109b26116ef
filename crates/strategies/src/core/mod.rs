//! The core group (`v1`).

pub mod binding;
mod component_status;
mod config_map;
mod container_status;
pub mod endpoints;
pub mod event;
pub mod eviction;
pub mod inline_volume;
mod limit_range;
mod namespace;
pub mod node;
mod persistent_volume;
pub mod persistent_volume_claim;
pub mod pod;
mod pod_apparmor;
mod pod_cells;
mod pod_ephemeral_containers;
mod pod_fields;
mod pod_qos;
mod pod_resize;
pub mod pod_shape;
mod pod_status;
mod pod_template;
mod pod_update;
mod proxy;
mod replication_controller;
mod resource_quota;
mod secret;
mod service;
mod service_account;
mod service_rules;
mod service_spec;
mod volume;

kinds! {
    binding,
    component_status,
    config_map,
    endpoints,
    event,
    limit_range,
    namespace,
    node,
    persistent_volume,
    persistent_volume_claim,
    pod,
    pod_template,
    replication_controller,
    resource_quota,
    secret,
    service,
    service_account,
}
