//! What a pod misses on a node.

use super::Change;
use crate::pod::Pod;
use meta::Quantity;
use placement::Taint;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How many pods one shortfall names.
const MOST_PODS: usize = 5;

/// What a pod misses on a node, according to one rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Shortfall {
    /// The scheduler plugin: `NodeResourcesFit`.
    pub rule: String,
    /// What is missing, without numbers, so that equal shortfalls of nodes have equal names: `cpu`, `dedicated=gpu:NoSchedule`.
    pub what: String,
    /// The sentence with numbers.
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub amounts: Option<Amounts>,
    /// The pods that are in the way, as far as they are known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<PodName>,
    /// The number of pods in the way whose names the reader may not see.
    #[serde(skip_serializing_if = "is_zero")]
    pub hidden_pods: usize,
    /// Changes that may supply it.
    #[serde(skip)]
    pub remedies: Vec<Change>,
    /// How far the node is from fitting; 1 for what has no amount.
    #[serde(skip)]
    pub cost: f64,
}

/// The amounts of a resource, as quantities.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Amounts {
    pub requested: String,
    pub free: String,
    pub allocatable: String,
}

/// The name of a pod in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodName {
    pub namespace: String,
    pub name: String,
}

impl From<&Pod> for PodName {
    fn from(pod: &Pod) -> Self {
        Self { namespace: pod.meta.namespace.to_string(), name: pod.meta.name.to_string() }
    }
}

pub(super) fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// Removes the pods whose namespaces are not readable; returns their number.
pub fn hide(pods: &mut Vec<PodName>, readable: &impl Fn(&str) -> bool) -> usize {
    let all = pods.len();
    pods.retain(|p| readable(&p.namespace));
    all - pods.len()
}

impl Shortfall {
    pub fn new(what: &str, message: impl Into<String>) -> Self {
        Self { what: what.into(), message: message.into(), cost: 1.0, ..Self::default() }
    }

    /// A reason of a refusal, without the counted noun of event messages.
    pub fn of_reason(reason: &str) -> Self {
        let text = match reason.strip_prefix("node(s) ") {
            Some(text) => format!("the node {text}"),
            None => reason.to_owned(),
        };
        Self::new(reason, text)
    }

    #[must_use]
    pub fn of_rule(mut self, rule: &str) -> Self {
        self.rule = rule.into();
        self
    }

    #[must_use]
    pub fn amounts(mut self, resource: &str, requested: i64, free: i64, allocatable: i64) -> Self {
        self.cost = (requested - free) as f64 / requested.max(1) as f64;
        let text = |v: i64| exact(resource, v).to_string();
        self.amounts = Some(Amounts { requested: text(requested), free: text(free), allocatable: text(allocatable) });
        self
    }

    #[must_use]
    pub fn pods<'a>(mut self, pods: impl Iterator<Item = &'a Arc<Pod>>) -> Self {
        self.pods = pods.take(MOST_PODS).map(|p| PodName::from(&**p)).collect();
        self
    }

    /// Adds a change that may supply what is missing. Smaller changes come first.
    #[must_use]
    pub fn remedy(mut self, change: Change) -> Self {
        self.remedies.push(change);
        self
    }
}

/// An amount of a resource in its usual format.
pub fn exact(resource: &str, v: i64) -> Quantity {
    match resource {
        "cpu" => Quantity::from_milli(v),
        "memory" | "ephemeral-storage" => Quantity::binary(v),
        name if name.starts_with("hugepages-") => Quantity::binary(v),
        _ => Quantity::from_int(v),
    }
}

/// An amount of a resource for people: bytes are rounded down to a unit of which there are at least ten.
pub fn amount(resource: &str, v: i64) -> String {
    let bytes = matches!(resource, "memory" | "ephemeral-storage") || resource.starts_with("hugepages-");
    let unit = [1i64 << 30, 1 << 20, 1 << 10].into_iter().find(|unit| bytes && v >= 10 * unit).unwrap_or(1);
    let whole = [1i64 << 30, 1 << 20, 1 << 10].into_iter().find(|unit| v % unit == 0).unwrap_or(1);
    exact(resource, v - v % unit.max(whole)).to_string()
}

/// `key=value:effect`, or `key:effect` without a value.
pub fn taint_text(taint: &Taint) -> String {
    match &*taint.value {
        "" => format!("{}:{}", taint.key, taint.effect),
        value => format!("{}={value}:{}", taint.key, taint.effect),
    }
}

/// The end of a noun.
pub fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// A quantity of a resource for people.
pub fn amount_text(resource: &str, quantity: &Quantity) -> String {
    amount(resource, if resource == "cpu" { quantity.milli_value() } else { quantity.value() })
}
