//! Node selectors and node affinity.

use meta::selector::{Operator, Requirement, aggregate, requirement_errors};
use meta::{FieldPath, LabelSelector};
use serde_json::Value;

/// A term of a node selector: all its requirements must hold. A term without any matches nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeSelectorTerm {
    labels: LabelSelector,
    /// Requirements on fields; `metadata.name` is the only one.
    fields: LabelSelector,
    /// Errors of the requirements on labels, each with its path below the term. A term with errors matches nothing.
    errors: Vec<Box<str>>,
}

fn requirements(list: &Value, errors: &mut Vec<Box<str>>) -> Option<LabelSelector> {
    let mut s = LabelSelector::everything();
    for (i, e) in list.as_array().into_iter().flatten().enumerate() {
        let operator = match e["operator"].as_str()? {
            "In" => Operator::In,
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            "Gt" => Operator::GreaterThan,
            "Lt" => Operator::LessThan,
            _ => return None,
        };
        let values = e["values"].as_array().into_iter().flatten();
        let values: Vec<String> = values.filter_map(Value::as_str).map(str::to_owned).collect();
        let mut requirement = Requirement { key: e["key"].as_str().unwrap_or_default().into(), operator, values };
        let at = FieldPath::root().child("matchExpressions").index(i);
        errors.extend(requirement_errors(&requirement, &at).into_iter().map(|e| e.to_string().into()));
        requirement.values.sort();
        s.requirements.push(requirement);
    }
    Some(s)
}

impl NodeSelectorTerm {
    /// Reads a `NodeSelectorTerm`. One that is invalid matches nothing.
    pub fn read(v: &Value) -> Self {
        let mut errors = Vec::new();
        let labels = requirements(&v["matchExpressions"], &mut errors).unwrap_or_else(LabelSelector::none);
        // Names of nodes need not be label values.
        let fields = requirements(&v["matchFields"], &mut Vec::new()).unwrap_or_else(LabelSelector::none);
        if labels.is_everything() && fields.is_everything() {
            return Self { labels: LabelSelector::none(), fields, errors };
        }
        Self { labels, fields, errors }
    }

    /// Whether the term matches the node of that name and labels.
    pub fn matches<'a>(&self, name: &'a str, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.errors.is_empty()
            && self.labels.matches(label)
            && self.fields.matches(|k| (k == "metadata.name").then_some(name))
    }

    /// The requirements that a node of that name and labels does not meet. None for a term that matches nothing at all.
    pub fn unmet<'a>(&self, name: &'a str, label: impl Fn(&str) -> Option<&'a str>) -> Option<Vec<Requirement>> {
        if self.labels.nothing || self.fields.nothing || !self.errors.is_empty() {
            return None;
        }
        let single = |r: &Requirement| LabelSelector { requirements: vec![r.clone()], nothing: false };
        let labels = self.labels.requirements.iter().filter(|r| !single(r).matches(&label));
        let field = |k: &str| (k == "metadata.name").then_some(name);
        let fields = self.fields.requirements.iter().filter(|r| !single(r).matches(field));
        Some(labels.chain(fields).cloned().collect())
    }

    /// The node names that this term is limited to (`metadata.name In (…)`, as written by the DaemonSet controller), if any. Of
    /// several such requirements, the names that all of them have.
    pub fn names(&self) -> Option<Vec<String>> {
        let limits = self.fields.requirements.iter();
        let mut limits = limits.filter(|r| r.key == "metadata.name" && r.operator == Operator::In);
        let mut names = limits.next()?.values.clone();
        limits.for_each(|r| names.retain(|n| r.values.contains(n)));
        Some(names)
    }
}

/// The node selector of a pod, and its required and preferred node affinity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeAffinity {
    /// `spec.nodeSelector`: labels that the node must have.
    pub selector: Vec<(Box<str>, Box<str>)>,
    /// Terms, one of which must match; none means no requirement.
    pub required: Option<Vec<NodeSelectorTerm>>,
    /// Terms with their weights, for scoring.
    pub preferred: Vec<(i64, NodeSelectorTerm)>,
}

impl NodeAffinity {
    /// Reads `spec.nodeSelector` and `spec.affinity.nodeAffinity` of a pod; `null` where there is none.
    pub fn read(selector: &Value, affinity: &Value) -> Self {
        let required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            .as_array()
            .map(|t| t.iter().map(NodeSelectorTerm::read).collect());
        let preferred = affinity["preferredDuringSchedulingIgnoredDuringExecution"].as_array().into_iter().flatten();
        Self {
            selector: selector
                .as_object()
                .into_iter()
                .flatten()
                .map(|(k, v)| (k.as_str().into(), v.as_str().unwrap_or_default().into()))
                .collect(),
            required,
            preferred: preferred
                .map(|p| (p["weight"].as_i64().unwrap_or(0), NodeSelectorTerm::read(&p["preference"])))
                .collect(),
        }
    }

    /// The errors of the preferred terms, which keep a scheduler from scoring nodes (upstream `NewPreferredSchedulingTerms`).
    pub fn preferred_errors(&self) -> Option<String> {
        let terms = self.preferred.iter().enumerate().filter(|(_, (weight, _))| *weight != 0);
        aggregate(terms.flat_map(|(i, (_, term))| term.errors.iter().map(move |e| format!("[{i}].{e}"))))
    }

    /// Whether any node may be excluded.
    pub fn is_required(&self) -> bool {
        !self.selector.is_empty() || self.required.is_some()
    }

    /// Whether the selector and the required terms admit the node of that name and labels.
    pub fn admits<'a>(&self, name: &'a str, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.selector.iter().all(|(k, v)| label(k) == Some(v))
            && self.required.as_ref().is_none_or(|terms| terms.iter().any(|t| t.matches(name, &label)))
    }

    /// The requirements that a node of that name and labels does not meet.
    pub fn unmet<'a>(&self, name: &'a str, label: impl Fn(&str) -> Option<&'a str>) -> Unmet {
        let selected = self.selector.iter().filter(|(k, v)| label(k) != Some(v));
        let selector = selected
            .map(|(k, v)| Requirement { key: k.to_string(), operator: Operator::In, values: vec![v.to_string()] })
            .collect();
        let terms = self.required.iter().flatten();
        let mut alternatives: Vec<Vec<Requirement>> = terms.filter_map(|t| t.unmet(name, &label)).collect();
        if alternatives.iter().any(Vec::is_empty) {
            alternatives.clear();
        }
        alternatives.sort_by_key(Vec::len);
        Unmet { selector, alternatives }
    }
}

/// The requirements of a [`NodeAffinity`] that a node does not meet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unmet {
    /// Requirements of the node selector: the node has to meet all of them.
    pub selector: Vec<Requirement>,
    /// For each required term, its requirements; the node has to meet those of one term. The shortest come first.
    pub alternatives: Vec<Vec<Requirement>>,
}
