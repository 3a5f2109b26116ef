//! Affinity and anti-affinity terms between pods.

use client::Meta;
use meta::LabelSelector;
use serde_json::Value;

/// A term: a topology key and the pods to count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Term {
    pub topology_key: Box<str>,
    selector: LabelSelector,
    namespaces: Vec<Box<str>>,
    /// `{}` selects every namespace.
    namespace_selector: Option<LabelSelector>,
}

/// The labels of each namespace, by name.
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

    /// The label selector as text.
    pub fn selector_text(&self) -> String {
        match self.selector.is_everything() {
            true => "any labels".into(),
            false => self.selector.to_string(),
        }
    }

    /// Whether the term of the pod `owner` selects the pod `other`.
    pub fn matches(&self, owner: &Meta, other: &Meta, labels: &NamespaceLabels) -> bool {
        self.selects(&owner.namespace, other, labels)
    }

    /// Whether the term of the pod `owner` selects the pod `other`, if its namespace selector selects all namespaces.
    pub fn may_match(&self, owner: &Meta, other: &Meta) -> bool {
        let ns = &*other.namespace;
        let own = self.namespaces.is_empty() && owner.namespace == other.namespace;
        let in_namespace = own || self.namespace_selector.is_some() || self.namespaces.iter().any(|n| **n == *ns);
        in_namespace && self.selector.matches(|k| other.label(k))
    }

    /// Whether the term of a pod of a namespace selects the pod `other`.
    pub fn selects(&self, namespace: &str, other: &Meta, labels: &NamespaceLabels) -> bool {
        let ns = &*other.namespace;
        let in_namespace = if self.namespaces.is_empty() && self.namespace_selector.is_none() {
            *namespace == *other.namespace
        } else {
            self.namespaces.iter().any(|n| &**n == ns)
                || self.namespace_selector.as_ref().is_some_and(|s| {
                    let labels = labels.get(ns);
                    s.matches(|k| labels?.get(k))
                })
        };
        in_namespace && self.selector.matches(|k| other.label(k))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodAffinity {
    pub required: Vec<Term>,
    pub anti_required: Vec<Term>,
    /// Weights and terms; the weights of anti-affinity are negative.
    pub preferred: Vec<(i64, Term)>,
}

impl PodAffinity {
    /// Whether there is any term.
    pub fn is_any(&self) -> bool {
        !self.required.is_empty() || !self.anti_required.is_empty() || !self.preferred.is_empty()
    }

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
