//! Affinity and anti-affinity between pods.

use crate::cluster::{Cluster, Node};
use crate::counts::Counts;
use crate::explain::{Change, Shortfall};
use crate::framework::{Event, MAX_SCORE, NodeFilter, NodeScore, Plugin, Point, PreFilter, PreScore, Read, Refusal};
use crate::pod::Pod;
use crate::pod_affinity::{NamespaceLabels, Term};
use crate::topology::{ByDomain, Included, Matcher, Query, Terms};
use std::collections::BTreeSet;

const NAME: &str = "InterPodAffinity";

/// Pods in topology domains, counted once per pod.
#[derive(Clone)]
struct Check<'a> {
    pod: &'a Pod,
    labels: &'a NamespaceLabels,
    /// Terms of required anti-affinity of other pods that match the incoming pod, by their domains.
    refused_by_others: Counts,
    /// Pods that match the incoming pod's required anti-affinity, by domain.
    matched_by_own_anti_affinity: Counts,
    /// Pods that match all terms of the incoming pod's required affinity, by domain.
    required: Counts,
}

fn domain<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.entry.as_ref()?.meta.label(key)
}

/// The query for the pods that match all terms of a pod, by a topology key.
fn query(pod: &Pod, terms: &[Term], key: &str) -> Query {
    let matcher = Matcher::Terms { namespace: pod.meta.namespace.clone(), terms: terms.to_vec() };
    Query { matcher, key: key.into(), included: Included::default() }
}

impl Check<'_> {
    /// Counts a pod that is added to a node on trial, or removed from it.
    fn change(&mut self, other: &Pod, node: &Node, delta: i64) {
        let own = &self.pod.view.pod_affinity;
        let add = |counts: &mut Counts, t: &Term| {
            if let Some(domain) = domain(node, &t.topology_key) {
                counts.add(&t.topology_key, domain, delta);
            }
        };
        for t in &other.view.pod_affinity.anti_required {
            if t.matches(&other.meta, &self.pod.meta, self.labels) {
                add(&mut self.refused_by_others, t);
            }
        }
        for t in &own.anti_required {
            if t.matches(&self.pod.meta, &other.meta, self.labels) {
                add(&mut self.matched_by_own_anti_affinity, t);
            }
        }
        if own.required.iter().all(|t| t.matches(&self.pod.meta, &other.meta, self.labels)) {
            own.required.iter().for_each(|t| add(&mut self.required, t));
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
        let mut check = Check {
            pod,
            labels,
            refused_by_others: Counts::default(),
            matched_by_own_anti_affinity: Counts::default(),
            required: Counts::default(),
        };
        cluster.with_terms(|topology, nodes| {
            for ((namespace, term, _), domains) in topology.anti_required(nodes) {
                if term.selects(namespace, &pod.meta, labels) {
                    check.refused_by_others.extend(&term.topology_key, domains.clone());
                }
            }
        });
        if !has_affinity && check.refused_by_others.is_empty() {
            return Ok(None);
        }
        for t in &own.anti_required {
            let counted = cluster.count(query(pod, std::slice::from_ref(t), &t.topology_key));
            check.matched_by_own_anti_affinity.extend(&t.topology_key, counted);
        }
        for t in &own.required {
            let counted = cluster.count(query(pod, &own.required, &t.topology_key));
            check.required.extend(&t.topology_key, counted);
        }
        Ok(Some(Box::new(check)))
    }

    fn pre_score<'a>(&'a self, pod: &'a Pod, cluster: &'a Cluster, _: &[&'a Node]) -> PreScore<'a> {
        let own = &pod.view.pod_affinity.preferred;
        if own.is_empty() && (self.ignore_preferences_of_others || !cluster.has_preferred_affinity()) {
            return Ok(None);
        }
        let labels = cluster.namespace_labels();
        let mut sums = Sums::default();
        for (weight, t) in own {
            let counted = cluster.count(query(pod, std::slice::from_ref(t), &t.topology_key));
            sums.0.push((t.topology_key.clone(), counted, *weight));
        }
        cluster.with_terms(|topology, nodes| {
            let mut count = |terms: &Terms, factor: Option<i64>| {
                for ((namespace, term, weight), domains) in terms {
                    if term.selects(namespace, &pod.meta, labels) {
                        sums.0.push((term.topology_key.clone(), domains.clone(), factor.unwrap_or(*weight)));
                    }
                }
            };
            count(topology.preferred(nodes), None);
            // Required affinity of other pods counts as preferred.
            if self.hard_weight > 0 {
                count(topology.required(nodes), Some(self.hard_weight));
            }
        });
        Ok(if sums.0.is_empty() { None } else { Some(Box::new(sums)) })
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
        let selected =
            |other: &Pod| !own.required.is_empty() && own.required.iter().all(|t| t.may_match(&pod.meta, &other.meta));
        let conflicts = |other: &Pod| {
            own.anti_required.iter().any(|t| t.may_match(&pod.meta, &other.meta))
                || other.view.pod_affinity.anti_required.iter().any(|t| t.may_match(&other.meta, &pod.meta))
        };
        match event {
            Event::PodPlaced(placed) => selected(placed),
            Event::PodGone(gone) => conflicts(gone),
            Event::PodChanged { old, new } => (!selected(old) && selected(new)) || (conflicts(old) && !conflicts(new)),
            _ => true,
        }
    }
}

impl<'a> Check<'a> {
    /// The terms of the pod's affinity that a node does not meet.
    fn unmet_affinity(&self, node: &Node) -> Vec<&'a Term> {
        let own = &self.pod.view.pod_affinity.required;
        let here = |t: &Term| domain(node, &t.topology_key);
        let unmet = |t: &&Term| here(t).is_none_or(|d| self.required.get(&t.topology_key, d) <= 0);
        let unmet: Vec<&Term> = own.iter().filter(unmet).collect();
        let matches_itself = || own.iter().all(|t| t.matches(&self.pod.meta, &self.pod.meta, self.labels));
        // The first pod of a group may go anywhere.
        let is_first = || self.required.sum() == 0 && own.iter().all(|t| here(t).is_some()) && matches_itself();
        if unmet.is_empty() || is_first() { Vec::new() } else { unmet }
    }

    /// The terms of the pod's anti-affinity that a node violates, with the number of pods that match.
    fn violated_anti_affinity(&self, node: &Node) -> impl Iterator<Item = (&'a Term, i64)> {
        self.pod.view.pod_affinity.anti_required.iter().filter_map(|t| {
            let count = self.matched_by_own_anti_affinity.get(&t.topology_key, domain(node, &t.topology_key)?);
            (count > 0).then_some((t, count))
        })
    }

    /// The topology keys by which other pods keep the pod off a node.
    fn refused_by_others(&self, node: &Node) -> impl Iterator<Item = &str> {
        let refused = |key: &&str| domain(node, key).is_some_and(|d| self.refused_by_others.get(key, d) > 0);
        self.refused_by_others.keys().filter(refused)
    }
}

