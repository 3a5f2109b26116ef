//! Connection tracking keeps the endpoint of a UDP flow after the endpoint is gone: a client that keeps its port would never get an
//! answer again. So after a change, entries of flows to a UDP service are deleted if their endpoint does not belong to it any more,
//! and the next packet passes the rules. (TCP clients notice by themselves.)
//!
//! It also keeps the connections of a deleted pod for minutes: those are deleted when its address is released.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

use crate::Family;
use crate::namespace::run_in;

/// The destination of a packet: address and port.
pub type Target = (IpAddr, u16);

/// Endpoints of UDP services by the destination of clients. Node ports have no address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flows {
    pub services: BTreeMap<Target, Arc<BTreeSet<Target>>>,
    pub node_ports: BTreeMap<(Family, u16), Arc<BTreeSet<Target>>>,
}

impl Flows {
    /// Whether a flow sent to `to` and answered by `from` contradicts the services.
    fn stale(&self, to: Target, from: Target) -> bool {
        match self.services.get(&to) {
            Some(endpoints) => !endpoints.contains(&from),
            // Only translated flows; others use the same port by chance.
            None => self.node_ports.get(&(Family::of(to.0), to.1)).is_some_and(|e| from != to && !e.contains(&from)),
        }
    }
}

// Numbers of linux/netfilter/nfnetlink.h and nfnetlink_conntrack.h.
const CT_GET: u16 = 1 << 8 | 1;
const CT_DELETE: u16 = 1 << 8 | 2;
const TUPLE_ORIG: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;
const IP_V4_SRC: u16 = 1;
const IP_V4_DST: u16 = 2;
const IP_V6_SRC: u16 = 3;
const IP_V6_DST: u16 = 4;
const PROTO_NUM: u16 = 1;
const PROTO_SRC_PORT: u16 = 2;
const PROTO_DST_PORT: u16 = 3;
const NESTED: u16 = 0x8000;
const HEADER: usize = 16 + 4;

/// Deletes stale flows in a namespace and returns their number. Blocks while the kernel lists its table.
pub fn forget_stale(namespace: Option<&Path>, flows: &Flows) -> io::Result<usize> {
    forget(namespace, |body| stale(body, flows))
}

/// Deletes the connections from or to pods with these addresses, of every protocol, and returns their number. Blocks as well.
pub fn forget_pods(namespace: Option<&Path>, pods: &BTreeSet<IpAddr>) -> io::Result<usize> {
    let is_pod = |body: &[u8], direction| source(body, direction).is_some_and(|address| pods.contains(&address));
    forget(namespace, |body| Some(is_pod(body, TUPLE_ORIG) || is_pod(body, TUPLE_REPLY)))
}

/// Deletes the connections of a namespace if `chosen` returns true for their attributes.
fn forget(namespace: Option<&Path>, chosen: impl Fn(&[u8]) -> Option<bool>) -> io::Result<usize> {
    let socket = run_in(namespace, || {
        let protocol = SockProtocol::NetlinkNetFilter;
        Ok(socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?)
    })?;
    let found = list(&socket, chosen)?;
    for (family, tuple) in &found {
        let mut attribute = Vec::new();
        put(&mut attribute, TUPLE_ORIG | NESTED, tuple);
        request(&socket, CT_DELETE, (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16, *family, &attribute)?;
        let mut buffer = [0; 4096];
        recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?; // one that has ended by itself is as good
    }
    Ok(found.len())
}

/// The families and original tuples of connections that are `chosen`, as the kernel sent them.
fn list(socket: &OwnedFd, chosen: impl Fn(&[u8]) -> Option<bool>) -> io::Result<Vec<(u8, Vec<u8>)>> {
    request(socket, CT_GET, (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16, libc::AF_UNSPEC as u8, &[])?;
    let mut found = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        let mut rest = &buffer[..length];
        while let Some((kind, message, tail)) = next_message(rest) {
            rest = tail;
            match i32::from(kind) {
                libc::NLMSG_DONE => return Ok(found),
                libc::NLMSG_ERROR => {
                    let code = message.get(..4).and_then(|b| b.try_into().ok()).map_or(0, i32::from_ne_bytes);
                    return Err(io::Error::from_raw_os_error(-code));
                }
                _ => {
                    let body = message.get(4..).filter(|body| chosen(body) == Some(true));
                    let tuple = body.and_then(|body| attribute(body, TUPLE_ORIG));
                    found.extend(message.first().copied().zip(tuple.map(<[u8]>::to_vec)));
                }
            }
        }
    }
}

fn stale(body: &[u8], flows: &Flows) -> Option<bool> {
    let (protocol, _, to) = tuple(attribute(body, TUPLE_ORIG)?)?;
    let (_, from, _) = tuple(attribute(body, TUPLE_REPLY)?)?;
    Some(i32::from(protocol) == libc::IPPROTO_UDP && flows.stale(to, from))
}

/// The source address of one direction of a connection; protocols without ports have one too.
fn source(body: &[u8], direction: u16) -> Option<IpAddr> {
    address(attribute(attribute(body, direction)?, TUPLE_IP)?, IP_V4_SRC, IP_V6_SRC)
}

/// The address in one of two attributes.
fn address(ip: &[u8], v4: u16, v6: u16) -> Option<IpAddr> {
    if let Some(bytes) = attribute(ip, v4) {
        return Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into());
    }
    Some(Ipv6Addr::from(<[u8; 16]>::try_from(attribute(ip, v6)?).ok()?).into())
}

/// Protocol, source and destination.
fn tuple(tuple: &[u8]) -> Option<(u8, Target, Target)> {
    let (ip, proto) = (attribute(tuple, TUPLE_IP)?, attribute(tuple, TUPLE_PROTO)?);
    let port = |kind| Some(u16::from_be_bytes(attribute(proto, kind)?.try_into().ok()?));
    let source = (address(ip, IP_V4_SRC, IP_V6_SRC)?, port(PROTO_SRC_PORT)?);
    let destination = (address(ip, IP_V4_DST, IP_V6_DST)?, port(PROTO_DST_PORT)?);
    Some((*attribute(proto, PROTO_NUM)?.first()?, source, destination))
}

fn request(socket: &OwnedFd, kind: u16, flags: u16, family: u8, attributes: &[u8]) -> io::Result<()> {
    let mut message = Vec::with_capacity(HEADER + attributes.len());
    message.extend(((HEADER + attributes.len()) as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]); // sequence and port: one request at a time
    message.extend([family, 0, 0, 0]);
    message.extend(attributes);
    send(socket.as_raw_fd(), &message, MsgFlags::empty())?;
    Ok(())
}

fn next_message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let body = bytes.get(16..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

fn attribute(mut bytes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let length = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?) as usize;
        let found = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & 0x3fff;
        let value = bytes.get(4..length)?;
        if found == kind {
            return Some(value);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
}

fn put(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend(((4 + value.len()) as u16).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}
