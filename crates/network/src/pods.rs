//! Pod addresses and interfaces.
//!
//! A pod has one interface, `eth0`, with one address of each family of the cluster and no network around it; everything, pods of the same node too, is reached through the node (the
//! bridge's address), so that every packet passes the node's rules and answers take the path that connection tracking expects,
//! without `br_netfilter`. Hardware addresses, also of the bridge, derive from IP addresses, so neighbour entries stay right when an
//! address is used again, and the node's address does not change with its pods. [`crate::ports`] limits what a pod may send.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use supervisor::blocking;
use tokio::fs::File;
use tokio::sync::Mutex;

use crate::address::{Cidr, Family, Ranges};
use crate::conntrack::{Flows, forget_pods, forget_stale};
use crate::fragments::Settings;
use crate::host_ports::{self, HostPort};
use crate::ipam::Ipam;
use crate::link::{Device, Neighbours, Netlink, RouteKind};
use crate::policies::PodGate;
use crate::ports::{self, Rules, pod_hardware_address};
use crate::tunnel::{self, Peer, Tunnel};
use crate::{Error, Result, check_id, flows, fragments, guard, namespace, nft};

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
    /// Addresses of this node's pods. There is a range of IPv4.
    pub pod_ranges: Ranges,
    /// Addresses of all pods of the cluster.
    pub cluster_ranges: Ranges,
    /// The addresses of services.
    pub service_ranges: Ranges,
    /// The addresses of load balancers.
    pub load_balancer_ranges: Option<Ranges>,
    /// The address by which other nodes reach this one, if there is a tunnel to other nodes.
    pub tunnel: Option<Ipv4Addr>,
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
    fn untranslated_ranges(&self) -> impl Iterator<Item = Cidr> {
        let balancers = self.load_balancer_ranges.into_iter().flat_map(|ranges| ranges.iter());
        self.service_ranges.iter().chain(balancers)
    }

    /// All ranges of the cluster.
    fn ranges(&self) -> Vec<Cidr> {
        self.cluster_ranges.iter().chain(self.untranslated_ranges()).collect()
    }

    /// Whether pods have addresses of IPv6.
    fn has_ipv6(&self) -> bool {
        self.pod_ranges.of(Family::V6).is_some()
    }

    /// Errors if the ranges do not fit together.
    fn check(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::Invalid { field: "pod range", message });
        if self.pod_ranges.of(Family::V4).is_none() {
            return invalid(format!("{}: pods need addresses of IPv4, with or without IPv6", self.pod_ranges));
        }
        for range in self.pod_ranges.iter() {
            match self.cluster_ranges.of(range.family()) {
                Some(all) if all.contains_range(&range) => {}
                _ => return invalid(format!("{range} is not within {}", self.cluster_ranges)),
            }
        }
        if self.has_ipv6() && !kernel_has_ipv6() {
            return invalid(format!("{}: this kernel has no IPv6", self.pod_ranges));
        }
        Ok(())
    }

    /// The ranges whose packets stay on the devices of this network.
    fn guarded(&self) -> Vec<Cidr> {
        match self.interfaces {
            PodInterfaces::Bridge => self.ranges(),
            PodInterfaces::Plugins => self.untranslated_ranges().collect(),
        }
    }

    fn table(&self) -> String {
        format!("kemudi-pods-{}", self.id)
    }

    fn host_port_table(&self) -> String {
        format!("kemudi-ports-{}", self.id)
    }

    fn alias(&self) -> String {
        format!("kemudi:{}", self.id)
    }
}

/// The network of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The addresses of the pod, one of each family of the cluster, that of the first family first. Never empty.
    pub addresses: Vec<IpAddr>,
    /// The addresses of the bridge, the pod's default gateways, in the same order.
    pub gateways: Vec<IpAddr>,
    /// Path of the pod's network namespace.
    pub namespace: PathBuf,
}

impl Attachment {
    /// The address of the pod in the first family of the cluster.
    pub fn address(&self) -> IpAddr {
        self.addresses.first().copied().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
    }
}

/// The pod network of one node. Cheap to clone.
#[derive(Clone)]
pub struct PodNetwork {
    inner: Arc<Inner>,
}

