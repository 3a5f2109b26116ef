//! Affinity and anti-affinity between pods, as data.

use crate::pod::Pod;
use meta::LabelSelector;
use serde_json::Value;

/// Which pods a term is about, and in what part of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Term {
    pub topology_key: Box<str>,
    selector: LabelSelector,
    namespaces: Vec<Box<str>>,
    /// `{}` is every namespace.
    namespace_selector: Option<LabelSelector>,
}

/// The labels of a namespace, by its name.
pub type NamespaceLabels = std::collections::HashMap<Box<str>, client::informer::Labels>;

impl Term {
    fn read(v: &Value) -> Self {
        let selector = LabelSelector::from_value(v.get("labelSelector")).unwrap_or_else(|_| LabelSelector::none());
        let namespaces = v["namespaces"].as_array().into_iter().flatten().filter_map(Value::as_str);
        Self {
            topology_key: v["topologyKey"].as_str().unwrap_or_default().into(),
            selector,
            namespaces: namespaces.map(Into::into).collect(),
            namespace_selector: v
                .get("namespaceSelector")
                .filter(|s| !s.is_null())
                .and_then(|s| LabelSelector::from_value(Some(s)).ok()),
        }
    }

    /// Whether `other` is one of the pods that the term of `owner` is about.
    pub fn matches(&self, owner: &Pod, other: &Pod, labels: &NamespaceLabels) -> bool {
        let ns = &*other.meta.namespace;
        let there = if self.namespaces.is_empty() && self.namespace_selector.is_none() {
            owner.meta.namespace == other.meta.namespace
        } else {
            self.namespaces.iter().any(|n| &**n == ns)
                || self.namespace_selector.as_ref().is_some_and(|s| {
                    let of = labels.get(ns);
                    s.matches(|k| of?.get(k))
                })
        };
        there && self.selector.matches(|k| other.meta.label(k))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodAffinity {
    pub required: Vec<Term>,
    pub anti_required: Vec<Term>,
    /// With their weights; those of anti-affinity are negative.
    pub preferred: Vec<(i64, Term)>,
}

impl PodAffinity {
    pub fn read(affinity: &Value, anti: &Value) -> Self {
        let required = |v: &Value| {
            let terms = v["requiredDuringSchedulingIgnoredDuringExecution"].as_array().into_iter().flatten();
            terms.map(Term::read).collect()
        };
        let preferred = |v: &Value, sign: i64| -> Vec<(i64, Term)> {
            let terms = v["preferredDuringSchedulingIgnoredDuringExecution"].as_array().into_iter().flatten();
            terms.map(|t| (sign * t["weight"].as_i64().unwrap_or(0), Term::read(&t["podAffinityTerm"]))).collect()
        };
        let mut all = preferred(affinity, 1);
        all.extend(preferred(anti, -1));
        Self { required: required(affinity), anti_required: required(anti), preferred: all }
    }
}
