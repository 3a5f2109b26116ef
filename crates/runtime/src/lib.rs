//! Containers on plain Linux: shims, namespaces, cgroups, mounts and images.
//!
//! [`Runtime`] is what a node agent needs, in terms of the container runtime interface (CRI), so that a CRI daemon could implement
//! it as well. [`Embedded`] is the runtime in this binary: one small shim process per pod holds the pod's namespaces, is the parent
//! of its containers and writes their logs and state files.
//!
//! **Invariants.** A container outlives the agent: nothing that keeps it running lives in the agent's process. Code that
//! forks runs only in the shim, which has one thread. Everything created in the kernel lies under the root directory or
//! the cgroup prefix of its [`Embedded`], so that [`Embedded::purge`] removes exactly that.
//!
//! Left out: Kubernetes kinds, pulling from registries, pod networks (a network namespace is handed in as a path).
#![allow(unsafe_code)] // kernel calls that no safe wrapper covers; each block says why it is sound
#![warn(missing_docs)]

pub mod api;
pub mod beneath;
pub mod block_device;
pub mod cgroup;
pub mod descriptors;
mod devices;
pub mod embedded;
mod hooks;
pub mod host;
pub mod image;
pub mod loop_device;
pub mod memory;
pub mod open_files;
mod program;
mod records;
pub mod rotation;
pub mod seccomp;
pub mod shim;
mod spec;
mod sys;
pub mod sysctl;
pub mod terminals;
pub mod user_namespace;
mod wire;

/// The messages between agent, shim and the start of a container.
pub mod protocol {
    pub use crate::shim::{ReportPacket, read_report};
    pub use crate::spec::{Message, Request};
}

pub use api::*;
pub use embedded::{Embedded, Options};
pub use host::HostLimits;
pub use image::{ImageConfig, ImageStore};
