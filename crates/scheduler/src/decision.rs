//! The decision about a pod: a node, or the reasons why none fits.

use serde::{Deserialize, Serialize};
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
    /// Whether the plugin failed. The pod is not scheduled then, although other nodes may fit.
    pub is_error: bool,
}

impl Refusal {
    /// Evicting pods could help (`Unschedulable`).
    pub fn resolvable(plugin: &'static str, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { plugin, reasons: vec![reason.into()], resolvable: true, is_error: false }
    }

    /// Evicting pods cannot help (`UnschedulableAndUnresolvable`).
    pub fn unresolvable(plugin: &'static str, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { plugin, reasons: vec![reason.into()], resolvable: false, is_error: false }
    }

    /// The plugin failed (`Error`).
    pub fn error(plugin: &'static str, why: impl Into<Cow<'static, str>>) -> Self {
        Self { is_error: true, ..Self::unresolvable(plugin, why) }
    }
}

/// Refusals of nodes.
#[derive(Clone, Debug, Default)]
pub struct Diagnosis {
    /// The number of nodes in the cluster.
    pub nodes: usize,
    /// The nodes that were refused, with the reasons.
    pub refusals: Vec<(Arc<str>, Refusal)>,
    /// Why all nodes without a refusal of their own were refused.
    pub others: Option<Refusal>,
}

impl Diagnosis {
    /// The refusal of a node.
    pub fn refusal(&self, node: &str) -> Option<&Refusal> {
        self.refusals.iter().find(|(name, _)| &**name == node).map(|(_, refusal)| refusal).or(self.others.as_ref())
    }

    /// The reasons with the number of nodes that each refuses, in upstream's order. Empty without reasons.
    fn counted(&self) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for reason in self.refusals.iter().flat_map(|(_, r)| &r.reasons) {
            *counts.entry(reason).or_default() += 1;
        }
        let rest = self.nodes.saturating_sub(self.refusals.len());
        for reason in self.others.iter().flat_map(|r| &r.reasons).filter(|_| rest > 0) {
            *counts.entry(reason).or_default() += rest;
        }
        let mut parts: Vec<String> = counts.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        parts.sort();
        parts.join(", ")
    }

    /// How many nodes are refused for which reasons (upstream `FitError`).
    pub fn message(&self) -> String {
        let counted = self.counted();
        let end = if counted.is_empty() { String::new() } else { format!(" {counted}.") };
        format!("0/{} nodes are available:{end}", self.nodes)
    }
}

/// Nodes that an extender refused for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExtenderRefusal {
    /// The URL of the extender.
    pub extender: String,
    /// Its message; empty if it gave none.
    pub message: String,
    /// The first of the nodes.
    pub nodes: Vec<String>,
    pub node_count: usize,
}

/// How many refusals of extenders with different reasons are kept, and how many nodes of each.
const MOST_REFUSALS: usize = 20;
const MOST_NODES: usize = 5;

/// The decision about a pod.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// The chosen node; none if no node fits.
    pub node: Option<Arc<str>>,
    /// The number of nodes that were filtered.
    pub evaluated: usize,
    /// The number of nodes that passed.
    pub feasible: usize,
    /// Why all nodes were refused at once (PreFilter).
    pub pod_refusal: Option<Refusal>,
    /// Which plugin failed and why. No node is chosen then.
    pub error: Option<String>,
    /// Why nodes were refused. Complete if no node fits.
    pub diagnosis: Diagnosis,
    /// Whether extenders refused nodes that passed the filters.
    pub extenders_refused: bool,
    /// Which extenders refused which nodes.
    pub extender_refusals: Vec<ExtenderRefusal>,
    /// Why PostFilter plugins could not help.
    pub post_filter: String,
    /// The weighted scores of the chosen node, by plugin.
    pub scores: Vec<(&'static str, i64)>,
}

impl Decision {
    /// Adds a node that an extender refused.
    pub(crate) fn add_extender_refusal(&mut self, extender: &str, message: &str, node: &str) {
        // Credentials in the URL are not shown.
        let parts = extender.split_once("//").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?.1)));
        let extender = parts.map_or_else(|| extender.to_owned(), |(scheme, host)| format!("{scheme}//{host}"));
        let known = self.extender_refusals.iter().position(|r| r.extender == extender && r.message == message);
        let at = known.unwrap_or(self.extender_refusals.len());
        if at == MOST_REFUSALS {
            return;
        }
        if known.is_none() {
            let message = message.to_owned();
            self.extender_refusals.push(ExtenderRefusal { extender, message, ..ExtenderRefusal::default() });
        }
        if let Some(refusal) = self.extender_refusals.get_mut(at) {
            refusal.node_count += 1;
            if refusal.nodes.len() < MOST_NODES {
                refusal.nodes.push(node.to_owned());
            }
        }
    }

    /// The plugins that refused the pod or a node.
    pub fn refused_by(&self) -> BTreeSet<&'static str> {
        let refusals = self.diagnosis.refusals.iter().map(|(_, r)| r).chain(&self.diagnosis.others);
        let extenders = self.extenders_refused.then_some(crate::extender::NAME);
        refusals.chain(&self.pod_refusal).map(|r| r.plugin).chain(extenders).collect()
    }

    /// Why a node was refused.
    pub fn refusal(&self, node: &str) -> Option<&Refusal> {
        self.pod_refusal.as_ref().or_else(|| self.diagnosis.refusal(node))
    }

    /// The reasons, counted over nodes: the message of the event and of the condition of the pod.
    pub fn message(&self) -> String {
        if self.diagnosis.nodes == 0 {
            return "no nodes available to schedule pods".into();
        }
        let mut message = match &self.pod_refusal {
            Some(refusal) => {
                format!("0/{} nodes are available: {}.", self.diagnosis.nodes, refusal.reasons.join(", "))
            }
            None => self.diagnosis.message(),
        };
        if !self.post_filter.is_empty() {
            message.push(' ');
            message.push_str(&self.post_filter);
        }
        message
    }
}
