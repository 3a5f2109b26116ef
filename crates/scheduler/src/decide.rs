//! Selects a node for a pod, and reports why others were refused. Pure: data to data.

use crate::cluster::{Cluster, Node};
use crate::decision::{Decision, Diagnosis, Refusal};
use crate::filters::Filters;
use crate::framework::{Framework, NodeScore, Point};
use crate::pod::Pod;
use std::collections::HashMap;

/// The minimum number of feasible nodes to find before they are scored.
const FEW: usize = 100;

/// The number of feasible nodes to find (upstream `numFeasibleNodesToFind`). Without a percentage, a share that falls with the size
/// of the cluster.
pub fn enough(nodes: usize, percentage: Option<u32>) -> usize {
    if nodes < FEW {
        return nodes;
    }
    let percent = match percentage {
        None | Some(0) => 50usize.saturating_sub(nodes / 125).max(5),
        Some(p) => p.min(100) as usize,
    };
    (nodes * percent / 100).max(FEW)
}

/// The nodes that passed the filters, and the decision so far.
pub struct Filtered<'a> {
    pub feasible: Vec<&'a Node>,
    pub decision: Decision,
}

/// Selects a node for a pod. `start`: the index of the first node to filter, which rotates so that pods are spread over all nodes.
pub fn decide(framework: &Framework, pod: &Pod, cluster: &Cluster, start: usize) -> Decision {
    let Filtered { feasible, mut decision } = filter(framework, pod, cluster, start);
    choose(framework, pod, cluster, &feasible, &[], &mut decision);
    decision
}

/// Finds nodes that pass the filters.
pub fn filter<'a>(framework: &'a Framework, pod: &'a Pod, cluster: &'a Cluster, start: usize) -> Filtered<'a> {
    let diagnosis = Diagnosis { nodes: cluster.live(), ..Diagnosis::default() };
    let mut d = Decision { diagnosis, ..Decision::default() };
    let mut feasible: Vec<&Node> = Vec::new();
    if cluster.live() == 0 {
        return Filtered { feasible, decision: d };
    }
    let filters = match Filters::new(framework, pod, cluster) {
        Ok(filters) => filters,
        Err(refusal) => {
            d.pod_refusal = Some(refusal);
            return Filtered { feasible, decision: d };
        }
    };
    // The node of an earlier preemption is likely the only one that fits.
    let nominated = &pod.view.nominated_node;
    if let Some(node) = cluster.node(nominated).filter(|n| !nominated.is_empty() && n.entry.is_some()) {
        d.evaluated += 1;
        match filters.check_with_nominated(node) {
            Ok(()) => feasible.push(node),
            Err(r) => d.diagnosis.refusals.push((node.name.clone(), r)),
        }
        if !feasible.is_empty() {
            d.feasible = 1;
            return Filtered { feasible, decision: d };
        }
    }
    let refused_first = d.diagnosis.refusals.first().map(|(n, _)| n.clone());
    let nodes = cluster.nodes();
    let order = cluster.search_order();
    let enough = enough(cluster.live(), framework.percentage);
    let mut passes = |node: &Node| {
        d.evaluated += 1;
        match filters.check_with_nominated(node) {
            Ok(()) => true,
            Err(_) if refused_first.as_ref() == Some(&node.name) => false,
            Err(r) => {
                d.diagnosis.refusals.push((node.name.clone(), r));
                false
            }
        }
    };
    match &filters.names {
        // A filter names the only possible nodes: skip the others.
        Some(names) => {
            let named = names.iter().filter_map(|n| cluster.node(n)).filter(|n| n.entry.is_some());
            feasible.extend(named.filter(|n| passes(n)));
            let why = format!("node(s) didn't satisfy plugin(s) [{}]", filters.naming.join(" "));
            let plugin = filters.naming.first().copied().unwrap_or_default();
            d.diagnosis.others = Some(Refusal::unresolvable(plugin, why));
        }
        None => {
            for i in 0..order.len() {
                let n = &nodes[order[(start + i) % order.len()]];
                if passes(n) {
                    feasible.push(n);
                    if feasible.len() >= enough {
                        break;
                    }
                }
            }
        }
    }
    let failed = d.diagnosis.refusals.iter().find(|(_, r)| r.is_error);
    d.error = failed.map(|(_, r)| format!("running {:?} filter plugin: {}", r.plugin, r.reasons.join(", ")));
    if d.error.is_some() {
        feasible.clear();
    }
    d.feasible = feasible.len();
    Filtered { feasible, decision: d }
}

