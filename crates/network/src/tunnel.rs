//! The tunnel between the pod networks of nodes: one VXLAN device per node.
//!
//! Each node has a range of pod addresses. The route to the range of another node leads into the device; its next hop is the first
//! address of that range, whose hardware address is derived from it, and a forwarding entry maps the latter to the node's own
//! address. All entries are permanent: nothing is learnt and nothing is asked for with ARP.
//!
//! **Invariant**: the node accepts encapsulated packets from its peers only, and pods cannot send any.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use tokio::sync::Mutex;

use crate::address::Cidr;
use crate::link::{Netlink, RouteKind, Vxlan};
use crate::pods::Options;
use crate::ports::hardware_address;
use crate::{Error, Result, namespace, nft};

/// The UDP port of the tunnel, on every node.
pub const PORT: u16 = 8473;
/// The network identifier in encapsulated packets.
const VNI: u32 = 1;
/// Bytes that encapsulation adds to a packet.
const OVERHEAD: u32 = 50;

/// Another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// The addresses of its pods.
    pub range: Cidr,
    /// The address by which other nodes reach it.
    pub address: Ipv4Addr,
}

/// The tunnel of one node.
pub struct Tunnel {
    netlink: Netlink,
    node: Option<PathBuf>,
    table: String,
    bridge: String,
    own: Cidr,
    cluster: Cidr,
    services: Cidr,
    device: u32,
    /// The peers with routes; `None` before the first change of this process.
    peers: Mutex<Option<BTreeMap<Cidr, Ipv4Addr>>>,
}

/// Name of the device.
pub(crate) fn device(id: &str) -> String {
    format!("kemvx-{id}")
}

fn table(id: &str) -> String {
    format!("kemudi-tunnel-{id}")
}

/// The peers that `check` accepts and whose range does not overlap that of an earlier one.
pub(crate) fn distinct(peers: &[Peer], check: impl Fn(&Peer) -> Result<(), &'static str>) -> BTreeMap<Cidr, Ipv4Addr> {
    let mut accepted: BTreeMap<Cidr, Ipv4Addr> = BTreeMap::new();
    for peer in peers {
        let overlaps = |other: &Cidr| other.contains(peer.range.address()) || peer.range.contains(other.address());
        let free =
            if accepted.keys().any(overlaps) { Err("its pod range overlaps that of an older node") } else { Ok(()) };
        match check(peer).and(free) {
            Ok(()) => _ = accepted.insert(peer.range, peer.address),
            Err(why) => tracing::warn!(?peer, why, "no pod network with this node"),
        }
    }
    accepted
}

impl Tunnel {
    /// Creates the device, or adopts that of an earlier process. `address` is the node's own address, that of one of its devices.
    pub(crate) async fn open(options: &Options, netlink: &Netlink, address: Ipv4Addr, alias: &str) -> Result<Tunnel> {
        let (name, own) = (device(&options.id), options.pod_range);
        let mtu = netlink.mtu_of(address).await?.map(|mtu| mtu.saturating_sub(OVERHEAD));
        let vxlan = Vxlan { vni: VNI, port: PORT, local: address, hardware: hardware_address(own.address()), mtu };
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
        let mut settings: namespace::Settings = ["accept_redirects", "accept_source_route", "send_redirects"]
            .map(|s| (format!("ipv4/conf/{name}/{s}"), "0".to_owned()))
            .into();
        settings.push((format!("ipv4/conf/{name}/forwarding"), "1".into()));
        settings.extend(crate::pods::no_ipv6(&name));
        namespace::set(node.as_deref(), settings).await?;
        let tunnel = Tunnel {
            netlink: netlink.clone(),
            node,
            table: table(&options.id),
            bridge: options.bridge(),
            own,
            cluster: options.cluster_range,
            services: options.service_range,
            device,
            peers: Mutex::new(None),
        };
        // Peers of an earlier process stay until they are replaced, but their packets wait for the rules.
        nft::apply(tunnel.node.as_deref(), &tunnel.script(&BTreeMap::new())).await?;
        netlink.add_address(device, own.address(), 32).await?;
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
                routes.into_iter().map(|range| (range, Ipv4Addr::UNSPECIFIED)).collect()
            }
        };
        nft::apply(self.node.as_deref(), &self.script(&desired)).await?;
        for range in before.keys().filter(|range| !desired.contains_key(range)) {
            self.netlink.delete_route(self.route(*range)).await?;
            self.netlink.delete_neighbour(self.device, range.address()).await?;
            self.netlink.delete_forwarding(self.device, hardware_address(range.address())).await?;
        }
        for (range, address) in desired.iter().filter(|(range, address)| before.get(range) != Some(address)) {
            let hardware = hardware_address(range.address());
            self.netlink.set_forwarding(self.device, hardware, *address).await?;
            self.netlink.set_neighbour(self.device, range.address(), hardware).await?;
            self.netlink.replace_route(self.route(*range)).await?;
        }
        *known = Some(desired);
        Ok(())
    }

    fn check(&self, peer: &Peer) -> Result<(), &'static str> {
        let (range, address) = (peer.range, peer.address);
        if range.length() < self.cluster.length() || !self.cluster.contains(range.address()) {
            return Err("its pod range is not within that of the cluster");
        }
        if range.contains(self.own.address()) || self.own.contains(range.address()) {
            return Err("its pod range overlaps that of this node");
        }
        if self.cluster.contains(address) || self.services.contains(address) {
            return Err("its address is that of a pod or service");
        }
        if address.is_loopback() || address.is_multicast() || address.is_unspecified() || address.is_broadcast() {
            return Err("its address is not that of a machine");
        }
        Ok(())
    }

    fn route(&self, to: Cidr) -> RouteKind {
        RouteKind::Via { to, gateway: to.address(), device: self.device }
    }

    fn script(&self, peers: &BTreeMap<Cidr, Ipv4Addr>) -> String {
        let (table, bridge) = (&self.table, &self.bridge);
        let known: Vec<String> = peers.values().map(Ipv4Addr::to_string).collect();
        let senders = if known.is_empty() { String::new() } else { format!("ip saddr != {{ {} }} ", known.join(", ")) };
        format!(
            "add table ip {table}\n\
             delete table ip {table}\n\
             add table ip {table}\n\
             add chain ip {table} arriving {{ type filter hook input priority -10; policy accept; }}\n\
             add rule ip {table} arriving udp dport {PORT} {senders}counter drop\n\
             add chain ip {table} of-pods {{ type filter hook forward priority -10; policy accept; }}\n\
             add rule ip {table} of-pods iifname \"{bridge}\" udp dport {PORT} counter drop\n"
        )
    }

    /// Removes the device and the rules of a network with these options, if they exist.
    pub(crate) async fn purge(options: &Options, netlink: &Netlink, alias: &str) -> Result<()> {
        if let Some(device) = netlink.device(&device(&options.id)).await?
            && device.alias.as_deref() == Some(alias)
        {
            netlink.delete(device.index).await?;
        }
        let table = table(&options.id);
        let node: Option<&Path> = options.node_namespace.as_deref();
        nft::apply(node, &format!("add table ip {table}\ndelete table ip {table}\n")).await
    }
}
