//! Numbers of pods by topology domain, kept up to date while pods come and go.
//!
//! Two kinds of counts: of the pods that a [`Matcher`] matches, made when a decision first needs them; and of the affinity terms of placed
//! pods, by term. Invariant: they are what counting all pods of the nodes that exist would give. A change of the labels of a node drops them.

use crate::cluster::{Node, NodeEntry};
use crate::pod::Pod;
use crate::pod_affinity::{NamespaceLabels, Term};
use meta::LabelSelector;
use meta::selector::Requirement;
use placement::{EXCLUDING, NodeAffinity, Toleration, untolerated};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Pods by the value of a topology key.
pub type ByDomain = Arc<HashMap<Box<str>, i64>>;

/// The most queries and domains whose counts are kept, together.
const MOST: usize = 1_000_000;

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

/// The nodes that count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Included {
    /// Only nodes with all of these labels.
    pub labels: Vec<Box<str>>,
    /// Only nodes that the required affinity of a pod admits.
    pub affinity: Option<NodeAffinity>,
    /// Only nodes whose taints a pod with these tolerations tolerates.
    pub tolerations: Option<Vec<Toleration>>,
}

impl Included {
    /// Whether a node counts.
    pub fn admits(&self, node: &NodeEntry) -> bool {
        let label = |k: &str| node.meta.label(k);
        self.labels.iter().all(|k| label(k).is_some())
            && self.affinity.as_ref().is_none_or(|a| a.admits(&node.meta.name, label))
            && self.tolerations.as_ref().is_none_or(|t| untolerated(&node.view.taints, EXCLUDING, t).is_none())
    }
}

/// Counts of the pods of a matcher, by the values of `key`; by node, if that is empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Query {
    pub matcher: Matcher,
    pub key: Box<str>,
    /// Which nodes count; all, if pods are counted by node.
    pub included: Included,
}

impl Query {
    /// The domain of a node, if it counts.
    fn domain<'a>(&self, node: &'a NodeEntry) -> Option<&'a str> {
        if self.key.is_empty() {
            return Some(&node.meta.name);
        }
        node.meta.label(&self.key).filter(|_| self.included.admits(node))
    }

    /// Where the counts of the query are found for a pod that changes.
    fn place(&self) -> Place<'_> {
        let Matcher::Spread { namespace, selector } = &self.matcher else { return Place::Any };
        Place::Labelled(namespace, selector.requirements.iter().find_map(Requirement::equal_to))
    }
}

/// Which pods a matcher can match: any, or those of a namespace with a label.
enum Place<'a> {
    Any,
    Labelled(&'a Arc<str>, Option<(&'a str, &'a str)>),
}

struct Counted {
    query: Query,
    domains: ByDomain,
    used: u64,
}

/// Queries by number.
type Numbers = Vec<u64>;

/// The queries of a namespace, by a label that the pods they count have.
#[derive(Default)]
struct Labelled {
    by_label: HashMap<Box<str>, HashMap<Box<str>, Numbers>>,
    /// Those of no single label.
    others: Numbers,
}

/// Counts by query, and which of them a pod can change.
#[derive(Default)]
struct Queries {
    counted: BTreeMap<u64, Counted>,
    numbers: HashMap<Query, u64>,
    by_namespace: HashMap<Arc<str>, Labelled>,
    any: Numbers,
    next: u64,
    /// The size of all queries.
    domains: usize,
}

/// What a query counts of [`MOST`]: its domains, and itself, since it may have none.
fn size(domains: &ByDomain) -> usize {
    domains.len() + 1
}

impl Queries {
    fn get(&mut self, query: &Query, now: u64) -> Option<ByDomain> {
        let counted = self.counted.get_mut(self.numbers.get(query)?)?;
        counted.used = now;
        Some(counted.domains.clone())
    }

    /// The numbers of the queries of a place.
    fn place(&mut self, place: Place<'_>) -> &mut Numbers {
        let (namespace, label) = match place {
            Place::Any => return &mut self.any,
            Place::Labelled(namespace, label) => (namespace, label),
        };
        let labelled = self.by_namespace.entry(namespace.clone()).or_default();
        match label {
            None => &mut labelled.others,
            Some((key, value)) => labelled.by_label.entry(key.into()).or_default().entry(value.into()).or_default(),
        }
    }

