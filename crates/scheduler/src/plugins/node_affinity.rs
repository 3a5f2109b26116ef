//! Node selector and node affinity.

use crate::cluster::{Cluster, Node, NodeEntry};
use crate::explain::{Change, Shortfall, plural};
use crate::framework::{Event, NodeFilter, NodeScore, Plugin, Point, PreFilter, PreScore, Read, Refusal, normalize};
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

    fn pre_score<'a>(&'a self, pod: &'a Pod, _: &'a Cluster, _: &[&'a Node]) -> PreScore<'a> {
        let any = !pod.view.affinity.preferred.is_empty() || !self.added.preferred.is_empty();
        if let Some(errors) = pod.view.affinity.preferred_errors() {
            return Err(errors);
        }
        Ok(any.then(|| Box::new(self.check(pod)) as _))
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
        let mut all = Vec::new();
        for affinity in [self.added, self.own] {
            let unmet = affinity.unmet(&n.meta.name, label);
            all.extend(unmet.selector.iter().map(|r| unmet_requirement(r, label)));
            match unmet.alternatives.as_slice() {
                [single] => all.extend(single.iter().map(|r| unmet_requirement(r, label))),
                [] => {}
                several => all.push(unmet_alternatives(several, label)),
            }
        }
        all
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
fn unmet_requirement<'a>(requirement: &Requirement, label: impl Fn(&str) -> Option<&'a str>) -> Shortfall {
    let text = requirement_text(requirement);
    let has = match state_of(requirement, &label) {
        Some(state) => format!(", the node has {state}"),
        None => String::new(),
    };
    let missing = Shortfall::new(&text, format!("the pod requires {text}{has}"));
    match remedy(requirement, label) {
        Some(change) => missing.remedy(change),
        None => missing,
    }
}

/// How many alternatives are listed.
const MOST_ALTERNATIVES: usize = 5;

/// Required terms of which a node meets none, by the requirements of each that it does not meet.
fn unmet_alternatives<'a>(terms: &[Vec<Requirement>], label: impl Fn(&str) -> Option<&'a str>) -> Shortfall {
    let text = |term: &Vec<Requirement>| term.iter().map(requirement_text).collect::<Vec<_>>().join(" and ");
    let mut alternatives: Vec<String> = Vec::new();
    for alternative in terms.iter().map(text) {
        if !alternatives.contains(&alternative) {
            alternatives.push(alternative);
        }
    }
    let more = alternatives.len().saturating_sub(MOST_ALTERNATIVES);
    alternatives.truncate(MOST_ALTERNATIVES);
    if more > 0 {
        alternatives.push(format!("{more} more alternative{}", plural(more)));
    }
    let what = alternatives.join(", or ");
    let shown = terms.iter().take(MOST_ALTERNATIVES).flatten();
    let mut states: Vec<String> = shown.filter_map(|r| state_of(r, &label)).collect();
    states.sort();
    states.dedup();
    let has = if states.is_empty() { String::new() } else { format!("; the node has {}", states.join(", ")) };
    let missing = Shortfall::new(&what, format!("the pod requires {what}{has}"));
    let single = terms.iter().filter_map(|term| match term.as_slice() {
        [requirement] => remedy(requirement, &label),
        _ => None,
    });
    single.fold(missing, Shortfall::remedy)
}

/// A requirement as text: `disk=ssd`, `zone in (a,b)`.
fn requirement_text(requirement: &Requirement) -> String {
    match (requirement.operator, requirement.values.as_slice()) {
        (Operator::In, [value]) => format!("{}={value}", requirement.key),
        _ => LabelSelector { requirements: vec![requirement.clone()], nothing: false }.to_string(),
    }
}

/// The label of a node that a requirement is about: `disk=hdd`, or `no label disk`. None if it is about the name of the node.
fn state_of<'a>(requirement: &Requirement, label: impl Fn(&str) -> Option<&'a str>) -> Option<String> {
    let key = requirement.key.as_str();
    match label(key) {
        _ if key == "metadata.name" => None,
        Some(value) => Some(format!("{key}={value}")),
        None => Some(format!("no label {key}")),
    }
}

/// The change of the labels of a node that makes it meet a requirement.
fn remedy<'a>(requirement: &Requirement, label: impl Fn(&str) -> Option<&'a str>) -> Option<Change> {
    let key = requirement.key.as_str();
    let has_key = label(key).is_some();
    match (requirement.operator, requirement.values.first()) {
        _ if key == "metadata.name" => None,
        (Operator::In | Operator::Equals | Operator::DoubleEquals, Some(value)) => {
            Change::set_label(key, value, has_key)
        }
        (Operator::Exists, _) => Change::set_label(key, "", has_key),
        (Operator::NotIn | Operator::NotEquals | Operator::DoesNotExist, _) => Change::remove_label(key),
        _ => None,
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
