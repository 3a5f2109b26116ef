//! Affinity and anti-affinity between pods.

use crate::cluster::{Cluster, Node};
use crate::counts::Counts;
use crate::framework::{Event, MAX_SCORE, NodeFilter, NodeScore, Plugin, Point, PreFilter, Read, Refusal};
use crate::pod::Pod;
use crate::pod_affinity::{NamespaceLabels, Term};
use std::collections::HashMap;

const NAME: &str = "InterPodAffinity";

type Domain = (Box<str>, Box<str>);

/// Pods in topology domains, counted once per pod.
#[derive(Clone)]
struct Check<'a> {
    pod: &'a Pod,
    labels: &'a NamespaceLabels,
    /// Terms of required anti-affinity of other pods that match the incoming pod, by their domains.
    refused_by_others: Counts<Domain>,
    /// Pods that match the incoming pod's required anti-affinity, by domain.
    matched_by_own_anti_affinity: Counts<Domain>,
    /// Pods that match all terms of the incoming pod's required affinity, by domain.
    required: Counts<Domain>,
    /// The sum of these counts.
    all_required: i64,
}

fn domain(node: &Node, key: &str) -> Option<Domain> {
    Some((key.into(), node.entry.as_ref()?.meta.label(key)?.into()))
}

/// What a pod on a node adds to the counts of an incoming pod.
struct Share {
    refused_by: Vec<Domain>,
    anti_affinity: Vec<Domain>,
    affinity: Vec<Domain>,
}

impl Share {
    fn new(incoming: &Pod, other: &Pod, node: &Node, labels: &NamespaceLabels) -> Self {
        let own = &incoming.view.pod_affinity;
        let theirs = other.view.pod_affinity.anti_required.iter();
        let refusing = theirs.filter(|t| t.matches(&other.meta, &incoming.meta, labels));
        let anti = own.anti_required.iter().filter(|t| t.matches(&incoming.meta, &other.meta, labels));
        let all =
            !own.required.is_empty() && own.required.iter().all(|t| t.matches(&incoming.meta, &other.meta, labels));
        let required = own.required.iter().filter(|_| all);
        Self {
            refused_by: refusing.filter_map(|t| domain(node, &t.topology_key)).collect(),
            anti_affinity: anti.filter_map(|t| domain(node, &t.topology_key)).collect(),
            affinity: required.filter_map(|t| domain(node, &t.topology_key)).collect(),
        }
    }
}

impl Check<'_> {
    fn change(&mut self, other: &Pod, node: &Node, delta: i64) {
        let share = Share::new(self.pod, other, node, self.labels);
        for d in share.refused_by {
            self.refused_by_others.add(d, delta);
        }
        for d in share.anti_affinity {
            self.matched_by_own_anti_affinity.add(d, delta);
        }
        for d in share.affinity {
            self.required.add(d, delta);
            self.all_required += delta;
        }
    }
}

/// `hard_weight`: the score of a required affinity term of another pod that matches.
#[derive(Clone, Debug)]
pub struct InterPodAffinity {
    pub hard_weight: i64,
    /// Whether preferences of other pods do not count for pods without preferences.
    pub ignore_preferences_of_others: bool,
}

impl Default for InterPodAffinity {
    fn default() -> Self {
        Self { hard_weight: 1, ignore_preferences_of_others: false }
    }
}

