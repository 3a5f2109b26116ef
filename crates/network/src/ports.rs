//! Limits what a pod may send and receive on the bridge to frames between its own addresses and the node.
//!
//! A pod reaches everything through the node, so its port accepts frames only from the pod's hardware address with the pod's IP
//! address, and only to the bridge itself. **Invariant**: no frame of a pod reaches another pod's port unrouted or changes the
//! node's entry of another pod, and no packet of a pod has another source address than its own.
//!
//! A port's name and its hardware address derive from the pod's IP addresses. So the rules are known before any pod exists: one set of
//! (port, hardware address, IP address) for the whole range, loaded once, looked up per frame before `br_netfilter` and connection
//! tracking see it. Ports are not `isolated` from each other: with `br_netfilter`, the bridge itself delivers packets whose
//! destination a service rule has changed.
//!
//! The settings of the port (`locked`, no learning, no flooding, a static entry) and the permanent neighbour entry of the node apply
//! without the rules, too. If the kernel has no packet filter for bridges, they are the only protection: see [`Rules::Missing`].

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;

use crate::{Result, namespace, nft};

/// Whether the kernel filters frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    Active,
    /// Only hardware addresses are checked: pods can forge source addresses and, if ports are not isolated, send false ARP replies
    /// to their neighbours.
    Missing,
}

/// The hardware address of the pod, node or bridge with these addresses: the same for all that have them successively. It derives from the
/// address of IPv4, or from that of IPv6 if there is no other.
pub fn pod_hardware_address(addresses: &[IpAddr]) -> [u8; 6] {
    let is_v4 = |address: &&IpAddr| address.is_ipv4();
    match addresses.iter().find(is_v4).or(addresses.first()) {
        Some(IpAddr::V4(address)) => {
            let [a, b, c, d] = address.octets();
            [0x0a, 0x58, a, b, c, d]
        }
        Some(IpAddr::V6(address)) => {
            let [.., a, b, c, d, e] = folded(u128::from(*address)).to_be_bytes();
            [0x0e, a, b, c, d, e]
        }
        None => [0x0a, 0x58, 0, 0, 0, 0],
    }
}

/// 40 bits of an address of IPv6. Addresses that differ in up to 40 successive bits, as those of pods of a node and of the ranges of nodes
/// do, have different ones.
fn folded(address: u128) -> u64 {
    let parts = [0, 40, 80, 120].map(|bits| address >> bits);
    // The upper bits are cut off.
    parts.into_iter().fold(0, |all, part| all ^ part) as u64 & 0xff_ffff_ffff
}

/// The node's side of the pair of the pod with these addresses.
pub fn interface(addresses: &[IpAddr]) -> String {
    match pod_hardware_address(addresses) {
        [0x0a, _, rest @ ..] => format!("km{:08x}", u32::from_be_bytes(rest)),
        [_, a, b, c, d, e] => format!("km{:010x}", u64::from_be_bytes([0, 0, 0, a, b, c, d, e])),
    }
}

/// The name in earlier versions: `km` and a hash of the pod's id.
pub fn former_interface(pod: &str) -> String {
    let hash = pod.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("km{:013x}", hash & 0xf_ffff_ffff_ffff)
}

/// Replaces the rules for the pods that may have some of `addresses`, together with `more` (rules of other tables).
pub async fn apply(
    node: Option<&Path>,
    table: &str,
    gateways: &[IpAddr],
    addresses: &BTreeSet<Vec<IpAddr>>,
    more: &str,
) -> Result<Rules> {
    let script = format!("{more}{}", script(table, gateways, addresses));
    let probe = format!("add table bridge {table}\ndelete table bridge {table}\n");
    let otherwise = "this kernel cannot filter frames on bridges (CONFIG_NF_TABLES_BRIDGE): pods with NET_RAW can send from false source addresses";
    if nft::apply_where_possible(node, &script, &probe, otherwise).await? {
        return Ok(Rules::Active);
    }
    nft::apply(node, more).await?;
    Ok(Rules::Missing)
}

/// Whether packets on bridges pass the rules for routed packets (`br_netfilter`), as far as this can be read.
pub async fn bridged_packets_are_filtered(node: Option<&Path>) -> bool {
    namespace::get(node, "bridge/bridge-nf-call-iptables").await == Some(1)
}

