//! An agent with the embedded runtime, in a network namespace of its own, against a small API.
#![allow(clippy::unwrap_used)] // helpers of tests

mod affinity;
mod cgroups;
mod device_plugins;
mod dra;
mod evictions;
mod fake;
mod images;
mod lifecycle;
mod machine;
mod probes;
mod resize;
mod room;
mod server;
mod static_pods;
