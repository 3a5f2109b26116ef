//! Selects a node for a pod, and reports why others were refused. Pure: data to data.

use crate::cluster::{Cluster, Node};
use crate::decision::{Decision, Refusal};
use crate::framework::{Framework, NodeFilter, NodeScore};
use crate::pod::Pod;
use meta::Rng;

/// The minimum number of feasible nodes to find before they are scored.
const FEW: usize = 100;

/// The number of feasible nodes to find (upstream `numFeasibleNodesToFind`): a share that falls with the size of the cluster.
pub fn enough(nodes: usize) -> usize {
    if nodes < FEW {
        return nodes;
    }
    let percent = 50usize.saturating_sub(nodes / 125).max(5);
    (nodes * percent / 100).max(FEW)
}

/// The filters of all plugins for one pod.
struct Filters<'a> {
    filters: Vec<Box<dyn NodeFilter + 'a>>,
    names: Option<Vec<String>>,
}

impl<'a> Filters<'a> {
    fn new(framework: &Framework, pod: &'a Pod, cluster: &'a Cluster) -> Result<Self, Refusal> {
        let filters = framework.plugins().filter_map(|p| p.pre_filter(pod, cluster).transpose());
        let filters: Vec<_> = filters.collect::<Result<_, _>>()?;
        let names = filters.iter().find_map(|f| f.names());
        Ok(Self { filters, names })
    }

    fn check(&self, node: &Node) -> Result<(), Refusal> {
        self.filters.iter().try_for_each(|f| f.check(node))
    }
}

/// Selects a node for a pod. `start`: the index of the first node to filter, which rotates so that pods are spread over all nodes.
pub fn decide(framework: &Framework, pod: &Pod, cluster: &Cluster, start: usize, rng: &dyn Rng) -> Decision {
    let mut d = Decision {
        node: None,
        nodes: cluster.live(),
        evaluated: 0,
        feasible: 0,
        pod_refusal: None,
        refusals: Vec::new(),
        scores: Vec::new(),
    };
    let filters = match Filters::new(framework, pod, cluster) {
        Ok(filters) => filters,
        Err(refusal) => {
            d.pod_refusal = Some(refusal);
            return d;
        }
    };
    let nodes = cluster.nodes();
    let mut feasible: Vec<&Node> = Vec::new();
    let enough = enough(cluster.live());
    let mut passes = |node: &'_ Node| {
        d.evaluated += 1;
        match filters.check(node) {
            Ok(()) => true,
            Err(r) => {
                d.refusals.push((node.name.clone(), r));
                false
            }
        }
    };
    match &filters.names {
        // A filter names the only possible nodes: skip the others.
        Some(names) => {
            for n in names.iter().filter_map(|n| cluster.node(n)).filter(|n| n.entry.is_some()) {
                if passes(n) {
                    feasible.push(n);
                }
            }
        }
        None => {
            for i in 0..nodes.len() {
                let n = &nodes[(start + i) % nodes.len()];
                if n.entry.is_some() && passes(n) {
                    feasible.push(n);
                    if feasible.len() >= enough {
                        break;
                    }
                }
            }
        }
    }
    if let (Some(_), true) = (&filters.names, feasible.is_empty()) {
        let evaluated: std::collections::BTreeSet<_> = d.refusals.iter().map(|(n, _)| n.clone()).collect();
        for n in nodes.iter().filter(|n| n.entry.is_some() && !evaluated.contains(&n.name)) {
            let r = Refusal::unresolvable("NodeAffinity", "node(s) didn't match Pod's node affinity/selector");
            d.refusals.push((n.name.clone(), r));
        }
    }
    d.feasible = feasible.len();
    match feasible.as_slice() {
        [] => {}
        [one] => d.node = Some(one.name.clone()),
        many => {
            let (best, scores) = best(framework, pod, cluster, many, rng);
            d.node = Some(many[best].name.clone());
            d.scores = scores;
        }
    }
    d
}

/// The index of the node with the highest score. Ties are broken at random.
fn best(
    framework: &Framework,
    pod: &Pod,
    cluster: &Cluster,
    nodes: &[&Node],
    rng: &dyn Rng,
) -> (usize, Vec<(&'static str, i64)>) {
    let scorers: Vec<(&'static str, i64, Box<dyn NodeScore + '_>)> =
        framework.plugins().filter_map(|p| Some((p.name(), p.weight(), p.pre_score(pod, cluster)?))).collect();
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

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
