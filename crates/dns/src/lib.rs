//! The cluster DNS server: names of services and pods, by the Kubernetes DNS specification 1.1.
//!
//! [`Zone`] is the state as names, made from Services and EndpointSlices by a pure function; [`answer`] turns a query into a
//! response; [`Server`] listens on UDP and TCP. Runs as `system:kube-dns`.
//!
//! **Invariants.** A name under the cluster's domain is never asked of anybody else. Nothing is forwarded unless upstream servers
//! were given. Left out: IPv6 addresses, zone transfers, DNSSEC.

pub mod answer;
mod server;
pub mod zone;

pub use answer::answer;
pub use server::{Error, Options, Server};
pub use zone::{Found, Record, Zone};
