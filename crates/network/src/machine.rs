//! Several nodes on one machine: a bridge in the network namespace of this process, and a pair of interfaces to the namespace of each
//! node.
//!
//! Nodes reach each other and this machine, and with [`Egress::Masquerade`] what lies beyond, by the address of this machine. This machine
//! reaches pods through their nodes, as an API server has to (proxies, webhooks), and services by rules of its own; the guard keeps
//! addresses of pods and services without a route from leaving by its default route.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use supervisor::blocking;
use tokio::fs::File;
use tokio::sync::Mutex;

use crate::address::{Cidr, Family, Ranges};
use crate::link::{Netlink, RouteKind};
use crate::ports::pod_hardware_address;
use crate::tunnel::{Hop, Peer, distinct};
use crate::{Error, Result, check_id, guard, namespace, nft};

/// Whether nodes reach addresses beyond this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Egress {
    /// By the address of this machine. Enables forwarding of packets (`ip_forward`), which stays when the bridge is purged.
    Masquerade,
    /// They have no default route.
    Closed,
}

/// The number of the first node's address in the range.
const FIRST: u32 = 11;

/// The address of the node with this number (from 0). Errors if the range has no more.
fn address(range: Cidr, number: u32) -> Result<IpAddr> {
    let last = u32::try_from(range.size() - 1).unwrap_or(u32::MAX);
    let index = FIRST.checked_add(number).filter(|index| *index < last);
    index.and_then(|index| range.nth(index)).ok_or(Error::Exhausted(range))
}

/// The bridge of the nodes on this machine.
pub struct NodeBridge {
    netlink: Netlink,
    id: String,
    bridge: u32,
    ranges: Ranges,
    gateways: Vec<IpAddr>,
    /// The addresses of all pods.
    pods: Ranges,
    egress: Egress,
    /// Routes to nodes' ranges; `None` before the first change of this process.
    routes: Mutex<Option<BTreeMap<Cidr, IpAddr>>>,
}

fn bridge(id: &str) -> String {
    format!("kemn-{id}")
}

fn alias(id: &str) -> String {
    format!("kemudi:{id}")
}

/// The id of the guard and of the rules for services, which is not that of a node in the same namespace.
fn guard_id(id: &str) -> String {
    format!("{id}n")
}

impl NodeBridge {
    /// Errors if a range has too few addresses for `count` nodes.
    pub fn check_ranges(ranges: Ranges, count: u32) -> Result<()> {
        ranges.iter().try_for_each(|range| address(range, count.saturating_sub(1)).map(drop))
    }

    /// Creates the bridge, or adopts that of an earlier process. It has the first addresses of `ranges`. Packets for
    /// addresses of `pods` and `services` never leave by another device.
    pub async fn open(id: &str, ranges: Ranges, pods: Ranges, services: &[Cidr], egress: Egress) -> Result<NodeBridge> {
        check_id(&guard_id(id))?;
        let first = |range: Cidr| {
            let too_small = || Error::Invalid { field: "node range", message: format!("{range} is too small") };
            range.nth(1).ok_or_else(too_small)
        };
        let gateways = ranges.iter().map(first).collect::<Result<Vec<_>>>()?;
        let has_ipv6 = ranges.of(Family::V6).is_some();
        let (netlink, name) = (Netlink::open(None)?, bridge(id));
        let guarded: Vec<Cidr> = pods.iter().chain(services.iter().copied()).collect();
        guard::raise(None, &netlink, &guard_id(id), &guarded, std::slice::from_ref(&name)).await?;
        match netlink.device(&name).await? {
            Some(device) if device.alias != Some(alias(id)) => return Err(Error::Foreign(name)),
            Some(_) => {}
            None => netlink.add_bridge(&name, pod_hardware_address(&gateways), &alias(id), None).await?,
        }
        let bridge = netlink.index(&name).await?;
        match egress {
            Egress::Masquerade => {
                namespace::set(None, crate::pods::routed(&name, ranges)).await?;
                crate::pods::forward(None, ranges).await?;
            }
            Egress::Closed => namespace::set(None, crate::pods::ipv6(&name, has_ipv6)).await?,
        }
        let rules: String = ranges.iter().map(|range| way_out(id, range, egress)).collect();
        nft::apply(None, &rules).await?;
        for (gateway, range) in gateways.iter().zip(ranges.iter()) {
            netlink.add_address(bridge, *gateway, range.length()).await?;
        }
        netlink.up(bridge).await?;
        // Gives this machine a source address for them. Rules translate them to pods before anything is sent.
        for range in services {
            let Some(source) = gateways.iter().find(|g| Family::of(**g) == range.family()) else { continue };
            let route = RouteKind::Device { to: *range, device: bridge, source: Some(*source), metric: 0 };
            netlink.replace_route(route).await?;
        }
        Ok(NodeBridge { netlink, id: id.to_owned(), bridge, ranges, gateways, pods, egress, routes: Mutex::new(None) })
    }

    /// The addresses of this machine on the bridge, in the order of the ranges.
    pub fn gateways(&self) -> &[IpAddr] {
        &self.gateways
    }

    /// The id of this machine's rules for services.
    pub fn rules_id(id: &str) -> String {
        guard_id(id)
    }

    fn port(&self, number: u32) -> String {
        format!("kn{}-{number}", self.id)
    }

