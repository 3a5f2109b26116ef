//! Frames as a program with `NET_RAW` in a pod's network namespace sends and hears them, and those that make others take it for
//! somebody else.
#![allow(dead_code, clippy::unwrap_used)] // shared by tests; a broken setup is a failed test

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, recvfrom, sendto, socket};

pub type Hardware = [u8; 6];

const ALL: Hardware = [0xff; 6];
/// Frames for these are no bridge's: its port hears them itself.
const RESERVED: Hardware = [0x01, 0x80, 0xc2, 0, 0, 3];
const MULTICAST: Hardware = [0x01, 0, 0x5e, 0, 0, 1];
const IP: u16 = 0x0800;
const ARP: u16 = 0x0806;
const VLAN: u16 = 0x8100;
const OUTGOING: u8 = 4;
/// What packets from false addresses carry.
pub const FALSE: &[u8] = b"from a false address";

/// A raw socket.
pub struct Wire {
    socket: OwnedFd,
    device: LinkAddr,
}

impl Wire {
    /// In the network namespace of the calling thread.
    pub fn open(device: &str) -> io::Result<Wire> {
        let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_NONBLOCK, SockProtocol::EthAll)?;
        let mut addresses = nix::ifaddrs::getifaddrs()?.filter(|a| a.interface_name == device);
        let device = addresses.find_map(|a| a.address?.as_link_addr().copied());
        Ok(Wire { socket, device: device.ok_or(io::ErrorKind::NotFound)? })
    }

    pub fn send(&self, frame: &[u8]) {
        while let Err(e) = sendto(self.socket.as_raw_fd(), frame, &self.device, MsgFlags::empty()) {
            assert!(matches!(e, nix::Error::ENOBUFS | nix::Error::EAGAIN), "{e}");
        }
    }

    /// IPv4 frames that have come for another address than `own`. (Multicast queries of the bridge are excluded.)
    pub fn received_for_others(&self, own: Ipv4Addr) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = recvfrom::<LinkAddr>(self.socket.as_raw_fd(), &mut buffer) {
            let frame = &buffer[..length];
            let came = from.is_none_or(|f| f.pkttype() != OUTGOING);
            let ip = came && length >= 34 && frame[12..14] == IP.to_be_bytes();
            if ip && frame[30..34] != own.octets() && frame[30] < 224 {
                all.push(frame.to_vec());
            }
        }
        all
    }
}

/// The hardware address that a pod with this address has.
pub fn hardware(address: Ipv4Addr) -> Hardware {
    let [a, b, c, d] = address.octets();
    [0x0a, 0x58, a, b, c, d]
}

fn ethernet(from: Hardware, to: Hardware, kind: u16, content: &[u8]) -> Vec<u8> {
    let mut frame = [&to[..], &from, &kind.to_be_bytes(), content].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

/// An ARP reply (or request) with an address for `claimed`.
fn arp(from: Hardware, to: Hardware, operation: u8, claimed: Ipv4Addr, asked: Ipv4Addr) -> Vec<u8> {
    let mut content = vec![0, 1, 8, 0, 6, 4, 0, operation];
    content.extend(from);
    content.extend(claimed.octets());
    content.extend(to);
    content.extend(asked.octets());
    ethernet(from, to, ARP, &content)
}

fn length(n: usize) -> [u8; 2] {
    u16::try_from(n).unwrap().to_be_bytes()
}

/// The head of a packet of UDP. `fragment` is the field of flags and offset.
fn ip(from: Ipv4Addr, to: Ipv4Addr, id: u16, fragment: u16, content: usize) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend(length(20 + content));
    packet.extend(id.to_be_bytes());
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, 17, 0, 0]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    let sum: u32 = packet.chunks(2).map(|c| u32::from(u16::from_be_bytes([c[0], c[1]]))).sum();
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// A fragment of a datagram whose other fragments never arrive. `offset` is in bytes, a multiple of 8.
pub fn fragment(own: Ipv4Addr, gateway: Ipv4Addr, to: Ipv4Addr, id: u16, offset: u16) -> Vec<u8> {
    const MORE: u16 = 0x2000;
    let content = [0; 1480];
    let packet = [ip(own, to, id, MORE | (offset / 8), content.len()), content.to_vec()].concat();
    ethernet(hardware(own), hardware(gateway), IP, &packet)
}

fn udp(from: Ipv4Addr, to: Ipv4Addr, port: u16) -> Vec<u8> {
    let mut packet = ip(from, to, 0, 0, 8 + FALSE.len());
    packet.extend(40_000u16.to_be_bytes());
    packet.extend(port.to_be_bytes());
    packet.extend(length(8 + FALSE.len()));
    packet.extend([0, 0]);
    packet.extend(FALSE);
    packet
}

/// An attacker, its victims, and their node.
pub struct Attack {
    pub own: Ipv4Addr,
    pub gateway: Ipv4Addr,
    pub victims: Vec<Ipv4Addr>,
}

impl Attack {
    /// Sends all kinds of ARP frames that claim the addresses of the victims and the gateway.
    pub fn takeover(&self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let everybody = || self.victims.iter().chain([&self.gateway]).copied();
        for claimed in everybody() {
            for from in [hardware(self.own), hardware(claimed)] {
                for asked in everybody().filter(|a| *a != claimed) {
                    for to in [hardware(asked), ALL] {
                        frames.push(arp(from, to, 1, claimed, asked));
                        frames.push(arp(from, to, 2, claimed, asked));
                    }
                }
                frames.push(arp(from, ALL, 1, claimed, claimed));
            }
        }
        frames
    }

    /// Datagrams to a port of the victims and of the node, from addresses that are not the attacker's, or to the node's loopback
    /// address, or past the bridge.
    pub fn false_sources(&self, port: u16) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let foreign = [[8, 8, 8, 8], [0, 0, 0, 0], [127, 0, 0, 1], [255, 255, 255, 255]].map(Ipv4Addr::from);
        let sources: Vec<Ipv4Addr> = self.victims.iter().copied().chain([self.gateway]).chain(foreign).collect();
        for to in self.victims.iter().chain([&self.gateway]).copied() {
            for source in sources.iter().copied().filter(|s| *s != to) {
                let packet = udp(source, to, port);
                let tagged = |tag: u16| [&tag.to_be_bytes()[..], &IP.to_be_bytes(), &packet].concat();
                for from in [hardware(self.own), hardware(source)] {
                    for at in [hardware(self.gateway), hardware(to), ALL, RESERVED, MULTICAST] {
                        frames.push(ethernet(from, at, IP, &packet));
                        frames.push(ethernet(from, at, VLAN, &tagged(0)));
                    }
                }
            }
        }
        let direct =
            self.victims.iter().map(|v| ethernet(hardware(self.own), hardware(*v), IP, &udp(self.own, *v, port)));
        frames.extend(direct);
        let loopback = udp(self.own, Ipv4Addr::LOCALHOST, port);
        frames.push(ethernet(hardware(self.own), hardware(self.gateway), IP, &loopback));
        frames
    }
}
