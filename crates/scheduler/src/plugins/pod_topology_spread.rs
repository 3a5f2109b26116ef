//! Spreads pods evenly over topology domains.

use crate::cluster::{Cluster, Node, NodeEntry};
use crate::counts::Counts;
use crate::explain::{Change, Shortfall, plural};
use crate::framework::{Event, MAX_SCORE, NodeFilter, NodeScore, Plugin, Point, PreFilter, PreScore, Read, Refusal};
use crate::pod::Pod;
use crate::spread::Constraint;
use crate::topology::{ByDomain, Included, Matcher, Query};
use meta::LabelSelector;
use placement::NodeAffinity;
use std::collections::{HashMap, HashSet};

const NAME: &str = "PodTopologySpread";
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The constraints of pods without any. Their selector is that of the services and workloads of the pod.
#[derive(Clone, Debug)]
pub struct PodTopologySpread {
    pub defaults: Vec<Constraint>,
    /// Whether a node without a topology key still takes part in the other default constraints.
    pub system: bool,
}

impl Default for PodTopologySpread {
    fn default() -> Self {
        let defaults = vec![Constraint::system(3, HOSTNAME), Constraint::system(5, "topology.kubernetes.io/zone")];
        Self { defaults, system: true }
    }
}

/// A constraint with the selector of the pods that count.
#[derive(Clone)]
struct Selected<'a> {
    constraint: &'a Constraint,
    selector: LabelSelector,
}

impl Selected<'_> {
    /// The nodes whose pods count: those with all these keys that the policies of the constraint include.
    fn included(&self, pod: &Pod, required: &[Self]) -> Included {
        let c = self.constraint;
        let affinity = &pod.view.affinity;
        // What scores nodes makes no difference here.
        let only_required = || NodeAffinity { preferred: Vec::new(), ..affinity.clone() };
        Included {
            labels: required.iter().map(|c| c.constraint.topology_key.clone()).collect(),
            affinity: (c.honor_affinity && affinity.is_required()).then(only_required),
            tolerations: c.honor_taints.then(|| pod.view.tolerations.to_vec()),
        }
    }

    fn matches(&self, pod: &Pod) -> bool {
        self.selector.matches(|k| pod.meta.label(k))
    }

    fn matcher(&self, pod: &Pod) -> Matcher {
        Matcher::Spread { namespace: pod.meta.namespace.clone(), selector: self.selector.clone() }
    }

    /// The matching pods by domain, on the nodes that count.
    fn count(&self, pod: &Pod, cluster: &Cluster, included: Included) -> ByDomain {
        cluster.count(Query { matcher: self.matcher(pod), key: self.constraint.topology_key.clone(), included })
    }

    /// The matching pods by node.
    fn count_by_node(&self, pod: &Pod, cluster: &Cluster) -> ByDomain {
        cluster.count(Query { matcher: self.matcher(pod), key: "".into(), included: Included::default() })
    }
}

fn has_all_keys(constraints: &[Selected<'_>], node: &NodeEntry) -> bool {
    constraints.iter().all(|c| node.meta.label(&c.constraint.topology_key).is_some())
}

impl PodTopologySpread {
    /// The constraints for a pod: hard or soft ones.
    fn constraints<'a>(&'a self, pod: &'a Pod, cluster: &Cluster, hard: bool) -> Vec<Selected<'a>> {
        let own = &pod.view.spread;
        if !own.is_empty() {
            let own = own.iter().filter(|c| c.hard == hard);
            return own.map(|c| Selected { selector: c.selector_for(&pod.meta), constraint: c }).collect();
        }
        let defaults = self.defaults.iter().filter(|c| c.hard == hard);
        let mut defaults: Vec<&Constraint> = defaults.collect();
        if defaults.is_empty() {
            return Vec::new();
        }
        let Some(selector) = cluster.workloads().selector_for(pod) else { return Vec::new() };
        defaults.drain(..).map(|constraint| Selected { selector: selector.clone(), constraint }).collect()
    }
}

/// The two domains with the fewest matching pods, as far as updates tell (upstream `criticalPaths`).
#[derive(Clone)]
struct Fewest([(Option<Box<str>>, i64); 2]);

impl Fewest {
    fn new<'a>(domains: impl Iterator<Item = (&'a Box<str>, &'a i64)>) -> Self {
        let mut fewest = Self([(None, i64::from(i32::MAX)), (None, i64::from(i32::MAX))]);
        domains.for_each(|(domain, count)| fewest.update(domain, *count));
        fewest
    }

    fn update(&mut self, domain: &str, count: i64) {
        let [first, second] = &mut self.0;
        if first.0.as_deref() == Some(domain) {
            first.1 = count;
        } else if second.0.as_deref() == Some(domain) {
            second.1 = count;
        } else if count < first.1 {
            *second = std::mem::replace(first, (Some(domain.into()), count));
        } else if count < second.1 {
            *second = (Some(domain.into()), count);
        }
        if first.1 > second.1 {
            std::mem::swap(first, second);
        }
    }
}

