//! The netlink requests of a pod network.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use futures::TryStreamExt;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope,
};
use rtnetlink::packet_route::link::{InfoData, InfoVeth, InfoVxlan, LinkAttribute, LinkInfo, LinkMessage};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteScope, RouteType};
use rtnetlink::{
    Handle, LinkBridge, LinkBridgePort, LinkMessageBuilder, LinkUnspec, LinkVeth, LinkVxlan, RouteMessageBuilder,
};

use crate::address::Cidr;
use crate::host_addresses::HostAddress;
use crate::namespace::run_in;
use crate::{Error, Result};

/// A netlink socket of one network namespace. Cheap to clone.
#[derive(Clone)]
pub struct Netlink(Handle);

pub struct Device {
    pub index: u32,
    pub name: String,
    pub alias: Option<String>,
    pub controller: Option<u32>,
    pub mtu: Option<u32>,
    /// The local address of a VXLAN device.
    pub local: Option<IpAddr>,
}

/// A VXLAN device to create.
pub struct Vxlan {
    pub vni: u32,
    pub port: u16,
    /// The source of encapsulated packets.
    pub local: IpAddr,
    pub hardware: [u8; 6],
    pub mtu: Option<u32>,
}

/// Whether a bridge port may exchange frames with others of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbours {
    Reachable,
    Isolated,
}

#[derive(Clone, Copy, Debug)]
pub enum RouteKind {
    Unreachable {
        to: Cidr,
        metric: u32,
    },
    /// A route to a device, with the preferred source address.
    Device {
        to: Cidr,
        device: u32,
        source: Option<IpAddr>,
        metric: u32,
    },
    /// A route through a gateway that needs no route of its own.
    Via {
        to: Cidr,
        gateway: IpAddr,
        device: u32,
    },
    Default {
        gateway: IpAddr,
        device: u32,
    },
}

impl Netlink {
    /// A socket in the calling thread's namespace. The thread must be inside a tokio runtime.
    pub fn here() -> io::Result<Netlink> {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        tokio::spawn(connection);
        Ok(Netlink(handle))
    }

    pub fn open(namespace: Option<&Path>) -> Result<Netlink> {
        let runtime = tokio::runtime::Handle::current();
        run_in(namespace, move || {
            let _entered = runtime.enter();
            Netlink::here()
        })
        .map_err(Error::io("netlink socket"))
    }

    pub async fn devices(&self) -> Result<Vec<Device>> {
        let links: Vec<LinkMessage> =
            self.0.link().get().execute().try_collect().await.map_err(Error::netlink("listing interfaces"))?;
        Ok(links.into_iter().map(device).collect())
    }

    pub async fn device(&self, name: &str) -> Result<Option<Device>> {
        let mut links = self.0.link().get().match_name(name.to_owned()).execute();
        match links.try_next().await {
            Ok(link) => Ok(link.map(device)),
            Err(e) if errno(&e) == Some(libc::ENODEV) => Ok(None),
            Err(e) => Err(Error::netlink(format!("interface {name}"))(e)),
        }
    }

    /// Index of a device, which must exist.
    pub async fn index(&self, name: &str) -> Result<u32> {
        let missing = || Error::io(format!("interface {name}"))(io::Error::from_raw_os_error(libc::ENODEV));
        Ok(self.device(name).await?.ok_or_else(missing)?.index)
    }

    pub async fn add_bridge(&self, name: &str, address: [u8; 6], alias: &str, mtu: Option<u32>) -> Result<()> {
        let mut message = LinkBridge::new(name).address(address.to_vec()).up();
        if let Some(mtu) = mtu {
            message = message.mtu(mtu);
        }
        self.0.link().add(message.build()).execute().await.map_err(Error::netlink(format!("making bridge {name}")))?;
        // The kernel takes an alias only for what exists.
        let index = self.index(name).await?;
        let message = LinkUnspec::new_with_index(index).alias(alias).build();
        self.0.link().set(message).execute().await.map_err(Error::netlink(format!("marking bridge {name}")))
    }

    /// Creates a VXLAN device, which is down.
    pub async fn add_vxlan(&self, name: &str, vxlan: &Vxlan, alias: &str) -> Result<()> {
        let message = match vxlan.local {
            IpAddr::V4(local) => LinkVxlan::new(name, vxlan.vni).local(local),
            IpAddr::V6(local) => LinkVxlan::new(name, vxlan.vni).local6(local),
        };
        let mut message = message.port(vxlan.port).learning(false).address(vxlan.hardware.to_vec());
        if let Some(mtu) = vxlan.mtu {
            message = message.mtu(mtu);
        }
        let fail = || Error::netlink(format!("making tunnel {name}"));
        self.0.link().add(message.build()).execute().await.map_err(fail())?;
        let index = self.index(name).await?;
        let message = LinkUnspec::new_with_index(index).alias(alias).build();
        self.0.link().set(message).execute().await.map_err(fail())
    }

