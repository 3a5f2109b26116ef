//! Brings the NUMA nodes that managers of resources propose together: pure (upstream `cm/topologymanager`).

use std::collections::BTreeMap;
use std::fmt;

/// A set of NUMA nodes; those from 64 on are in none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nodes(u64);

impl Nodes {
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn contains(self, node: u32) -> bool {
        node < u64::BITS && self.0 & (1 << node) != 0
    }

    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0..u64::BITS).filter(move |n| self.contains(*n))
    }

    pub fn to_vec(self) -> Vec<u32> {
        self.iter().collect()
    }

    /// Whether all nodes of `other` are in this set.
    pub fn covers(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Fewer nodes, or as many with lower numbers.
    pub fn is_narrower_than(self, other: Self) -> bool {
        (self.len(), self.0) < (other.len(), other.0)
    }
}

impl FromIterator<u32> for Nodes {
    fn from_iter<I: IntoIterator<Item = u32>>(nodes: I) -> Self {
        Self(nodes.into_iter().filter(|n| *n < u64::BITS).fold(0, |all, n| all | 1 << n))
    }
}

impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text: Vec<String> = self.iter().map(|n| n.to_string()).collect();
        f.write_str(&text.join(","))
    }
}

/// All sets of some of the nodes, small ones first.
pub fn subsets(nodes: &[u32]) -> Vec<Nodes> {
    fn walk(nodes: &[u32], size: usize, chosen: Nodes, out: &mut Vec<Nodes>) {
        if size == 0 {
            return out.push(chosen);
        }
        for (i, node) in nodes.iter().enumerate().take((nodes.len() + 1).saturating_sub(size)) {
            walk(&nodes[i + 1..], size - 1, chosen.iter().chain([*node]).collect(), out);
        }
    }
    let mut out = Vec::new();
    (1..=nodes.len()).for_each(|size| walk(nodes, size, Nodes::default(), &mut out));
    out
}

/// Nodes on which a request can be met; `None` for any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    pub nodes: Option<Nodes>,
    pub preferred: bool,
}

/// The hints of one manager by resource: `None` for a resource that may be anywhere, and no hints for one that is nowhere.
pub type Hints = BTreeMap<String, Option<Vec<Hint>>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    None,
    BestEffort,
    Restricted,
    SingleNumaNode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Container,
    Pod,
}

/// The policy, and the nodes of the machine with their distances.
#[derive(Clone, Debug)]
pub struct TopologyPolicy {
    pub policy: Policy,
    pub scope: Scope,
    pub prefer_closest: bool,
    pub nodes: Nodes,
    pub distances: BTreeMap<u32, Vec<u64>>,
}

/// The result of bringing hints together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merged {
    pub hint: Hint,
    pub admitted: bool,
}

impl TopologyPolicy {
    /// Brings the hints of all managers together.
    pub fn merge(&self, providers: &[Hints]) -> Merged {
        const ANY: Hint = Hint { nodes: None, preferred: true };
        const NOWHERE: Hint = Hint { nodes: None, preferred: false };
        let mut all: Vec<Vec<Hint>> = Vec::new();
        for hints in providers {
            if hints.is_empty() {
                all.push(vec![ANY]);
            }
            all.extend(hints.values().map(|of_resource| match of_resource {
                None => vec![ANY],
                Some(hints) if hints.is_empty() => vec![NOWHERE],
                Some(hints) => hints.clone(),
            }));
        }
        if self.policy == Policy::SingleNumaNode {
            for hints in &mut all {
                hints.retain(|h| h.preferred && h.nodes.is_none_or(|n| n.len() == 1));
            }
        }
        let mut hint = self.best(&all);
        if self.policy == Policy::SingleNumaNode && hint.nodes == Some(self.nodes) {
            hint.nodes = None;
        }
        Merged { hint, admitted: matches!(self.policy, Policy::None | Policy::BestEffort) || hint.preferred }
    }

    fn best(&self, all: &[Vec<Hint>]) -> Hint {
        let narrowest = |hints: &Vec<Hint>| {
            hints.iter().filter_map(|h| h.nodes).reduce(|a, b| if b.is_narrower_than(a) { b } else { a })
        };
        // What the resource that needs most nodes needs.
        let least = all.iter().filter_map(narrowest).map(Nodes::len).max().unwrap_or(0);
        let mut best: Option<Hint> = None;
        self.permute(all, &mut Vec::new(), &mut |permutation| {
            let candidate = self.merge_permutation(permutation);
            best = self.better(best, candidate, least);
        });
        best.unwrap_or(Hint { nodes: Some(self.nodes), preferred: false })
    }

    fn permute(&self, all: &[Vec<Hint>], chosen: &mut Vec<Hint>, visit: &mut dyn FnMut(&[Hint])) {
        let Some((first, rest)) = all.split_first() else { return visit(chosen) };
        for hint in first {
            chosen.push(*hint);
            self.permute(rest, chosen, visit);
            chosen.pop();
        }
    }

    fn merge_permutation(&self, hints: &[Hint]) -> Hint {
        let sets: Vec<Nodes> = hints.iter().filter_map(|h| h.nodes).collect();
        let preferred = hints.iter().all(|h| h.preferred) && sets.windows(2).all(|w| w[0] == w[1]);
        let nodes = sets.into_iter().fold(self.nodes, |all, n| Nodes(all.0 & n.0));
        Hint { nodes: Some(nodes), preferred }
    }