fn script(table: &str, gateways: &[IpAddr], addresses: &BTreeSet<Vec<IpAddr>>) -> String {
    let bridge = written(pod_hardware_address(gateways));
    let (mut ports, mut senders, mut senders6) = (String::new(), String::new(), String::new());
    for addresses in addresses {
        let (port, hardware) = (interface(addresses), written(pod_hardware_address(addresses)));
        let _ = write!(ports, "\"{port}\", ");
        for address in addresses {
            let to = if address.is_ipv4() { &mut senders } else { &mut senders6 };
            let _ = write!(to, "\"{port}\" . {hardware} . {address}, ");
        }
    }
    let elements = |list: &str| if list.is_empty() { String::new() } else { format!(" elements = {{ {list} }}") };
    let (ports, senders, senders6) = (elements(&ports), elements(&senders), elements(&senders6));
    // Before `br_netfilter`, which sees frames at priority 0. Frames for the reserved multicast addresses are no bridge's and would be
    // the port's own input. With IPv6, a pod and its node have permanent entries for each other: no neighbour discovery, router
    // advertisement or multicast of a pod is let through, since these packets have no unicast hardware address or another sender.
    format!(
        "add table bridge {table}\n\
         delete table bridge {table}\n\
         add table bridge {table}\n\
         add set bridge {table} ports {{ type ifname;{ports} }}\n\
         add set bridge {table} senders {{ type ifname . ether_addr . ipv4_addr;{senders} }}\n\
         add set bridge {table} senders6 {{ type ifname . ether_addr . ipv6_addr;{senders6} }}\n\
         add chain bridge {table} from-pods {{ type filter hook prerouting priority -300; policy accept; }}\n\
         add rule bridge {table} from-pods iifname != @ports accept\n\
         add rule bridge {table} from-pods ether type ip ether daddr {bridge} ip daddr != 127.0.0.0/8 \
           iifname . ether saddr . ip saddr @senders accept\n\
         add rule bridge {table} from-pods ether type ip6 ether daddr {bridge} \
           icmpv6 type {{ nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert, nd-redirect }} \
           counter drop\n\
         add rule bridge {table} from-pods ether type ip6 ether daddr {bridge} ip6 daddr != {{ ::1, fe80::/10, ff00::/8 }} \
           iifname . ether saddr . ip6 saddr @senders6 accept\n\
         add rule bridge {table} from-pods ether type arp ether daddr {{ {bridge}, ff:ff:ff:ff:ff:ff }} \
           iifname . ether saddr . arp saddr ip @senders accept\n\
         add rule bridge {table} from-pods counter drop\n\
         add chain bridge {table} to-ports {{ type filter hook input priority -300; policy accept; }}\n\
         add rule bridge {table} to-ports ether daddr and ff:ff:ff:ff:ff:f0 == 01:80:c2:00:00:00 \
           iifname @ports counter drop\n"
    )
}

fn written(address: [u8; 6]) -> String {
    address.map(|b| format!("{b:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_ports_fit_and_differ() {
        let pod = |texts: &[&str]| texts.iter().map(|t| t.parse().unwrap()).collect::<Vec<IpAddr>>();
        let [a, b] = [pod(&["10.244.0.2"]), pod(&["fd00::3", "10.244.0.3"])];
        assert_eq!((interface(&a), interface(&b)), ("km0af40002".into(), "km0af40003".into()));
        assert_eq!(written(pod_hardware_address(&b)), "0a:58:0a:f4:00:03");
        let alone = pod(&["fd00:10:244:1::3"]);
        assert_eq!(interface(&alone), "km00011002ba");
        assert_eq!(written(pod_hardware_address(&alone)), "0e:00:01:10:02:ba");
        assert!(former_interface(&"x".repeat(200)).len() == 15 && former_interface("a") != former_interface("b"));
    }

    /// The tunnels of all nodes, and all pods of a node, have hardware addresses of their own.
    #[test]
    fn hardware_addresses_of_ipv6_differ() {
        for (range, length) in [("fd00:10:244::/48", 64), ("fd00:10:244::/56", 72), ("fd00:10:244::/112", 128)] {
            let range: crate::Cidr = range.parse().unwrap();
            let IpAddr::V6(base) = range.address() else { panic!("{range}") };
            let address =
                |n: u32| IpAddr::from(std::net::Ipv6Addr::from(u128::from(base) + (u128::from(n) << (128 - length))));
            let all: BTreeSet<_> = (0..1 << 16).map(|n| pod_hardware_address(&[address(n)])).collect();
            assert_eq!(all.len(), 1 << 16, "{range}");
        }
    }

    #[test]
    fn a_port_sends_with_the_addresses_of_its_pod() {
        let pod: Vec<IpAddr> = ["10.244.0.2", "fd00::2"].map(|a| a.parse().unwrap()).into();
        let gateways: Vec<IpAddr> = ["10.244.0.1", "fd00::1"].map(|a| a.parse().unwrap()).into();
        let script = script("t", &gateways, &[pod].into());
        assert!(
            script.contains("ipv4_addr; elements = { \"km0af40002\" . 0a:58:0a:f4:00:02 . 10.244.0.2,  }"),
            "{script}"
        );
        assert!(
            script.contains("ipv6_addr; elements = { \"km0af40002\" . 0a:58:0a:f4:00:02 . fd00::2,  }"),
            "{script}"
        );
    }
}
