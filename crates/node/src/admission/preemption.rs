//! Chooses the pods to preempt for a critical one: a pure function.
//!
//! As upstream's `pkg/kubelet/preemption`: as few pods of the best quality of service as possible, then of the next one; among pods that
//! free the same part of what is missing, the one with the smaller requests.

use scheduler::plugins::Insufficient;
use scheduler::resources::Resources;

use crate::resources::Qos;

/// From this priority on a pod is critical (`scheduling.SystemCriticalPriority`).
const CRITICAL: i64 = 2_000_000_000;
/// Quality of service classes, the lowest first.
const CLASSES: [Qos; 3] = [Qos::BestEffort, Qos::Burstable, Qos::Guaranteed];

pub fn is_critical(priority: i64) -> bool {
    priority >= CRITICAL
}

/// Whether a pod may be preempted by another one, by their priorities (`types.Preemptable`).
pub fn may_preempt(priority: i64, victim: i64) -> bool {
    is_critical(priority) && !is_critical(victim) || priority > victim
}

/// A pod that may be preempted.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub uid: &'a str,
    pub qos: Qos,
    pub requests: &'a Resources,
}

impl Candidate<'_> {
    /// How much of a resource it would free.
    fn frees(&self, resource: &str) -> i64 {
        match resource {
            "pods" => 1,
            "cpu" => self.requests.cpu,
            "memory" => self.requests.memory,
            "ephemeral-storage" => self.requests.ephemeral,
            other => self.requests.extended(other),
        }
    }
}

/// How much of a resource has to be freed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    pub resource: String,
    pub quantity: i64,
}

impl From<&Insufficient> for Need {
    fn from(i: &Insufficient) -> Need {
        Need { resource: i.resource.to_string(), quantity: i.missing() }
    }
}

/// What still has to be freed after these pods have ended.
fn remaining(needs: &[Need], ended: &[Candidate<'_>]) -> Vec<Need> {
    let left = |need: &Need| {
        let freed = ended.iter().fold(0i64, |sum, c| sum.saturating_add(c.frees(&need.resource)));
        Need { resource: need.resource.clone(), quantity: need.quantity.saturating_sub(freed) }
    };
    needs.iter().map(left).filter(|need| need.quantity > 0).collect()
}

/// The part of the needs that remains after a pod has ended. Every resource has the same weight.
fn distance(needs: &[Need], candidate: &Candidate<'_>) -> f64 {
    let left = |n: &Need| (n.quantity - candidate.frees(&n.resource)).max(0) as f64 / n.quantity as f64;
    needs.iter().map(|n| left(n).powi(2)).sum()
}

/// Chooses among pods of one class until the needs are met. Errors with what cannot be met.
fn choose<'a>(mut candidates: Vec<Candidate<'a>>, mut needs: Vec<Need>) -> Result<Vec<Candidate<'a>>, Vec<Need>> {
    let mut chosen = Vec::new();
    while !needs.is_empty() {
        let key = |c: &Candidate<'_>| (distance(&needs, c), c.requests.memory, c.requests.cpu);
        let order = |a: &Candidate<'_>, b: &Candidate<'_>| {
            let (a, b) = (key(a), key(b));
            a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2)))
        };
        let best = candidates.iter().enumerate().min_by(|(_, a), (_, b)| order(a, b)).map(|(i, _)| i);
        let Some(best) = best else { return Err(needs) };
        let candidate = candidates.swap_remove(best);
        needs = remaining(&needs, &[candidate]);
        chosen.push(candidate);
    }
    Ok(chosen)
}

/// The UIDs of the pods to preempt. Errors with the needs that remain if all of them end.
pub fn victims<'a>(candidates: &[Candidate<'a>], needs: &[Need]) -> Result<Vec<&'a str>, Vec<Need>> {
    let left = remaining(needs, candidates);
    if !left.is_empty() {
        return Err(left);
    }
    let class = |qos: Qos| candidates.iter().copied().filter(|c| c.qos == qos).collect::<Vec<_>>();
    let mut chosen: Vec<Candidate<'a>> = Vec::new();
    // Each class frees only what all lower classes together cannot.
    for (i, qos) in CLASSES.iter().enumerate().rev() {
        let lower = CLASSES[..i].iter().flat_map(|q| class(*q));
        let gone: Vec<_> = chosen.iter().copied().chain(lower).collect();
        chosen.extend(choose(class(*qos), remaining(needs, &gone))?);
    }
    Ok(chosen.into_iter().map(|c| c.uid).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(cpu: i64, memory: i64) -> Resources {
        Resources { cpu, memory, ..Resources::default() }
    }

    fn need(resource: &str, quantity: i64) -> Need {
        Need { resource: resource.into(), quantity }
    }

    #[test]
    fn the_fewest_pods_of_the_lowest_class_end() {
        let sizes = [requests(0, 0), requests(100, 100), requests(500, 100), requests(600, 50), requests(900, 900)];
        let names = ["none", "small", "large", "lean", "sure"];
        let classes = [Qos::BestEffort, Qos::Burstable, Qos::Burstable, Qos::Burstable, Qos::Guaranteed];
        let all: Vec<Candidate<'_>> =
            (0..5).map(|i| Candidate { uid: names[i], qos: classes[i], requests: &sizes[i] }).collect();
        for (needs, expected) in [
            (vec![need("pods", 1)], vec!["none"]),
            (vec![need("cpu", 90)], vec!["lean"]),
            (vec![need("cpu", 500), need("memory", 90)], vec!["large"]),
            (vec![need("cpu", 1100)], vec!["lean", "large"]),
            (vec![need("cpu", 1300)], vec!["sure", "lean"]),
            (vec![need("pods", 2), need("cpu", 50)], vec!["lean", "none"]),
        ] {
            assert_eq!(victims(&all, &needs).unwrap(), expected, "{needs:?}");
        }
        assert_eq!(victims(&all, &[need("cpu", 2200)]).unwrap_err(), [need("cpu", 100)]);
    }

    #[test]
    fn only_lower_priorities_end() {
        assert!(may_preempt(CRITICAL, 5) && may_preempt(CRITICAL + 1000, CRITICAL));
        assert!(!may_preempt(CRITICAL, CRITICAL) && !may_preempt(CRITICAL, CRITICAL + 1000));
    }
}