impl NodeFilter for Check<'_> {
    fn check(&self, node: &Node) -> Result<(), Refusal> {
        if !self.unmet_affinity(node).is_empty() {
            return Err(Refusal::unresolvable(NAME, "node(s) didn't match pod affinity rules"));
        }
        if self.violated_anti_affinity(node).next().is_some() {
            return Err(Refusal::resolvable(NAME, "node(s) didn't match pod anti-affinity rules"));
        }
        if self.refused_by_others(node).next().is_some() {
            return Err(Refusal::resolvable(NAME, "node(s) didn't satisfy existing pods anti-affinity rules"));
        }
        Ok(())
    }

    fn shortfalls(&self, node: &Node) -> Vec<Shortfall> {
        let place = |key: &str| match domain(node, key) {
            Some(domain) => format!("in {key}={domain}"),
            None => format!("on a node without the label {key}"),
        };
        let mut all = Vec::new();
        for term in self.unmet_affinity(node) {
            let key = &*term.topology_key;
            let what = format!("affinity {} by {key}", term.selector_text());
            let message = format!("the pod requires a pod with {} {}, there is none", term.selector_text(), place(key));
            let change = Change::RemoveAffinity { topology_key: key.into(), selector: term.selector_text() };
            all.push(Shortfall::new(&what, message).remedy(change));
        }
        for (term, count) in self.violated_anti_affinity(node) {
            let key = &*term.topology_key;
            let what = format!("anti-affinity {} by {key}", term.selector_text());
            let message =
                format!("the pod refuses pods with {} {}, there are {count}", term.selector_text(), place(key));
            let change = Change::RemoveAntiAffinity { topology_key: key.into(), selector: term.selector_text() };
            all.push(Shortfall::new(&what, message).remedy(change));
        }
        for key in self.refused_by_others(node).collect::<BTreeSet<&str>>() {
            let message = format!("pods {} refuse this pod by their anti-affinity", place(key));
            all.push(Shortfall::new(&format!("anti-affinity of others by {key}"), message));
        }
        all
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

/// Pods by domain, with their weights.
#[derive(Default)]
struct Sums(Vec<(Box<str>, ByDomain, i64)>);

impl NodeScore for Sums {
    fn score(&self, node: &Node) -> i64 {
        let score = |(key, domains, weight): &(Box<str>, ByDomain, i64)| {
            let count = domain(node, key).and_then(|d| domains.get(d)).copied().unwrap_or(0);
            count.saturating_mul(*weight)
        };
        self.0.iter().map(score).sum()
    }

    fn normalize(&self, scores: &mut [i64]) {
        let (min, max) = (scores.iter().min().copied().unwrap_or(0), scores.iter().max().copied().unwrap_or(0));
        for s in scores {
            *s = if max > min { (MAX_SCORE as f64 * ((*s - min) as f64 / (max - min) as f64)) as i64 } else { 0 };
        }
    }
}
