//! The packet rules between pods and what is outside of the cluster.

use super::options::{Options, PodInterfaces};
use crate::address::{Cidr, Family};
use crate::nft;

/// The rules for packets of a family to and from addresses out of the cluster. Packets to unknown service addresses are refused, since
/// requests for their neighbours would fill the node's table.
pub(super) fn script(options: &Options, family: Family) -> String {
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