struct Inner {
    options: Options,
    tunnel: Option<Tunnel>,
    /// The addresses of the bridge, in the order of the ranges.
    gateways: Vec<IpAddr>,
    netlink: Netlink,
    bridge: u32,
    neighbours: Neighbours,
    /// Its guard moves to the thread that writes the file, so that a change ends even if the caller goes away.
    ipam: Arc<Mutex<Ipam>>,
    /// Likewise. Locked before the addresses.
    host_ports: Arc<Mutex<host_ports::Table>>,
    /// Addresses whose connections have to be deleted.
    leaving: Mutex<BTreeSet<IpAddr>>,
    /// Held while connections are deleted; locked before `leaving`.
    forgetting: Mutex<()>,
    gate: Arc<PodGate>,
}

impl PodNetwork {
    /// Creates the guard, then the bridge, or adopts those of an earlier process. Attached pods stay attached, and get settings that
    /// an earlier version did not set.
    pub async fn open(options: Options) -> Result<PodNetwork> {
        check_id(&options.id)?;
        options.check()?;
        let gateways = options.pod_ranges.iter().map(Ipam::gateway).collect::<Result<Vec<_>>>()?;
        let families: Vec<Family> = options.pod_ranges.families().collect();
        for directory in [&options.state_directory, &options.namespace_directory] {
            tokio::fs::create_dir_all(directory).await.map_err(Error::io(directory.display().to_string()))?;
        }
        let node = options.node_namespace.as_deref();
        let netlink = Netlink::open(node)?;
        let bridge_name = options.bridge();
        let devices = [bridge_name.clone(), tunnel::device(&options.id)];
        guard::raise(node, &netlink, &options.id, &options.guarded(), &devices).await?;
        if options.interfaces == PodInterfaces::Plugins {
            // Of a start without plugins.
            for range in options.cluster_ranges.iter() {
                guard::release(&netlink, range).await?;
            }
        }
        let (directory, ranges) = (options.state_directory.clone(), options.pod_ranges);
        let (ipam, host_ports) = blocking(move || -> Result<_> {
            let ipam = Ipam::open(directory.join("addresses.json"), ranges)?;
            let path = directory.join("host-ports.json");
            let host_ports = host_ports::Table::open(path, |pod| ipam.get(pod).is_some())?;
            Ok((ipam, host_ports))
        })
        .await?;
        let more: String = families
            .iter()
            .map(|family| {
                let published = host_ports.script(*family, &options.host_port_table(), &bridge_name, ipam.pods());
                script(&options, *family) + &published
            })
            .collect();
        let rules = ports::apply(node, &options.table(), &gateways, &ipam.addresses(), &more).await?;
        let settings = if options.forward { Settings::Ours } else { Settings::Others };
        for family in &families {
            fragments::limit(node, &options.id, &bridge_name, settings, *family).await?;
            flows::limit(node, &options.id, &bridge_name, settings, *family, families.len() as u32).await?;
        }
        let hardware = pod_hardware_address(&gateways);
        match netlink.device(&bridge_name).await? {
            Some(device) if device.alias != Some(options.alias()) => return Err(Error::Foreign(bridge_name)),
            // An earlier version did not set its hardware address.
            Some(device) => netlink.set_hardware_address(device.index, hardware).await?,
            None => {
                netlink.add_bridge(&bridge_name, hardware, &options.alias(), options.mtu).await?;
            }
        }
        let bridge = netlink.index(&bridge_name).await?;
        let mut settings = vec![
            (format!("ipv4/conf/{bridge_name}/forwarding"), "1".into()),
            (format!("ipv4/conf/{bridge_name}/send_redirects"), "0".into()),
            (format!("ipv4/conf/{bridge_name}/accept_redirects"), "0".into()),
            route_localnet(&bridge_name, &host_ports),
            (format!("ipv4/conf/{bridge_name}/accept_source_route"), "0".into()),
        ];
        settings.extend(ipv6(&bridge_name, options.has_ipv6()));
        if options.has_ipv6() {
            settings.push((format!("ipv6/conf/{bridge_name}/forwarding"), "1".into()));
        }
        if options.forward {
            settings.insert(0, ("ipv4/ip_forward".into(), "1".into()));
        }
        namespace::set(node, settings).await?;
        if options.forward && options.has_ipv6() {
            namespace::forward_ipv6(node).await?;
        }
        for gateway in &gateways {
            netlink.add_address(bridge, *gateway, Family::of(*gateway).bits()).await?;
        }
        netlink.up(bridge).await?;
        // Gives the node a route and a source address for service addresses. Rules translate them to endpoints before anything is
        // sent, and refuse unknown ones.
        for range in options.untranslated_ranges() {
            if let Some(gateway) = of_family(&gateways, range.family()) {
                netlink.replace_route(way(range, bridge, gateway)).await?;
            }
        }
        // Without rules only the bridge can isolate ports, unless it has to deliver between them itself.
        let neighbours = match rules {
            Rules::Missing if !ports::bridged_packets_are_filtered(node).await => Neighbours::Isolated,
            _ => Neighbours::Reachable,
        };
        let tunnel = match options.tunnel {
            Some(address) => Some(Tunnel::open(&options, &netlink, address, &options.alias()).await?),
            None => None,
        };
        let gate = Arc::new(PodGate::new(ipam.pods().clone()));
        let inner = Inner {
            options,
            tunnel,
            gateways,
            netlink,
            bridge,
            neighbours,
            ipam: Arc::new(Mutex::new(ipam)),
            host_ports: Arc::new(Mutex::new(host_ports)),
            leaving: Mutex::default(),
            forgetting: Mutex::default(),
            gate,
        };
        inner.adopt().await?;
        // An earlier version had one route for all addresses, with ARP requests for those without a pod.
        if let (Some(range), Some(gateway)) = (inner.options.pod_ranges.of(Family::V4), inner.gateway_of(Family::V4)) {
            inner.netlink.delete_route(way(range, bridge, gateway)).await?;
        }
        Ok(PodNetwork { inner: Arc::new(inner) })
    }

