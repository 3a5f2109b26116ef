//! Strategies of the built-in kinds: one file per kind with behaviour beyond its description, under its group.
//!
//! A kind without a file has the default behaviour. Rules that take a single field are in the description instead. The
//! module `table` maps kinds to files.

#[macro_use]
mod table;

pub mod admissionregistration;
pub mod apiextensions;
pub mod apiregistration;
pub mod apps;
pub mod authentication;
pub mod authorization;
pub mod autoscaling;
pub mod batch;
pub mod certificates;
mod conditions;
pub mod core;
mod discovery;
mod events;
pub mod flowcontrol;
pub mod metrics;
pub mod networking;
mod node;
mod plain;
pub mod pod_template;
mod policy;
pub mod rbac;
mod read;
mod replicas;
pub mod resource;
mod rows;
pub mod runtime_config;
mod scheduling;
mod settings;
pub mod storage;
#[cfg(test)]
mod testing;

pub use rows::{Config, builtin_rows, selectable_fields};
pub use runtime_config::RuntimeConfig;

// The directories of groups.
groups! {
    admissionregistration,
    apiextensions,
    apiregistration,
    apps,
    authentication,
    authorization,
    autoscaling,
    batch,
    certificates,
    core,
    discovery,
    events,
    flowcontrol,
    metrics,
    networking,
    node,
    policy,
    rbac,
    resource,
    scheduling,
    settings,
    storage,
}
