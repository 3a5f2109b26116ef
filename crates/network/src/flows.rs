//! How many connections of a pod the node remembers.
//!
//! Connection tracking has one table for the node (`nf_conntrack_max`), and once it is full nobody's new connections are let through.
//! **Invariant.** The connections that one pod began fill at most a [`SHARE`]th of the table, so those of all pods of a node do not fill it;
//! beyond that its new ones are dropped, and nobody else's. Where forwarding is ours to set, the table is large enough that a share is
//! enough for a busy pod. Connections are forgotten with their pod (`pods`), since the next one with its address has a share again.
//!
//! The kernel counts by walking through a list, with every new connection. So the connections of a pod are spread over many lists by a hash
//! of where they lead, each with its part of the bound: what a connection costs does not grow with the number that there are. An honest
//! pod may be refused a connection a little before the bound. Connections of protocols without ports are few, and have one list.

use std::fmt::Write as _;
use std::path::Path;

use crate::fragments::{Settings, memory};
use crate::{Result, namespace, nft};

/// The part of the table that one pod may fill: a node has fewer pods.
const SHARE: u32 = 128;
/// Lists among which the connections of a pod are spread.
const LISTS: u32 = 32;
/// Connections in a list, where the table is small.
const LEAST: u32 = 16;
/// The part of a pod's share for connections by protocols without ports.
const WITHOUT_PORTS: u32 = 8;
/// The size of the table that a machine is given: one connection for so many bytes of its memory, between these.
const MEMORY: u64 = 8 << 10;
const TABLE: (u64, u64) = (262_144, 1_048_576);
/// The size of the table where the kernel does not tell.
const USUAL_MAX: u32 = 65_536;
/// Where the kernel tells the size of the table.
const MAX: &str = "netfilter/nf_conntrack_max";
/// Pods that are remembered; more than a node has addresses for.
const MOST_PODS: u32 = 8191;

/// Name of the table, family `ip`.
pub fn table(id: &str) -> String {
    format!("kemudi-flows-{id}")
}

/// Puts up the rules for what comes from the bridge. What has been counted stays. Warns where the kernel cannot do it.
pub async fn limit(node: Option<&Path>, id: &str, bridge: &str, settings: Settings) -> Result<()> {
    if settings == Settings::Ours && node.is_none() {
        enlarge();
    }
    let max = namespace::get(node, MAX).and_then(|max| u32::try_from(max).ok()).unwrap_or(USUAL_MAX);
    let table = table(id);
    let probe = format!(
        "add table ip {table}-probe\n\
         add set ip {table}-probe s {{ type ipv4_addr; size 1; flags dynamic; }}\n\
         add chain ip {table}-probe c\n\
         add rule ip {table}-probe c add @s {{ ip saddr ct count over 1 }} drop\n\
         add rule ip {table}-probe c jhash ip daddr mod 2 seed 0x1 vmap {{ 0 : accept, 1 : drop }}\n\
         delete table ip {table}-probe\n"
    );
    let otherwise = "this kernel cannot count connections (CONFIG_NFT_CONNLIMIT, CONFIG_NFT_HASH): a pod can fill the node's connection tracking";
    nft::apply_where_possible(node, &script(&table, bridge, max), &probe, otherwise).await.map(drop)
}

pub async fn unlimit(node: Option<&Path>, id: &str) -> Result<()> {
    let table = table(id);
    nft::apply(node, &format!("add table ip {table}\ndelete table ip {table}\n")).await
}

/// Makes the machine's table as large as wanted, never smaller. The setting is one for all network namespaces, and stays.
fn enlarge() {
    let wanted = wanted_max(memory());
    if namespace::get(None, MAX).is_some_and(|max| max < wanted)
        && let Err(error) = namespace::set(None, &[(MAX.to_owned(), &*wanted.to_string())])
    {
        tracing::info!(%error, "the table of connections stays as it is");
    }
}

fn wanted_max(memory: u64) -> u64 {
    (memory / MEMORY).clamp(TABLE.0, TABLE.1)
}

/// Connections in one list.
fn most_in_list(max: u32) -> u32 {
    (max / SHARE / LISTS).max(LEAST)
}

/// Connections of a pod by protocols without ports.
fn most_without_ports(max: u32) -> u32 {
    (max / SHARE / WITHOUT_PORTS).max(LEAST)
}

fn script(table: &str, bridge: &str, max: u32) -> String {
    let most = most_in_list(max);
    let mut script = format!("add table ip {table}\n");
    let mut rules = String::new();
    // `write!` to a String cannot fail.
    let mut list = |name: &str, most: u32| {
        // What is counted for a pod keeps the bound that it was begun with, so another bound has other sets.
        let set = format!("pods-{name}-{most}");
        let _ = writeln!(script, "add set ip {table} {set} {{ type ipv4_addr; size {MOST_PODS}; flags dynamic; }}");
        let _ = writeln!(script, "add chain ip {table} count-{name}");
        let _ = writeln!(script, "flush chain ip {table} count-{name}");
        let count = format!("add @{set} {{ ip saddr ct count over {most} }} counter drop");
        let _ = writeln!(rules, "add rule ip {table} count-{name} {count}");
    };
    let mut verdicts = String::new();
    for number in 0..LISTS {
        list(&number.to_string(), most);
        let _ = write!(verdicts, "{number} : goto count-{number}, ");
    }
    list("without-ports", most_without_ports(max));
    // After connection tracking and before addresses are changed.
    format!(
        "{script}\
         add chain ip {table} from-pods {{ type filter hook prerouting priority -150; policy accept; }}\n\
         flush chain ip {table} from-pods\n\
         {rules}\
         add rule ip {table} from-pods iifname != {bridge:?} accept\n\
         add rule ip {table} from-pods ct state != new accept\n\
         add rule ip {table} from-pods meta l4proto {{ tcp, udp, udplite, sctp, dccp }} \
           jhash ip daddr . th sport . th dport mod {LISTS} seed 0x6b656d75 vmap {{ {verdicts} }}\n\
         add rule ip {table} from-pods goto count-without-ports\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_its_share_of_the_table() {
        for (max, most) in [(262_144, 64), (1_048_576, 256), (65_536, 16), (1024, LEAST)] {
            assert_eq!(most_in_list(max), most, "{max}");
            let all = most_in_list(max) * LISTS + most_without_ports(max);
            assert!(max < 65_536 || all * 110 < max, "{all} of {max} connections for each of 110 pods");
        }
        assert_eq!([1 << 30, 4 << 30, 24 << 30].map(wanted_max), [262_144, 524_288, 1_048_576]);
        let rules = script("t", "b", 262_144);
        assert_eq!(rules.matches("ct count over 64 }").count(), LISTS as usize);
    }
}