    /// The addresses of the bridge, the default gateways of pods, in the order of the ranges. Never empty.
    pub fn gateways(&self) -> &[IpAddr] {
        &self.inner.gateways
    }

    /// The address of the bridge in the first family of the cluster.
    pub fn gateway(&self) -> IpAddr {
        self.inner.gateways.first().copied().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
    }

    /// The pods of the node for the rules of network policies. Open: pods do not wait for rules until it is closed.
    pub fn gate(&self) -> Arc<PodGate> {
        self.inner.gate.clone()
    }

    /// Replaces the other nodes. Does nothing without a tunnel.
    pub async fn set_peers(&self, peers: &[Peer]) -> Result<()> {
        match &self.inner.tunnel {
            Some(tunnel) => tunnel.set_peers(peers).await,
            None => Ok(()),
        }
    }

    /// Creates the pod's namespace with its interface, or returns the existing one, and waits for the pod's rules (see
    /// [`PodNetwork::gate`]). `pod` is a file name.
    pub async fn attach(&self, pod: &str) -> Result<Attachment> {
        self.attach_namespace(pod, None).await
    }

    /// The same with `namespace` as the pod's, if it is given: that of a pod with a user namespace belongs to the latter.
    pub async fn attach_namespace(&self, pod: &str, namespace: Option<&OwnedFd>) -> Result<Attachment> {
        let inner = &self.inner;
        check_pod(pod)?;
        let path = inner.options.namespace_directory.join(pod);
        // Addresses are assigned one at a time; the rest runs in parallel.
        let (addresses, known) = {
            let mut ipam = inner.ipam.clone().lock_owned().await;
            let (pod, path) = (pod.to_owned(), path.clone());
            let allocate = move || -> Result<_> {
                let known = ipam.get(&pod).is_some() && namespace::exists(&path);
                Ok((ipam.allocate(&pod)?, known))
            };
            blocking(allocate).await?
        };
        let gateways = addresses.iter().filter_map(|address| inner.gateway_of(Family::of(*address))).collect();
        let attachment = Attachment { addresses, gateways, namespace: path };
        let addresses = &attachment.addresses;
        let is_same = namespace.is_none_or(|given| namespace::is_bound(&attachment.namespace, given));
        if known && is_same && inner.port(pod, addresses).await?.is_some() {
            inner.gate.admit(pod, addresses).await?;
            return Ok(attachment);
        }
        let connect = async {
            inner.connect(&attachment, namespace).await?;
            inner.gate.admit(pod, addresses).await
        };
        match connect.await {
            Ok(()) => Ok(attachment),
            Err(e) => {
                let _ = self.detach(pod).await; // the first error is returned
                Err(e)
            }
        }
    }

