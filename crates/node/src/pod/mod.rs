//! One pod on this node: its specification, its containers, what to do, and its status.
//!
//! [`plan`] and [`status`] are pure; [`worker`] is the task that calls them and acts. Invariant: a worker keeps nothing that cannot
//! be found again from the API and the runtime, save for back-offs and probe counts.

pub(crate) mod apparmor;
pub mod backoff;
pub mod container;
pub mod files;
mod holds;
mod hooks;
pub(crate) mod keyring;
pub(crate) mod local_storage;
mod messages;
pub(crate) mod network;
pub mod plan;
mod ports;
pub mod probes;
mod pulls;
pub(crate) mod resize;
pub mod security;
pub(crate) mod spec;
pub(crate) mod starts;
pub mod status;
pub(crate) mod sysctls;
mod totals;
pub mod users;
pub(crate) mod verification;
pub(crate) mod worker;
