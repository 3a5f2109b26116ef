//! The tunnel between the pod networks of nodes: one VXLAN device per node.
//!
//! Each node has a range of pod addresses of each family. The route to the range of another node leads into the device; its next hop is the
//! first address of that range, whose hardware address is derived from the node's ranges, and a forwarding entry maps the latter to the
//! node's own address. All entries are permanent: nothing is learnt and nothing is asked for with ARP or neighbour discovery. Encapsulated
//! packets are of IPv4, whatever is in them, or of IPv6 if pods have no addresses of IPv4.
//!
//! **Invariant**: the node accepts encapsulated packets from its peers only, and pods cannot send any.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use tokio::sync::Mutex;

use crate::address::{Cidr, Family, Ranges};
use crate::link::{Netlink, RouteKind, Vxlan};
use crate::pods::Options;
use crate::ports::pod_hardware_address;
use crate::{Error, Result, namespace, nft};

/// The UDP port of the tunnel, on every node.
pub const PORT: u16 = 8473;
/// The network identifier in encapsulated packets.
const VNI: u32 = 1;
/// Bytes that encapsulation adds to a packet.
fn overhead(family: Family) -> u32 {
    match family {
        Family::V4 => 50,
        Family::V6 => 70,
    }
}

/// Another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The addresses of its pods.
    pub ranges: Ranges,
    /// The address by which other nodes reach it.
    pub address: IpAddr,
}

/// The tunnel of one node.
pub struct Tunnel {
    netlink: Netlink,
    node: Option<PathBuf>,
    table: String,
    bridge: String,
    own: Ranges,
    cluster: Ranges,
    services: Ranges,
    device: u32,
    /// The family of encapsulated packets.
    family: Family,
    /// The peers with routes; `None` before the first change of this process.
    peers: Mutex<Option<BTreeMap<Cidr, Hop>>>,
}

/// The node to which a range leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    /// The address of the node.
    pub address: IpAddr,
    /// The hardware address of its tunnel.
    pub hardware: [u8; 6],
}

/// The hardware address of the tunnel of a node with these ranges.
fn hardware(ranges: Ranges) -> [u8; 6] {
    let first: Vec<IpAddr> = ranges.iter().map(|range| range.address()).collect();
    pod_hardware_address(&first)
}

/// Name of the device.
pub(crate) fn device(id: &str) -> String {
    format!("kemvx-{id}")
}

fn table(id: &str) -> String {
    format!("kemudi-tunnel-{id}")
}

/// The peers that `check` accepts and whose range does not overlap that of an earlier one.
pub(crate) fn distinct(peers: &[Peer], check: impl Fn(&Peer) -> Result<(), &'static str>) -> BTreeMap<Cidr, Hop> {
    let mut accepted: BTreeMap<Cidr, Hop> = BTreeMap::new();
    for peer in peers {
        let overlaps = |other: &Cidr| peer.ranges.iter().any(|range| range.overlaps(other));
        let hop = Hop { address: peer.address, hardware: hardware(peer.ranges) };
        let free = if accepted.keys().any(overlaps) {
            Err("its pod range overlaps that of an older node")
        } else if accepted.values().any(|other| other.hardware == hop.hardware) {
            // Hardware addresses are made from ranges, and a node chooses its own.
            Err("its hardware address is that of an older node")
        } else {
            Ok(())
        };
        match check(peer).and(free) {
            Ok(()) => {
                accepted.extend(peer.ranges.iter().map(|range| (range, hop)));
            }
            Err(why) => tracing::warn!(?peer, why, "no pod network with this node"),
        }
    }
    accepted
}

impl Tunnel {
    /// Creates the device, or adopts that of an earlier process. `address` is the node's own address, that of one of its devices.
    pub(crate) async fn open(options: &Options, netlink: &Netlink, address: IpAddr, alias: &str) -> Result<Tunnel> {
        let (name, own) = (device(&options.id), options.pod_ranges);
        let family = Family::of(address);
        let mtu = netlink.mtu_of(address).await?.map(|mtu| mtu.saturating_sub(overhead(family)));
        let vxlan = Vxlan { vni: VNI, port: PORT, local: address, hardware: hardware(own), mtu };
        match netlink.device(&name).await? {
            Some(d) if d.alias.as_deref() != Some(alias) => return Err(Error::Foreign(name)),
            // It may have the node's former address.
            Some(d) if d.local != Some(address) => {
                netlink.delete(d.index).await?;
                netlink.add_vxlan(&name, &vxlan, alias).await?;
            }
            Some(_) => {}
            None => netlink.add_vxlan(&name, &vxlan, alias).await?,
        }
        let device = netlink.index(&name).await?;
        let node = options.node_namespace.clone();
        namespace::set(node.as_deref(), crate::pods::routed(&name, own)).await?;
        let tunnel = Tunnel {
            netlink: netlink.clone(),
            node,
            table: table(&options.id),
            bridge: options.bridge(),
            own,
            cluster: options.cluster_ranges,
            services: options.service_ranges,
            device,
            family,
            peers: Mutex::new(None),
        };
        // Peers of an earlier process stay until they are replaced, but their packets wait for the rules.
        nft::apply(tunnel.node.as_deref(), &tunnel.script(&BTreeMap::new())).await?;
        for range in own.iter() {
            netlink.add_address(device, range.address(), range.family().bits()).await?;
        }
        netlink.up(device).await?;
        Ok(tunnel)
    }

