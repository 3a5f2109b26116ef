//! Explains why no node fits a pod, and which single change of the pod or of a node would make it fit. Pure: data to data.
//!
//! Each filter reports what a pod misses on a node ([`Shortfall`]) with the changes that may supply it. A change is suggested only if the
//! pod, or the node, passes all filters once it is changed in memory. Extenders are not called.

mod change;
mod shortfall;
mod suggest;

pub use change::Change;
pub use shortfall::{Amounts, PodName, Shortfall, amount, amount_text, plural, taint_text};

use crate::cluster::Cluster;
use crate::filters::Filters;
use crate::framework::Framework;
use crate::pod::Pod;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::time::Instant;

/// How many names of nodes that fit are listed.
const MOST_NAMES: usize = 5;

/// Why no node fits a pod, or which nodes do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Explanation {
    /// The number of nodes in the cluster.
    pub node_count: usize,
    /// The number of nodes that the pod fits now.
    pub fitting_count: usize,
    /// The first of them.
    pub fitting: Vec<String>,
    /// Why the pod is refused whatever the node is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<Shortfall>,
    /// The number of nodes that were not looked at, because the time was up.
    #[serde(skip_serializing_if = "shortfall::is_zero")]
    pub unexplained_count: usize,
    /// The nodes that do not fit, in the order in which they are searched.
    pub nodes: Vec<NodeExplanation>,
    /// Changes each of which makes the pod fit, the smallest first.
    pub suggestions: Vec<Suggestion>,
    /// The nodes that miss the least, if no change is suggested.
    pub nearest: Vec<NodeExplanation>,
    /// Whether every node misses several things that no single change supplies. Otherwise a change may exist that is not suggested.
    pub needs_several_changes: bool,
}

/// What a pod misses on a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeExplanation {
    pub node: String,
    pub shortfalls: Vec<Shortfall>,
}

/// A change that makes a pod fit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Suggestion {
    pub change: Change,
    /// The first of the nodes that fit after the change.
    pub nodes: Vec<String>,
    /// How many nodes fit after the change, as far as they were tried.
    pub node_count: usize,
    /// The suggestion as text: `fits node-3 with 300m less cpu`.
    pub message: String,
}

/// Explains why no node fits a pod, from the state of a cluster. What takes longer than `limit` is left out: pods can have hundreds of
/// terms, and clusters thousands of nodes.
pub fn explain(framework: &Framework, pod: &Pod, cluster: &Cluster, limit: Duration) -> Explanation {
    let end = Instant::now() + limit;
    let is_over = || Instant::now() >= end;
    let mut e = Explanation { node_count: cluster.live(), ..Explanation::default() };
    match Filters::new(framework, pod, cluster) {
        Ok(filters) => {
            for node in cluster.search_order().iter().filter_map(|slot| cluster.nodes().get(*slot)) {
                if is_over() {
                    e.unexplained_count += 1;
                    continue;
                }
                let shortfalls = filters.shortfalls(node);
                if shortfalls.is_empty() {
                    e.fitting_count += 1;
                    if e.fitting.len() < MOST_NAMES {
                        e.fitting.push(node.name.to_string());
                    }
                } else {
                    e.nodes.push(NodeExplanation { node: node.name.to_string(), shortfalls });
                }
            }
        }
        Err(refusal) => {
            e.refused = Some(Shortfall::of_reason(&refusal.reasons.join(", ")).of_rule(refusal.plugin));
            if !refusal.resolvable {
                return e;
            }
        }
    }
    if e.fitting_count == 0 && e.node_count > 0 && !is_over() {
        e.suggestions = suggest::suggestions(framework, pod, cluster, &e.nodes, &is_over);
        if e.suggestions.is_empty() && !is_over() {
            e.nearest = suggest::nearest(&e.nodes);
            e.needs_several_changes = e.unexplained_count == 0 && suggest::need_several_changes(&e.nodes);
        }
    }
    e
}

impl Explanation {
    /// The namespaces of the pods that the explanation names.
    pub fn namespaces(&self) -> std::collections::BTreeSet<String> {
        let shortfalls = self.nodes.iter().chain(&self.nearest).flat_map(|n| &n.shortfalls);
        let changes = self.suggestions.iter().flat_map(|s| s.change.pods());
        shortfalls.flat_map(|s| &s.pods).chain(changes).map(|p| p.namespace.clone()).collect()
    }

    /// Replaces the names of pods of namespaces that the reader may not read by their number.
    pub fn hide_pods(&mut self, readable: impl Fn(&str) -> bool) {
        for shortfall in self.nodes.iter_mut().chain(&mut self.nearest).flat_map(|n| &mut n.shortfalls) {
            shortfall.hidden_pods += shortfall::hide(&mut shortfall.pods, &readable);
        }
        for suggestion in &mut self.suggestions {
            suggestion.change.hide_pods(&readable);
            suggestion.message = suggestion.text();
        }
    }
}

impl Suggestion {
    fn text(&self) -> String {
        let first = self.nodes.first().map_or("a node", String::as_str);
        let others = match self.node_count.saturating_sub(1) {
            0 => String::new(),
            n => format!(" and {n} other node{}", plural(n)),
        };
        format!("fits {first}{others} {}", self.change)
    }
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
