//! Pod network and packet rules on plain Linux: a bridge and a pair of interfaces per pod by netlink, services by nftables.
//!
//! **Invariants.** Packets for pod or service addresses never leave by a device of others, even while rules change: [`guard`] is
//! created first and removed last. A pod sends only with its own addresses, and its neighbours on the bridge get only what the node
//! has routed (`ports`). It fills at most its share of the table of connections ([`flows`](mod@flows)), and of the memory for
//! fragments ([`fragments`]). Everything made in the kernel carries the network's id in its name or is a port of its bridge, and
//! `purge` removes exactly that. All of it lives in one network namespace (the machine's, or one given by path), so that several
//! nodes fit on one machine.
//!
//! Container runtimes that create the namespaces of pods themselves reach all this through a CNI plugin ([`cni`]). Other CNI plugins
//! connect pods instead, if the node is configured so.
//!
//! Clusters have IPv4, IPv6, or both: a table of nftables for each family, with the same rules. Nodes reach each other by IPv4, if pods
//! have it.
//!
//! Left out: Kubernetes kinds.

#![warn(missing_docs)]

mod address;
pub mod cni;
mod conntrack;
mod flows;
mod fragments;
pub mod guard;
mod host_addresses;
mod host_ports;
mod ipam;
mod link;
mod machine;
pub mod namespace;
mod nft;
mod pods;
pub mod policies;
mod ports;
mod protocol;
mod ruleset;
mod services;
mod tunnel;

pub use address::{Cidr, Family, Ranges};
pub use host_addresses::{HostAddress, address_of_family, host_addresses};
pub use host_ports::HostPort;
pub use machine::{Egress, NodeBridge};
pub use pods::{Attachment, Options, PodInterfaces, PodNetwork};
pub use ports::interface;
pub use protocol::Protocol;
pub use services::{Affinity, Endpoint, Options as ServiceOptions, Policy, Progress, ServicePort, ServiceRules};
pub use tunnel::{PORT as TUNNEL_PORT, Peer};

/// Why a network operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is no range of addresses.
    #[error("{0:?} is not a range of addresses (address/length with no bits beyond the length)")]
    Cidr(String),
    /// The ranges are not one of each family.
    #[error("{0}")]
    Ranges(String),
    /// A field of the configuration is invalid.
    #[error("invalid {field}: {message}")]
    Invalid {
        /// The name of the field.
        field: &'static str,
        /// What is invalid.
        message: String,
    },
    /// All addresses of the range are in use.
    #[error("no free address in {0}")]
    Exhausted(Cidr),
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What failed.
        what: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A request to the kernel's network configuration failed.
    #[error("{what}: {source}")]
    Netlink {
        /// What failed.
        what: String,
        /// The cause.
        #[source]
        source: rtnetlink::Error,
    },
    /// `nft` refused a transaction, and nothing of it applies.
    #[error("nft: {message}")]
    Nft {
        /// The output of `nft`.
        message: String,
    },
    /// Another pod has the host port.
    #[error("the node's port {port} leads to another pod already ({pod})")]
    PortTaken {
        /// The port.
        port: HostPort,
        /// The pod that has it.
        pod: String,
    },
    /// An interface of this name exists that belongs to another program.
    #[error("interface {0:?} exists and is not ours")]
    Foreign(String),
    /// A CNI plugin, or its configuration, cannot be used.
    #[error(transparent)]
    Cni(#[from] cni::Error),
    /// The rules for network policies do not show the pod yet, or show it still.
    #[error("the rules of the pod's network policies are not up to date")]
    Policies,
    /// A state file cannot be read.
    #[error("state file {path}: {message}")]
    Corrupt {
        /// The file.
        path: std::path::PathBuf,
        /// What is invalid.
        message: String,
    },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source }
    }

    pub(crate) fn netlink(what: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> Error {
        let what = what.into();
        move |source| Error::Netlink { what, source }
    }
}

/// The result of network operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Checks an id, which is part of names: short, since names of interfaces have at most 15 bytes.
pub(crate) fn check_id(id: &str) -> Result<()> {
    let fits = (1..=8).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    if fits {
        return Ok(());
    }
    Err(Error::Invalid { field: "id", message: format!("{id:?}: one to eight lower-case letters and digits") })
}