    /// The addresses of all devices that are valid beyond their link.
    pub async fn addresses(&self) -> Result<Vec<HostAddress>> {
        let found: Vec<AddressMessage> =
            self.0.address().get().execute().try_collect().await.map_err(Error::netlink("listing addresses"))?;
        let address = |message: &AddressMessage| {
            let mut flags = AddressFlags::from_bits_retain(message.header.flags.bits().into());
            let (mut local, mut other) = (None, None);
            for attribute in &message.attributes {
                match attribute {
                    // The whole of what the header has a part of.
                    AddressAttribute::Flags(all) => flags = *all,
                    AddressAttribute::Local(address) => local = Some(*address),
                    AddressAttribute::Address(address) => other = Some(*address),
                    _ => {}
                }
            }
            let address = local.or(other)?;
            let mut unreliable = AddressFlags::Deprecated | AddressFlags::Tentative | AddressFlags::Dadfailed;
            if address.is_ipv6() {
                // Of IPv4, this flag marks a further address of a network; of IPv6, a temporary one.
                unreliable |= AddressFlags::Secondary;
            }
            (message.header.scope == AddressScope::Universe && !address.is_loopback()).then_some(HostAddress {
                device: message.header.index,
                address,
                is_lasting: !flags.intersects(unreliable),
                is_permanent: flags.contains(AddressFlags::Permanent),
            })
        };
        Ok(found.iter().filter_map(address).collect())
    }

    /// The MTU of the device with this address, if there is one.
    pub async fn mtu_of(&self, address: IpAddr) -> Result<Option<u32>> {
        let request = self.0.address().get().set_address_filter(address);
        let found: Vec<_> = request.execute().try_collect().await.map_err(Error::netlink("listing addresses"))?;
        let own = |a: &&AddressMessage| {
            a.attributes.iter().any(|a| match a {
                AddressAttribute::Local(own) | AddressAttribute::Address(own) => *own == address,
                _ => false,
            })
        };
        let Some(index) = found.iter().find(own).map(|a| a.header.index) else { return Ok(None) };
        Ok(self.devices().await?.into_iter().find(|d| d.index == index).and_then(|d| d.mtu))
    }

    /// Sends frames for a hardware address behind a VXLAN device to this node.
    pub async fn set_forwarding(&self, device: u32, hardware: [u8; 6], node: IpAddr) -> Result<()> {
        let entry = self.0.neighbours().add_bridge(device, &hardware).destination(node);
        let entry = entry.flags(NeighbourFlags::Own).state(NeighbourState::Permanent);
        entry.replace().execute().await.map_err(Error::netlink(format!("forwarding to {node}")))
    }