/// Chooses the node with the highest score. `extra`: scores of extenders, by node.
pub fn choose(
    framework: &Framework,
    pod: &Pod,
    cluster: &Cluster,
    nodes: &[&Node],
    extra: &[(Box<str>, i64)],
    decision: &mut Decision,
) {
    decision.feasible = nodes.len();
    match nodes {
        [] => {}
        [only] => decision.node = Some(only.name.clone()),
        many => match best(framework, pod, cluster, many, extra) {
            Ok((best, scores)) => {
                decision.node = Some(many[best].name.clone());
                decision.scores = scores;
            }
            Err(error) => decision.error = Some(error),
        },
    }
}

/// The index of the node with the highest score, and its scores. Errors if a plugin cannot score nodes for the pod.
fn best(
    framework: &Framework,
    pod: &Pod,
    cluster: &Cluster,
    nodes: &[&Node],
    extra: &[(Box<str>, i64)],
) -> Result<(usize, Vec<(&'static str, i64)>), String> {
    let mut scorers: Vec<(&'static str, i64, Box<dyn NodeScore + '_>)> = Vec::new();
    for w in framework.weighted(Point::Score) {
        let name = w.plugin.name();
        let scorer =
            w.plugin.pre_score(pod, cluster, nodes).map_err(|e| format!("running PreScore plugin {name:?}: {e}"))?;
        scorers.extend(scorer.map(|scorer| (name, w.weight, scorer)));
    }
    let mut totals = vec![0i64; nodes.len()];
    let mut each: Vec<Vec<i64>> = Vec::with_capacity(scorers.len());
    for (_, weight, scorer) in &scorers {
        let mut scores: Vec<i64> = nodes.iter().map(|n| scorer.score(n)).collect();
        scorer.normalize(&mut scores);
        for (t, s) in totals.iter_mut().zip(&mut scores) {
            *s = s.saturating_mul(*weight);
            *t = t.saturating_add(*s);
        }
        each.push(scores);
    }
    if !extra.is_empty() {
        let mut sums: HashMap<&str, i64> = HashMap::new();
        for (node, score) in extra {
            let sum = sums.entry(node).or_default();
            *sum = sum.saturating_add(*score);
        }
        for (total, node) in totals.iter_mut().zip(nodes) {
            *total = total.saturating_add(sums.get(&*node.name).copied().unwrap_or(0));
        }
    }
    let best = first_of_heap(&totals);
    let why = scorers.iter().zip(&each).map(|((name, ..), s)| (*name, s[best])).collect();
    Ok((best, why))
}

/// The index of the largest total. Of equal ones, the one that upstream's binary heap has at its root.
fn first_of_heap(totals: &[i64]) -> usize {
    let mut heap: Vec<usize> = (0..totals.len()).collect();
    for top in (0..heap.len() / 2).rev() {
        let mut parent = top;
        loop {
            let (left, right) = (2 * parent + 1, 2 * parent + 2);
            if left >= heap.len() {
                break;
            }
            let is_right = right < heap.len() && totals[heap[right]] > totals[heap[left]];
            let child = if is_right { right } else { left };
            if totals[heap[child]] <= totals[heap[parent]] {
                break;
            }
            heap.swap(parent, child);
            parent = child;
        }
    }
    heap.first().copied().unwrap_or(0)
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
