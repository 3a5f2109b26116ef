//! Limits the tracked connections of a pod.
//!
//! Connection tracking has one table for the node (`nf_conntrack_max`), and once it is full, all new connections of the node are
//! dropped. **Invariant.** The connections that one pod opens fill at most a [`SHARE`]th of the table, so those of all pods of a
//! node do not fill it. Beyond that only its own new connections are dropped. If this network may change the machine's settings, the
//! table is made large enough for busy pods. Connections are deleted with their pod (`pods`), since the next one with its address
//! has a share again.
//!
//! The kernel walks a list to count with every new connection. So the connections of a pod are spread over many lists by a hash of
//! their destination, each with its part of the limit, and the cost of a connection does not grow with their number. A connection
//! may be refused a little before the limit. Connections of protocols without ports are few, and have one list.
//!
//! A connection that one side has ended is tracked for as long as with kube-proxy, but only while the pod has few: a server that never ends
//! its side would fill the share of its clients for an hour.

use std::fmt::Write as _;
use std::path::Path;

use crate::fragments::{Settings, memory};
use crate::{Family, Result, namespace, nft};

/// The part of the table that one pod may fill: a node has fewer pods.
const SHARE: u32 = 128;
/// Number of lists of a pod's connections.
const LISTS: u32 = 32;
/// Minimum of connections in a list, for small tables.
const MINIMUM: u32 = 16;
/// The part of a pod's share for protocols without ports.
const WITHOUT_PORTS: u32 = 8;
/// The size of the machine's table: one connection per so many bytes of memory, within these limits.
const MEMORY: u64 = 8 << 10;
const TABLE: (u64, u64) = (262_144, 1_048_576);
/// How long, in seconds, a connection is tracked at least whose one side has ended it, while the other may still send: kube-proxy's
/// value. The kernel forgets it after a minute, and what a pod sends later no longer finds its client.
const HALF_CLOSED: u64 = 3600;
/// The kernel's setting of that time.
const CLOSE_WAIT: &str = "netfilter/nf_conntrack_tcp_timeout_close_wait";
/// The part of a pod's share within which its connections are tracked for that long.
const FEW: u32 = 8;
/// What happens to a connection beyond the limit.
const REFUSE: &str = "counter drop";
/// The assumed size of the table if it cannot be read.
const USUAL_MAX: u32 = 65_536;
/// The kernel's setting of the table's size.
const MAX: &str = "netfilter/nf_conntrack_max";
/// Maximum of pods in the set; a node has fewer addresses.
const MAX_PODS: u32 = 8191;

/// Name of the tables, one for each family.
pub fn table(id: &str) -> String {
    format!("kemudi-flows-{id}")
}

/// Applies the rules for packets from the bridge. Counts are kept. Logs a warning if the kernel does not support them. `families`: how
/// many have rules. They share the table, and so does a pod its part of it.
pub async fn limit(
    node: Option<&Path>,
    id: &str,
    bridge: &str,
    settings: Settings,
    family: Family,
    families: u32,
) -> Result<()> {
    let (ip, kind) = (family.word(), family.kind());
    if settings == Settings::Ours && node.is_none() {
        enlarge().await;
    }
    let max =
        namespace::get(node, MAX).await.and_then(|max| u32::try_from(max).ok()).unwrap_or(USUAL_MAX) / families.max(1);
    let table = table(id);
    let half_closed = HALF_CLOSED.max(namespace::get(node, CLOSE_WAIT).await.unwrap_or_default());
    let half_closed = has_timeouts(node, family, &table).await.then_some(half_closed);
    let probe = format!(
        "add table {ip} {table}-probe\n\
         add set {ip} {table}-probe s {{ type {kind}; size 1; flags dynamic; }}\n\
         add chain {ip} {table}-probe c\n\
         add rule {ip} {table}-probe c add @s {{ {ip} saddr ct count over 1 }} drop\n\
         add rule {ip} {table}-probe c jhash {ip} daddr mod 2 seed 0x1 vmap {{ 0 : accept, 1 : drop }}\n\
         delete table {ip} {table}-probe\n"
    );
    let otherwise = "this kernel cannot count connections (CONFIG_NFT_CONNLIMIT, CONFIG_NFT_HASH): a pod can fill the node's connection tracking";
    nft::apply_where_possible(node, &script(family, &table, bridge, max, half_closed), &probe, otherwise)
        .await
        .map(drop)
}

/// Whether rules can say how long connections are tracked (CONFIG_NF_CONNTRACK_TIMEOUT).
async fn has_timeouts(node: Option<&Path>, family: Family, table: &str) -> bool {
    let ip = family.word();
    let probe = format!(
        "add table {ip} {table}-probe\n{}delete table {ip} {table}-probe\n",
        timeout(family, &format!("{table}-probe"), HALF_CLOSED)
    );
    match nft::apply(node, &probe).await {
        Ok(()) => true,
        Err(error) => {
            tracing::info!(%error, "half-closed connections are tracked as long as the kernel says");
            false
        }
    }
}

/// The object that keeps half-closed connections for `seconds`.
fn timeout(family: Family, table: &str, seconds: u64) -> String {
    let ip = family.word();
    format!(
        "add ct timeout {ip} {table} half-closed-{seconds} {{ protocol tcp; l3proto {ip}; policy = {{ close_wait : {seconds} }}; }}\n"
    )
}

