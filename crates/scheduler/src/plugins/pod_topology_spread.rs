//! Spreads pods evenly over topology domains. The system's default constraints are left out.

use crate::cluster::{Cluster, Node, NodeEntry};
use crate::framework::{Event, MAX_SCORE, NodeFilter, NodeScore, Plugin, PreFilter, Read, Refusal};
use crate::pod::Pod;
use crate::spread::Constraint;
use meta::LabelSelector;
use placement::{EXCLUDING, untolerated};
use std::collections::HashMap;

const NAME: &str = "PodTopologySpread";

pub struct PodTopologySpread;

/// A constraint with the number of matching pods in each of its domains.
struct Counted<'a> {
    constraint: &'a Constraint,
    selector: LabelSelector,
    domains: HashMap<&'a str, i64>,
    least: i64,
}

/// Whether the pods on a node count.
fn counts(constraint: &Constraint, pod: &Pod, node: &NodeEntry) -> bool {
    (!constraint.honor_affinity || pod.view.affinity.admits(&node.meta.name, |k| node.meta.label(k)))
        && (!constraint.honor_taints || untolerated(&node.view.taints, EXCLUDING, &pod.view.tolerations).is_none())
}

fn count<'a>(pod: &'a Pod, cluster: &'a Cluster, hard: bool) -> Vec<Counted<'a>> {
    let mut all: Vec<Counted<'a>> = pod
        .view
        .spread
        .iter()
        .filter(|c| c.hard == hard)
        .map(|c| Counted { selector: c.selector_for(&pod.meta), constraint: c, domains: HashMap::new(), least: 0 })
        .collect();
    for node in cluster.nodes() {
        let Some(n) = &node.entry else { continue };
        // A node without all topology keys belongs to no domain.
        if !all.iter().all(|c| n.meta.label(&c.constraint.topology_key).is_some()) {
            continue;
        }
        for c in all.iter_mut().filter(|c| counts(c.constraint, pod, n)) {
            let Some(domain) = n.meta.label(&c.constraint.topology_key) else { continue };
            let matching = node.pods.iter().filter(|o| {
                o.meta.namespace == pod.meta.namespace
                    && !o.meta.is_deleting()
                    && c.selector.matches(|k| o.meta.label(k))
            });
            *c.domains.entry(domain).or_default() += matching.count() as i64;
        }
    }
    for c in &mut all {
        let enough = c.domains.len() as i64 >= c.constraint.min_domains;
        c.least = if enough { c.domains.values().copied().min().unwrap_or(0) } else { 0 };
    }
    all
}

struct Check<'a> {
    pod: &'a Pod,
    counted: Vec<Counted<'a>>,
}

impl Plugin for PodTopologySpread {
    fn name(&self) -> &'static str {
        NAME
    }

    fn pre_filter<'a>(&self, pod: &'a Pod, cluster: &'a Cluster) -> PreFilter<'a> {
        if !pod.view.spread.iter().any(|c| c.hard) {
            return Ok(None);
        }
        Ok(Some(Box::new(Check { pod, counted: count(pod, cluster, true) })))
    }

    fn pre_score<'a>(&self, pod: &'a Pod, cluster: &'a Cluster) -> Option<Box<dyn NodeScore + 'a>> {
        if pod.view.spread.iter().all(|c| c.hard) {
            return None;
        }
        Some(Box::new(Spread(count(pod, cluster, false))))
    }

    fn weight(&self) -> i64 {
        2
    }

    fn reads(&self) -> &'static [Read] {
        &[
            Read::Nodes,
            Read::NodeLabels,
            Read::NodeTaints,
            Read::PlacedPods,
            Read::GonePods,
            Read::PodLabels,
            Read::OwnLabels,
        ]
    }

    fn hint(&self, pod: &Pod, event: &Event<'_>) -> bool {
        match event {
            Event::PodPlaced(o) | Event::PodGone(o) | Event::PodChanged { new: o, .. } => {
                o.meta.namespace == pod.meta.namespace
            }
            _ => true,
        }
    }
}

impl NodeFilter for Check<'_> {
    fn check(&self, node: &Node) -> Result<(), Refusal> {
        for c in &self.counted {
            let Some(domain) = node.entry.as_ref().and_then(|n| n.meta.label(&c.constraint.topology_key)) else {
                let why = "node(s) didn't match pod topology spread constraints (missing required label)";
                return Err(Refusal::unresolvable(NAME, why));
            };
            let itself = i64::from(c.selector.matches(|k| self.pod.meta.label(k)));
            let there = c.domains.get(domain).copied().unwrap_or(0);
            if there + itself - c.least > c.constraint.max_skew {
                return Err(Refusal::resolvable(NAME, "node(s) didn't match pod topology spread constraints"));
            }
        }
        Ok(())
    }
}

struct Spread<'a>(Vec<Counted<'a>>);

impl NodeScore for Spread<'_> {
    /// The number of matching pods (fewer is better); negative for a node without a key.
    fn score(&self, node: &Node) -> i64 {
        let Some(n) = &node.entry else { return -1 };
        let mut sum = 0.0;
        for c in &self.0 {
            let Some(domain) = n.meta.label(&c.constraint.topology_key) else { return -1 };
            let there = c.domains.get(domain).copied().unwrap_or(0) as f64;
            let weight = ((c.domains.len() + 2) as f64).ln();
            sum += there * weight + (c.constraint.max_skew - 1) as f64;
        }
        sum.round() as i64
    }

    fn normalize(&self, scores: &mut [i64]) {
        let known = || scores.iter().copied().filter(|s| *s >= 0);
        let (min, max) = (known().min().unwrap_or(0), known().max().unwrap_or(0));
        for s in scores {
            *s = match (*s, max) {
                (s, _) if s < 0 => 0,
                (_, 0) => MAX_SCORE,
                (s, max) => MAX_SCORE * (max + min - s) / max,
            };
        }
    }
}
