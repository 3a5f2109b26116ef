//! The plugins, in the order in which they filter.

mod balanced_allocation;
mod image_locality;
mod inter_pod_affinity;
mod node_affinity;
mod node_name;
mod node_ports;
mod node_resources_fit;
mod node_unschedulable;
mod pod_topology_spread;
mod taint_toleration;

use crate::framework::Plugin;

pub use inter_pod_affinity::InterPodAffinity;
pub use node_affinity::NodeAffinity;
pub use node_name::NodeName;
pub use node_ports::NodePorts;
pub use node_resources_fit::{Insufficient, insufficiencies, shortfalls};

/// What a scheduler uses when nothing else is configured.
pub fn default_plugins() -> Vec<Box<dyn Plugin>> {
    vec![
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
