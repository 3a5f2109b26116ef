//! Kernel settings of the devices of a network.

use crate::address::{Family, Ranges};
use crate::{host_ports, namespace};

pub(super) fn kernel_has_ipv6() -> bool {
    std::path::Path::new("/proc/sys/net/ipv6").exists()
}

/// Settings of a device between which and others the node forwards packets of the families of `ranges`, and of no other one.
pub(crate) fn routed(device: &str, ranges: Ranges) -> namespace::Settings {
    let is_on = |family| if ranges.of(family).is_some() { "1" } else { "0" };
    let off = ["send_redirects", "accept_redirects", "accept_source_route"];
    let mut settings: namespace::Settings = off.map(|s| (format!("ipv4/conf/{device}/{s}"), "0".to_owned())).into();
    settings.push((format!("ipv4/conf/{device}/forwarding"), is_on(Family::V4).into()));
    let has_ipv6 = ranges.of(Family::V6).is_some();
    settings.extend(ipv6(device, has_ipv6));
    if has_ipv6 {
        settings.push((format!("ipv6/conf/{device}/forwarding"), "1".into()));
    }
    settings
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

/// Enables forwarding of packets of these families between all devices of a namespace.
pub(crate) async fn forward(node: Option<&std::path::Path>, ranges: Ranges) -> crate::Result<()> {
    for family in ranges.families() {
        match family {
            Family::V4 => namespace::set(node, vec![("ipv4/ip_forward".into(), "1".into())]).await?,
            Family::V6 => namespace::forward_ipv6(node).await?,
        }
    }
    Ok(())
}

/// Whether clients on the node's loopback reach pods by host ports. (No packet of a pod reaches servers on the loopback.)
pub(super) fn route_localnet(bridge: &str, ports: &host_ports::Table) -> (String, String) {
    let value = if ports.is_empty() { "0" } else { "1" };
    (format!("ipv4/conf/{bridge}/route_localnet"), value.into())
}
