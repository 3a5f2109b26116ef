//! Finds the changes that make a pod fit, by trying them.

use super::change::{Change, Subject};
use super::shortfall::PodName;
use super::{MOST_NAMES, NodeExplanation, Suggestion};
use crate::cluster::Cluster;
use crate::decision::{Decision, Diagnosis, Refusal};
use crate::filters::Filters;
use crate::framework::Framework;
use crate::pod::Pod;
use crate::preemption::{self, Candidates};
use meta::Rng;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The most suggestions.
const MOST_SUGGESTIONS: usize = 5;

/// The most different changes of all nodes that are ordered.
const MOST_CANDIDATES: usize = 200;

/// How many of them are tried, and on how many nodes each, until one makes the pod fit.
const MOST_TRIED: usize = 20;
const MOST_NODES_TRIED: usize = 3;

/// How many of the nearest nodes are listed.
const MOST_NEAREST: usize = 3;

/// A change to try, with the nodes that may fit after it, the nearest first.
struct Candidate<'a> {
    change: &'a Change,
    cost: f64,
    nodes: Vec<(f64, &'a Change, &'a str)>,
}

/// Starts the search for nodes at the first one.
struct First;

impl Rng for First {
    fn next_u64(&self) -> u64 {
        0
    }
}

/// The changes each of which makes the pod fit a node, the smallest first. `nodes`: what the pod misses on each node.
/// None are looked for any more when the time is over.
pub fn suggestions(
    framework: &Framework,
    pod: &Pod,
    cluster: &Cluster,
    nodes: &[NodeExplanation],
    is_over: &dyn Fn() -> bool,
) -> Vec<Suggestion> {
    let mut found: Vec<Suggestion> = Vec::new();
    for candidate in candidates(nodes).into_iter().take(MOST_TRIED) {
        if is_over() {
            return found;
        }
        let fitting = match candidate.change.subject() {
            Subject::Node => after_node_change(framework, pod, cluster, &candidate),
            _ => after_pod_change(framework, pod, cluster, &candidate),
        };
        if let Some((change, fitting)) = fitting {
            found.push(suggestion(change.clone(), fitting));
        }
        if found.len() + 1 == MOST_SUGGESTIONS {
            break;
        }
    }
    found.extend(after_preemption(framework, pod, cluster, nodes));
    found
}

fn suggestion(change: Change, fitting: Vec<String>) -> Suggestion {
    let node_count = fitting.len();
    let nodes = fitting.into_iter().take(MOST_NAMES).collect();
    let mut suggestion = Suggestion { change, nodes, node_count, message: String::new() };
    suggestion.message = suggestion.text();
    suggestion
}

/// The changes that supply everything that the pod misses on some node, the smallest first.
fn candidates(nodes: &[NodeExplanation]) -> Vec<Candidate<'_>> {
    let mut all: Vec<Candidate<'_>> = Vec::new();
    for n in nodes {
        let Some((first, others)) = n.shortfalls.split_first() else { continue };
        for change in first.remedies.iter().filter(|change| others.iter().all(|s| s.remedies.contains(change))) {
            let node = (first.cost, change, n.node.as_str());
            let full = all.len() == MOST_CANDIDATES;
            match all.iter_mut().find(|c| c.change.is_alike(change)) {
                Some(known) => {
                    known.nodes.push(node);
                    if first.cost < known.cost {
                        (known.cost, known.change) = (first.cost, change);
                    }
                }
                None if full => {}
                None => all.push(Candidate { change, cost: first.cost, nodes: vec![node] }),
            }
        }
    }
    for candidate in &mut all {
        candidate.nodes.sort_by(|(a, ..), (b, ..)| a.total_cmp(b));
    }
    all.sort_by(|a, b| a.change.rank().cmp(&b.change.rank()).then(a.cost.total_cmp(&b.cost)));
    all
}