    /// Creates the namespace of a node, unless it exists, and connects it. Returns its addresses, in the order of the ranges.
    pub async fn connect(&self, number: u32, path: &Path) -> Result<Vec<IpAddr>> {
        let addresses = self.ranges.iter().map(|range| address(range, number)).collect::<Result<Vec<_>>>()?;
        let port = self.port(number);
        let new = {
            let path = path.to_owned();
            blocking(move || -> Result<bool> {
                if namespace::exists(&path) {
                    return Ok(false);
                }
                namespace::remove(&path)?; // after a restart of the machine, only the file is left
                namespace::create(&path, || Ok(()))?;
                Ok(true)
            })
            .await?
        };
        let inside = Netlink::open(Some(path))?;
        if new || inside.device("eth0").await?.is_none() {
            if let Some(stale) = self.netlink.device(&port).await? {
                self.netlink.delete(stale.index).await?;
            }
            let file = File::open(path).await.map_err(Error::io(path.display().to_string()))?.into_std().await;
            let hardware = pod_hardware_address(&addresses);
            self.netlink.add_pair(&port, self.bridge, "eth0", &file.into(), hardware, None).await?;
        }
        namespace::set(Some(path), crate::pods::ipv6("eth0", self.ranges.of(Family::V6).is_some())).await?;
        inside.up(1).await?; // lo is the first device of every namespace
        let eth0 = inside.index("eth0").await?;
        for (address, range) in addresses.iter().zip(self.ranges.iter()) {
            inside.add_address(eth0, *address, range.length()).await?;
        }
        inside.up(eth0).await?;
        if self.egress == Egress::Masquerade {
            for gateway in &self.gateways {
                inside.replace_route(RouteKind::Default { gateway: *gateway, device: eth0 }).await?;
            }
        }
        self.set_link(number, true).await?;
        Ok(addresses)
    }

    /// The address of a family of the node with this address: it has the same number in each range.
    fn address_of(&self, address: IpAddr, family: Family) -> Option<IpAddr> {
        let index = self.ranges.of(Family::of(address))?.index(address)?;
        self.ranges.of(family)?.nth(index)
    }

    /// Replaces the routes to the pods of nodes. Those of nodes that are not on the bridge are skipped, and so are ranges that are not of pods.
    pub async fn set_peers(&self, peers: &[Peer]) -> Result<()> {
        let check = |p: &Peer| {
            if !self.ranges.contains(p.address) || self.gateways.contains(&p.address) {
                return Err("it is not on the bridge of this machine");
            }
            let is_of_pods = |range: Cidr| self.pods.of(range.family()).is_some_and(|all| all.contains_range(&range));
            if p.ranges.iter().all(is_of_pods) {
                Ok(())
            } else {
                Err("its pod range is not within that of the cluster")
            }
        };
        let hops = distinct(peers, check);
        let route_to = |(range, hop): (Cidr, Hop)| Some((range, self.address_of(hop.address, range.family())?));
        let desired: BTreeMap<Cidr, IpAddr> = hops.into_iter().filter_map(route_to).collect();
        let mut known = self.routes.lock().await;
        if known.as_ref() == Some(&desired) {
            return Ok(());
        }
        let route = |to: Cidr, gateway| RouteKind::Via { to, gateway, device: self.bridge };
        let before: Vec<Cidr> = match known.take() {
            Some(routes) => routes.into_keys().collect(),
            None => self.netlink.routes_into(self.bridge).await?,
        };
        for range in before.iter().filter(|range| !desired.contains_key(range)) {
            self.netlink
                .delete_route(RouteKind::Device { to: *range, device: self.bridge, source: None, metric: 0 })
                .await?;
        }
        for (range, address) in &desired {
            self.netlink.replace_route(route(*range, *address)).await?;
        }
        *known = Some(desired);
        Ok(())
    }

    /// Cuts a node off from the others and this machine, or connects it again.
    pub async fn set_link(&self, number: u32, is_up: bool) -> Result<()> {
        let port = self.netlink.index(&self.port(number)).await?;
        if is_up { self.netlink.up(port).await } else { self.netlink.down(port).await }
    }

    /// Removes the bridge and its ports, if they exist; namespaces of nodes are removed with [`namespace::remove`].
    pub async fn purge(id: &str, closed: &[Cidr]) -> Result<()> {
        let netlink = Netlink::open(None)?;
        if let Some(bridge) = netlink.device(&bridge(id)).await?
            && bridge.alias == Some(alias(id))
        {
            for device in netlink.devices().await?.iter().filter(|d| d.controller == Some(bridge.index)) {
                netlink.delete(device.index).await?;
            }
            netlink.delete(bridge.index).await?;
        }
        nft::remove(None, &table(id)).await?;
        guard::lower(None, &netlink, &guard_id(id), closed).await
    }
}

fn table(id: &str) -> String {
    format!("kemudi-nodes-{id}")
}

/// The rules for packets of nodes that leave this machine.
fn way_out(id: &str, range: Cidr, egress: Egress) -> String {
    let (table, bridge, ip) = (table(id), bridge(id), range.family().word());
    let mut script = nft::removal(range.family(), &table);
    if egress == Egress::Masquerade {
        script.push_str(&format!(
            "add table {ip} {table}\n\
             add chain {ip} {table} leave {{ type nat hook postrouting priority srcnat; policy accept; }}\n\
             add rule {ip} {table} leave {ip} saddr {range} oifname != \"{bridge}\" masquerade\n"
        ));
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A range that was too small left a bridge without a data directory behind.
    #[test]
    fn ranges_have_an_address_for_each_node() {
        let address = |range: &str, number| address(range.parse().unwrap(), number).map(|a| a.to_string()).ok();
        assert_eq!(address("10.89.0.0/24", 0).as_deref(), Some("10.89.0.11"));
        assert_eq!(address("10.89.0.0/28", 3).as_deref(), Some("10.89.0.14"));
        assert_eq!(address("10.89.0.0/28", 4), None, "the last address is no node's");
        assert_eq!(address("10.89.0.0/30", 0), None);
        assert_eq!(address("0.0.0.0/0", u32::MAX), None);
    }
}
