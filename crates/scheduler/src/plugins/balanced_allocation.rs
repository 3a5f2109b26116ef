//! Prefers nodes whose CPU and memory would be used in equal proportion.

use crate::cluster::{Cluster, Node};
use crate::framework::{MAX_SCORE, NodeScore, Plugin};
use crate::pod::Pod;
use crate::resources::Resources;

pub struct BalancedAllocation;

struct Balance<'a>(&'a Resources);

impl Plugin for BalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    /// A pod without requests does not affect the balance.
    fn pre_score<'a>(&self, pod: &'a Pod, _: &'a Cluster) -> Option<Box<dyn NodeScore + 'a>> {
        let r = &pod.view.requests;
        if r.cpu == 0 && r.memory == 0 { None } else { Some(Box::new(Balance(r))) }
    }
}

impl NodeScore for Balance<'_> {
    fn score(&self, node: &Node) -> i64 {
        let Some(n) = &node.entry else { return 0 };
        let a = &n.view.allocatable;
        if a.cpu == 0 || a.memory == 0 {
            return MAX_SCORE;
        }
        let share = |requested: i64, used: i64, there: i64| ((requested as f64 + used as f64) / there as f64).min(1.0);
        let cpu = share(self.0.cpu, node.requested.cpu, a.cpu);
        let memory = share(self.0.memory, node.requested.memory, a.memory);
        // The standard deviation of two fractions.
        ((1.0 - (cpu - memory).abs() / 2.0) * MAX_SCORE as f64) as i64
    }
}