/// The nodes that the pod fits after a change of the pod.
fn after_pod_change<'a>(
    framework: &Framework,
    pod: &Pod,
    cluster: &Cluster,
    candidate: &Candidate<'a>,
) -> Option<(&'a Change, Vec<String>)> {
    let mut tried: Vec<&Change> = Vec::new();
    for (_, change, _) in &candidate.nodes {
        if tried.contains(change) {
            continue;
        }
        if tried.len() == MOST_NODES_TRIED {
            return None;
        }
        tried.push(change);
        let Some(changed) = change.apply_to_pod(pod) else { continue };
        let Ok(filters) = Filters::new(framework, &changed, cluster) else { continue };
        let fits = |node: &&str| cluster.node(node).is_some_and(|n| filters.fits(n));
        let names = candidate.nodes.iter().map(|(.., node)| *node);
        let fitting: Vec<String> = names.filter(fits).map(str::to_owned).collect();
        if !fitting.is_empty() {
            return Some((*change, fitting));
        }
    }
    None
}

/// A node that the pod fits after a change of that node.
fn after_node_change<'a>(
    framework: &Framework,
    pod: &Pod,
    cluster: &Cluster,
    candidate: &Candidate<'a>,
) -> Option<(&'a Change, Vec<String>)> {
    for (_, change, node) in candidate.nodes.iter().take(MOST_NODES_TRIED) {
        let entry = cluster.node(node).and_then(|n| n.entry.as_ref());
        let Some(changed) = entry.and_then(|entry| change.apply_to_node(entry)) else { continue };
        let mut cluster = cluster.clone();
        cluster.set_node(Arc::new(changed));
        let Ok(filters) = Filters::new(framework, pod, &cluster) else { continue };
        if cluster.node(node).is_some_and(|n| filters.fits(n)) {
            return Some((*change, vec![(*node).to_owned()]));
        }
    }
    None
}

/// The pods of lower priority that have to go, and the node that the pod fits then.
fn after_preemption(
    framework: &Framework,
    pod: &Pod,
    cluster: &Cluster,
    nodes: &[NodeExplanation],
) -> Option<Suggestion> {
    let refusal = |n: &NodeExplanation| (n.node.as_str().into(), Refusal::resolvable("", ""));
    let refusals = nodes.iter().map(refusal).collect();
    let diagnosis = Diagnosis { nodes: cluster.live(), refusals, others: None };
    let refused = nodes.is_empty().then(|| Refusal::resolvable("", ""));
    let decision = Decision { diagnosis, pod_refusal: refused, ..Decision::default() };
    let found = preemption::candidates(framework, pod, cluster, &decision, Candidates::default(), &First).ok()?;
    let best = preemption::best(found, &First)?;
    let pods: Vec<PodName> = best.victims.iter().map(|p| PodName::from(&**p)).collect();
    let change =
        Change::PodsGone { pods, hidden_pods: 0, protected: best.violations, never_preempts: !pod.view.may_preempt };
    Some(suggestion(change, vec![best.node.to_string()]))
}

/// Whether every node misses several things, and no change supplies all of them.
pub fn need_several_changes(nodes: &[NodeExplanation]) -> bool {
    let needs_several = |n: &NodeExplanation| match n.shortfalls.split_first() {
        Some((first, others)) if !others.is_empty() => {
            !first.remedies.iter().any(|change| others.iter().all(|s| s.remedies.contains(change)))
        }
        _ => false,
    };
    !nodes.is_empty() && nodes.iter().all(needs_several)
}

/// The nodes that miss the least, one for each set of what is missing.
pub fn nearest(nodes: &[NodeExplanation]) -> Vec<NodeExplanation> {
    let cost = |n: &NodeExplanation| (n.shortfalls.len(), n.shortfalls.iter().map(|s| s.cost).sum::<f64>());
    let mut sorted: Vec<((usize, f64), &NodeExplanation)> = nodes.iter().map(|n| (cost(n), n)).collect();
    sorted.sort_by(|((a, x), _), ((b, y), _)| a.cmp(b).then(x.total_cmp(y)));
    let mut seen: BTreeSet<Vec<&str>> = BTreeSet::new();
    let new = sorted.iter().filter(|(_, n)| seen.insert(n.shortfalls.iter().map(|s| s.what.as_str()).collect()));
    new.take(MOST_NEAREST).map(|(_, n)| (*n).clone()).collect()
}