    /// The addresses that the pod has, or will have when it is attached.
    pub async fn reserve(&self, pod: &str) -> Result<Vec<IpAddr>> {
        check_pod(pod)?;
        let mut ipam = self.inner.ipam.clone().lock_owned().await;
        let pod = pod.to_owned();
        blocking(move || ipam.allocate(&pod)).await
    }

    /// Replaces the host ports of a pod that is attached or has a reserved address. Errors if another pod has one of them.
    pub async fn publish(&self, pod: &str, ports: &[HostPort]) -> Result<()> {
        self.inner.publish(pod, ports).await
    }

    /// Removes the pod's interface, namespace, connections and address. No error if it has none.
    pub async fn detach(&self, pod: &str) -> Result<()> {
        self.inner.detach(&[pod.to_owned()]).await
    }

    /// The addresses of all pods.
    pub async fn attached(&self) -> BTreeMap<String, Vec<IpAddr>> {
        self.inner.ipam.lock().await.pods().clone()
    }

    /// Detaches every pod that is not in `keep` (left by a crash of the node).
    pub async fn retain(&self, keep: impl Fn(&str) -> bool) -> Result<()> {
        let pods: Vec<String> = self.attached().await.into_keys().filter(|p| !keep(p)).collect();
        self.inner.detach(&pods).await
    }

    /// Removes everything of a network with these options, the guard last. Works after an interrupted purge.
    pub async fn purge(options: &Options) -> Result<()> {
        check_id(&options.id)?;
        let node = options.node_namespace.as_deref();
        let netlink = Netlink::open(node)?;
        Tunnel::purge(options, &netlink, &options.alias()).await?;
        if let Some(bridge) = netlink.device(&options.bridge()).await?
            && bridge.alias == Some(options.alias())
        {
            for device in netlink.devices().await?.iter().filter(|d| d.controller == Some(bridge.index)) {
                tracing::debug!(interface = device.name, "deleting");
                netlink.delete(device.index).await?;
            }
            netlink.delete(bridge.index).await?;
        }
        let directory = options.namespace_directory.clone();
        let remove = move || {
            let mut entries = std::fs::read_dir(&directory).into_iter().flatten().flatten();
            entries.try_for_each(|entry| namespace::remove(&entry.path()))
        };
        blocking(remove).await?;
        for table in [options.table(), options.host_port_table()] {
            nft::remove(node, &table).await?;
        }
        flows::unlimit(node, &options.id).await?;
        fragments::unlimit(node, &options.id).await?;
        let (namespaces, state) = (options.namespace_directory.clone(), options.state_directory.clone());
        blocking(move || {
            // A directory with files of others stays.
            let _ = std::fs::remove_dir(namespaces);
            for file in ["addresses.json", "host-ports.json"] {
                let _ = std::fs::remove_file(state.join(file));
            }
            let _ = std::fs::remove_dir(state);
        })
        .await;
        guard::lower(node, &netlink, &options.id, &options.ranges()).await
    }
}

