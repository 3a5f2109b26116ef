//! Which pods to evict for a pod, and from which node (upstream `framework/preemption` and `default_preemption.go`). Pure.

use crate::budgets::Budget;
use crate::cluster::{Cluster, Node};
use crate::decision::{Decision, Diagnosis, Refusal};
use crate::filters::{Filters, Trial};
use crate::framework::{Framework, Nomination};
use crate::pod::Pod;
use meta::Rng;
use std::cmp::{Ordering, Reverse};
use std::sync::Arc;

const NAME: &str = "DefaultPreemption";

/// How many of the nodes where preemption may help are tried.
#[derive(Clone, Copy, Debug)]
pub struct Candidates {
    pub percentage: usize,
    pub absolute: usize,
}

impl Default for Candidates {
    fn default() -> Self {
        Self { percentage: 10, absolute: 100 }
    }
}

impl Candidates {
    fn count(self, nodes: usize) -> usize {
        (nodes * self.percentage / 100).max(self.absolute).min(nodes)
    }
}

/// A node, and the pods to evict from it, the most important first.
#[derive(Clone)]
pub struct Candidate {
    pub node: Arc<str>,
    pub victims: Vec<Arc<Pod>>,
    /// How many of them their disruption budgets protect.
    pub violations: usize,
}

impl From<Candidate> for Nomination {
    fn from(candidate: Candidate) -> Self {
        Self { node: candidate.node, victims: candidate.victims }
    }
}

/// Why a pod may not preempt others now (upstream `PodEligibleToPreemptOthers`).
pub fn ineligible(pod: &Pod, cluster: &Cluster, decision: &Decision) -> Option<&'static str> {
    if !pod.view.may_preempt {
        return Some("not eligible due to preemptionPolicy=Never.");
    }
    let nominated = &*pod.view.nominated_node;
    if nominated.is_empty() || decision.refusal(nominated).is_none_or(|r| !r.resolvable) {
        return None;
    }
    let terminating = |p: &Arc<Pod>| p.view.priority < pod.view.priority && p.view.is_preempted && p.meta.is_deleting();
    let waits = cluster.node(nominated).is_some_and(|n| n.pods.iter().any(terminating));
    waits.then_some("not eligible due to a terminating pod on the nominated node.")
}

/// Finds the nodes on which evicting pods makes room for a pod. Errors with the reasons of all nodes if there is none.
pub fn candidates(
    framework: &Framework,
    pod: &Pod,
    cluster: &Cluster,
    decision: &Decision,
    limit: Candidates,
    rng: &dyn Rng,
) -> Result<Vec<Candidate>, Diagnosis> {
    let unhelpful = Refusal::unresolvable(NAME, "Preemption is not helpful for scheduling");
    let mut diagnosis = Diagnosis { nodes: cluster.live(), refusals: Vec::new(), others: Some(unhelpful) };
    let potential: Vec<&Node> = match &decision.pod_refusal {
        Some(refusal) if refusal.resolvable => cluster.nodes().iter().filter(|n| n.entry.is_some()).collect(),
        Some(_) => Vec::new(),
        None => {
            let resolvable = decision.diagnosis.refusals.iter().filter(|(_, r)| r.resolvable);
            resolvable.filter_map(|(name, _)| cluster.node(name)).filter(|n| n.entry.is_some()).collect()
        }
    };
    if potential.is_empty() {
        return Err(diagnosis);
    }
    let Ok(filters) = Filters::new(framework, pod, cluster) else { return Err(diagnosis) };
    let count = limit.count(potential.len());
    let offset = (rng.next_u64() % potential.len() as u64) as usize;
    let (mut clean, mut violating) = (Vec::new(), Vec::new());
    for node in (0..potential.len()).map(|i| potential[(offset + i) % potential.len()]) {
        match victims(&filters, pod, cluster, node) {
            Ok(candidate) if candidate.violations == 0 => clean.push(candidate),
            Ok(candidate) => violating.push(candidate),
            Err(refusal) => diagnosis.refusals.push((node.name.clone(), refusal)),
        }
        if !clean.is_empty() && clean.len() + violating.len() >= count {
            break;
        }
    }
    clean.extend(violating);
    if clean.is_empty() { Err(diagnosis) } else { Ok(clean) }
}

