//! The plugins, in the order in which they are called.

mod balanced_allocation;
mod default_binder;
mod default_preemption;
mod dynamic_resources;
mod image_locality;
mod inter_pod_affinity;
mod node_affinity;
mod node_declared_features;
mod node_name;
mod node_ports;
mod node_resources_fit;
mod node_unschedulable;
mod node_volume_limits;
mod pod_topology_spread;
mod priority_sort;
mod scheduling_gates;
mod taint_toleration;
mod volume_binding;
mod volume_restrictions;
mod volume_zone;

use crate::configuration::Arguments;
use crate::framework::Plugin;
use client::{Client, Recorder};
use meta::{Clock, Rng};
use std::collections::HashMap;
use std::sync::Arc;

pub use balanced_allocation::BalancedAllocation;
pub use default_preemption::{DefaultPreemption, Preempting};
pub use dynamic_resources::{DynamicResources, Reservations};
pub use inter_pod_affinity::InterPodAffinity;
pub use node_affinity::NodeAffinity;
pub use node_name::NodeName;
pub use node_ports::NodePorts;
pub use node_resources_fit::{Insufficient, NodeResourcesFit, Strategy, insufficiencies, shortfalls};
pub use pod_topology_spread::PodTopologySpread;
pub use volume_binding::VolumeBinding;

/// What plugins need of the scheduler.
#[derive(Clone, Default)]
pub struct Handle {
    /// A client with the scheduler's identity; none where nothing is bound.
    pub client: Option<Client>,
    /// The pods whose victims are being evicted.
    pub preempting: Preempting,
    /// None where nothing is bound.
    pub clock: Option<Arc<dyn Clock>>,
    pub rng: Option<Arc<dyn Rng>>,
    /// By scheduler name; empty where nothing is bound.
    pub recorders: Arc<HashMap<Arc<str>, Recorder>>,
    /// The devices that pods get before their claims show it.
    pub reservations: Reservations,
}

/// The names of the default plugins, in the order in which they are called.
pub const DEFAULT: &[&str] = &[
    "SchedulingGates",
    "PrioritySort",
    "NodeUnschedulable",
    "NodeName",
    "TaintToleration",
    "NodeAffinity",
    "NodePorts",
    "NodeResourcesFit",
    "VolumeRestrictions",
    "NodeVolumeLimits",
    "VolumeBinding",
    "VolumeZone",
    "PodTopologySpread",
    "InterPodAffinity",
    "DynamicResources",
    "DefaultPreemption",
    "NodeResourcesBalancedAllocation",
    "ImageLocality",
    "DefaultBinder",
    "NodeDeclaredFeatures",
];

/// The weight that the default configuration gives a plugin; none for 1.
pub fn default_weight(name: &str) -> Option<i64> {
    match name {
        "TaintToleration" => Some(3),
        "NodeAffinity" | "PodTopologySpread" | "InterPodAffinity" | "DynamicResources" => Some(2),
        _ => None,
    }
}

/// Makes a plugin by its name. None for an unknown one. A new plugin is a file, a line here and one in [`DEFAULT`].
pub fn build(name: &str, arguments: &Arguments, handle: &Handle) -> Option<Arc<dyn Plugin>> {
    Some(match name {
        "SchedulingGates" => Arc::new(scheduling_gates::SchedulingGates),
        "PrioritySort" => Arc::new(priority_sort::PrioritySort),
        "NodeUnschedulable" => Arc::new(node_unschedulable::NodeUnschedulable),
        "NodeName" => Arc::new(NodeName),
        "TaintToleration" => Arc::new(taint_toleration::TaintToleration),
        "NodeAffinity" => Arc::new(NodeAffinity { added: arguments.added_affinity.clone() }),
        "NodePorts" => Arc::new(NodePorts),
        "NodeResourcesFit" => {
            Arc::new(NodeResourcesFit { reservations: handle.reservations.clone(), ..arguments.fit.clone() })
        }
        "VolumeRestrictions" => Arc::new(volume_restrictions::VolumeRestrictions),
        "NodeVolumeLimits" => Arc::new(node_volume_limits::NodeVolumeLimits),
        "VolumeBinding" => Arc::new(VolumeBinding::new(handle.client.clone(), arguments.bind_timeout)),
        "VolumeZone" => Arc::new(volume_zone::VolumeZone),
        "PodTopologySpread" => Arc::new(arguments.spread.clone()),
        "InterPodAffinity" => Arc::new(arguments.inter_pod_affinity.clone()),
        "DynamicResources" => {
            Arc::new(DynamicResources::new(handle, arguments.device_timeout, arguments.device_search_time))
        }
        "DefaultPreemption" => {
            Arc::new(DefaultPreemption { candidates: arguments.preemption, preempting: handle.preempting.clone() })
        }
        "NodeResourcesBalancedAllocation" => {
            Arc::new(BalancedAllocation::new(&arguments.balanced, handle.reservations.clone()))
        }
        "ImageLocality" => Arc::new(image_locality::ImageLocality),
        "DefaultBinder" => Arc::new(default_binder::DefaultBinder(handle.client.clone())),
        "NodeDeclaredFeatures" => Arc::new(node_declared_features::NodeDeclaredFeatures),
        _ => return None,
    })
}
