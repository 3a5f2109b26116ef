//! Cordoned nodes.

use crate::cluster::{Cluster, Node};
use crate::framework::{Event, NodeFilter, Plugin, Refusal};
use crate::pod::Pod;
use crate::taint::{Taint, tolerated};

const NAME: &str = "NodeUnschedulable";

pub struct NodeUnschedulable;

struct Check;

fn tolerates(pod: &Pod) -> bool {
    let taint = Taint { key: "node.kubernetes.io/unschedulable".into(), value: "".into(), effect: "NoSchedule".into() };
    tolerated(&taint, &pod.view.tolerations)
}

impl Plugin for NodeUnschedulable {
    fn name(&self) -> &'static str {
        NAME
    }

    fn filter<'a>(&self, pod: &'a Pod, _: &'a Cluster) -> Option<Box<dyn NodeFilter + 'a>> {
        if tolerates(pod) { None } else { Some(Box::new(Check)) }
    }

    fn hint(&self, _: &Pod, event: &Event<'_>) -> bool {
        event.node().is_some_and(|n| !n.view.unschedulable)
    }
}

impl NodeFilter for Check {
    fn check(&self, node: &Node) -> Result<(), Refusal> {
        if node.entry.as_ref().is_some_and(|n| n.view.unschedulable) {
            return Err(Refusal::wrong(NAME, "node(s) were unschedulable"));
        }
        Ok(())
    }
}
