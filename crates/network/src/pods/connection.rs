//! What one pod has in the kernel: its namespace, its pair of interfaces, neighbour entries, routes and host ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use supervisor::blocking;
use tokio::fs::File;
use tokio::sync::Mutex;

use super::settings::{ipv6, route_localnet};
use super::{Attachment, Options};
use crate::address::{Cidr, Family};
use crate::conntrack::{Flows, forget_pods, forget_stale};
use crate::host_ports::{self, HostPort};
use crate::ipam::Ipam;
use crate::link::{Device, Neighbours, Netlink, RouteKind};
use crate::policies::PodGate;
use crate::ports::{self, pod_hardware_address};
use crate::tunnel::Tunnel;
use crate::{Error, Result, namespace, nft};

/// The state of a [`super::PodNetwork`].
pub(super) struct Inner {
    pub(super) options: Options,
    pub(super) tunnel: Option<Tunnel>,
    /// The addresses of the bridge, in the order of the ranges.
    pub(super) gateways: Vec<IpAddr>,
    pub(super) netlink: Netlink,
    pub(super) bridge: u32,
    pub(super) neighbours: Neighbours,
    /// Its guard moves to the thread that writes the file, so that a change ends even if the caller goes away.
    pub(super) ipam: Arc<Mutex<Ipam>>,
    /// Likewise. Locked before the addresses.
    pub(super) host_ports: Arc<Mutex<host_ports::Table>>,
    /// Addresses whose connections have to be deleted.
    pub(super) leaving: Mutex<BTreeSet<IpAddr>>,
    /// Held while connections are deleted; locked before `leaving`.
    pub(super) forgetting: Mutex<()>,
    pub(super) gate: Arc<PodGate>,
}

impl Inner {
    /// Updates ports of an earlier process: their names, settings and neighbour entries. A port without a pod in the table is
    /// removed, since its allowed addresses are unknown.
    pub(super) async fn adopt(&self) -> Result<()> {
        let devices = self.netlink.devices().await?;
        let ports = devices.iter().filter(|d| d.controller == Some(self.bridge));
        let mut ports: BTreeMap<&str, u32> = ports.map(|d| (d.name.as_str(), d.index)).collect();
        for (pod, addresses) in self.ipam.lock().await.pods() {
            let name = ports::interface(addresses);
            let mut index = ports.remove(name.as_str());
            if index.is_none() {
                index = ports.remove(ports::former_interface(pod).as_str());
                if let Some(index) = index {
                    self.netlink.rename(index, &name).await?;
                }
            }
            if let Some(index) = index {
                self.secure(index, addresses).await?;
            }
        }
        for (name, index) in ports.into_iter().filter(|(name, _)| name.starts_with("km")) {
            tracing::info!(interface = name, "removing a bridge port without a pod");
            self.netlink.delete(index).await?;
        }
        Ok(())
    }

    pub(super) async fn detach(&self, pods: &[String]) -> Result<()> {
        let mut addresses = BTreeSet::new();
        for pod in pods {
            addresses.extend(self.disconnect(pod).await?);
        }
        // The addresses have no routes any more, and are not assigned again yet.
        self.forget(addresses).await;
        self.gate.remove(pods).await?;
        let mut ipam = self.ipam.clone().lock_owned().await;
        let pods = pods.to_vec();
        blocking(move || pods.iter().try_for_each(|pod| ipam.release(pod))).await
    }

    /// Removes what a pod has in the kernel. Returns its addresses.
    async fn disconnect(&self, pod: &str) -> Result<Vec<IpAddr>> {
        self.publish(pod, &[]).await?;
        let addresses = self.ipam.lock().await.get(pod).unwrap_or_default();
        if let Some(port) = self.port(pod, &addresses).await? {
            self.netlink.delete(port.index).await?;
        }
        for address in &addresses {
            if let Some(way) = self.way_to(*address) {
                self.netlink.delete_route(way).await?;
            }
            self.netlink.delete_neighbour(self.bridge, *address).await?;
        }
        let path = self.options.namespace_directory.join(pod);
        blocking(move || namespace::remove(&path)).await?;
        Ok(addresses)
    }

    /// Deletes the connections of addresses, with one listing of the table for pods that are detached at the same time. If the
    /// kernel does not support it, they time out.
    async fn forget(&self, addresses: BTreeSet<IpAddr>) {
        if addresses.is_empty() {
            return;
        }
        self.leaving.lock().await.extend(&addresses);
        let _turn = self.forgetting.lock().await;
        let all = {
            let mut leaving = self.leaving.lock().await;
            if leaving.is_disjoint(&addresses) {
                return; // the previous turn deleted them too
            }
            std::mem::take(&mut *leaving)
        };
        let node = self.options.node_namespace.clone();
        match tokio::task::spawn_blocking(move || forget_pods(node.as_deref(), &all)).await {
            Ok(Ok(0)) | Err(_) => {}
            Ok(Ok(count)) => tracing::debug!(count, "deleted connections of deleted pods"),
            Ok(Err(error)) => tracing::warn!(%error, "deleting connections of deleted pods failed; they time out"),
        }
    }

    /// Restricts a port to the pod with these addresses, and sets the pod's neighbour entries and routes.
    async fn secure(&self, port: u32, addresses: &[IpAddr]) -> Result<()> {
        let hardware = pod_hardware_address(addresses);
        self.netlink.lock_port(port, hardware, self.neighbours).await?;
        for address in addresses {
            self.netlink.set_neighbour(self.bridge, *address, hardware).await?;
            if let Some(way) = self.way_to(*address) {
                self.netlink.replace_route(way).await?;
            }
        }
        Ok(())
    }

