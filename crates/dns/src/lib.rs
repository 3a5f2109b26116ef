//! The cluster's DNS server (the specification that `kubernetes/dns` publishes): services, headless services and pods.
//!
//! [`zone`] decides answers from what the informers hold, [`server`] carries them over UDP and TCP. Left out: forwarding of names
//! outside the cluster's domain, which are refused, so that nothing leaves the machine unasked; IPv6.

pub mod places;
pub mod questions;
pub mod server;
pub mod zone;

pub use server::{Options, run};
