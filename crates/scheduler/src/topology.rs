//! Numbers of pods by topology domain, kept up to date while pods come and go.
//!
//! Two kinds of counts: of the pods that a [`Matcher`] matches, made when a decision first needs them; and of the affinity terms of placed
//! pods, by term. Invariant: they are what counting all pods of the nodes that exist would give. A change of the labels of a node drops them.

use crate::cluster::{Node, NodeEntry};
use crate::pod::Pod;
use crate::pod_affinity::{NamespaceLabels, Term};
use meta::LabelSelector;
use std::collections::HashMap;
use std::sync::Arc;

/// Pods by the value of a topology key.
pub type ByDomain = Arc<HashMap<Box<str>, i64>>;

/// The most matchers whose counts are kept.
const MOST: usize = 256;

/// Selects pods to count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Matcher {
    /// Pods of a namespace that are not being deleted. A selector of everything matches none, as upstream.
    Spread { namespace: Arc<str>, selector: LabelSelector },
    /// Pods that match all terms of a pod of a namespace.
    Terms { namespace: Arc<str>, terms: Vec<Term> },
}

impl Matcher {
    pub fn matches(&self, pod: &Pod, labels: &NamespaceLabels) -> bool {
        match self {
            Self::Spread { namespace, selector } => {
                pod.meta.namespace == *namespace
                    && !pod.meta.is_deleting()
                    && !selector.is_everything()
                    && selector.matches(|k| pod.meta.label(k))
            }
            Self::Terms { namespace, terms } => terms.iter().all(|t| t.selects(namespace, &pod.meta, labels)),
        }
    }
}

/// Counts of the pods of a matcher, by the values of `key`; by node, if that is empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Query {
    pub matcher: Matcher,
    pub key: Box<str>,
    /// Only nodes with all of these labels count.
    pub required: Vec<Box<str>>,
}

impl Query {
    /// The domain of a node, if it counts.
    fn domain<'a>(&self, node: &'a NodeEntry) -> Option<&'a str> {
        if self.key.is_empty() {
            return Some(&node.meta.name);
        }
        let has_all = self.required.iter().all(|k| node.meta.label(k).is_some());
        node.meta.label(&self.key).filter(|_| has_all)
    }
}

struct Counted {
    domains: ByDomain,
    used: u64,
}

/// The terms of one kind of placed pods, with the namespaces of the pods, and a weight.
pub type Terms = HashMap<(Arc<str>, Term, i64), ByDomain>;

/// The terms of placed pods.
#[derive(Default)]
struct PlacedTerms {
    anti_required: Terms,
    required: Terms,
    preferred: Terms,
}

#[derive(Default)]
pub struct Topology {
    queries: HashMap<Query, Counted>,
    clock: u64,
    /// None after a change of labels.
    terms: Option<PlacedTerms>,
}

fn add(domains: &mut ByDomain, domain: &str, delta: i64) {
    let domains = Arc::make_mut(domains);
    match domains.get_mut(domain) {
        Some(count) => *count += delta,
        None => drop(domains.insert(domain.into(), delta)),
    }
}

impl PlacedTerms {
    fn change(&mut self, pod: &Pod, node: &NodeEntry, delta: i64) {
        let own = &pod.view.pod_affinity;
        let unweighted = |t: &Term| (t.clone(), 1);
        let all = [
            (&mut self.anti_required, own.anti_required.iter().map(unweighted).collect::<Vec<_>>()),
            (&mut self.required, own.required.iter().map(unweighted).collect()),
            (&mut self.preferred, own.preferred.iter().map(|(w, t)| (t.clone(), *w)).collect()),
        ];
        for (terms, own) in all {
            for (term, weight) in own {
                let Some(domain) = node.meta.label(&term.topology_key) else { continue };
                let key = (pod.meta.namespace.clone(), term, weight);
                let domains = terms.entry(key.clone()).or_default();
                add(domains, domain, delta);
                if delta < 0 && domains.values().all(|n| *n == 0) {
                    terms.remove(&key);
                }
            }
        }
    }

    fn new(nodes: &[Node]) -> Self {
        let mut terms = Self::default();
        for node in nodes {
            let Some(entry) = &node.entry else { continue };
            for pod in node.pods.iter().filter(|p| p.view.pod_affinity.is_any()) {
                terms.change(pod, entry, 1);
            }
        }
        terms
    }
}

impl Topology {
    /// Forgets all counts: labels of nodes or namespaces have changed.
    pub fn clear(&mut self) {
        self.queries.clear();
        self.terms = None;
    }

    /// Counts a pod that is placed on a node (1) or removed from it (-1).
    pub fn change(&mut self, pod: &Pod, node: &Node, labels: &NamespaceLabels, delta: i64) {
        let Some(entry) = &node.entry else { return };
        for (query, counted) in &mut self.queries {
            if let Some(domain) = query.domain(entry).filter(|_| query.matcher.matches(pod, labels)) {
                add(&mut counted.domains, domain, delta);
            }
        }
        if pod.view.pod_affinity.is_any()
            && let Some(terms) = &mut self.terms
        {
            terms.change(pod, entry, delta);
        }
    }

    /// The pods of a query by domain. Domains without pods count zero.
    pub fn count(&mut self, query: Query, nodes: &[Node], labels: &NamespaceLabels) -> ByDomain {
        self.clock += 1;
        if let Some(counted) = self.queries.get_mut(&query) {
            counted.used = self.clock;
            return counted.domains.clone();
        }
        if self.queries.len() >= MOST {
            let oldest = self.queries.iter().min_by_key(|(_, c)| c.used).map(|(q, _)| q.clone());
            oldest.map(|q| self.queries.remove(&q));
        }
        let mut domains: HashMap<Box<str>, i64> = HashMap::new();
        for node in nodes {
            let Some(domain) = node.entry.as_ref().and_then(|n| query.domain(n)) else { continue };
            let count = node.pods.iter().filter(|p| query.matcher.matches(p, labels)).count() as i64;
            match domains.get_mut(domain) {
                Some(sum) => *sum += count,
                None => drop(domains.insert(domain.into(), count)),
            }
        }
        let domains: ByDomain = Arc::new(domains);
        self.queries.insert(query, Counted { domains: domains.clone(), used: self.clock });
        domains
    }

    fn terms(&mut self, nodes: &[Node]) -> &PlacedTerms {
        self.terms.get_or_insert_with(|| PlacedTerms::new(nodes))
    }

    /// The required anti-affinity terms of placed pods.
    pub fn anti_required(&mut self, nodes: &[Node]) -> &Terms {
        &self.terms(nodes).anti_required
    }

    /// The required affinity terms of placed pods.
    pub fn required(&mut self, nodes: &[Node]) -> &Terms {
        &self.terms(nodes).required
    }

    /// The preferred affinity and anti-affinity terms of placed pods.
    pub fn preferred(&mut self, nodes: &[Node]) -> &Terms {
        &self.terms(nodes).preferred
    }
}

#[cfg(test)]
#[path = "topology_tests.rs"]
mod tests;
