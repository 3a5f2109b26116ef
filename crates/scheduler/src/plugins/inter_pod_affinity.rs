//! Pods that want neighbours, and pods that refuse them.

use crate::cluster::{Cluster, Node};
use crate::framework::{Event, MAX_SCORE, NodeFilter, NodeScore, Plugin, PreFilter, Read, Refusal};
use crate::pod::Pod;
use crate::pod_affinity::Term;
use std::collections::{HashMap, HashSet};

const NAME: &str = "InterPodAffinity";

pub struct InterPodAffinity;

type Place<'a> = (&'a str, &'a str);

/// Counts per place, worked out once per pod.
struct Check<'a> {
    pod: &'a Pod,
    /// Places that pods there keep the incoming pod away from.
    refused_by_others: HashSet<Place<'a>>,
    /// Places with pods that the incoming pod does not want beside it.
    unwanted: HashSet<Place<'a>>,
    /// Per required term, the places with pods it wants.
    wanted: Vec<HashSet<&'a str>>,
    /// Nobody has what it wants yet, and it is one of those itself: the first of a group may go anywhere.
    first_of_group: bool,
}

fn place<'a>(node: &'a Node, key: &'a str) -> Option<Place<'a>> {
    Some((key, node.entry.as_ref()?.meta.label(key)?))
}

impl Plugin for InterPodAffinity {
    fn name(&self) -> &'static str {
        NAME
    }

    fn pre_filter<'a>(&self, pod: &'a Pod, cluster: &'a Cluster) -> PreFilter<'a> {
        let own = &pod.view.pod_affinity;
        let asks = !own.required.is_empty() || !own.anti_required.is_empty();
        if !asks && !cluster.has_anti_affinity() {
            return Ok(None);
        }
        let labels = cluster.namespace_labels();
        let mut refused_by_others = HashSet::new();
        let mut unwanted = HashSet::new();
        let mut wanted: Vec<HashSet<&str>> = vec![HashSet::new(); own.required.len()];
        for node in cluster.nodes() {
            if node.with_anti_affinity > 0 {
                for other in &node.pods {
                    for t in &other.view.pod_affinity.anti_required {
                        if let Some(p) = place(node, &t.topology_key)
                            && !refused_by_others.contains(&p)
                            && t.matches(other, pod, labels)
                        {
                            refused_by_others.insert(p);
                        }
                    }
                }
            }
            for t in &own.anti_required {
                if let Some(p) = place(node, &t.topology_key)
                    && !unwanted.contains(&p)
                    && node.pods.iter().any(|o| t.matches(pod, o, labels))
                {
                    unwanted.insert(p);
                }
            }
            if !own.required.is_empty() {
                // A pod counts only when it is what every term wants.
                let all = |o: &&std::sync::Arc<Pod>| own.required.iter().all(|t| t.matches(pod, o, labels));
                if node.pods.iter().any(|o| all(&o)) {
                    for (t, places) in own.required.iter().zip(&mut wanted) {
                        places.extend(place(node, &t.topology_key).map(|p| p.1));
                    }
                }
            }
        }
        let first_of_group =
            wanted.iter().all(HashSet::is_empty) && own.required.iter().all(|t| t.matches(pod, pod, labels));
        Ok(Some(Box::new(Check { pod, refused_by_others, unwanted, wanted, first_of_group })))
    }

    fn pre_score<'a>(&self, pod: &'a Pod, cluster: &'a Cluster) -> Option<Box<dyn NodeScore + 'a>> {
        let own = &pod.view.pod_affinity.preferred;
        if own.is_empty() && !cluster.has_preferred_affinity() {
            return None;
        }
        let labels = cluster.namespace_labels();
        let mut sums: HashMap<Place<'a>, i64> = HashMap::new();
        let mut count = |node: &'a Node, t: &'a Term, weight: i64| {
            if let Some(p) = place(node, &t.topology_key) {
                *sums.entry(p).or_default() += weight;
            }
        };
        for node in cluster.nodes() {
            for other in &node.pods {
                for (w, t) in own.iter().filter(|(_, t)| t.matches(pod, other, labels)) {
                    count(node, t, *w);
                }
                let theirs = &other.view.pod_affinity;
                for (w, t) in theirs.preferred.iter().filter(|(_, t)| t.matches(other, pod, labels)) {
                    count(node, t, *w);
                }
                // Who needs this kind of neighbour is glad of one more.
                for t in theirs.required.iter().filter(|t| t.matches(other, pod, labels)) {
                    count(node, t, 1);
                }
            }
        }
        if sums.is_empty() { None } else { Some(Box::new(Sums(sums))) }
    }

    fn weight(&self) -> i64 {
        2
    }

    fn reads(&self) -> &'static [Read] {
        &[Read::Nodes, Read::NodeLabels, Read::PlacedPods, Read::GonePods, Read::PodLabels, Read::OwnLabels]
    }

    fn hint(&self, pod: &Pod, event: &Event<'_>) -> bool {
        let own = &pod.view.pod_affinity;
        match event {
            Event::PodPlaced(_) => !own.required.is_empty(),
            Event::PodGone(gone) => !own.anti_required.is_empty() || !gone.view.pod_affinity.anti_required.is_empty(),
            _ => true,
        }
    }
}

impl NodeFilter for Check<'_> {
    fn check(&self, node: &Node) -> Result<(), Refusal> {
        let own = &self.pod.view.pod_affinity;
        let here = |t: &Term| node.entry.as_ref().and_then(|n| n.meta.label(&t.topology_key));
        let all = own
            .required
            .iter()
            .zip(&self.wanted)
            .all(|(t, places)| here(t).is_some_and(|v| self.first_of_group || places.contains(v)));
        if !all {
            return Err(Refusal::unresolvable(NAME, "node(s) didn't match pod affinity rules"));
        }
        if own.anti_required.iter().any(|t| here(t).is_some_and(|v| self.unwanted.contains(&(&*t.topology_key, v)))) {
            return Err(Refusal::resolvable(NAME, "node(s) didn't match pod anti-affinity rules"));
        }
        if let (false, Some(n)) = (self.refused_by_others.is_empty(), &node.entry)
            && n.meta.labels.iter().any(|(k, v)| self.refused_by_others.contains(&(k, v)))
        {
            return Err(Refusal::resolvable(NAME, "node(s) didn't satisfy existing pods anti-affinity rules"));
        }
        Ok(())
    }
}

struct Sums<'a>(HashMap<Place<'a>, i64>);

impl NodeScore for Sums<'_> {
    fn score(&self, node: &Node) -> i64 {
        let Some(n) = &node.entry else { return 0 };
        n.meta.labels.iter().filter_map(|(k, v)| self.0.get(&(k, v))).sum()
    }

    fn normalize(&self, scores: &mut [i64]) {
        let (min, max) = (scores.iter().min().copied().unwrap_or(0), scores.iter().max().copied().unwrap_or(0));
        for s in scores {
            *s = if max > min { (*s - min) * MAX_SCORE / (max - min) } else { 0 };
        }
    }
}
