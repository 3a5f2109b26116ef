//! Node selector and node affinity.

use crate::cluster::{Cluster, Node};
use crate::framework::{Event, NodeFilter, NodeScore, Plugin, PreFilter, Read, Refusal, normalize};
use crate::pod::Pod;

const NAME: &str = "NodeAffinity";

pub struct NodeAffinity;

struct Check<'a>(&'a placement::NodeAffinity);

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        NAME
    }

    fn pre_filter<'a>(&self, pod: &'a Pod, _: &'a Cluster) -> PreFilter<'a> {
        if pod.view.affinity.is_required() { Ok(Some(Box::new(Check(&pod.view.affinity)))) } else { Ok(None) }
    }

    fn pre_score<'a>(&self, pod: &'a Pod, _: &'a Cluster) -> Option<Box<dyn NodeScore + 'a>> {
        if pod.view.affinity.preferred.is_empty() { None } else { Some(Box::new(Check(&pod.view.affinity))) }
    }

    fn weight(&self) -> i64 {
        2
    }

    fn reads(&self) -> &'static [Read] {
        &[Read::Nodes, Read::NodeLabels, Read::OwnAffinity]
    }

    fn hint(&self, pod: &Pod, event: &Event<'_>) -> bool {
        event.node().is_none_or(|n| pod.view.affinity.admits(&n.meta.name, |k| n.meta.label(k)))
    }
}

impl NodeFilter for Check<'_> {
    fn check(&self, node: &Node) -> Result<(), Refusal> {
        if node.entry.as_ref().is_some_and(|n| self.0.admits(&n.meta.name, |k| n.meta.label(k))) {
            return Ok(());
        }
        Err(Refusal::unresolvable(NAME, "node(s) didn't match Pod's node affinity/selector"))
    }

    fn names(&self) -> Option<Vec<String>> {
        let mut all = Vec::new();
        for t in self.0.required.as_ref()? {
            all.extend_from_slice(t.names()?);
        }
        all.sort();
        all.dedup();
        Some(all)
    }
}

impl NodeScore for Check<'_> {
    fn score(&self, node: &Node) -> i64 {
        let Some(n) = &node.entry else { return 0 };
        self.0.preferred.iter().filter(|(_, t)| t.matches(&n.meta.name, |k| n.meta.label(k))).map(|(w, _)| w).sum()
    }

    fn normalize(&self, scores: &mut [i64]) {
        normalize(scores, false);
    }
}
