//! Filters nodes whose host ports are in use.

use crate::cluster::{Cluster, Node};
use crate::explain::{Change, Shortfall};
use crate::framework::{Event, NodeFilter, Plugin, Point, PreFilter, Read, Refusal};
use crate::pod::{HostPort, Pod};

const NAME: &str = "NodePorts";

pub struct NodePorts;

struct Check<'a>(&'a [HostPort]);

impl Plugin for NodePorts {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter]
    }

    fn pre_filter<'a>(&'a self, pod: &'a Pod, _: &'a Cluster) -> PreFilter<'a> {
        if pod.view.host_ports.is_empty() { Ok(None) } else { Ok(Some(Box::new(Check(&pod.view.host_ports)))) }
    }

    fn reads(&self) -> &'static [Read] {
        &[Read::Nodes, Read::GonePods]
    }

    fn hint(&self, pod: &Pod, event: &Event<'_>) -> bool {
        match event {
            Event::PodGone(gone) => {
                gone.view.host_ports.iter().any(|p| pod.view.host_ports.iter().any(|q| p.conflicts(q)))
            }
            _ => true,
        }
    }
}

impl NodeFilter for Check<'_> {
    fn check(&self, node: &Node) -> Result<(), Refusal> {
        if self.0.iter().any(|p| node.ports.iter().any(|q| p.conflicts(q))) {
            return Err(Refusal::resolvable(NAME, "node(s) didn't have free ports for the requested pod ports"));
        }
        Ok(())
    }

    fn shortfalls(&self, node: &Node) -> Vec<Shortfall> {
        let taken = self.0.iter().filter(|p| node.ports.iter().any(|q| p.conflicts(q)));
        let shortfall = |p: &HostPort| {
            let text = format!("{}/{}", p.port, p.protocol);
            let users = node.pods.iter().filter(|o| o.view.host_ports.iter().any(|q| p.conflicts(q)));
            let used = Shortfall::new(&text, format!("host port {text} is in use")).pods(users);
            used.remedy(Change::RemoveHostPort { port: p.port, protocol: p.protocol.to_string() })
        };
        taken.map(shortfall).collect()
    }
}