/// A constraint with the number of matching pods in each of its domains.
#[derive(Clone)]
struct Counted<'a> {
    by: Selected<'a>,
    domains: Counts,
    fewest: Fewest,
    /// 1 if the constraint selects the pod itself.
    itself: i64,
    included: Included,
}

#[derive(Clone)]
struct Check<'a> {
    pod: &'a Pod,
    counted: Vec<Counted<'a>>,
}

impl<'a> Check<'a> {
    fn new(pod: &'a Pod, cluster: &'a Cluster, constraints: Vec<Selected<'a>>) -> Self {
        let counted = constraints.iter().map(|c| {
            let included = c.included(pod, &constraints);
            let domains = c.count(pod, cluster, included.clone());
            let mut counts = Counts::default();
            let fewest = Fewest::new(domains.iter());
            counts.extend(&c.constraint.topology_key, domains);
            Counted { by: c.clone(), fewest, domains: counts, itself: i64::from(c.matches(pod)), included }
        });
        Self { pod, counted: counted.collect() }
    }

    fn change(&mut self, other: &Pod, node: &Node, delta: i64) {
        let Some(n) = &node.entry else { return };
        if other.meta.namespace != self.pod.meta.namespace {
            return;
        }
        for c in &mut self.counted {
            if !c.by.matches(other) || !c.included.admits(n) {
                continue;
            }
            if let Some(domain) = n.meta.label(&c.by.constraint.topology_key) {
                let count = c.domains.add(&c.by.constraint.topology_key, domain, delta);
                c.fewest.update(domain, count);
            }
        }
    }
}

impl Plugin for PodTopologySpread {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter, Point::PreScore, Point::Score]
    }

    fn pre_filter<'a>(&'a self, pod: &'a Pod, cluster: &'a Cluster) -> PreFilter<'a> {
        let constraints = self.constraints(pod, cluster, true);
        if constraints.is_empty() {
            return Ok(None);
        }
        Ok(Some(Box::new(Check::new(pod, cluster, constraints))))
    }

    fn pre_score<'a>(&'a self, pod: &'a Pod, cluster: &'a Cluster, nodes: &[&'a Node]) -> PreScore<'a> {
        let constraints = self.constraints(pod, cluster, false);
        if constraints.is_empty() {
            return Ok(None);
        }
        let needs_all_keys = !pod.view.spread.is_empty() || !self.system;
        Ok(Some(Box::new(Spread::new(pod, cluster, nodes, constraints, needs_all_keys))))
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
            Read::OwnTolerations,
        ]
    }

    fn hint(&self, pod: &Pod, event: &Event<'_>) -> bool {
        match event {
            Event::PodPlaced(o) | Event::PodGone(o) => {
                o.meta.namespace == pod.meta.namespace && selects_any(pod, |k| o.meta.label(k))
            }
            Event::PodChanged { old, new } => {
                new.meta.namespace == pod.meta.namespace
                    && selects_any(pod, |k| old.meta.label(k)) != selects_any(pod, |k| new.meta.label(k))
            }
            _ => true,
        }
    }
}

/// Whether a constraint of the pod selects the labels.
fn selects_any<'a>(pod: &Pod, label: impl Fn(&str) -> Option<&'a str>) -> bool {
    let own = &pod.view.spread;
    own.is_empty() || own.iter().any(|c| c.selector_for(&pod.meta).matches(&label))
}

/// The matching pods of a domain if the pod is placed there, and of the domain with the fewest.
struct Skew {
    with_pod: i64,
    least: i64,
}

impl Counted<'_> {
    fn skew(&self, domain: &str) -> Skew {
        let enough = self.domains.len() as i64 >= self.by.constraint.min_domains;
        let least = if enough { self.fewest.0[0].1 } else { 0 };
        Skew { with_pod: self.domains.get(&self.by.constraint.topology_key, domain) + self.itself, least }
    }
}

impl Check<'_> {
    /// What a constraint misses on a node.
    fn shortfall(&self, index: usize, node: &NodeEntry) -> Option<Shortfall> {
        let c = self.counted.get(index)?;
        let (key, max) = (&c.by.constraint.topology_key, c.by.constraint.max_skew);
        let Some(domain) = node.meta.label(key) else {
            let message = format!("the node lacks the label {key} of a topology spread constraint");
            let missing = Shortfall::new(&format!("label {key}"), message);
            return Some(Change::set_label(key, "", false).into_iter().fold(missing, Shortfall::remedy));
        };
        let Skew { with_pod, least } = c.skew(domain);
        let skew = with_pod - least;
        if skew <= max {
            return None;
        }
        let domains = c.domains.len() as i64;
        // Without enough domains the constraint compares with none: another reason than an uneven spread.
        let (what, few) = match c.by.constraint.min_domains {
            min if domains < min => {
                let count = format!("{domains} domain{}", plural(domains as usize));
                (format!("{key} minDomains"), format!(" ({count}, minDomains is {min})"))
            }
            _ => (key.to_string(), String::new()),
        };
        let message = format!(
            "{key}={domain} would have {with_pod} matching pods, {skew} more than the domain with the fewest ({least}){few}; maxSkew is {max}"
        );
        let change = Change::RaiseMaxSkew { topology_key: key.to_string(), index, to: skew };
        Some(Shortfall::new(&what, message).remedy(change))
    }
}

