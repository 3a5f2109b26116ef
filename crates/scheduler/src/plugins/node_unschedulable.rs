//! Filters cordoned nodes.

use crate::cluster::{Cluster, Node};
use crate::explain::{Change, Shortfall};
use crate::framework::{Event, NodeFilter, Plugin, Point, PreFilter, Read, Refusal};
use crate::pod::Pod;
use placement::{Taint, is_tolerated};

const NAME: &str = "NodeUnschedulable";

pub struct NodeUnschedulable;

struct Check;

/// The taint that cordoned nodes have.
fn taint() -> Taint {
    Taint {
        key: "node.kubernetes.io/unschedulable".into(),
        value: "".into(),
        effect: "NoSchedule".into(),
        time_added: None,
    }
}

fn tolerates(pod: &Pod) -> bool {
    is_tolerated(&taint(), &pod.view.tolerations)
}

impl Plugin for NodeUnschedulable {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::Filter]
    }

    fn pre_filter<'a>(&'a self, pod: &'a Pod, _: &'a Cluster) -> PreFilter<'a> {
        if tolerates(pod) { Ok(None) } else { Ok(Some(Box::new(Check))) }
    }

    fn reads(&self) -> &'static [Read] {
        &[Read::Nodes, Read::NodeUnschedulable, Read::OwnTolerations]
    }

    fn hint(&self, _: &Pod, event: &Event<'_>) -> bool {
        event.node().is_none_or(|n| !n.view.unschedulable)
    }
}

impl NodeFilter for Check {
    fn check(&self, node: &Node) -> Result<(), Refusal> {
        if node.entry.as_ref().is_some_and(|n| n.view.unschedulable) {
            return Err(Refusal::unresolvable(NAME, "node(s) were unschedulable"));
        }
        Ok(())
    }

    fn shortfalls(&self, _: &Node) -> Vec<Shortfall> {
        let cordoned = Shortfall::new("unschedulable", "the node is cordoned");
        vec![Change::of_taint(&taint()).into_iter().fold(cordoned, Shortfall::remedy)]
    }
}
