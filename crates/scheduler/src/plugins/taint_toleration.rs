//! Filters nodes with untolerated taints, and prefers nodes without untolerated `PreferNoSchedule` taints.

use crate::cluster::{Cluster, Node};
use crate::explain::{Change, Shortfall, taint_text};
use crate::framework::{Event, NodeFilter, NodeScore, Plugin, Point, PreFilter, PreScore, Read, Refusal, normalize};
use crate::pod::Pod;
use placement::{EXCLUDING, Taint, Toleration, is_tolerated, untolerated};

const NAME: &str = "TaintToleration";

pub struct TaintToleration;

struct Check<'a>(&'a [Toleration]);

impl Plugin for TaintToleration {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::Filter, Point::PreScore, Point::Score]
    }

    fn pre_filter<'a>(&'a self, pod: &'a Pod, _: &'a Cluster) -> PreFilter<'a> {
        Ok(Some(Box::new(Check(&pod.view.tolerations))))
    }

    fn pre_score<'a>(&'a self, pod: &'a Pod, _: &'a Cluster, _: &[&'a Node]) -> PreScore<'a> {
        Ok(Some(Box::new(Check(&pod.view.tolerations))))
    }

    fn weight(&self) -> i64 {
        3
    }

    fn reads(&self) -> &'static [Read] {
        &[Read::Nodes, Read::NodeTaints, Read::OwnTolerations]
    }

    fn hint(&self, pod: &Pod, event: &Event<'_>) -> bool {
        event.node().is_none_or(|n| untolerated(&n.view.taints, EXCLUDING, &pod.view.tolerations).is_none())
    }
}

impl NodeFilter for Check<'_> {
    fn check(&self, node: &Node) -> Result<(), Refusal> {
        match node.entry.as_ref().and_then(|n| untolerated(&n.view.taints, EXCLUDING, self.0)) {
            None => Ok(()),
            Some(_) => Err(Refusal::unresolvable(NAME, "node(s) had untolerated taint(s)")),
        }
    }

    fn shortfalls(&self, node: &Node) -> Vec<Shortfall> {
        let taints = node.entry.iter().flat_map(|n| &n.view.taints);
        let refused = taints.filter(|t| EXCLUDING.contains(&&*t.effect) && !is_tolerated(t, self.0));
        let shortfall = |taint: &Taint| {
            let text = taint_text(taint);
            let missing = Shortfall::new(&text, format!("the pod does not tolerate the taint {text}"));
            Change::of_taint(taint).into_iter().fold(missing, Shortfall::remedy)
        };
        refused.map(shortfall).collect()
    }
}

impl NodeScore for Check<'_> {
    fn score(&self, node: &Node) -> i64 {
        let Some(n) = &node.entry else { return 0 };
        let soft = n.view.taints.iter().filter(|t| &*t.effect == "PreferNoSchedule");
        soft.filter(|t| !is_tolerated(t, self.0)).count() as i64
    }

    fn normalize(&self, scores: &mut [i64]) {
        normalize(scores, true);
    }
}