    /// No error if it is gone.
    pub async fn delete_forwarding(&self, device: u32, hardware: [u8; 6]) -> Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Bridge;
        message.header.ifindex = device;
        message.header.flags = NeighbourFlags::Own;
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(hardware.to_vec()));
        match self.0.neighbours().del(message).execute().await {
            Err(e) if !matches!(errno(&e), Some(libc::ENOENT | libc::ENODEV)) => {
                Err(Error::netlink("deleting a forwarding entry")(e))
            }
            _ => Ok(()),
        }
    }

    /// The destinations of routes through gateways behind a device.
    pub async fn routes_into(&self, device: u32) -> Result<Vec<Cidr>> {
        let mut routes: Vec<RouteMessage> = Vec::new();
        for all in [RouteMessageBuilder::<Ipv4Addr>::new().build(), RouteMessageBuilder::<Ipv6Addr>::new().build()] {
            let found: Vec<RouteMessage> =
                self.0.route().get(all).execute().try_collect().await.map_err(Error::netlink("listing routes"))?;
            routes.extend(found);
        }
        let leads_there = |r: &&RouteMessage| {
            r.attributes.contains(&RouteAttribute::Oif(device))
                && r.attributes.iter().any(|a| matches!(a, RouteAttribute::Gateway(_)))
        };
        let destination = |r: &RouteMessage| {
            let to = r.attributes.iter().find_map(|a| match a {
                RouteAttribute::Destination(RouteAddress::Inet(to)) => Some(IpAddr::V4(*to)),
                RouteAttribute::Destination(RouteAddress::Inet6(to)) => Some(IpAddr::V6(*to)),
                _ => None,
            })?;
            Some(Cidr::around(to, r.header.destination_prefix_length))
        };
        Ok(routes.iter().filter(leads_there).filter_map(destination).collect())
    }

    /// Creates a pair: `name` here, on the bridge; `peer` in the namespace, with the hardware address.
    pub async fn add_pair(
        &self,
        name: &str,
        bridge: u32,
        peer: &str,
        namespace: &OwnedFd,
        address: [u8; 6],
        mtu: Option<u32>,
    ) -> Result<()> {
        let mut inner = LinkUnspec::new_with_name(peer).setns_by_fd(namespace.as_raw_fd()).address(address.to_vec());
        let mut outer = LinkMessageBuilder::<LinkVeth>::new(name, peer).controller(bridge).up();
        if let Some(mtu) = mtu {
            inner = inner.mtu(mtu);
            outer = outer.mtu(mtu);
        }
        let outer = outer.set_info_data(InfoData::Veth(InfoVeth::Peer(inner.build())));
        let fail = Error::netlink(format!("making interface {name}"));
        self.0.link().add(outer.build()).execute().await.map_err(fail)
    }

    /// Restricts a bridge port to one hardware address: no learning, frames from other addresses are dropped (`locked`, Linux 5.16;
    /// older kernels ignore it), frames to the address go to this port, and flooded frames do not.
    pub async fn lock_port(&self, index: u32, address: [u8; 6], neighbours: Neighbours) -> Result<()> {
        let port = LinkBridgePort::new(index)
            // With `br_netfilter`, a packet whose destination a rule has changed is bridged, not routed, and may have to leave by
            // the port where it arrived: a pod that reaches itself through a service.
            .hairpin(true)
            .isolated(neighbours == Neighbours::Isolated)
            .learning(false)
            .locked(true)
            .flood(false)
            .mcast_flood(false)
            .bcast_flood(false)
            .fdb_flush()
            .build();
        let fail = || Error::netlink(format!("securing bridge port {index}"));
        self.0.link().set_port(port).execute().await.map_err(fail())?;
        // A permanent entry would be the bridge's own address; this one is static.
        let entry = self.0.neighbours().add_bridge(index, &address).state(NeighbourState::Noarp);
        entry.flags(NeighbourFlags::Controller).replace().execute().await.map_err(fail())
    }

    /// Sets a permanent neighbour entry: the hardware address of an IP address behind a device. Neither ARP nor neighbour discovery changes it.
    pub async fn set_neighbour(&self, device: u32, address: IpAddr, hardware: [u8; 6]) -> Result<()> {
        let request = self.0.neighbours().add(device, address).link_layer_address(&hardware);
        request.replace().execute().await.map_err(Error::netlink(format!("neighbour {address}")))
    }

    /// No error if it is gone.
    pub async fn delete_neighbour(&self, device: u32, address: IpAddr) -> Result<()> {
        let mut message = NeighbourMessage::default();
        let (family, destination) = match address {
            IpAddr::V4(a) => (AddressFamily::Inet, NeighbourAddress::Inet(a)),
            IpAddr::V6(a) => (AddressFamily::Inet6, NeighbourAddress::Inet6(a)),
        };
        message.header.family = family;
        message.header.ifindex = device;
        message.attributes.push(NeighbourAttribute::Destination(destination));
        match self.0.neighbours().del(message).execute().await {
            Err(e) if !matches!(errno(&e), Some(libc::ENOENT | libc::ENODEV)) => {
                Err(Error::netlink(format!("deleting neighbour {address}"))(e))
            }
            _ => Ok(()),
        }
    }

    /// Renames an interface. It is down for a moment if the kernel cannot rename one that is up.
    pub async fn rename(&self, index: u32, name: &str) -> Result<()> {
        let renamed = || LinkUnspec::new_with_index(index).name(name);
        let fail = || Error::netlink(format!("renaming an interface to {name}"));
        match self.0.link().set(renamed().build()).execute().await {
            Err(e) if errno(&e) == Some(libc::EBUSY) => {}
            done => return done.map_err(fail()),
        }
        self.0.link().set(LinkUnspec::new_with_index(index).down().build()).execute().await.map_err(fail())?;
        let done = self.0.link().set(renamed().build()).execute().await.map_err(fail());
        self.up(index).await?;
        done
    }

    pub async fn up(&self, index: u32) -> Result<()> {
        let message = LinkUnspec::new_with_index(index).up().build();
        self.0.link().set(message).execute().await.map_err(Error::netlink("bringing an interface up"))
    }

    pub async fn down(&self, index: u32) -> Result<()> {
        let message = LinkUnspec::new_with_index(index).down().build();
        self.0.link().set(message).execute().await.map_err(Error::netlink("taking an interface down"))
    }

    /// Sets the hardware address of an interface. A bridge then does not adopt that of a port.
    pub async fn set_hardware_address(&self, index: u32, address: [u8; 6]) -> Result<()> {
        let message = LinkUnspec::new_with_index(index).address(address.to_vec()).build();
        self.0.link().set(message).execute().await.map_err(Error::netlink("setting a hardware address"))
    }

    /// No error if it is gone.
    pub async fn delete(&self, index: u32) -> Result<()> {
        match self.0.link().del(index).execute().await {
            Err(e) if errno(&e) != Some(libc::ENODEV) => Err(Error::netlink("deleting an interface")(e)),
            _ => Ok(()),
        }
    }

    /// Addresses of IPv6 can be used at once, without a search for duplicates.
    pub async fn add_address(&self, index: u32, address: IpAddr, length: u8) -> Result<()> {
        let mut request = self.0.address().add(index, address, length).replace();
        if address.is_ipv6() {
            request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
        }
        request.execute().await.map_err(Error::netlink(format!("address {address}/{length}")))
    }

    pub async fn replace_route(&self, kind: RouteKind) -> Result<()> {
        let request = self.0.route().add(route(kind)?).replace();
        request.execute().await.map_err(Error::netlink(format!("route {kind:?}")))
    }

    /// No error if it is gone.
    pub async fn delete_route(&self, kind: RouteKind) -> Result<()> {
        match self.0.route().del(route(kind)?).execute().await {
            Err(e) if errno(&e) != Some(libc::ESRCH) => Err(Error::netlink(format!("deleting route {kind:?}"))(e)),
            _ => Ok(()),
        }
    }
}

