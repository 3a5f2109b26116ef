//! Node selector and node affinity.

use crate::cluster::{Cluster, Node, NodeEntry};
use crate::explain::{Change, Shortfall};
use crate::framework::{Event, NodeFilter, NodeScore, Plugin, Point, PreFilter, Read, Refusal, normalize};
use crate::pod::Pod;
use meta::LabelSelector;
use meta::selector::{Operator, Requirement};

const NAME: &str = "NodeAffinity";

/// The affinity of pods, and `added` to it.
#[derive(Default)]
pub struct NodeAffinity {
    pub added: placement::NodeAffinity,
}

struct Check<'a> {
    own: &'a placement::NodeAffinity,
    added: &'a placement::NodeAffinity,
}

impl NodeAffinity {
    fn check<'a>(&'a self, pod: &'a Pod) -> Check<'a> {
        Check { own: &pod.view.affinity, added: &self.added }
    }
}

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter, Point::PreScore, Point::Score]
    }

    fn pre_filter<'a>(&'a self, pod: &'a Pod, _: &'a Cluster) -> PreFilter<'a> {
        if !pod.view.affinity.is_required() && !self.added.is_required() {
            return Ok(None);
        }
        let check = self.check(pod);
        if check.names().is_some_and(|n| n.is_empty()) {
            return Err(Refusal::unresolvable(NAME, "pod affinity terms conflict"));
        }
        Ok(Some(Box::new(check)))
    }

    fn pre_score<'a>(&'a self, pod: &'a Pod, _: &'a Cluster, _: &[&'a Node]) -> Option<Box<dyn NodeScore + 'a>> {
        let any = !pod.view.affinity.preferred.is_empty() || !self.added.preferred.is_empty();
        any.then(|| Box::new(self.check(pod)) as Box<dyn NodeScore>)
    }

    fn weight(&self) -> i64 {
        2
    }

    fn reads(&self) -> &'static [Read] {
        &[Read::Nodes, Read::NodeLabels, Read::OwnAffinity]
    }

    fn hint(&self, pod: &Pod, event: &Event<'_>) -> bool {
        let admits = |n: &NodeEntry| pod.view.affinity.admits(&n.meta.name, |k| n.meta.label(k));
        match event {
            Event::NodeAdded(n) => admits(n),
            Event::NodeChanged { old, new } => admits(new) && !admits(old),
            _ => true,
        }
    }
}

impl NodeFilter for Check<'_> {
    fn check(&self, node: &Node) -> Result<(), Refusal> {
        let Some(n) = &node.entry else { return Ok(()) };
        if !self.added.admits(&n.meta.name, |k| n.meta.label(k)) {
            return Err(Refusal::unresolvable(NAME, "node(s) didn't match scheduler-enforced node affinity"));
        }
        if !self.own.admits(&n.meta.name, |k| n.meta.label(k)) {
            return Err(Refusal::unresolvable(NAME, "node(s) didn't match Pod's node affinity/selector"));
        }
        Ok(())
    }

    fn shortfalls(&self, node: &Node) -> Vec<Shortfall> {
        let Some(n) = &node.entry else { return Vec::new() };
        let label = |k: &str| n.meta.label(k);
        let unmet = [self.added, self.own].into_iter().flat_map(|a| a.unmet(&n.meta.name, label));
        unmet.map(|r| unmet_requirement(r, label)).collect()
    }

    /// The names that the terms are limited to, if all of them are limited.
    fn names(&self) -> Option<Vec<String>> {
        let mut all = Vec::new();
        for t in self.own.required.as_ref().filter(|terms| !terms.is_empty())? {
            all.extend(t.names()?);
        }
        all.sort();
        all.dedup();
        Some(all)
    }
}

/// A requirement on labels or on the name of the node that it does not meet.
fn unmet_requirement<'a>(requirement: Requirement, label: impl Fn(&str) -> Option<&'a str>) -> Shortfall {
    let (key, values) = (requirement.key.clone(), requirement.values.clone());
    let change = match (requirement.operator, values.first()) {
        _ if key == "metadata.name" => None,
        (Operator::In | Operator::Equals | Operator::DoubleEquals, Some(value)) => {
            Some(Change::SetLabel { key: key.clone(), value: value.clone() })
        }
        (Operator::Exists, _) => Some(Change::SetLabel { key: key.clone(), value: String::new() }),
        (Operator::NotIn | Operator::NotEquals | Operator::DoesNotExist, _) => {
            Some(Change::RemoveLabel { key: key.clone() })
        }
        _ => None,
    };
    let text = match (requirement.operator, values.as_slice()) {
        (Operator::In, [value]) => format!("{key}={value}"),
        _ => LabelSelector { requirements: vec![requirement], nothing: false }.to_string(),
    };
    let has = match label(&key) {
        _ if key == "metadata.name" => String::new(),
        Some(value) => format!(", the node has {key}={value}"),
        None => format!(", the node has no label {key}"),
    };
    let missing = Shortfall::new(&text, format!("the pod requires {text}{has}"));
    match change {
        Some(change) => missing.remedy(change),
        None => missing,
    }
}

impl NodeScore for Check<'_> {
    fn score(&self, node: &Node) -> i64 {
        let Some(n) = &node.entry else { return 0 };
        let preferred = self.added.preferred.iter().chain(&self.own.preferred);
        preferred.filter(|(_, t)| t.matches(&n.meta.name, |k| n.meta.label(k))).map(|(w, _)| w).sum()
    }

    fn normalize(&self, scores: &mut [i64]) {
        normalize(scores, false);
    }
}