    /// Replaces the peers. Invalid ones are skipped, with a warning: a node writes its addresses into the API itself. Of ranges that overlap
    /// the first one counts.
    pub async fn set_peers(&self, peers: &[Peer]) -> Result<()> {
        let desired = distinct(peers, |peer| self.check(peer));
        let mut known = self.peers.lock().await;
        if known.as_ref() == Some(&desired) {
            return Ok(());
        }
        let before = match known.take() {
            Some(peers) => peers,
            // Their addresses are unknown, so that all of them are written again.
            None => {
                let routes = self.netlink.routes_into(self.device).await?;
                let former = |range: Cidr| {
                    let hardware = pod_hardware_address(&[range.address()]);
                    (range, Hop { address: Ipv4Addr::UNSPECIFIED.into(), hardware })
                };
                routes.into_iter().map(former).collect()
            }
        };
        nft::apply(self.node.as_deref(), &self.script(&desired)).await?;
        for (range, hop) in before.iter().filter(|(range, _)| !desired.contains_key(range)) {
            self.netlink.delete_route(self.route(*range)).await?;
            self.netlink.delete_neighbour(self.device, range.address()).await?;
            if !desired.values().any(|other| other.hardware == hop.hardware) {
                self.netlink.delete_forwarding(self.device, hop.hardware).await?;
            }
        }
        for (range, hop) in desired.iter().filter(|(range, hop)| before.get(range) != Some(hop)) {
            self.netlink.set_forwarding(self.device, hop.hardware, hop.address).await?;
            self.netlink.set_neighbour(self.device, range.address(), hop.hardware).await?;
            self.netlink.replace_route(self.route(*range)).await?;
        }
        *known = Some(desired);
        Ok(())
    }

    fn check(&self, peer: &Peer) -> Result<(), &'static str> {
        let address = peer.address;
        for range in peer.ranges.iter() {
            if !self.cluster.of(range.family()).is_some_and(|all| all.contains_range(&range)) {
                return Err("its pod range is not within that of the cluster");
            }
            if self.own.iter().any(|own| own.overlaps(&range)) {
                return Err("its pod range overlaps that of this node");
            }
        }
        if hardware(peer.ranges) == hardware(self.own) {
            return Err("its hardware address is that of this node");
        }
        if Family::of(address) != self.family || peer.ranges.of(self.family).is_none() {
            return Err("it has no address, or no pod range, of the family of the tunnels between nodes");
        }
        if self.cluster.contains(address) || self.services.contains(address) {
            return Err("its address is that of a pod or service");
        }
        let is_reserved = match address {
            IpAddr::V4(address) => address.is_broadcast(),
            // Without its device, such an address leads nowhere.
            IpAddr::V6(address) => address.is_unicast_link_local() || address.to_ipv4_mapped().is_some(),
        };
        if address.is_loopback() || address.is_multicast() || address.is_unspecified() || is_reserved {
            return Err("its address is not that of a machine");
        }
        Ok(())
    }

    fn route(&self, to: Cidr) -> RouteKind {
        RouteKind::Via { to, gateway: to.address(), device: self.device }
    }

    fn script(&self, peers: &BTreeMap<Cidr, Hop>) -> String {
        let (table, bridge, ip) = (&self.table, &self.bridge, self.family.word());
        let known: BTreeSet<IpAddr> = peers.values().map(|hop| hop.address).collect();
        let known: Vec<String> = known.iter().map(IpAddr::to_string).collect();
        let senders =
            if known.is_empty() { String::new() } else { format!("{ip} saddr != {{ {} }} ", known.join(", ")) };
        let removal = nft::removal(self.family, table);
        format!(
            "{removal}\
             add table {ip} {table}\n\
             add chain {ip} {table} arriving {{ type filter hook input priority -10; policy accept; }}\n\
             add rule {ip} {table} arriving udp dport {PORT} {senders}counter drop\n\
             add rule {ip} {table} arriving udp dport {PORT} ct status dnat counter drop\n\
             add chain {ip} {table} of-pods {{ type filter hook forward priority -10; policy accept; }}\n\
             add rule {ip} {table} of-pods iifname \"{bridge}\" udp dport {PORT} counter drop\n\
             add rule {ip} {table} of-pods udp dport {PORT} ct status dnat counter drop\n"
        )
    }

    /// Removes the device and the rules of a network with these options, if they exist.
    pub(crate) async fn purge(options: &Options, netlink: &Netlink, alias: &str) -> Result<()> {
        if let Some(device) = netlink.device(&device(&options.id)).await?
            && device.alias.as_deref() == Some(alias)
        {
            netlink.delete(device.index).await?;
        }
        nft::remove(options.node_namespace.as_deref(), &table(&options.id)).await
    }
}