fn invalid(kind: RouteKind, error: &dyn std::fmt::Display) -> Error {
    Error::io(format!("route {kind:?}"))(io::Error::other(error.to_string()))
}

fn route(kind: RouteKind) -> Result<RouteMessage> {
    // Both addresses of a route are of one family, which the kernel checks.
    let builder = RouteMessageBuilder::<IpAddr>::new();
    Ok(match kind {
        RouteKind::Unreachable { to, metric } => builder
            .kind(RouteType::Unreachable)
            .destination_prefix(to.address(), to.length())
            .map_err(|e| invalid(kind, &e))?
            .priority(metric)
            .build(),
        RouteKind::Device { to, device, source, metric } => {
            let builder = builder
                .scope(RouteScope::Link)
                .destination_prefix(to.address(), to.length())
                .map_err(|e| invalid(kind, &e))?
                .output_interface(device)
                .priority(metric);
            match source {
                Some(source) => builder.pref_source(source).map_err(|e| invalid(kind, &e))?.build(),
                None => builder.build(),
            }
        }
        RouteKind::Via { to, gateway, device } => builder
            .destination_prefix(to.address(), to.length())
            .map_err(|e| invalid(kind, &e))?
            .gateway(gateway)
            .map_err(|e| invalid(kind, &e))?
            .output_interface(device)
            .onlink()
            .build(),
        RouteKind::Default { gateway, device } => {
            let everything = match gateway {
                IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            };
            let builder = builder.destination_prefix(everything, 0).map_err(|e| invalid(kind, &e))?;
            builder.gateway(gateway).map_err(|e| invalid(kind, &e))?.output_interface(device).build()
        }
    })
}

fn device(link: LinkMessage) -> Device {
    let mut device =
        Device { index: link.header.index, name: String::new(), alias: None, controller: None, mtu: None, local: None };
    for attribute in link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => device.name = name,
            LinkAttribute::IfAlias(alias) => device.alias = Some(alias),
            LinkAttribute::Controller(index) => device.controller = Some(index),
            LinkAttribute::Mtu(mtu) => device.mtu = Some(mtu),
            LinkAttribute::LinkInfo(infos) => device.local = infos.iter().find_map(local_address),
            _ => {}
        }
    }
    device
}

fn local_address(info: &LinkInfo) -> Option<IpAddr> {
    let LinkInfo::Data(InfoData::Vxlan(fields)) = info else { return None };
    fields.iter().find_map(|f| match f {
        InfoVxlan::Local(address) => Some(IpAddr::V4(*address)),
        InfoVxlan::Local6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    })
}

fn errno(error: &rtnetlink::Error) -> Option<i32> {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.code.map(|c| -c.get()),
        _ => None,
    }
}
