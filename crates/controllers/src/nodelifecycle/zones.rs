//! Whether pods of silent nodes are evicted, depending on how many nodes of a zone are silent (upstream `handleDisruption`).
//!
//! A single silent node is assumed dead. If most nodes of a zone are silent, the network is assumed broken, and if all nodes are, this
//! server is assumed to be cut off and nothing is evicted.

use crate::meters;
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

/// Nodes with this label are not counted.
const NOT_COUNTED: &str = "node.kubernetes.io/exclude-disruption";

/// The region and zone of a node; empty without labels.
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

/// What happens to the pods of a node that is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// They are evicted.
    Now,
    /// Not yet; evictions that began continue.
    Later,
    /// Evictions stop, including those that began.
    Never,
}

pub struct Zones {
    counts: Mutex<BTreeMap<Zone, Counts>>,
    /// Nodes whose pods may be evicted until the node is ready.
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
    /// Counts all nodes and whether they are ready. Returns whether evictions were stopped or resumed.
    pub fn count<'a>(&self, nodes: impl Iterator<Item = (&'a Meta, bool)>) -> bool {
        let mut counts: BTreeMap<Zone, Counts> = BTreeMap::new();
        for (node, ready) in nodes.filter(|(n, _)| n.label(NOT_COUNTED).is_none()) {
            let counted = counts.entry(zone(node)).or_default();
            *(if ready { &mut counted.ready } else { &mut counted.silent }) += 1;
        }
        let mut held = self.counts.lock();
        for zone in held.keys().filter(|zone| !counts.contains_key(zone)) {
            report(zone, Counts::default());
        }
        counts.iter().for_each(|(zone, counts)| report(zone, *counts));
        let changed = all_full(&held) != all_full(&counts);
        *held = counts;
        changed
    }

    /// What happens to the pods of a node that is not ready.
    pub fn leave(&self, key: &Key, node: &Meta) -> Leave {
        let zone = zone(node);
        let counts = {
            let all = self.counts.lock();
            if all_full(&all) {
                return Leave::Never;
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

    /// The node became ready or was deleted.
    pub fn forget(&self, key: &Key) {
        self.granted.lock().remove(key);
    }
}

/// The key of a zone, as in upstream's metrics.
pub fn label((region, zone): &Zone) -> String {
    if region.is_empty() && zone.is_empty() { String::new() } else { format!("{region}:\0:{zone}") }
}

/// Shows the counts of a zone in metrics.
fn report(zone: &Zone, counts: Counts) {
    let (zone, size) = (label(zone), counts.ready + counts.silent);
    meters::set(&meters::ZONE_SIZE, &[&zone], size);
    meters::set(&meters::ZONE_UNHEALTHY, &[&zone], counts.silent);
    meters::set(&meters::ZONE_HEALTH, &[&zone], (counts.ready * 100).checked_div(size).unwrap_or(100));
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
    async fn eviction_slows_down_as_more_nodes_are_silent() {
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
        assert_eq!(zones.leave(&key("a2"), &all[2]), Leave::Never);
        assert_eq!(zones.leave(&key("b0"), &all[10]), Leave::Never);
    }

    #[test]
    fn excluded_nodes_do_not_count() {
        let zones = Zones::default();
        let mut other = node("b", "b");
        other.labels = labels(NOT_COUNTED, "");
        let a = node("a", "a");
        zones.count([(&a, false), (&other, true)].into_iter());
        assert_eq!(zones.leave(&key("a"), &a), Leave::Never);
    }
}