/// Orders pods by importance, the most important first: by priority, then by how long they have run. Pods that have not started come
/// last, and of those a later one of the node first.
fn by_importance(pods: &mut [(usize, Arc<Pod>)]) {
    pods.sort_by(|(i, a), (j, b)| {
        let started = match (a.view.start_time, b.view.start_time) {
            (Some(a), Some(b)) => a.cmp(&b),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => j.cmp(i),
        };
        b.view.priority.cmp(&a.view.priority).then(started)
    });
}

/// The fewest pods to evict from a node, so that the pod fits. Errors with the reason if it does not fit without all pods of a lower
/// priority either.
fn victims(filters: &Filters<'_>, pod: &Pod, cluster: &Cluster, node: &Node) -> Result<Candidate, Refusal> {
    let lower = node.pods.iter().filter(|p| p.view.priority < pod.view.priority);
    let mut potential: Vec<(usize, Arc<Pod>)> = lower.cloned().enumerate().collect();
    if potential.is_empty() {
        return Err(Refusal::unresolvable(NAME, "No preemption victims found for incoming pod"));
    }
    let mut trial = Trial::new(filters, node);
    potential.iter().for_each(|(_, p)| trial.remove(p));
    trial.check()?;
    by_importance(&mut potential);
    let protected = violations(&potential, cluster.budgets());
    let (mut victims, mut violations) = (Vec::new(), 0);
    for is_protected in [true, false] {
        for (i, (_, p)) in potential.iter().enumerate().filter(|(i, _)| protected[*i] == is_protected) {
            trial.add(p.clone());
            if trial.check().is_err() {
                trial.remove(p);
                victims.push(i);
                violations += usize::from(is_protected);
            }
        }
    }
    if victims.is_empty() {
        let why = format!("expected at least one victim pod on node \"{}\"", node.name);
        return Err(Refusal::unresolvable(NAME, why));
    }
    victims.sort_unstable();
    let victims = victims.into_iter().map(|i| potential[i].1.clone()).collect();
    Ok(Candidate { node: node.name.clone(), victims, violations })
}

/// For each pod, whether its eviction violates a disruption budget, if they are evicted in this order.
fn violations<'a>(pods: &[(usize, Arc<Pod>)], budgets: impl Iterator<Item = &'a Arc<Budget>>) -> Vec<bool> {
    let mut budgets: Vec<(&Budget, i64)> = budgets.map(|b| (&**b, b.view.disruptions_allowed)).collect();
    if budgets.is_empty() {
        return vec![false; pods.len()];
    }
    let mut violated = Vec::with_capacity(pods.len());
    for (_, pod) in pods {
        let mut violates = false;
        for (budget, allowed) in &mut budgets {
            let selects = !pod.meta.labels.is_empty()
                && budget.meta.namespace == pod.meta.namespace
                && budget.view.selector.matches(|k| pod.meta.label(k));
            if selects && !budget.view.disrupted_pods.iter().any(|name| **name == *pod.meta.name) {
                *allowed -= 1;
                violates |= *allowed < 0;
            }
        }
        violated.push(violates);
    }
    violated
}

/// The best candidate: fewest violated budgets, then the lowest highest priority of a victim, then the lowest sum of priorities, then
/// fewest victims, then the latest start of the most important victims. Ties are broken at random.
pub fn best(candidates: Vec<Candidate>, rng: &dyn Rng) -> Option<Candidate> {
    let rank = |c: &Candidate| {
        let highest = c.victims.iter().map(|p| p.view.priority).max().unwrap_or(i64::MIN);
        // Positive for every priority, so that fewer pods of a negative priority have a lower sum.
        let sum: i64 = c.victims.iter().map(|p| p.view.priority + (1 << 31)).sum();
        let most_important = c.victims.iter().filter(|p| p.view.priority == highest);
        // A pod that has not started starts now at the earliest.
        let start = most_important.filter_map(|p| p.view.start_time).min();
        (c.violations, highest, sum, c.victims.len(), Reverse(start.map_or((1, None), |s| (0, Some(s)))))
    };
    let least = candidates.iter().map(rank).min()?;
    let mut ties: Vec<Candidate> = candidates.into_iter().filter(|c| rank(c) == least).collect();
    let nth = (rng.next_u64() % ties.len() as u64) as usize;
    Some(ties.swap_remove(nth))
}
