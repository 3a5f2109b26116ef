//! Host ports: ports of the node that are forwarded to pods.
//!
//! A packet to an address of the node is looked up by address, protocol and port, then by protocol and port alone; so one port may
//! be forwarded to several pods, by different addresses of the node or protocols. Services come after. **Invariant**: a port is in
//! the file before it is in the rules, and is released with the pod's address.
//!
//! Clients on the node's loopback (127.0.0.0/8) reach pods with the node's address on the bridge as source. For that the bridge accepts packets of
//! loopback addresses (`route_localnet`) while host ports exist; such packets from pods are dropped first, here and in
//! [`crate::ports`].

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::conntrack::Flows;
use crate::protocol::Protocol;
use crate::{Error, Family, Result, nft};

const VERSION: u32 = 1;

/// A port of the node that is forwarded to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HostPort {
    /// Address of the node; `None` for all of them.
    pub address: Option<IpAddr>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port on the host.
    pub port: u16,
    /// Port of the pod.
    pub target: u16,
}

impl HostPort {
    /// Whether a node cannot have both.
    pub fn conflicts(&self, other: &HostPort) -> bool {
        let same_address = self.address.is_none() || other.address.is_none() || self.address == other.address;
        same_address && (self.protocol, self.port) == (other.protocol, other.port)
    }
}

impl std::fmt::Display for HostPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let address = self.address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        write!(f, "{}/{}", SocketAddr::from((address, self.port)), self.protocol.word())
    }
}

/// The addresses of pods by their ids.
type Pods = BTreeMap<String, Vec<IpAddr>>;

/// The host ports of pods, kept in a file.
pub struct Table {
    path: PathBuf,
    state: State,
}

#[derive(Clone, Serialize, Deserialize)]
struct State {
    version: u32,
    /// Pod id → ports.
    pods: BTreeMap<String, Vec<HostPort>>,
}

impl Table {
    /// Reads the table without pods for which `known` is false.
    pub fn open(path: PathBuf, known: impl Fn(&str) -> bool) -> Result<Table> {
        let corrupt = |message: String| Error::Corrupt { path: path.clone(), message };
        let mut state = match std::fs::read(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => State { version: VERSION, pods: BTreeMap::new() },
            Err(e) => return Err(corrupt(e.to_string())),
            Ok(bytes) => serde_json::from_slice::<State>(&bytes).map_err(|e| corrupt(e.to_string()))?,
        };
        if state.version > VERSION {
            return Err(corrupt(format!("has version {}, this program knows {VERSION}", state.version)));
        }
        state.pods.retain(|pod, _| known(pod));
        Ok(Table { path, state })
    }

    pub fn is_empty(&self) -> bool {
        self.state.pods.is_empty()
    }

    /// Sets the ports of a pod. Returns whether they changed. Errors if another pod has one of them.
    pub fn set(&mut self, pod: &str, ports: &[HostPort]) -> Result<bool> {
        if self.state.pods.get(pod).map_or(&[][..], Vec::as_slice) == ports {
            return Ok(false);
        }
        let others = self.state.pods.iter().filter(|(id, _)| *id != pod);
        for (other, taken) in others.flat_map(|(id, ports)| ports.iter().map(move |p| (id, p))) {
            if let Some(port) = ports.iter().find(|p| p.conflicts(taken)) {
                return Err(Error::PortTaken { port: *port, pod: other.clone() });
            }
        }
        let mut next = self.state.clone();
        match ports {
            [] => next.pods.remove(pod),
            _ => next.pods.insert(pod.to_owned(), ports.to_vec()),
        };
        write(&self.path, &next).map_err(Error::io(self.path.display().to_string()))?;
        self.state = next;
        Ok(true)
    }

    /// Every port with the address of its pod, in each family that both have.
    fn entries<'a>(&'a self, pods: &'a Pods) -> impl Iterator<Item = (HostPort, IpAddr)> + 'a {
        let with_addresses = self.state.pods.iter().filter_map(|(id, ports)| Some((ports, pods.get(id)?)));
        let pairs = with_addresses.flat_map(|(ports, all)| ports.iter().flat_map(|p| all.iter().map(|a| (*p, *a))));
        pairs.filter(|(port, pod)| port.address.is_none_or(|own| Family::of(own) == Family::of(*pod)))
    }

    /// The destinations of UDP packets, with their pods.
    pub fn flows(&self, pods: &Pods) -> Flows {
        let mut flows = Flows::default();
        for (port, pod) in self.entries(pods).filter(|(p, _)| p.protocol == Protocol::Udp) {
            let target = Arc::new([(pod, port.target)].into());
            match port.address {
                Some(address) => flows.services.insert((address, port.port), target),
                None => flows.node_ports.insert((Family::of(pod), port.port), target),
            };
        }
        flows
    }