    pub(super) fn gateway_of(&self, family: Family) -> Option<IpAddr> {
        of_family(&self.gateways, family)
    }

    /// The route of a pod. An address without one is unreachable at once, without ARP requests. None for a family without a gateway.
    fn way_to(&self, address: IpAddr) -> Option<RouteKind> {
        Some(way(Cidr::single(address), self.bridge, self.gateway_of(Family::of(address))?))
    }

    pub(super) async fn publish(&self, pod: &str, ports: &[HostPort]) -> Result<()> {
        let mut table = self.host_ports.clone().lock_owned().await;
        let pods = self.ipam.lock().await.pods().clone();
        if !ports.is_empty() && !pods.contains_key(pod) {
            return Err(Error::Invalid { field: "pod id", message: format!("{pod:?} has no address") });
        }
        let (pod, ports) = (pod.to_owned(), ports.to_vec());
        let (table, changed) = blocking(move || {
            let changed = table.set(&pod, &ports);
            (table, changed)
        })
        .await;
        if !changed? {
            return Ok(());
        }
        let (bridge, node) = (self.options.bridge(), self.options.node_namespace.clone());
        let name = self.options.host_port_table();
        let families = self.options.pod_ranges.families();
        let script: String = families.map(|family| table.script(family, &name, &bridge, &pods)).collect();
        nft::apply(node.as_deref(), &script).await?;
        if self.options.has(Family::V4) {
            namespace::set(node.as_deref(), vec![route_localnet(&bridge, &table)]).await?;
        }
        let flows = table.flows(&pods);
        if flows != Flows::default() {
            let forget = move || forget_stale(node.as_deref(), &flows);
            if let Ok(Err(error)) = tokio::task::spawn_blocking(forget).await {
                tracing::warn!(%error, "deleting UDP flows to deleted pods failed; they time out");
            }
        }
        Ok(())
    }

    /// The node's side of a pod's pair, if it exists.
    pub(super) async fn port(&self, pod: &str, addresses: &[IpAddr]) -> Result<Option<Device>> {
        for name in [ports::interface(addresses), ports::former_interface(pod)] {
            let found = self.netlink.device(&name).await?;
            if let Some(device) = found.filter(|d| d.controller == Some(self.bridge)) {
                return Ok(Some(device));
            }
        }
        Ok(None)
    }

    pub(super) async fn connect(&self, attachment: &Attachment, namespace: Option<&OwnedFd>) -> Result<()> {
        let addresses = &attachment.addresses;
        let name = ports::interface(addresses);
        match self.netlink.device(&name).await? {
            Some(stale) if stale.controller == Some(self.bridge) => self.netlink.delete(stale.index).await?,
            Some(_) => return Err(Error::Foreign(name)),
            None => {}
        }
        let path = attachment.namespace.clone();
        blocking(move || namespace::remove(&path)).await?;
        let fail = || Error::io(attachment.namespace.display().to_string());
        let given = namespace.map(OwnedFd::try_clone).transpose().map_err(fail())?;
        let (path, runtime) = (attachment.namespace.clone(), tokio::runtime::Handle::current());
        // A pod accepts no redirects to its neighbours on the bridge.
        let mut settings: Vec<_> = ["accept_redirects", "accept_source_route"]
            .into_iter()
            .flat_map(|s| ["all", "default"].map(|c| (format!("ipv4/conf/{c}/{s}"), "0".to_owned())))
            .collect();
        settings.extend(ipv6("default", addresses.iter().any(IpAddr::is_ipv6)));
        // Creating a namespace takes time in the kernel.
        let made = tokio::task::spawn_blocking(move || {
            namespace::bind(&path, given.as_ref(), move || {
                namespace::write_settings(&settings)?;
                let _entered = runtime.enter();
                Netlink::here()
            })
        });
        let inside = made.await.map_err(|e| fail()(std::io::Error::other(e)))??;
        let file = File::open(&attachment.namespace).await.map_err(fail())?.into_std().await;
        let (hardware, mtu) = (pod_hardware_address(addresses), self.options.mtu);
        self.netlink.add_pair(&name, self.bridge, "eth0", &file.into(), hardware, mtu).await?;
        self.secure(self.netlink.index(&name).await?, addresses).await?;
        inside.up(1).await?; // lo is the first device of every namespace
        let eth0 = inside.index("eth0").await?;
        for address in addresses {
            inside.add_address(eth0, *address, Family::of(*address).bits()).await?;
        }
        inside.up(eth0).await?;
        for gateway in &attachment.gateways {
            let to = Cidr::single(*gateway);
            inside.replace_route(RouteKind::Device { to, device: eth0, source: None, metric: 0 }).await?;
            inside.replace_route(RouteKind::Default { gateway: *gateway, device: eth0 }).await?;
            if gateway.is_ipv6() {
                // Packets of neighbour discovery do not pass the port of a pod.
                inside.set_neighbour(eth0, *gateway, pod_hardware_address(&self.gateways)).await?;
            }
        }
        Ok(())
    }
}

/// Checks the id of a pod, which is a file name.
pub(super) fn check_pod(pod: &str) -> Result<()> {
    if pod.is_empty() || pod.starts_with('.') || pod.contains('/') {
        return Err(Error::Invalid { field: "pod id", message: format!("{pod:?}") });
    }
    Ok(())
}

/// The address of a family.
pub(super) fn of_family(addresses: &[IpAddr], family: Family) -> Option<IpAddr> {
    addresses.iter().copied().find(|address| Family::of(*address) == family)
}

/// The route to a range behind the bridge.
pub(super) fn way(to: Cidr, bridge: u32, gateway: IpAddr) -> RouteKind {
    RouteKind::Device { to, device: bridge, source: Some(gateway), metric: 0 }
}
