//! Restricts a pod with `spec.nodeName` to that node.

use crate::cluster::{Cluster, Node};
use crate::framework::{Event, NodeFilter, Plugin, Point, PreFilter, Read, Refusal};
use crate::pod::Pod;

const NAME: &str = "NodeName";

pub struct NodeName;

struct Check<'a>(&'a str);

impl Plugin for NodeName {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::Filter]
    }

    fn pre_filter<'a>(&'a self, pod: &'a Pod, _: &'a Cluster) -> PreFilter<'a> {
        if pod.view.node_name.is_empty() { Ok(None) } else { Ok(Some(Box::new(Check(&pod.view.node_name)))) }
    }

    fn reads(&self) -> &'static [Read] {
        &[Read::Nodes]
    }

    fn hint(&self, pod: &Pod, event: &Event<'_>) -> bool {
        event.node().is_some_and(|n| *n.meta.name == *pod.view.node_name)
    }
}

impl NodeFilter for Check<'_> {
    fn check(&self, node: &Node) -> Result<(), Refusal> {
        if *node.name == *self.0 {
            return Ok(());
        }
        Err(Refusal::unresolvable(NAME, "node(s) didn't match the requested node name"))
    }
}
