//! The node agent: registers its node, runs the pods bound to it, and reports their status.
//!
//! [`Agent`] is made from [`Options`] and run; [`Handle`] serves the kubelet's HTTP API (logs, exec, attach, port forwarding,
//! statistics, metrics) and authorizes its clients. [`demo`] is the program inside the built-in image.
//!
//! **Invariants.** The agent can find everything that it knows about pods again in the API and the runtime, so it may be stopped and
//! started at any time without touching a container. It uses the API through [`client::Client`] alone, as `system:node:NAME`.
//!

mod admission;
mod affinity;
mod agent;
mod bounded;
mod cdi;
mod claims;
pub mod configuration;
mod counts;
pub mod credentials;
mod csi;
pub mod demo;
mod devices;
mod dispatch;
mod dra;
mod env;
mod eviction;
mod fields;
mod file_volumes;
mod hugepages;
mod image_gc;
pub mod join;
mod local_volumes;
mod node;
mod objects;
mod options;
mod orphans;
mod peers;
mod plugin_types;
pub mod pod;
mod pod_resources;
mod probe;
mod programs;
mod provisioner;
mod qos;
pub mod resources;
mod runtime_state;
mod server;
mod shared;
mod shutdown;
mod static_pods;
mod volumes;

pub use affinity::{Sysfs, TopologySource};
pub use agent::{Agent, Error, check_machine};
pub use cdi::DIRECTORIES as CDI_DIRECTORIES;
pub use configuration::Signal;
pub use eviction::{Layout, MachineObserver, NodeObserver, Observation, Observations};
pub use file_volumes::{FileVolumes, Format, obstacle as file_volume_obstacle};
pub use options::{Options, SeccompDefault};
pub use peers::{NodeNetwork, follow_peers};
pub use pod::files::DnsOptions;
pub use pod::network::Network;
pub use pod::sysctls::{Allowlist, Error as SysctlError};
pub use provisioner::{PROVISIONER, ProvisionerOptions, run as run_provisioner};
pub use server::{Body, Handle, Sender, run_healthz};
pub use static_pods::PodDecoder;

/// Converts a time of the runtime.
pub(crate) fn instant(t: runtime::Timestamp) -> jiff::Timestamp {
    let nanos = i32::try_from(t.nanos).unwrap_or(0);
    i64::try_from(t.secs).ok().and_then(|s| jiff::Timestamp::new(s, nanos).ok()).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
}
