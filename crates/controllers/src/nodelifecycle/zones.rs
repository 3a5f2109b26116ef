//! Whether pods may leave silent nodes, judged by how many nodes of a zone are silent (upstream `handleDisruption`).
//!
//! One node that is silent is dead. When most of a zone is silent, rather the network is, and when all nodes are, this server is
//! cut off: then nobody leaves.

use client::{Key, Meta, Tokens};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Upstream's defaults: `--unhealthy-zone-threshold`, `--large-cluster-size-threshold`, `--node-eviction-rate`,
/// `--secondary-node-eviction-rate`.
const UNHEALTHY: f64 = 0.55;
const LARGE: usize = 50;
const EVERY: Duration = Duration::from_secs(10);
const SLOWLY: Duration = Duration::from_secs(100);

/// Such nodes are not counted.
const NOT_COUNTED: &str = "node.kubernetes.io/exclude-disruption";

/// The zone a node is in, with its region; empty where nothing is said.
pub type Zone = (String, String);

pub fn zone(node: &Meta) -> Zone {
    let label = |new: &str, old: &str| node.label(new).or(node.label(old)).unwrap_or_default().to_owned();
    (
        label("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"),
        label("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
    )
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    ready: usize,
    silent: usize,
}

impl Counts {
    fn is_full(self) -> bool {
        self.ready == 0 && self.silent > 0
    }

    fn is_partial(self) -> bool {
        self.silent > 2 && self.silent as f64 / (self.silent + self.ready) as f64 >= UNHEALTHY
    }
}

/// What may be done about the pods of a node that is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// They are to leave.
    Now,
    /// Not yet; those of a node that were told to leave before go on.
    Later,
    /// Nobody is to leave, nor those that were told to before.
    Nobody,
}

pub struct Zones {
    counts: Mutex<BTreeMap<Zone, Counts>>,
    /// Nodes that had their turn since they were ready.
    granted: Mutex<BTreeSet<Key>>,
    normal: Tokens<Zone>,
    slow: Tokens<Zone>,
}

impl Default for Zones {
    fn default() -> Self {
        Self {
            counts: Mutex::default(),
            granted: Mutex::default(),
            normal: Tokens::new(1, EVERY),
            slow: Tokens::new(1, SLOWLY),
        }
    }
}

impl Zones {
    /// Counts all nodes: what is said of each, and whether it is ready. True when it has changed whether anybody may leave.
    pub fn count<'a>(&self, nodes: impl Iterator<Item = (&'a Meta, bool)>) -> bool {
        let mut counts: BTreeMap<Zone, Counts> = BTreeMap::new();
        for (node, ready) in nodes.filter(|(n, _)| n.label(NOT_COUNTED).is_none()) {
            let of = counts.entry(zone(node)).or_default();
            *(if ready { &mut of.ready } else { &mut of.silent }) += 1;
        }
        let mut held = self.counts.lock();
        let changed = all_full(&held) != all_full(&counts);
        *held = counts;
        changed
    }

    /// What may be done about a node that is not ready.
    pub fn leave(&self, key: &Key, node: &Meta) -> Leave {
        let zone = zone(node);
        let counts = {
            let all = self.counts.lock();
            if all_full(&all) {
                return Leave::Nobody;
            }
            all.get(&zone).copied().unwrap_or_default()
        };
        let mut granted = self.granted.lock();
        if granted.contains(key) {
            return Leave::Now;
        }
        let tokens = match counts.is_partial() && !counts.is_full() {
            false => &self.normal,
            true if counts.ready + counts.silent > LARGE => &self.slow,
            true => return Leave::Later,
        };
        if tokens.take(&zone, 1).is_some() {
            return Leave::Later;
        }
        granted.insert(key.clone());
        Leave::Now
    }

    /// The node is ready, or gone.
    pub fn forget(&self, key: &Key) {
        self.granted.lock().remove(key);
    }
}

fn all_full(counts: &BTreeMap<Zone, Counts>) -> bool {
    !counts.is_empty() && counts.values().all(|c| c.is_full())
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::informer::Labels;

    fn node(name: &str, zone: &str) -> Meta {
        Meta { name: name.into(), labels: labels("topology.kubernetes.io/zone", zone), ..Meta::default() }
    }

    fn labels(key: &str, value: &str) -> Labels {
        Labels::from_sorted([(key.into(), value.into())].into())
    }

    fn key(name: &str) -> Key {
        Key::new("", name)
    }

    #[tokio::test(start_paused = true)]
    async fn the_more_nodes_are_silent_the_fewer_pods_leave() {
        let zones = Zones::default();
        let all: Vec<Meta> = (0..10).map(|i| node(&format!("a{i}"), "a")).chain([node("b0", "b")]).collect();
        let silent = |names: &[&str]| {
            zones.count(all.iter().map(|n| (n, !names.iter().any(|s| n.name.starts_with(s)))));
        };
        silent(&["a0", "a1"]);
        assert_eq!(zones.leave(&key("a0"), &all[0]), Leave::Now);
        assert_eq!(zones.leave(&key("a1"), &all[1]), Leave::Later, "one in ten seconds");
        assert_eq!(zones.leave(&key("a0"), &all[0]), Leave::Now, "it had its turn");
        tokio::time::sleep(EVERY).await;
        assert_eq!(zones.leave(&key("a1"), &all[1]), Leave::Now);
        tokio::time::sleep(EVERY).await;
        silent(&["a0", "a1", "a2", "a3", "a4", "a5"]);
        assert_eq!(zones.leave(&key("a2"), &all[2]), Leave::Later, "most of a small zone");
        silent(&["a"]);
        assert_eq!(zones.leave(&key("a2"), &all[2]), Leave::Now, "the whole zone, but not the others");
        silent(&["a", "b"]);
        assert_eq!(zones.leave(&key("a2"), &all[2]), Leave::Nobody);
        assert_eq!(zones.leave(&key("b0"), &all[10]), Leave::Nobody);
    }

    #[test]
    fn nodes_that_are_not_counted_change_nothing() {
        let zones = Zones::default();
        let mut other = node("b", "b");
        other.labels = labels(NOT_COUNTED, "");
        let a = node("a", "a");
        zones.count([(&a, false), (&other, true)].into_iter());
        assert_eq!(zones.leave(&key("a"), &a), Leave::Nobody);
    }
}
