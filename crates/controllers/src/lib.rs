//! The controllers.
//!
//! Every controller is a folder of the same shape: `run(context)` sets it up, `reconcile(key)` brings one object to its wish, and
//! what to do is decided by pure functions beside it. Each acts under its own identity. Invariant: level-based; what an event
//! said is forgotten, only its key is kept.

pub mod bootstrap;
pub mod certificates;
pub mod clusterroleaggregation;
pub mod context;
pub mod deployment;
pub mod discovery;
pub mod endpointslice;
pub mod garbagecollector;
pub mod ipallocator;
pub mod namespace;
pub mod nodelifecycle;
pub mod ownership;
pub mod per_namespace;
pub mod pod_control;
pub mod podgc;
pub mod replicaset;
pub mod resourcequota;
pub mod serviceaccounttokens;
pub mod servicecidrs;
mod start;
pub mod storageprotection;
pub mod validatingadmissionpolicystatus;
pub mod views;

pub use context::{Context, Error};
pub use start::{Options, service_accounts, start};
