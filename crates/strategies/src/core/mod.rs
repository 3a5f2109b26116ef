//! The core group.

pub mod binding;
pub mod component_status;
pub mod config_map;
mod container_status;
pub mod endpoints;
pub mod event;
pub mod eviction;
pub mod inline_volume;
pub mod limits;
pub mod namespace;
pub mod node;
pub mod persistent_volume;
pub mod pod;
mod pod_apparmor;
pub mod pod_parts;
mod pod_resize;
pub mod pod_shape;
mod pod_status;
pub mod pod_template;
mod pod_update;
pub mod proxy;
pub mod replication_controller;
pub mod secret;
pub mod service;
pub mod service_account;
mod service_rules;
pub mod volume_warnings;
