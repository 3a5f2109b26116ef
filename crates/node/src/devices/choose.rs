//! Chooses devices for a container, and proposes NUMA nodes: pure (upstream `devicesToAllocate`, `generateDeviceTopologyHints`).

use std::collections::{BTreeMap, BTreeSet};

use crate::affinity::hints::{Hint, Nodes, subsets};

type Ids = BTreeSet<String>;

/// The NUMA nodes on which a request can be met. `all` are the nodes of all devices of the resource; `reusable` devices must be on the
/// proposed nodes.
pub fn proposals(machine: &[u32], all: &[Nodes], available: &[Nodes], reusable: &[Nodes], count: usize) -> Vec<Hint> {
    let is_on = |device: &Nodes, nodes: Nodes| device.iter().any(|n| nodes.contains(n));
    let mut least = machine.len() as u32;
    let mut found = Vec::new();
    for nodes in subsets(machine) {
        if all.iter().filter(|d| is_on(d, nodes)).count() >= count {
            least = least.min(nodes.len());
        }
        let placed = reusable.iter().filter(|d| !d.is_empty());
        if placed.clone().any(|d| !is_on(d, nodes)) {
            continue;
        }
        if placed.count() + available.iter().filter(|d| is_on(d, nodes)).count() >= count {
            found.push(nodes);
        }
    }
    found.into_iter().map(|n| Hint { nodes: Some(n), preferred: n.len() == least }).collect()
}

/// Devices from which a container gets some.
#[derive(Debug)]
pub struct Offer {
    count: usize,
    taken: Ids,
    /// On the nodes that were agreed on, on others, and on none.
    aligned: Ids,
    others: Vec<String>,
}

impl Offer {
    /// `reusable` devices are taken first. `available` ones have their NUMA nodes.
    pub fn new(count: usize, reusable: &Ids, available: BTreeMap<String, Nodes>, nodes: Option<Nodes>) -> Self {
        let taken: Ids = reusable.iter().take(count).cloned().collect();
        let has_places = available.values().any(|n| !n.is_empty());
        let mut available = available;
        available.retain(|id, _| !taken.contains(id));
        let available = available.into_iter();
        let Some(nodes) = nodes.filter(|_| has_places) else {
            return Self { count, taken, aligned: Ids::new(), others: available.map(|(id, _)| id).collect() };
        };
        let (aligned, mut others): (Vec<_>, Vec<_>) =
            available.partition(|(_, place)| place.iter().any(|n| nodes.contains(n)));
        // Those without a place come last.
        others.sort_by_key(|(_, place)| place.is_empty());
        let ids = |all: Vec<(String, Nodes)>| all.into_iter().map(|(id, _)| id);
        Self { count, taken, aligned: ids(aligned).collect(), others: ids(others).collect() }
    }

    fn needed(&self) -> usize {
        self.count.saturating_sub(self.taken.len())
    }

    pub fn available(&self) -> usize {
        self.aligned.len() + self.others.len()
    }

    /// How many devices are needed, if there are not as many.
    pub fn missing(&self) -> Option<usize> {
        (self.needed() > self.available()).then_some(self.needed())
    }

    /// Takes aligned devices as far as all of them are needed. Returns among which devices the plugin may choose, and which it has to
    /// include; nothing if there is no choice.
    pub fn question(&mut self) -> Option<(Vec<String>, Vec<String>)> {
        if self.needed() == 0 {
            return None;
        }
        let choice: Vec<String> = if self.needed() < self.aligned.len() {
            self.aligned.iter().cloned().collect()
        } else {
            self.taken.append(&mut self.aligned);
            self.others.clone()
        };
        if self.needed() == 0 {
            return None;
        }
        let available = choice.into_iter().chain(self.taken.iter().cloned()).collect();
        Some((available, self.taken.iter().cloned().collect()))
    }

    /// Takes the remaining devices, those that the plugin prefers first.
    pub fn take(mut self, preferred: &Ids) -> Ids {
        let rest = if self.aligned.is_empty() { self.others } else { self.aligned.into_iter().collect() };
        let (first, then): (Vec<String>, Vec<String>) = rest.into_iter().partition(|id| preferred.contains(id));
        let needed = self.count.saturating_sub(self.taken.len());
        self.taken.extend(first.into_iter().chain(then).take(needed));
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(all: &[u32]) -> Nodes {
        all.iter().copied().collect()
    }

    fn ids(text: &str) -> Ids {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn devices_are_chosen_by_place_and_preference() {
        let places: BTreeMap<String, Nodes> =
            [("a", vec![0]), ("b", vec![1]), ("c", vec![1]), ("d", vec![]), ("e", vec![0, 1])]
                .map(|(id, n)| (id.to_owned(), nodes(&n)))
                .into();
        for (count, reusable, hint, preferred, question, expected) in [
            (2, "", None, "", Some("a b c d e"), "a b"),
            (2, "", None, "d e", Some("a b c d e"), "d e"),
            (1, "x y", None, "a", None, "x"),
            (2, "x", None, "c", Some("a b c d e x"), "c x"),
            // Three devices are on the node.
            (2, "", Some(vec![1]), "", Some("b c e"), "b c"),
            (2, "", Some(vec![1]), "a e", Some("b c e"), "b e"),
            (3, "", Some(vec![1]), "a", None, "b c e"),
            // All of them, and one of the others; those without a place last.
            (4, "", Some(vec![1]), "", Some("a b c d e"), "a b c e"),
            (4, "", Some(vec![1]), "d", Some("a b c d e"), "b c d e"),
        ] {
            let mut offer = Offer::new(count, &ids(reusable), places.clone(), hint.clone().map(|n| nodes(&n)));
            assert_eq!(offer.missing(), None);
            let asked = offer.question().map(|(available, _)| available.into_iter().collect::<Ids>());
            assert_eq!(asked, question.map(ids), "{count} {hint:?}");
            assert_eq!(offer.take(&ids(preferred)), ids(expected), "{count} {reusable} {hint:?} {preferred}");
        }
        let offer = Offer::new(7, &ids("x"), places, None);
        assert_eq!((offer.missing(), offer.available()), (Some(6), 5));
    }

    #[test]
    fn nodes_are_proposed_for_devices() {
        let all = [nodes(&[0]), nodes(&[1]), nodes(&[1])];
        let proposed = |available: &[Nodes], reusable: &[Nodes], count| -> Vec<(Vec<u32>, bool)> {
            let hints = proposals(&[0, 1], &all, available, reusable, count);
            hints.into_iter().map(|h| (h.nodes.unwrap().to_vec(), h.preferred)).collect()
        };
        assert_eq!(proposed(&all, &[], 1), [(vec![0], true), (vec![1], true), (vec![0, 1], false)]);
        assert_eq!(proposed(&all, &[], 2), [(vec![1], true), (vec![0, 1], false)]);
        assert_eq!(proposed(&all[..2], &[], 2), [(vec![0, 1], false)], "a node could, if all were free");
        assert_eq!(proposed(&all[1..], &all[..1], 1), [(vec![0], true), (vec![0, 1], false)]);
        assert_eq!(proposed(&all[..1], &[], 2), []);
    }
}
