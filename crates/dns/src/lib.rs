//! The cluster's DNS server (the specification that `kubernetes/dns` publishes): services, headless services and pods.
//!
//! [`zone`] answers from the services and endpoint slices that informers watch; [`server`] speaks DNS over UDP and TCP. Not implemented: forwarding
//! of names outside the cluster domain (they are refused, so that no query leaves the machine) and IPv6.

pub mod request_queue;
pub mod server;
pub mod zone;

pub use server::{Options, run};
