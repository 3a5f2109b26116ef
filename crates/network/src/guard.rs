//! The guard: packets for pod and service addresses stay on this cluster's devices.
//!
//! Two independent barriers. Routes of last resort (`unreachable`, worst metric) match what no better route matches, so the
//! machine's default route is never used. And a chain at the end of the packet's path drops what would leave by another device, by
//! whichever route. Both exist before the first pod address and are removed after the last.

use std::path::Path;

use crate::address::Cidr;
use crate::link::{Netlink, RouteKind};
use crate::{Result, nft};

/// Worse than any route that a person or program sets.
const METRIC: u32 = u32::MAX;

/// Name of the guard's table, family `ip`.
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
    nft::apply(namespace, &script(&table(id), ranges, devices)).await
}

/// Removes the route of last resort to a range that others carry.
pub(crate) async fn release(netlink: &Netlink, range: Cidr) -> Result<()> {
    netlink.delete_route(RouteKind::Unreachable { to: range, metric: METRIC }).await
}

/// Removes the guard: the last step of a purge.
pub(crate) async fn lower(namespace: Option<&Path>, netlink: &Netlink, id: &str, ranges: &[Cidr]) -> Result<()> {
    let table = table(id);
    nft::apply(namespace, &format!("add table ip {table}\ndelete table ip {table}\n")).await?;
    for range in ranges {
        netlink.delete_route(RouteKind::Unreachable { to: *range, metric: METRIC }).await?;
    }
    Ok(())
}

fn script(table: &str, ranges: &[Cidr], devices: &[String]) -> String {
    let ranges: Vec<String> = ranges.iter().map(Cidr::to_string).collect();
    let devices: Vec<String> =
        std::iter::once("\"lo\"".to_owned()).chain(devices.iter().map(|d| format!("{d:?}"))).collect();
    let (ranges, devices) = (ranges.join(", "), devices.join(", "));
    // After source translation, with the final device.
    format!(
        "add table ip {table}\n\
         delete table ip {table}\n\
         add table ip {table}\n\
         add chain ip {table} leave {{ type filter hook postrouting priority 300; policy accept; }}\n\
         add rule ip {table} leave ip daddr {{ {ranges} }} oifname != {{ {devices} }} counter drop\n"
    )
}