pub async fn unlimit(node: Option<&Path>, id: &str) -> Result<()> {
    nft::remove(node, &table(id)).await
}

/// Enlarges the machine's table if it is smaller than desired. The setting applies to all network namespaces, and stays.
async fn enlarge() {
    let desired = desired_max(memory());
    if namespace::get(None, MAX).await.is_some_and(|max| max < desired)
        && let Err(error) = namespace::set(None, vec![(MAX.to_owned(), desired.to_string())]).await
    {
        tracing::info!(%error, "enlarging the table of connections failed");
    }
}

fn desired_max(memory: u64) -> u64 {
    (memory / MEMORY).clamp(TABLE.0, TABLE.1)
}

/// Maximum of connections in one list.
fn most_in_list(max: u32) -> u32 {
    (max / SHARE / LISTS).max(MINIMUM)
}

/// Connections of a pod by protocols without ports.
fn most_without_ports(max: u32) -> u32 {
    (max / SHARE / WITHOUT_PORTS).max(MINIMUM)
}

/// `half_closed`: how long, in seconds, half-closed connections are tracked, where that can be said.
fn script(family: Family, table: &str, bridge: &str, max: u32, half_closed: Option<u64>) -> String {
    let (ip, kind) = (family.word(), family.kind());
    let most = most_in_list(max);
    let mut script = format!("add table {ip} {table}\n");
    if let Some(seconds) = half_closed {
        script.push_str(&timeout(family, table, seconds));
    }
    let mut rules = String::new();
    // `write!` to a String cannot fail.
    let mut count = |chain: &str, most: u32, verdict: &str| {
        // A counter keeps the limit with which it was created, so another limit uses other sets.
        let set = format!("pods-{chain}-{most}");
        let _ = writeln!(script, "add set {ip} {table} {set} {{ type {kind}; size {MAX_PODS}; flags dynamic; }}");
        let _ = writeln!(script, "add chain {ip} {table} {chain}");
        let _ = writeln!(script, "flush chain {ip} {table} {chain}");
        let count = format!("add @{set} {{ {ip} saddr ct count over {most} }} {verdict}");
        let _ = writeln!(rules, "add rule {ip} {table} {chain} {count}");
    };
    let (mut verdicts, mut after) = (String::new(), String::new());
    for number in 0..LISTS {
        let list = format!("count-{number}");
        match half_closed {
            None => count(&list, most, REFUSE),
            Some(seconds) => {
                // Beyond the few, the others are counted by themselves.
                let few = (most / FEW).max(1);
                count(&format!("many-{number}"), most - few, REFUSE);
                count(&list, few, &format!("goto many-{number}"));
                let _ = writeln!(
                    after,
                    "add rule {ip} {table} {list} meta l4proto tcp ct timeout set \"half-closed-{seconds}\""
                );
            }
        }
        let _ = write!(verdicts, "{number} : goto count-{number}, ");
    }
    count("count-without-ports", most_without_ports(max), REFUSE);
    // After connection tracking and before addresses are changed.
    format!(
        "{script}\
         add chain {ip} {table} from-pods {{ type filter hook prerouting priority -150; policy accept; }}\n\
         flush chain {ip} {table} from-pods\n\
         {rules}{after}\
         add rule {ip} {table} from-pods iifname != {bridge:?} accept\n\
         add rule {ip} {table} from-pods ct state invalid counter drop\n\
         add rule {ip} {table} from-pods ct state != new accept\n\
         add rule {ip} {table} from-pods meta l4proto {{ tcp, udp, udplite, sctp, dccp }} \
           jhash {ip} daddr . th sport . th dport mod {LISTS} seed 0x6b656d75 vmap {{ {verdicts} }}\n\
         add rule {ip} {table} from-pods goto count-without-ports\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_its_share_of_the_table() {
        for (max, most) in [(262_144, 64), (1_048_576, 256), (65_536, 16), (1024, MINIMUM)] {
            assert_eq!(most_in_list(max), most, "{max}");
            let all = most_in_list(max) * LISTS + most_without_ports(max);
            assert!(max < 65_536 || all * 110 < max, "{all} of {max} connections for each of 110 pods");
        }
        assert_eq!([1 << 30, 4 << 30, 24 << 30].map(desired_max), [262_144, 524_288, 1_048_576]);
        let rules = script(Family::V4, "t", "b", 262_144, None);
        assert_eq!(rules.matches("ct count over 64 }").count(), LISTS as usize);
        assert!(!rules.contains("timeout"), "{rules}");
        let long = script(Family::V4, "t", "b", 262_144, Some(3600));
        for rule in
            ["ct count over 8 } goto many-", "ct count over 56 } counter drop", "ct timeout set \"half-closed-3600\""]
        {
            assert_eq!(long.matches(rule).count(), LISTS as usize, "{rule}: {long}");
        }
        // What belongs to no connection is not let in uncounted.
        let place = |text: &str| rules.find(text);
        assert!(place("ct state invalid counter drop") < place("ct state != new accept"), "{rules}");
    }
}
