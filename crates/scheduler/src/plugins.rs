//! The plugins, in the order in which they are called.

mod balanced_allocation;
mod default_binder;
mod image_locality;
mod inter_pod_affinity;
mod node_affinity;
mod node_name;
mod node_ports;
mod node_resources_fit;
mod node_unschedulable;
mod pod_topology_spread;
mod priority_sort;
mod scheduling_gates;
mod taint_toleration;

use crate::framework::Plugin;
use client::Client;

pub use inter_pod_affinity::InterPodAffinity;
pub use node_affinity::NodeAffinity;
pub use node_name::NodeName;
pub use node_ports::NodePorts;
pub use node_resources_fit::{Insufficient, insufficiencies, shortfalls};

/// The default plugins that decide, without the one that binds. A new plugin is a file, and a line here.
pub fn deciding_plugins() -> Vec<Box<dyn Plugin>> {
    vec![
        Box::new(scheduling_gates::SchedulingGates),
        Box::new(priority_sort::PrioritySort),
        Box::new(node_unschedulable::NodeUnschedulable),
        Box::new(NodeName),
        Box::new(taint_toleration::TaintToleration),
        Box::new(NodeAffinity),
        Box::new(NodePorts),
        Box::new(node_resources_fit::NodeResourcesFit),
        Box::new(pod_topology_spread::PodTopologySpread),
        Box::new(InterPodAffinity),
        Box::new(balanced_allocation::BalancedAllocation),
        Box::new(image_locality::ImageLocality),
    ]
}

/// The default plugins. `client` has the scheduler's identity.
pub fn default_plugins(client: &Client) -> Vec<Box<dyn Plugin>> {
    let mut all = deciding_plugins();
    all.push(Box::new(default_binder::DefaultBinder(client.clone())));
    all
}
