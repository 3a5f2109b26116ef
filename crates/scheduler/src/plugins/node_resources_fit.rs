//! Filters nodes without enough resources for a pod's requests, and prefers nodes with more free resources (`LeastAllocated`).

use crate::cluster::{Cluster, Node};
use crate::framework::{Event, MAX_SCORE, NodeFilter, NodeScore, Plugin, PreFilter, Read, Refusal};
use crate::pod::Pod;
use crate::resources::Resources;
use std::borrow::Cow;

const NAME: &str = "NodeResourcesFit";

pub struct NodeResourcesFit;

struct Check<'a> {
    requests: &'a Resources,
    nonzero: &'a Resources,
}

/// A resource of which a node has too little for a pod. CPU in millicores, other amounts in units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Insufficient {
    pub resource: Cow<'static, str>,
    pub requested: i64,
    pub used: i64,
    pub capacity: i64,
}

impl Insufficient {
    /// Upstream's message.
    pub fn reason(&self) -> Cow<'static, str> {
        match &*self.resource {
            "pods" => "Too many pods".into(),
            "cpu" => "Insufficient cpu".into(),
            "memory" => "Insufficient memory".into(),
            "ephemeral-storage" => "Insufficient ephemeral-storage".into(),
            other => format!("Insufficient {other}").into(),
        }
    }

    /// The amount that is missing.
    pub fn missing(&self) -> i64 {
        self.requested.saturating_sub(self.capacity.saturating_sub(self.used))
    }
}

/// Returns the resources of which a node with `pods` pods has too little for the requests (upstream `noderesources.Fits`).
pub fn insufficiencies(
    requests: &Resources,
    used: &Resources,
    pods: usize,
    allocatable: &Resources,
) -> Vec<Insufficient> {
    let mut all = Vec::new();
    if pods as i64 + 1 > allocatable.pods {
        let (used, capacity) = (pods as i64, allocatable.pods);
        all.push(Insufficient { resource: "pods".into(), requested: 1, used, capacity });
    }
    let mut check = |resource: Cow<'static, str>, requested: i64, used: i64, capacity: i64| {
        if requested > 0 && requested > capacity.saturating_sub(used) {
            all.push(Insufficient { resource, requested, used, capacity });
        }
    };
    check("cpu".into(), requests.cpu, used.cpu, allocatable.cpu);
    check("memory".into(), requests.memory, used.memory, allocatable.memory);
    check("ephemeral-storage".into(), requests.ephemeral, used.ephemeral, allocatable.ephemeral);
    for (name, requested) in &requests.extended {
        check(name.to_string().into(), *requested, used.extended(name), allocatable.extended(name));
    }
    all
}

/// Returns upstream's messages for missing resources, and whether the node would be large enough if it were empty.
pub fn shortfalls(
    requests: &Resources,
    used: &Resources,
    pods: usize,
    allocatable: &Resources,
) -> (Vec<Cow<'static, str>>, bool) {
    let all = insufficiencies(requests, used, pods, allocatable);
    let possible = all.iter().all(|i| &*i.resource == "pods" || i.requested <= i.capacity);
    (all.iter().map(Insufficient::reason).collect(), possible)
}

impl Plugin for NodeResourcesFit {
    fn name(&self) -> &'static str {
        NAME
    }

    fn pre_filter<'a>(&self, pod: &'a Pod, _: &'a Cluster) -> PreFilter<'a> {
        Ok(Some(Box::new(Check { requests: &pod.view.requests, nonzero: &pod.view.nonzero })))
    }

    fn pre_score<'a>(&self, pod: &'a Pod, _: &'a Cluster) -> Option<Box<dyn NodeScore + 'a>> {
        Some(Box::new(Check { requests: &pod.view.requests, nonzero: &pod.view.nonzero }))
    }

    fn reads(&self) -> &'static [Read] {
        &[Read::Nodes, Read::NodeAllocatable, Read::GonePods, Read::PodRequests, Read::OwnRequests]
    }

    fn hint(&self, pod: &Pod, event: &Event<'_>) -> bool {
        let fits = |r: &Resources| shortfalls(&pod.view.requests, &Resources::default(), 0, r).0.is_empty();
        event.node().is_none_or(|n| fits(&n.view.allocatable))
    }
}

impl NodeFilter for Check<'_> {
    fn check(&self, node: &Node) -> Result<(), Refusal> {
        let Some(n) = &node.entry else { return Ok(()) };
        let (a, u, r) = (&n.view.allocatable, &node.requested, self.requests);
        // The common case, without an allocation.
        let fits = (node.pods.len() as i64) < a.pods
            && (r.cpu == 0 || r.cpu <= a.cpu.saturating_sub(u.cpu))
            && (r.memory == 0 || r.memory <= a.memory.saturating_sub(u.memory))
            && (r.ephemeral == 0 || r.ephemeral <= a.ephemeral.saturating_sub(u.ephemeral))
            && r.extended.is_empty();
        if fits {
            return Ok(());
        }
        let (reasons, resolvable) = shortfalls(r, u, node.pods.len(), a);
        if reasons.is_empty() { Ok(()) } else { Err(Refusal { plugin: NAME, reasons, resolvable }) }
    }
}

impl NodeScore for Check<'_> {
    fn score(&self, node: &Node) -> i64 {
        let Some(n) = &node.entry else { return 0 };
        let free = |requested: i64, used: i64, there: i64| {
            let free = i128::from(there) - i128::from(used) - i128::from(requested);
            if there == 0 || free < 0 { 0 } else { (free * i128::from(MAX_SCORE) / i128::from(there)) as i64 }
        };
        let a = &n.view.allocatable;
        let (mut sum, mut n) = (0, 0);
        for (there, s) in [
            (a.cpu, free(self.nonzero.cpu, node.nonzero.cpu, a.cpu)),
            (a.memory, free(self.nonzero.memory, node.nonzero.memory, a.memory)),
        ] {
            if there > 0 {
                sum += s;
                n += 1;
            }
        }
        if n == 0 { 0 } else { sum / n }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clauses: R02.requests
    #[test]
    fn every_shortage_is_reported() {
        let r = |cpu, memory, pods| Resources { cpu, memory, pods, ..Resources::default() };
        let mut requests = r(500, 100, 0);
        requests.extended.push(("example.com/gpu".into(), 1));
        let (reasons, possible) = shortfalls(&requests, &r(600, 950, 0), 5, &r(1000, 1000, 5));
        let expect = ["Too many pods", "Insufficient cpu", "Insufficient memory", "Insufficient example.com/gpu"];
        assert_eq!(reasons, expect);
        assert!(!possible, "the node has no such device");
        assert!(shortfalls(&r(400, 50, 0), &r(600, 950, 0), 4, &r(1000, 1000, 5)).0.is_empty());
        assert!(shortfalls(&Resources::default(), &r(2000, 0, 0), 0, &r(1000, 1000, 5)).0.is_empty(), "no requests");
    }
}
