//! Admission of a bound pod by its node: the filters that do not depend on other nodes (upstream `scheduler.AdmissionCheck`).

use std::borrow::Cow;

use crate::cluster::Cluster;
use crate::framework::Plugin;
use crate::plugins::{Insufficient, NodeAffinity, NodeName, NodePorts, insufficiencies};
use crate::pod::Pod;
use crate::resources::Resources;

/// Why a node rejects a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    Insufficient(Insufficient),
    Predicate { name: &'static str, reason: Cow<'static, str> },
}

/// Returns all reasons why `node` rejects `pod`, in upstream's order: resources first. `requests` replace those of the pod. Returns
/// none for an unknown node.
pub fn admission_check(pod: &Pod, requests: &Resources, cluster: &Cluster, node: &str) -> Vec<Failure> {
    let Some((node, entry)) = cluster.node(node).and_then(|n| Some((n, n.entry.as_ref()?))) else { return Vec::new() };
    let insufficient = insufficiencies(requests, &node.requested, node.pods.len(), &entry.view.allocatable);
    let mut failures: Vec<Failure> = insufficient.into_iter().map(Failure::Insufficient).collect();
    // The filters other than resources, in upstream's order.
    let affinity = NodeAffinity::default();
    let predicates: [&dyn Plugin; 3] = [&affinity, &NodeName, &NodePorts];
    for plugin in predicates {
        let checked = plugin.pre_filter(pod, cluster).and_then(|filter| filter.map_or(Ok(()), |f| f.check(node)));
        if let Err(refusal) = checked {
            let reasons = refusal.reasons.into_iter();
            failures.extend(reasons.map(|reason| Failure::Predicate { name: refusal.plugin, reason }));
        }
    }
    failures
}
