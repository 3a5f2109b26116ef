//! The decision about a pod: a node, or the reasons why none fits.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Why a pod, or a node for it, is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub plugin: &'static str,
    /// In upstream's words. Events count them over nodes.
    pub reasons: Vec<Cow<'static, str>>,
    /// Whether evicting pods from the node could help.
    pub resolvable: bool,
}

impl Refusal {
    /// Evicting pods could help (`Unschedulable`).
    pub fn resolvable(plugin: &'static str, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { plugin, reasons: vec![reason.into()], resolvable: true }
    }

    /// Evicting pods cannot help (`UnschedulableAndUnresolvable`).
    pub fn unresolvable(plugin: &'static str, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { plugin, reasons: vec![reason.into()], resolvable: false }
    }
}

/// The decision about a pod.
#[derive(Debug)]
pub struct Decision {
    /// The chosen node; none if no node fits.
    pub node: Option<Arc<str>>,
    /// The number of nodes in the cluster.
    pub nodes: usize,
    /// The number of nodes that were filtered.
    pub evaluated: usize,
    /// The number of nodes that passed.
    pub feasible: usize,
    /// Why all nodes were refused at once (PreFilter).
    pub pod_refusal: Option<Refusal>,
    /// Why nodes were refused. Complete if no node fits.
    pub refusals: Vec<(Arc<str>, Refusal)>,
    /// The weighted scores of the chosen node, by plugin.
    pub scores: Vec<(&'static str, i64)>,
}

impl Decision {
    /// The plugins that refused the pod or a node.
    pub fn refused_by(&self) -> BTreeSet<&'static str> {
        self.refusals.iter().map(|(_, r)| r).chain(&self.pod_refusal).map(|r| r.plugin).collect()
    }

    /// The reasons, counted over nodes: the message of the event and of the condition of the pod.
    pub fn message(&self) -> String {
        if self.nodes == 0 {
            return "no nodes available to schedule pods".into();
        }
        if let Some(refusal) = &self.pod_refusal {
            return format!("0/{} nodes are available: {}.", self.nodes, refusal.reasons.join(", "));
        }
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for reason in self.refusals.iter().flat_map(|(_, r)| &r.reasons) {
            *counts.entry(reason).or_default() += 1;
        }
        let mut parts: Vec<String> = counts.iter().map(|(r, n)| format!("{n} {r}")).collect();
        parts.sort();
        match parts.is_empty() {
            true => format!("0/{} nodes are available", self.nodes),
            false => format!("0/{} nodes are available: {}.", self.nodes, parts.join(", ")),
        }
    }
}
