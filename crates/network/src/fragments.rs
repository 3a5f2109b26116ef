//! Limits the memory for the fragments of a pod.
//!
//! The node reassembles fragments before it tracks connections, with one budget for its network namespace (`ipfrag_high_thresh`) and
//! a timeout (`ipfrag_time`). When the budget is used up, all fragments are dropped. **Invariant.** The fragments that one pod sends
//! within the timeout take at most its share of the budget, and the shares of all pods of a node fit into it. Beyond that only its
//! own fragments are dropped.
//!
//! Whether a packet will ever be complete is unknown, so all fragments count when they arrive. If this network may change the
//! machine's settings, it sets budget and timeout: fragments of a packet arrive together, and a large budget lets pods send more of
//! them. Each family has a budget of its own.

use std::path::Path;

use crate::{Family, Result, namespace, nft};

/// Pods among which the budget is divided: more than a node has.
const PODS: u64 = 128;
/// Bytes of memory that the kernel counts for one fragment of a packet of 1500 bytes, and the packet's own record.
const COST: u64 = 2560;
/// Minimum of fragments at once and per second of a pod: a datagram of 64 KiB has 45.
const MINIMUM: (u64, u64) = (64, 32);
/// The budget: a part of the machine's memory, within these limits.
const MEMORY_SHARE: u64 = 64;
const BUDGET: (u64, u64) = (64 << 20, 256 << 20);
/// Seconds in which a packet must become complete.
const PATIENCE: u64 = 2;
/// The assumed settings if they cannot be read.
const USUAL: (u64, u64) = (4 << 20, 30);
/// Maximum of pods in the set; a node has fewer addresses.
const MAX_PODS: u32 = 8191;

/// The settings of the budget and of the timeout. Fragments of IPv6 are reassembled by connection tracking.
fn settings_of(family: Family) -> [&'static str; 2] {
    match family {
        Family::V4 => ["ipv4/ipfrag_high_thresh", "ipv4/ipfrag_time"],
        Family::V6 => ["netfilter/nf_conntrack_frag6_high_thresh", "netfilter/nf_conntrack_frag6_timeout"],
    }
}

/// Whether the settings of the namespace may be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settings {
    Ours,
    Others,
}

/// Name of the tables, one for each family.
pub fn table(id: &str) -> String {
    format!("kemudi-fragments-{id}")
}

/// Applies the rules for packets from the bridge. Logs a warning if the kernel does not support them.
pub async fn limit(node: Option<&Path>, id: &str, bridge: &str, settings: Settings, family: Family) -> Result<()> {
    let [budget_setting, patience_setting] = settings_of(family);
    let (ip, kind) = (family.word(), family.kind());
    let current = async |name: &str, usual: u64| namespace::get(node, name).await.unwrap_or(usual);
    if settings == Settings::Ours {
        let budget = desired_budget(memory()).max(current(budget_setting, USUAL.0).await).to_string();
        let patience = PATIENCE.min(current(patience_setting, USUAL.1).await).to_string();
        let settings = vec![(budget_setting.to_owned(), budget), (patience_setting.to_owned(), patience)];
        if let Err(error) = namespace::set(node, settings).await {
            tracing::warn!(%error, "setting the memory for fragments failed");
        }
    }
    let share = Share::new(current(budget_setting, USUAL.0).await, current(patience_setting, USUAL.1).await);
    let table = table(id);
    let probe = format!(
        "add table {ip} {table}-probe\n\
         add set {ip} {table}-probe s {{ type {kind}; size 1; flags dynamic; }}\n\
         add chain {ip} {table}-probe c\n\
         add rule {ip} {table}-probe c add @s {{ {ip} saddr limit rate over 1/second }} drop\n\
         delete table {ip} {table}-probe\n"
    );
    let otherwise = "this kernel cannot limit rates (CONFIG_NFT_LIMIT): a pod can stop fragments of all others";
    nft::apply_where_possible(node, &script(family, &table, bridge, share), &probe, otherwise).await.map(drop)
}

pub async fn unlimit(node: Option<&Path>, id: &str) -> Result<()> {
    nft::remove(node, &table(id)).await
}

/// Bytes of memory of the machine.
pub fn memory() -> u64 {
    nix::sys::sysinfo::sysinfo().map_or(0, |info| info.ram_total())
}

fn desired_budget(memory: u64) -> u64 {
    (memory / MEMORY_SHARE).clamp(BUDGET.0, BUDGET.1)
}

/// The limit of a pod's fragments: a burst, and a rate per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    burst: u64,
    rate: u64,
}

impl Share {
    fn new(budget: u64, patience: u64) -> Share {
        // Half of them at once, and the other half during the timeout of the first.
        let half = budget / PODS / COST / 2;
        Share { burst: half.max(MINIMUM.0), rate: (half / patience.max(1)).max(MINIMUM.1) }
    }
}

fn script(family: Family, table: &str, bridge: &str, share: Share) -> String {
    let (ip, kind) = (family.word(), family.kind());
    let is_fragment = match family {
        Family::V4 => "ip frag-off and 0x3fff != 0",
        Family::V6 => "exthdr frag exists",
    };
    let Share { burst, rate } = share;
    // Before reassembly (-400).
    format!(
        "add table {ip} {table}\n\
         delete table {ip} {table}\n\
         add table {ip} {table}\n\
         add set {ip} {table} pods {{ type {kind}; size {MAX_PODS}; flags dynamic; }}\n\
         add chain {ip} {table} from-pods {{ type filter hook prerouting priority -450; policy accept; }}\n\
         add rule {ip} {table} from-pods iifname != {bridge:?} accept\n\
         add rule {ip} {table} from-pods {is_fragment} \
           add @pods {{ {ip} saddr limit rate over {rate}/second burst {burst} packets }} counter drop\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_all_pods_fit_into_the_budget() {
        for memory in [1 << 30, 4 << 30, 24 << 30, 1 << 40] {
            let budget = desired_budget(memory);
            let share = Share::new(budget, PATIENCE);
            let all = (share.burst + share.rate * PATIENCE) * COST * PODS;
            assert!(all <= budget, "{all} of {budget}");
            assert!(share.burst >= 90, "a datagram of 64 KiB and its answer: {share:?}");
        }
        assert_eq!(Share::new(USUAL.0, USUAL.1), Share { burst: MINIMUM.0, rate: MINIMUM.1 });
    }
}
