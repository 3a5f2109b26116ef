//! The arguments of plugins (`pluginConfig`).

use crate::plugins::{InterPodAffinity, NodeResourcesFit, PodTopologySpread};
use crate::preemption::Candidates;

/// The arguments of all plugins that have some.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    pub preemption: Candidates,
    pub inter_pod_affinity: InterPodAffinity,
    pub fit: NodeResourcesFit,
    /// The resources that NodeResourcesBalancedAllocation balances; empty for the default ones.
    pub balanced: Vec<Box<str>>,
    pub spread: PodTopologySpread,
    /// Affinity that NodeAffinity adds to that of each pod.
    pub added_affinity: placement::NodeAffinity,
}
