//! Affinity and anti-affinity between pods.

use crate::cluster::{Cluster, Node};
use crate::framework::{Event, MAX_SCORE, NodeFilter, NodeScore, Plugin, PreFilter, Read, Refusal};
use crate::pod::Pod;
use crate::pod_affinity::Term;
use std::collections::{HashMap, HashSet};

const NAME: &str = "InterPodAffinity";

pub struct InterPodAffinity;

type Domain<'a> = (&'a str, &'a str);

/// Topology domains, computed once per pod.
struct Check<'a> {
    pod: &'a Pod,
    /// Domains with pods whose required anti-affinity matches the incoming pod.
    refused_by_others: HashSet<Domain<'a>>,
    /// Domains with pods that match the incoming pod's required anti-affinity.
    matched_by_own_anti_affinity: HashSet<Domain<'a>>,
    /// For each required affinity term, the domains with matching pods.
    required_domains: Vec<HashSet<&'a str>>,
    /// No pod matches the required terms, but the incoming pod itself does: the first pod of a group may go anywhere.
    first_of_group: bool,
}

fn domain<'a>(node: &'a Node, key: &'a str) -> Option<Domain<'a>> {
    Some((key, node.entry.as_ref()?.meta.label(key)?))
}

impl Plugin for InterPodAffinity {
    fn name(&self) -> &'static str {
        NAME
    }

    fn pre_filter<'a>(&self, pod: &'a Pod, cluster: &'a Cluster) -> PreFilter<'a> {
        let own = &pod.view.pod_affinity;
        let has_affinity = !own.required.is_empty() || !own.anti_required.is_empty();
        if !has_affinity && !cluster.has_anti_affinity() {
            return Ok(None);
        }
        let labels = cluster.namespace_labels();
        let mut refused_by_others = HashSet::new();
        let mut matched_by_own_anti_affinity = HashSet::new();
        let mut required_domains: Vec<HashSet<&str>> = vec![HashSet::new(); own.required.len()];
        for node in cluster.nodes() {
            if node.with_anti_affinity > 0 {
                for other in &node.pods {
                    for t in &other.view.pod_affinity.anti_required {
                        if let Some(p) = domain(node, &t.topology_key)
                            && !refused_by_others.contains(&p)
                            && t.matches(&other.meta, &pod.meta, labels)
                        {
                            refused_by_others.insert(p);
                        }
                    }
                }
            }
            for t in &own.anti_required {
                if let Some(p) = domain(node, &t.topology_key)
                    && !matched_by_own_anti_affinity.contains(&p)
                    && node.pods.iter().any(|o| t.matches(&pod.meta, &o.meta, labels))
                {
                    matched_by_own_anti_affinity.insert(p);
                }
            }
            if !own.required.is_empty() {
                // A pod counts only if it matches all required terms.
                let all = |o: &&std::sync::Arc<Pod>| own.required.iter().all(|t| t.matches(&pod.meta, &o.meta, labels));
                if node.pods.iter().any(|o| all(&o)) {
                    for (t, domains) in own.required.iter().zip(&mut required_domains) {
                        domains.extend(domain(node, &t.topology_key).map(|p| p.1));
                    }
                }
            }
        }
        let first_of_group = required_domains.iter().all(HashSet::is_empty)
            && own.required.iter().all(|t| t.matches(&pod.meta, &pod.meta, labels));
        Ok(Some(Box::new(Check {
            pod,
            refused_by_others,
            matched_by_own_anti_affinity,
            required_domains,
            first_of_group,
        })))
    }

    fn pre_score<'a>(&self, pod: &'a Pod, cluster: &'a Cluster) -> Option<Box<dyn NodeScore + 'a>> {
        let own = &pod.view.pod_affinity.preferred;
        if own.is_empty() && !cluster.has_preferred_affinity() {
            return None;
        }
        let labels = cluster.namespace_labels();
        let mut sums: HashMap<Domain<'a>, i64> = HashMap::new();
        let mut count = |node: &'a Node, t: &'a Term, weight: i64| {
            if let Some(p) = domain(node, &t.topology_key) {
                *sums.entry(p).or_default() += weight;
            }
        };
        for node in cluster.nodes() {
            for other in &node.pods {
                for (w, t) in own.iter().filter(|(_, t)| t.matches(&pod.meta, &other.meta, labels)) {
                    count(node, t, *w);
                }
                let theirs = &other.view.pod_affinity;
                for (w, t) in theirs.preferred.iter().filter(|(_, t)| t.matches(&other.meta, &pod.meta, labels)) {
                    count(node, t, *w);
                }
                // Required affinity of other pods counts as preferred.
                for t in theirs.required.iter().filter(|t| t.matches(&other.meta, &pod.meta, labels)) {
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
            .zip(&self.required_domains)
            .all(|(t, domains)| here(t).is_some_and(|v| self.first_of_group || domains.contains(v)));
        if !all {
            return Err(Refusal::unresolvable(NAME, "node(s) didn't match pod affinity rules"));
        }
        if own
            .anti_required
            .iter()
            .any(|t| here(t).is_some_and(|v| self.matched_by_own_anti_affinity.contains(&(&*t.topology_key, v))))
        {
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

struct Sums<'a>(HashMap<Domain<'a>, i64>);

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
