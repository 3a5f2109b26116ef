//! The guard: packets for pod and service addresses stay on this cluster's devices.
//!
//! Two independent barriers. Routes of last resort (`unreachable`, worst metric) match what no better route matches, so the
//! machine's default route is never used. And a chain at the end of the packet's path drops what would leave by another device, by
//! whichever route. Both exist before the first pod address and are removed after the last.

use std::path::Path;

use crate::address::Cidr;
use crate::link::{Netlink, RouteKind};
use crate::{Family, Result, nft};

/// Worse than any route that a person or program sets.
const METRIC: u32 = u32::MAX;

/// Name of the guard's tables, one for each family.
pub(crate) fn table(id: &str) -> String {
    format!("kemudi-guard-{id}")
}

/// Creates the guard, or changes it in one step. `devices` may carry the ranges, besides `lo`.
pub(crate) async fn raise(
    namespace: Option<&Path>,
    netlink: &Netlink,
    id: &str,
    ranges: &[Cidr],
    devices: &[String],
) -> Result<()> {
    for range in ranges {
        netlink.replace_route(RouteKind::Unreachable { to: *range, metric: METRIC }).await?;
    }
    let tables = Family::ALL.map(|family| script(family, &table(id), ranges, devices));
    nft::apply(namespace, &tables.concat()).await
}

/// Removes the route of last resort to a range that others carry.
pub(crate) async fn release(netlink: &Netlink, range: Cidr) -> Result<()> {
    netlink.delete_route(RouteKind::Unreachable { to: range, metric: METRIC }).await
}

/// Removes the guard: the last step of a purge.
pub(crate) async fn lower(namespace: Option<&Path>, netlink: &Netlink, id: &str, ranges: &[Cidr]) -> Result<()> {
    nft::remove(namespace, &table(id)).await?;
    for range in ranges {
        netlink.delete_route(RouteKind::Unreachable { to: *range, metric: METRIC }).await?;
    }
    Ok(())
}

/// The commands for the table of a family; none without ranges of it.
fn script(family: Family, table: &str, ranges: &[Cidr], devices: &[String]) -> String {
    let ranges: Vec<String> = ranges.iter().filter(|r| r.family() == family).map(Cidr::to_string).collect();
    if ranges.is_empty() {
        return String::new();
    }
    let ip = family.word();
    let devices: Vec<String> =
        std::iter::once("\"lo\"".to_owned()).chain(devices.iter().map(|d| format!("{d:?}"))).collect();
    let (ranges, devices) = (ranges.join(", "), devices.join(", "));
    // After source translation, with the final device.
    format!(
        "add table {ip} {table}\n\
         delete table {ip} {table}\n\
         add table {ip} {table}\n\
         add chain {ip} {table} leave {{ type filter hook postrouting priority 300; policy accept; }}\n\
         add rule {ip} {table} leave {ip} daddr {{ {ranges} }} oifname != {{ {devices} }} counter drop\n"
    )
}