    /// Commands that replace the rules of a family; without ports there are none.
    pub fn script(&self, family: Family, table: &str, bridge: &str, pods: &Pods) -> String {
        let mut script = nft::removal(family, table);
        let (ip, kind, loopback) = (family.word(), family.kind(), family.loopback());
        let (mut by_address, mut by_port, mut own) = (String::new(), String::new(), String::new());
        // `write!` to a String cannot fail.
        let of_family = self.entries(pods).filter(|(_, pod)| Family::of(*pod) == family);
        for (HostPort { address, protocol, port, target }, pod) in of_family {
            let protocol = protocol.word();
            let _ = match address {
                Some(address) => write!(by_address, "{address} . {protocol} . {port} : {pod} . {target}, "),
                None => write!(by_port, "{protocol} . {port} : {pod} . {target}, "),
            };
            let pair = format!("{pod} . {pod}, ");
            if !own.contains(&pair) {
                own.push_str(&pair);
            }
        }
        if own.is_empty() {
            return script;
        }
        let elements = |list: &str| if list.is_empty() { String::new() } else { format!(" elements = {{ {list} }}") };
        let (by_address, by_port, own) = (elements(&by_address), elements(&by_port), elements(&own));
        let _ = write!(
            script,
            "add table {ip} {table}\n\
             add map {ip} {table} by-address {{ type {kind} . inet_proto . inet_service : {kind} . inet_service;{by_address} }}\n\
             add map {ip} {table} by-port {{ type inet_proto . inet_service : {kind} . inet_service;{by_port} }}\n\
             add set {ip} {table} own {{ type {kind} . {kind};{own} }}\n\
             add chain {ip} {table} publish\n\
             add rule {ip} {table} publish fib daddr type != local return\n\
             add rule {ip} {table} publish meta l4proto {{ tcp, udp, sctp }} \
               dnat {ip} addr . port to {ip} daddr . meta l4proto . th dport map @by-address\n\
             add rule {ip} {table} publish meta l4proto {{ tcp, udp, sctp }} \
               dnat {ip} addr . port to meta l4proto . th dport map @by-port\n\
             add chain {ip} {table} from-outside {{ type nat hook prerouting priority -101; policy accept; }}\n\
             add rule {ip} {table} from-outside jump publish\n\
             add chain {ip} {table} from-node {{ type nat hook output priority -101; policy accept; }}\n\
             add rule {ip} {table} from-node {of_loopback}jump publish\n\
             add chain {ip} {table} leave {{ type nat hook postrouting priority 89; policy accept; }}\n\
             add rule {ip} {table} leave oifname {bridge:?} {ip} saddr {loopback} masquerade fully-random\n\
             add rule {ip} {table} leave ct status dnat {ip} saddr . {ip} daddr @own masquerade fully-random\n\
             add chain {ip} {table} loopback {{ type filter hook prerouting priority -300; policy accept; }}\n\
             add rule {ip} {table} loopback iifname {bridge:?} {ip} daddr {loopback} counter drop\n",
            // The kernel routes no packet of ::1 to other devices.
            of_loopback = if family == Family::V6 { "ip6 daddr != ::1 " } else { "" },
        );
        script
    }
}

fn write(path: &Path, state: &State) -> std::io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    std::fs::write(&temporary, serde_json::to_vec(state)?)?;
    std::fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(address: &str, protocol: Protocol, port: u16) -> HostPort {
        HostPort { address: address.parse().ok(), protocol, port, target: 8080 }
    }

    #[test]
    fn a_port_is_another_by_address_or_protocol() {
        let all = port("", Protocol::Tcp, 80);
        for (other, conflicts) in [
            (port("", Protocol::Tcp, 80), true),
            (port("192.0.2.1", Protocol::Tcp, 80), true),
            (port("", Protocol::Udp, 80), false),
            (port("", Protocol::Tcp, 81), false),
        ] {
            assert_eq!((all.conflicts(&other), other.conflicts(&all)), (conflicts, conflicts), "{other}");
        }
        let one = port("192.0.2.1", Protocol::Tcp, 80);
        assert!(!one.conflicts(&port("192.0.2.2", Protocol::Tcp, 80)));
    }

    #[test]
    fn ports_are_remembered_and_taken_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("host-ports.json");
        let mut table = Table::open(path.clone(), |_| true).unwrap();
        let [one, two] = ["192.0.2.1", "192.0.2.2"].map(|a| port(a, Protocol::Tcp, 80));
        assert!(table.set("a", &[one]).unwrap());
        assert!(!table.set("a", &[one]).unwrap(), "the same again");
        assert!(matches!(table.set("b", &[two, one]), Err(Error::PortTaken { pod, .. }) if pod == "a"));
        assert!(table.set("b", &[two]).unwrap());
        let mut table = Table::open(path.clone(), |pod| pod == "b").unwrap();
        assert!(table.set("c", &[one]).unwrap(), "a is gone");
        assert!(table.set("c", &[]).unwrap() && table.set("b", &[]).unwrap() && table.is_empty());
        std::fs::write(&path, "{").unwrap();
        assert!(matches!(Table::open(path, |_| true), Err(Error::Corrupt { .. })));
    }
}
