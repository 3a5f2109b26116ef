//! Where a pod goes, and why: data to data.

use crate::cluster::{Cluster, Node};
use crate::framework::{NodeFilter, NodeScore, Plugin, Refusal};
use crate::pod::Pod;
use meta::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;

/// At least so many feasible nodes are looked for before they are scored.
const FEW: usize = 100;

/// What came of a pod.
#[derive(Debug)]
pub struct Decision {
    /// The node, or none will do.
    pub node: Option<Arc<str>>,
    /// How many nodes there are.
    pub nodes: usize,
    /// How many nodes were asked.
    pub asked: usize,
    pub feasible: usize,
    /// Why the others were refused. Complete when no node will do.
    pub refusals: Vec<(Arc<str>, Refusal)>,
    /// The weighted scores of the chosen node, by plugin.
    pub scores: Vec<(&'static str, i64)>,
}

/// How many feasible nodes are enough (upstream `numFeasibleNodesToFind`): a share that falls with the size of the cluster.
pub fn enough(nodes: usize) -> usize {
    if nodes < FEW {
        return nodes;
    }
    let percent = 50usize.saturating_sub(nodes / 125).max(5);
    (nodes * percent / 100).max(FEW)
}

/// The plugins' answers for one pod.
pub struct Prepared<'a> {
    filters: Vec<Box<dyn NodeFilter + 'a>>,
    names: Option<Vec<String>>,
}

impl<'a> Prepared<'a> {
    pub fn new(plugins: &[Box<dyn Plugin>], pod: &'a Pod, cluster: &'a Cluster) -> Self {
        let filters: Vec<_> = plugins.iter().filter_map(|p| p.filter(pod, cluster)).collect();
        let names = filters.iter().find_map(|f| f.names());
        Self { filters, names }
    }

    pub fn check(&self, node: &Node) -> Result<(), Refusal> {
        self.filters.iter().try_for_each(|f| f.check(node))
    }
}

/// Decides on one pod. `start` is where to begin among the nodes, so that small pods do not all look at the same ones.
pub fn decide(plugins: &[Box<dyn Plugin>], pod: &Pod, cluster: &Cluster, start: usize, rng: &dyn Rng) -> Decision {
    let prepared = Prepared::new(plugins, pod, cluster);
    let nodes = cluster.nodes();
    let mut d =
        Decision { node: None, nodes: cluster.live(), asked: 0, feasible: 0, refusals: Vec::new(), scores: Vec::new() };
    let mut feasible: Vec<&Node> = Vec::new();
    let wanted = enough(cluster.live());
    let mut ask = |node: &'_ Node| {
        d.asked += 1;
        match prepared.check(node) {
            Ok(()) => true,
            Err(r) => {
                d.refusals.push((node.name.clone(), r));
                false
            }
        }
    };
    match &prepared.names {
        // Limited by name: the others need not be asked.
        Some(names) => {
            for n in names.iter().filter_map(|n| cluster.node(n)).filter(|n| n.entry.is_some()) {
                if ask(n) {
                    feasible.push(n);
                }
            }
        }
        None => {
            for i in 0..nodes.len() {
                let n = &nodes[(start + i) % nodes.len()];
                if n.entry.is_some() && ask(n) {
                    feasible.push(n);
                    if feasible.len() >= wanted {
                        break;
                    }
                }
            }
        }
    }
    if let (Some(_), true) = (&prepared.names, feasible.is_empty()) {
        let asked: std::collections::BTreeSet<_> = d.refusals.iter().map(|(n, _)| n.clone()).collect();
        for n in nodes.iter().filter(|n| n.entry.is_some() && !asked.contains(&n.name)) {
            let r = Refusal::wrong("NodeAffinity", "node(s) didn't match Pod's node affinity/selector");
            d.refusals.push((n.name.clone(), r));
        }
    }
    d.feasible = feasible.len();
    match feasible.as_slice() {
        [] => {}
        [one] => d.node = Some(one.name.clone()),
        many => {
            let (best, scores) = best(plugins, pod, cluster, many, rng);
            d.node = Some(many[best].name.clone());
            d.scores = scores;
        }
    }
    d
}

/// The index of the best node; among equals chance decides.
fn best(
    plugins: &[Box<dyn Plugin>],
    pod: &Pod,
    cluster: &Cluster,
    nodes: &[&Node],
    rng: &dyn Rng,
) -> (usize, Vec<(&'static str, i64)>) {
    let scorers: Vec<(&'static str, i64, Box<dyn NodeScore + '_>)> =
        plugins.iter().filter_map(|p| Some((p.name(), p.weight(), p.score(pod, cluster)?))).collect();
    let mut totals = vec![0i64; nodes.len()];
    let mut each: Vec<Vec<i64>> = Vec::with_capacity(scorers.len());
    for (_, weight, scorer) in &scorers {
        let mut scores: Vec<i64> = nodes.iter().map(|n| scorer.score(n)).collect();
        scorer.normalize(&mut scores);
        for (t, s) in totals.iter_mut().zip(&mut scores) {
            *s *= weight;
            *t += *s;
        }
        each.push(scores);
    }
    let max = totals.iter().copied().max().unwrap_or(0);
    let ties = totals.iter().filter(|t| **t == max).count() as u64;
    let nth = (rng.next_u64() % ties.max(1)) as usize;
    let best = totals.iter().enumerate().filter(|(_, t)| **t == max).map(|(i, _)| i).nth(nth).unwrap_or(0);
    let why = scorers.iter().zip(&each).map(|((name, ..), s)| (*name, s[best])).collect();
    (best, why)
}

impl Decision {
    /// The plugins that refused a node.
    pub fn refused_by(&self) -> std::collections::BTreeSet<&'static str> {
        self.refusals.iter().map(|(_, r)| r.plugin).collect()
    }

    /// The reasons counted over nodes, as the event and the condition of the pod say it.
    pub fn message(&self) -> String {
        if self.nodes == 0 {
            return "no nodes available to schedule pods".into();
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

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
