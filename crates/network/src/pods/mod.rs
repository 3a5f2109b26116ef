//! Pod addresses and interfaces.
//!
//! A pod has one interface, `eth0`, with one address of each family of the cluster and no network around it; everything, pods of the same node too, is reached through the node (the
//! bridge's address), so that every packet passes the node's rules and answers take the path that connection tracking expects,
//! without `br_netfilter`. Hardware addresses, also of the bridge, derive from IP addresses, so neighbour entries stay right when an
//! address is used again, and the node's address does not change with its pods. [`crate::ports`] limits what a pod may send.

mod connection;
mod options;
mod rules;
mod settings;

pub use options::{Options, PodInterfaces};
pub(crate) use settings::{forward, ipv6, routed};

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use supervisor::blocking;
use tokio::sync::Mutex;

use self::connection::{Inner, check_pod, of_family, way};
use crate::address::Family;
use crate::fragments::Settings;
use crate::host_ports::{self, HostPort};
use crate::ipam::Ipam;
use crate::link::{Neighbours, Netlink};
use crate::policies::PodGate;
use crate::ports::{self, Rules, pod_hardware_address};
use crate::tunnel::{self, Peer, Tunnel};
use crate::{Error, Result, check_id, flows, fragments, guard, namespace, nft};

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
        let rules_of = |family: &Family| {
            let published = host_ports.script(*family, &options.host_port_table(), &bridge_name, ipam.pods());
            rules::script(&options, *family) + &published
        };
        let more: String = families.iter().map(rules_of).collect();
        let rules = ports::apply(node, &options.table(), &gateways, &ipam.addresses(), &more).await?;
        let whose = if options.forward { Settings::Ours } else { Settings::Others };
        for family in &families {
            fragments::limit(node, &options.id, &bridge_name, whose, *family).await?;
            flows::limit(node, &options.id, &bridge_name, whose, *family, families.len() as u32).await?;
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
        let mut of_bridge = settings::routed(&bridge_name, options.pod_ranges);
        if options.has(Family::V4) {
            of_bridge.push(settings::route_localnet(&bridge_name, &host_ports));
        }
        namespace::set(node, of_bridge).await?;
        if options.forward {
            settings::forward(node, options.pod_ranges).await?;
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
