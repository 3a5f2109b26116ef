//! The options of a node's pod network.

use std::net::IpAddr;
use std::path::PathBuf;

use super::settings::kernel_has_ipv6;
use crate::address::{Cidr, Family, Ranges};
use crate::{Error, Result};

/// Who connects the pods of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodInterfaces {
    /// This network, with its bridge.
    #[default]
    Bridge,
    /// CNI plugins ([`crate::cni::PluginNetwork`]). The bridge then has the addresses of the node and of services alone, and packets
    /// for pods are left to the plugins.
    Plugins,
}

/// The options of a node's pod network.
#[derive(Clone, Debug)]
pub struct Options {
    /// Tag of everything made in the kernel: up to eight lower-case letters and digits, unique on the machine.
    pub id: String,
    /// Directory of the table of addresses.
    pub state_directory: PathBuf,
    /// Directory of the pods' namespaces; one file per pod.
    pub namespace_directory: PathBuf,
    /// The node's namespace; `None` is that of the process.
    pub node_namespace: Option<PathBuf>,
    /// Who connects pods.
    pub interfaces: PodInterfaces,
    /// Addresses of this node's pods.
    pub pod_ranges: Ranges,
    /// Addresses of all pods of the cluster.
    pub cluster_ranges: Ranges,
    /// The addresses of services.
    pub service_ranges: Ranges,
    /// The addresses of load balancers.
    pub load_balancer_ranges: Option<Ranges>,
    /// The address by which other nodes reach this one, if there is a tunnel to other nodes: of the family that [`Ranges::of_tunnels`]
    /// returns for the cluster.
    pub tunnel: Option<IpAddr>,
    /// `None`: the kernel's default.
    pub mtu: Option<u32>,
    /// Whether pods may send out of the cluster, with the node's address. Otherwise such packets are not forwarded.
    pub masquerade: bool,
    /// Enables forwarding between all devices of the machine (`ip_forward`), which masquerading and node ports need. The setting
    /// stays when the network is purged.
    pub forward: bool,
}

impl Options {
    /// Name of the bridge.
    pub fn bridge(&self) -> String {
        format!("kemudi-{}", self.id)
    }

    /// The ranges of services: packets to them never leave the node untranslated.
    pub(super) fn untranslated_ranges(&self) -> impl Iterator<Item = Cidr> {
        let balancers = self.load_balancer_ranges.into_iter().flat_map(|ranges| ranges.iter());
        self.service_ranges.iter().chain(balancers)
    }

    /// All ranges of the cluster.
    pub(super) fn ranges(&self) -> Vec<Cidr> {
        self.cluster_ranges.iter().chain(self.untranslated_ranges()).collect()
    }

    /// Whether pods have addresses of a family.
    pub(super) fn has(&self, family: Family) -> bool {
        self.pod_ranges.of(family).is_some()
    }

    /// Errors if the ranges do not fit together.
    pub(super) fn check(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::Invalid { field: "pod range", message });
        for range in self.pod_ranges.iter() {
            match self.cluster_ranges.of(range.family()) {
                Some(all) if all.contains_range(&range) => {}
                _ => return invalid(format!("{range} is not within {}", self.cluster_ranges)),
            }
        }
        if self.has(Family::V6) && !kernel_has_ipv6() {
            return invalid(format!("{}: this kernel has no IPv6", self.pod_ranges));
        }
        match self.tunnel {
            Some(address) if Family::of(address) != self.cluster_ranges.of_tunnels() => {
                let message = format!(
                    "{address}: nodes of a cluster with pods of {} reach each other by {}",
                    self.cluster_ranges,
                    self.cluster_ranges.of_tunnels()
                );
                return Err(Error::Invalid { field: "node address", message });
            }
            _ => {}
        }
        Ok(())
    }

    /// The ranges whose packets stay on the devices of this network.
    pub(super) fn guarded(&self) -> Vec<Cidr> {
        match self.interfaces {
            PodInterfaces::Bridge => self.ranges(),
            PodInterfaces::Plugins => self.untranslated_ranges().collect(),
        }
    }

    pub(super) fn table(&self) -> String {
        format!("kemudi-pods-{}", self.id)
    }

    pub(super) fn host_port_table(&self) -> String {
        format!("kemudi-ports-{}", self.id)
    }

    pub(super) fn alias(&self) -> String {
        format!("kemudi:{}", self.id)
    }
}