impl NodeFilter for Check<'_> {
    fn check(&self, node: &Node) -> Result<(), Refusal> {
        for c in &self.counted {
            let key = &c.by.constraint.topology_key;
            let Some(domain) = node.entry.as_ref().and_then(|n| n.meta.label(key)) else {
                let why = "node(s) didn't match pod topology spread constraints (missing required label)";
                return Err(Refusal::unresolvable(NAME, why));
            };
            let Skew { with_pod, least } = c.skew(domain);
            if with_pod - least > c.by.constraint.max_skew {
                return Err(Refusal::resolvable(NAME, "node(s) didn't match pod topology spread constraints"));
            }
        }
        Ok(())
    }

    fn shortfalls(&self, node: &Node) -> Vec<Shortfall> {
        let Some(n) = &node.entry else { return Vec::new() };
        (0..self.counted.len()).filter_map(|i| self.shortfall(i, n)).collect()
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

/// A soft constraint with the matching pods in the domains of the feasible nodes, and its weight.
struct Preferred<'a> {
    by: Selected<'a>,
    domains: HashMap<&'a str, i64>,
    /// The matching pods of every node, for a constraint by host name.
    by_node: Option<ByDomain>,
    weight: f64,
}

struct Spread<'a> {
    preferred: Vec<Preferred<'a>>,
    /// Feasible nodes that lack a topology key.
    ignored: HashSet<&'a str>,
    /// The feasible nodes, in the order in which they are scored.
    nodes: Vec<&'a str>,
}

impl<'a> Spread<'a> {
    fn new(
        pod: &'a Pod,
        cluster: &'a Cluster,
        nodes: &[&'a Node],
        constraints: Vec<Selected<'a>>,
        needs_all_keys: bool,
    ) -> Self {
        let mut ignored = HashSet::new();
        let mut domains: Vec<HashMap<&'a str, i64>> = vec![HashMap::new(); constraints.len()];
        for node in nodes {
            let Some(n) = &node.entry else { continue };
            if needs_all_keys && !has_all_keys(&constraints, n) {
                ignored.insert(&*node.name);
                continue;
            }
            for (c, domains) in constraints.iter().zip(&mut domains).filter(|(c, _)| !is_hostname(c.constraint)) {
                domains.entry(n.meta.label(&c.constraint.topology_key).unwrap_or_default()).or_default();
            }
        }
        for (c, domains) in constraints.iter().zip(&mut domains).filter(|(c, _)| !is_hostname(c.constraint)) {
            let required = if needs_all_keys { &constraints[..] } else { &[] };
            let counted = c.count(pod, cluster, c.included(pod, required));
            for (domain, count) in domains {
                *count = counted.get(*domain).copied().unwrap_or(0);
            }
        }
        let preferred = constraints.into_iter().zip(domains).map(|(by, domains)| {
            let size = if is_hostname(by.constraint) { nodes.len() - ignored.len() } else { domains.len() };
            let by_node = is_hostname(by.constraint).then(|| by.count_by_node(pod, cluster));
            Preferred { by, domains, by_node, weight: ((size + 2) as f64).ln() }
        });
        let preferred = preferred.collect();
        Self { preferred, ignored, nodes: nodes.iter().map(|n| &*n.name).collect() }
    }
}

fn is_hostname(constraint: &Constraint) -> bool {
    &*constraint.topology_key == HOSTNAME
}

impl NodeScore for Spread<'_> {
    /// The weighted number of matching pods: fewer is better.
    fn score(&self, node: &Node) -> i64 {
        let Some(n) = node.entry.as_ref().filter(|_| !self.ignored.contains(&*node.name)) else { return 0 };
        let mut sum = 0.0;
        for c in &self.preferred {
            let Some(domain) = n.meta.label(&c.by.constraint.topology_key) else { continue };
            let there = match &c.by_node {
                Some(counts) => counts.get(&*node.name).copied().unwrap_or(0),
                None => c.domains.get(domain).copied().unwrap_or(0),
            };
            sum += there as f64 * c.weight + (c.by.constraint.max_skew - 1) as f64;
        }
        sum.round() as i64
    }

    fn normalize(&self, scores: &mut [i64]) {
        let counts = |i: usize| self.nodes.get(i).is_some_and(|n| !self.ignored.contains(n));
        let counted = || scores.iter().enumerate().filter(|(i, _)| counts(*i)).map(|(_, s)| *s);
        let (min, max) = (counted().min().unwrap_or(i64::MAX), counted().max().unwrap_or(0));
        for (i, score) in scores.iter_mut().enumerate() {
            *score = match max {
                _ if !counts(i) => 0,
                0 => MAX_SCORE,
                max => MAX_SCORE * (max + min - *score) / max,
            };
        }
    }
}

#[cfg(test)]
#[path = "pod_topology_spread_tests.rs"]
mod tests;