    fn better(&self, current: Option<Hint>, candidate: Hint, least: u32) -> Option<Hint> {
        let new = candidate.nodes.unwrap_or_default();
        let Some(now) = current else { return (!new.is_empty()).then_some(candidate) };
        let old = now.nodes.unwrap_or_default();
        if new.is_empty() {
            return Some(now);
        }
        let fitter = || Some(if self.is_fitter(new, old) { candidate } else { now });
        match (now.preferred, candidate.preferred) {
            (false, true) => Some(candidate),
            (true, false) => Some(now),
            (true, true) => fitter(),
            // As close to what is needed as possible.
            (false, false) => match (old.len(), new.len()) {
                (o, _) if o > least => fitter(),
                (o, n) if o == least => {
                    if n == least {
                        fitter()
                    } else {
                        Some(now)
                    }
                }
                (_, n) if n > least => Some(now),
                (o, n) if n > o => Some(candidate),
                (o, n) if n < o => Some(now),
                _ => fitter(),
            },
        }
    }

    fn is_fitter(&self, new: Nodes, old: Nodes) -> bool {
        if !self.prefer_closest || self.policy == Policy::SingleNumaNode || new.len() != old.len() {
            return new.is_narrower_than(old);
        }
        let (a, b) = (self.mean_distance(new), self.mean_distance(old));
        if a == b { new.0 < old.0 } else { a < b }
    }

    /// The mean distance of the nodes of a set, in thousandths.
    fn mean_distance(&self, nodes: Nodes) -> u64 {
        let all: Vec<u32> = self.distances.keys().copied().collect();
        let distance = |a: u32, b: u32| {
            let at = all.iter().position(|n| *n == b)?;
            self.distances.get(&a)?.get(at).copied()
        };
        let pairs = nodes.iter().flat_map(|a| nodes.iter().map(move |b| (a, b)));
        let sum: u64 = pairs.filter_map(|(a, b)| distance(a, b)).sum();
        let count = u64::from(nodes.len()).pow(2).max(1);
        sum * 1000 / count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(policy: Policy, nodes: u32) -> TopologyPolicy {
        let distances = (0..nodes).map(|a| (a, (0..nodes).map(|b| 10 + 10 * u64::from(a.abs_diff(b))).collect()));
        let distances = distances.collect();
        TopologyPolicy {
            policy,
            scope: Scope::Container,
            prefer_closest: false,
            nodes: (0..nodes).collect(),
            distances,
        }
    }

    fn hint(nodes: &[u32], preferred: bool) -> Hint {
        Hint { nodes: Some(nodes.iter().copied().collect()), preferred }
    }

    fn of(name: &str, hints: Option<Vec<Hint>>) -> Hints {
        [(name.to_owned(), hints)].into()
    }

    #[test]
    fn hints_are_merged_by_policy() {
        use Policy::{BestEffort, Restricted, SingleNumaNode};
        let cpus = |hints: &[Hint]| of("cpu", Some(hints.to_vec()));
        let devices = |hints: &[Hint]| of("example.com/gpu", Some(hints.to_vec()));
        let both = [hint(&[0], true), hint(&[1], true), hint(&[0, 1], false)];
        let wide = [hint(&[0, 1], true)];
        for (name, providers, best, restricted, single) in [
            ("no preference", vec![Hints::new()], (vec![0, 1], true), (vec![0, 1], true), (None, true)),
            ("any node", vec![cpus(&both)], (vec![0], true), (vec![0], true), (Some(vec![0]), true)),
            (
                "the same node",
                vec![cpus(&both), devices(&[hint(&[1], true), hint(&[0, 1], false)])],
                (vec![1], true),
                (vec![1], true),
                (Some(vec![1]), true),
            ),
            (
                "different nodes",
                vec![cpus(&[hint(&[0], true)]), devices(&[hint(&[1], true)])],
                (vec![0, 1], false),
                (vec![0, 1], false),
                (None, false),
            ),
            (
                "both are needed",
                vec![cpus(&wide), devices(&both)],
                // Preferences that differ are none.
                (vec![0, 1], false),
                (vec![0, 1], false),
                (None, false),
            ),
            ("more than a node", vec![cpus(&wide)], (vec![0, 1], true), (vec![0, 1], true), (None, false)),
            ("nowhere", vec![of("cpu", Some(Vec::new()))], (vec![0, 1], false), (vec![0, 1], false), (None, false)),
            ("anywhere", vec![of("cpu", None)], (vec![0, 1], true), (vec![0, 1], true), (None, true)),
        ] {
            let merged = |p| policy(p, 2).merge(&providers);
            let check = |p, nodes: Option<Vec<u32>>, preferred, admitted| {
                let expected = Hint { nodes: nodes.map(|n| n.into_iter().collect()), preferred };
                assert_eq!(merged(p), Merged { hint: expected, admitted }, "{name} {p:?}");
            };
            check(BestEffort, Some(best.0), best.1, true);
            check(Restricted, Some(restricted.0), restricted.1, restricted.1);
            check(SingleNumaNode, single.0, single.1, single.1);
        }
    }

    #[test]
    fn close_nodes_are_preferred_if_that_is_configured() {
        let pairs = [hint(&[0, 3], true), hint(&[2, 3], true), hint(&[0, 2], true)];
        let providers = [of("cpu", Some(pairs.to_vec()))];
        let mut policy = policy(Policy::Restricted, 4);
        assert_eq!(policy.merge(&providers).hint, hint(&[0, 2], true), "the lowest numbers");
        policy.prefer_closest = true;
        assert_eq!(policy.merge(&providers).hint, hint(&[2, 3], true));
    }

    #[test]
    fn subsets_are_ordered_by_size() {
        let all: Vec<Vec<u32>> = subsets(&[0, 2, 3]).into_iter().map(Nodes::to_vec).collect();
        assert_eq!(all, [vec![0], vec![2], vec![3], vec![0, 2], vec![0, 3], vec![2, 3], vec![0, 2, 3]]);
    }
}