impl Plugin for InterPodAffinity {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter, Point::PreScore, Point::Score]
    }

    fn pre_filter<'a>(&'a self, pod: &'a Pod, cluster: &'a Cluster) -> PreFilter<'a> {
        let own = &pod.view.pod_affinity;
        let has_affinity = !own.required.is_empty() || !own.anti_required.is_empty();
        if !has_affinity && !cluster.has_anti_affinity() {
            return Ok(None);
        }
        let labels = cluster.namespace_labels();
        let mut refused_by: HashMap<Domain, i64> = HashMap::new();
        let mut anti_affinity: HashMap<Domain, i64> = HashMap::new();
        let mut required: HashMap<Domain, i64> = HashMap::new();
        for node in cluster.nodes().iter().filter(|n| n.entry.is_some() && (has_affinity || n.with_anti_affinity > 0)) {
            for other in &node.pods {
                if !has_affinity && other.view.pod_affinity.anti_required.is_empty() {
                    continue;
                }
                let share = Share::new(pod, other, node, labels);
                share.refused_by.into_iter().for_each(|d| *refused_by.entry(d).or_default() += 1);
                share.anti_affinity.into_iter().for_each(|d| *anti_affinity.entry(d).or_default() += 1);
                share.affinity.into_iter().for_each(|d| *required.entry(d).or_default() += 1);
            }
        }
        if !has_affinity && refused_by.is_empty() {
            return Ok(None);
        }
        Ok(Some(Box::new(Check {
            pod,
            labels,
            refused_by_others: Counts::new(refused_by),
            matched_by_own_anti_affinity: Counts::new(anti_affinity),
            all_required: required.values().sum(),
            required: Counts::new(required),
        })))
    }

    fn pre_score<'a>(&'a self, pod: &'a Pod, cluster: &'a Cluster, _: &[&'a Node]) -> Option<Box<dyn NodeScore + 'a>> {
        let own = &pod.view.pod_affinity.preferred;
        if own.is_empty() && (self.ignore_preferences_of_others || !cluster.has_preferred_affinity()) {
            return None;
        }
        let labels = cluster.namespace_labels();
        let mut sums: HashMap<(&'a str, &'a str), i64> = HashMap::new();
        let mut count = |node: &'a Node, t: &'a Term, weight: i64| {
            if let Some(value) = node.entry.as_ref().and_then(|n| n.meta.label(&t.topology_key)) {
                *sums.entry((&*t.topology_key, value)).or_default() += weight;
            }
        };
        for node in cluster.nodes().iter().filter(|n| n.entry.is_some()) {
            for other in &node.pods {
                for (w, t) in own.iter().filter(|(_, t)| t.matches(&pod.meta, &other.meta, labels)) {
                    count(node, t, *w);
                }
                let theirs = &other.view.pod_affinity;
                for (w, t) in theirs.preferred.iter().filter(|(_, t)| t.matches(&other.meta, &pod.meta, labels)) {
                    count(node, t, *w);
                }
                // Required affinity of other pods counts as preferred.
                if self.hard_weight > 0 {
                    for t in theirs.required.iter().filter(|t| t.matches(&other.meta, &pod.meta, labels)) {
                        count(node, t, self.hard_weight);
                    }
                }
            }
        }
        if sums.is_empty() { None } else { Some(Box::new(Sums(sums))) }
    }

    fn weight(&self) -> i64 {
        2
    }

    fn reads(&self) -> &'static [Read] {
        &[
            Read::Nodes,
            Read::NodeLabels,
            Read::PlacedPods,
            Read::GonePods,
            Read::PodLabels,
            Read::OwnLabels,
            Read::NamespaceLabels,
        ]
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
        let here = |t: &Term| domain(node, &t.topology_key);
        let matches_itself = || own.required.iter().all(|t| t.matches(&self.pod.meta, &self.pod.meta, self.labels));
        let (mut has_all_keys, mut has_pods) = (true, true);
        for t in &own.required {
            match here(t) {
                None => has_all_keys = false,
                Some(d) => has_pods &= self.required.get(&d) > 0,
            }
        }
        // The first pod of a group may go anywhere.
        if !has_all_keys || (!has_pods && !(self.all_required == 0 && matches_itself())) {
            return Err(Refusal::unresolvable(NAME, "node(s) didn't match pod affinity rules"));
        }
        if own.anti_required.iter().any(|t| here(t).is_some_and(|d| self.matched_by_own_anti_affinity.get(&d) > 0)) {
            return Err(Refusal::resolvable(NAME, "node(s) didn't match pod anti-affinity rules"));
        }
        if let (false, Some(n)) = (self.refused_by_others.is_empty(), &node.entry)
            && n.meta.labels.iter().any(|(k, v)| self.refused_by_others.get(&(k.into(), v.into())) > 0)
        {
            return Err(Refusal::resolvable(NAME, "node(s) didn't satisfy existing pods anti-affinity rules"));
        }
        Ok(())
    }

    fn fork(&self) -> Option<Box<dyn NodeFilter + '_>> {
        Some(Box::new(self.clone()))
    }

    fn add_pod(&mut self, pod: &Pod, node: &Node) {
        self.change(pod, node, 1);
    }

    fn remove_pod(&mut self, pod: &Pod, node: &Node) {
        self.change(pod, node, -1);
    }
}

struct Sums<'a>(HashMap<(&'a str, &'a str), i64>);

impl NodeScore for Sums<'_> {
    fn score(&self, node: &Node) -> i64 {
        let Some(n) = &node.entry else { return 0 };
        n.meta.labels.iter().filter_map(|(k, v)| self.0.get(&(k, v))).sum()
    }

    fn normalize(&self, scores: &mut [i64]) {
        let (min, max) = (scores.iter().min().copied().unwrap_or(0), scores.iter().max().copied().unwrap_or(0));
        for s in scores {
            *s = if max > min { (MAX_SCORE as f64 * ((*s - min) as f64 / (max - min) as f64)) as i64 } else { 0 };
        }
    }
}
