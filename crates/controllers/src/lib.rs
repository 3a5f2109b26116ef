//! The controllers.
//!
//! Every controller is a module of the same form: `run` watches objects and enqueues keys with a [`controller::Builder`],
//! [`controller::Reconcile`] brings the object of one key to its desired state, and pure functions beside it decide what to do. Each acts
//! with its own identity. [`fn@start`] lists them; a controller's name stands there and nowhere else.

pub mod attachdetach;
mod bootstrap;
pub mod certificates;
pub mod clusterroleaggregation;
pub mod consistency;
pub mod context;
pub mod controller;
pub mod cronjob;
pub mod daemonset;
pub mod deployment;
pub mod devicetainteviction;
pub mod discovery;
pub mod disruption;
pub mod endpointslice;
pub mod ephemeralvolume;
pub mod expand;
pub mod garbagecollector;
pub mod history;
pub mod horizontalpodautoscaler;
pub mod ipallocator;
pub mod job;
mod meters;
pub mod namespace;
pub mod nodeipam;
pub mod nodelifecycle;
pub mod ownership;
pub mod per_namespace;
pub mod persistentvolume;
pub mod pod_control;
pub mod pod_order;
pub mod podgc;
pub mod replicaset;
pub mod resourceclaim;
pub mod resourcequota;
mod scale;
pub mod serviceaccounttokens;
pub mod servicecidrs;
pub mod servicelb;
mod start;
pub mod statefulset;
pub mod storageprotection;
pub mod ttl;
pub mod ttlafterfinished;
pub mod validatingadmissionpolicystatus;
pub mod views;

pub use context::{Context, Error};
pub use start::{Options, Running, names, run, service_accounts, start};