    fn insert(&mut self, query: Query, domains: ByDomain, now: u64) {
        while self.domains + size(&domains) > MOST && !self.counted.is_empty() {
            let oldest = self.counted.iter().min_by_key(|(_, c)| c.used).map(|(n, _)| *n);
            oldest.into_iter().for_each(|n| self.remove(n));
        }
        self.domains += size(&domains);
        let number = self.next;
        self.next += 1;
        self.place(query.place()).push(number);
        self.numbers.insert(query.clone(), number);
        self.counted.insert(number, Counted { query, domains, used: now });
    }

    fn remove(&mut self, number: u64) {
        let Some(counted) = self.counted.remove(&number) else { return };
        self.domains -= size(&counted.domains).min(self.domains);
        self.numbers.remove(&counted.query);
        self.place(counted.query.place()).retain(|n| *n != number);
        if let Place::Labelled(namespace, label) = counted.query.place() {
            self.tidy(namespace, label);
        }
    }

    /// Removes a place without queries.
    fn tidy(&mut self, namespace: &Arc<str>, label: Option<(&str, &str)>) {
        let Some(labelled) = self.by_namespace.get_mut(namespace) else { return };
        if let Some((key, value)) = label
            && let Some(values) = labelled.by_label.get_mut(key)
        {
            if values.get(value).is_some_and(Vec::is_empty) {
                values.remove(value);
            }
            if values.is_empty() {
                labelled.by_label.remove(key);
            }
        }
        if labelled.by_label.is_empty() && labelled.others.is_empty() {
            self.by_namespace.remove(namespace);
        }
    }

    /// The queries that can match a pod.
    fn candidates(&self, pod: &Pod) -> Numbers {
        let mut found = self.any.clone();
        if let Some(labelled) = self.by_namespace.get(&pod.meta.namespace) {
            found.extend(&labelled.others);
            let pairs = pod.meta.labels.iter();
            let known = pairs.filter_map(|(k, v)| labelled.by_label.get(k)?.get(v));
            found.extend(known.flatten());
        }
        found
    }
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
    queries: Queries,
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
        self.queries = Queries::default();
        self.terms = None;
    }

    /// Forgets the counts that depend on taints.
    pub fn taints_changed(&mut self) {
        let tainted = self.queries.counted.iter().filter(|(_, c)| c.query.included.tolerations.is_some());
        let tainted: Numbers = tainted.map(|(n, _)| *n).collect();
        tainted.into_iter().for_each(|n| self.queries.remove(n));
    }

    /// Counts a pod that is placed on a node (1) or removed from it (-1).
    pub fn change(&mut self, pod: &Pod, node: &Node, labels: &NamespaceLabels, delta: i64) {
        let Some(entry) = &node.entry else { return };
        for number in self.queries.candidates(pod) {
            let Some(counted) = self.queries.counted.get_mut(&number) else { continue };
            let query = &counted.query;
            if let Some(domain) = query.domain(entry).filter(|_| query.matcher.matches(pod, labels)) {
                let before = counted.domains.len();
                add(&mut counted.domains, domain, delta);
                self.queries.domains += counted.domains.len() - before;
            }
        }
        if pod.view.pod_affinity.is_any()
            && let Some(terms) = &mut self.terms
        {
            terms.change(pod, entry, delta);
        }
    }

    /// The pods of a query by domain. Domains without pods count zero; nodes without pods may be absent.
    pub fn count(&mut self, query: Query, nodes: &[Node], labels: &NamespaceLabels) -> ByDomain {
        self.clock += 1;
        if let Some(domains) = self.queries.get(&query, self.clock) {
            return domains;
        }
        let by_node = query.key.is_empty();
        let mut domains: HashMap<Box<str>, i64> = HashMap::new();
        for node in nodes {
            let Some(domain) = node.entry.as_ref().and_then(|n| query.domain(n)) else { continue };
            let count = node.pods.iter().filter(|p| query.matcher.matches(p, labels)).count() as i64;
            match domains.get_mut(domain) {
                Some(sum) => *sum += count,
                None if by_node && count == 0 => {}
                None => drop(domains.insert(domain.into(), count)),
            }
        }
        let domains: ByDomain = Arc::new(domains);
        self.queries.insert(query, domains.clone(), self.clock);
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