impl Inner {
    /// Updates ports of an earlier process: their names, settings and neighbour entries. A port without a pod in the table is
    /// removed, since its allowed addresses are unknown.
    async fn adopt(&self) -> Result<()> {
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

    async fn detach(&self, pods: &[String]) -> Result<()> {
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

    fn gateway_of(&self, family: Family) -> Option<IpAddr> {
        of_family(&self.gateways, family)
    }

    /// The route of a pod. An address without one is unreachable at once, without ARP requests. None for a family without a gateway.
    fn way_to(&self, address: IpAddr) -> Option<RouteKind> {
        Some(way(Cidr::single(address), self.bridge, self.gateway_of(Family::of(address))?))
    }

    async fn publish(&self, pod: &str, ports: &[HostPort]) -> Result<()> {
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
        namespace::set(node.as_deref(), vec![route_localnet(&bridge, &table)]).await?;
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
    async fn port(&self, pod: &str, addresses: &[IpAddr]) -> Result<Option<Device>> {
        for name in [ports::interface(addresses), ports::former_interface(pod)] {
            let found = self.netlink.device(&name).await?;
            if let Some(device) = found.filter(|d| d.controller == Some(self.bridge)) {
                return Ok(Some(device));
            }
        }
        Ok(None)
    }

    async fn connect(&self, attachment: &Attachment, namespace: Option<&OwnedFd>) -> Result<()> {
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
fn check_pod(pod: &str) -> Result<()> {
    if pod.is_empty() || pod.starts_with('.') || pod.contains('/') {
        return Err(Error::Invalid { field: "pod id", message: format!("{pod:?}") });
    }
    Ok(())
}

/// The address of a family.
fn of_family(addresses: &[IpAddr], family: Family) -> Option<IpAddr> {
    addresses.iter().copied().find(|address| Family::of(*address) == family)
}

/// The route to a range behind the bridge.
fn way(to: Cidr, bridge: u32, gateway: IpAddr) -> RouteKind {
    RouteKind::Device { to, device: bridge, source: Some(gateway), metric: 0 }
}

/// Whether clients on the node's loopback reach pods by host ports. (No packet of a pod reaches servers on the loopback.)
fn route_localnet(bridge: &str, ports: &host_ports::Table) -> (String, String) {
    let value = if ports.is_empty() { "0" } else { "1" };
    (format!("ipv4/conf/{bridge}/route_localnet"), value.into())
}

fn kernel_has_ipv6() -> bool {
    std::path::Path::new("/proc/sys/net/ipv6").exists()
}

/// Settings of IPv6 for a device (or for new ones, `default`): addresses are only those that are assigned. A pod that sends router
/// advertisements would become the router of the node and its neighbours. Empty if the kernel has no IPv6.
pub(crate) fn ipv6(device: &str, enabled: bool) -> namespace::Settings {
    if !kernel_has_ipv6() {
        return Vec::new();
    }
    let is_disabled = if enabled { "0" } else { "1" };
    let off = ["accept_ra", "accept_redirects", "autoconf", "accept_dad"];
    let off = off.map(|s| (format!("ipv6/conf/{device}/{s}"), "0".to_owned())).into_iter();
    // No link-local address is made: 1 is `none`.
    off.chain(
        [("addr_gen_mode", "1"), ("disable_ipv6", is_disabled)]
            .map(|(s, value)| (format!("ipv6/conf/{device}/{s}"), value.to_owned())),
    )
    .collect()
}

/// The rules for packets of a family to and from addresses out of the cluster. Packets to unknown service addresses are refused, since
/// requests for their neighbours would fill the node's table.
fn script(options: &Options, family: Family) -> String {
    let (table, bridge, ip) = (options.table(), options.bridge(), family.word());
    let list = |ranges: &[Cidr]| {
        let own = ranges.iter().filter(|range| range.family() == family);
        own.map(Cidr::to_string).collect::<Vec<_>>().join(", ")
    };
    let services: Vec<Cidr> = options.untranslated_ranges().collect();
    let (all, of_services) = (list(&options.ranges()), list(&services));
    let [_, no_host, forbidden] = family.refusals();
    let mut script = nft::removal(family, &table);
    let Some(pod_range) = options.pod_ranges.of(family) else { return script };
    script.push_str(&format!("add table {ip} {table}\n"));
    let leaving = format!("{ip} saddr {pod_range} {ip} daddr != {{ {all} }} oifname != \"{bridge}\"");
    let is_ours = options.interfaces == PodInterfaces::Bridge;
    if options.masquerade && is_ours {
        script.push_str(&format!(
            "add chain {ip} {table} leave {{ type nat hook postrouting priority srcnat; policy accept; }}\n\
             add rule {ip} {table} leave {leaving} masquerade\n"
        ));
    }
    for hook in ["forward", "output"].into_iter().filter(|_| !of_services.is_empty()) {
        script.push_str(&format!(
            "add chain {ip} {table} unknown-{hook} {{ type filter hook {hook} priority filter; policy accept; }}\n\
             add rule {ip} {table} unknown-{hook} {ip} daddr {{ {of_services} }} counter reject with {no_host}\n"
        ));
    }
    if !options.masquerade && is_ours {
        // Answers to external connections (node ports) are still forwarded.
        script.push_str(&format!(
            "add chain {ip} {table} forward {{ type filter hook forward priority filter; policy accept; }}\n\
             add rule {ip} {table} forward {leaving} ct state != {{ established, related }} reject with {forbidden}\n"
        ));
    }
    script
}
