//! Orders waiting pods by priority.

use crate::framework::Plugin;
use crate::pod::Pod;

pub struct PrioritySort;

impl Plugin for PrioritySort {
    fn name(&self) -> &'static str {
        "PrioritySort"
    }

    fn queue_rank(&self, pod: &Pod) -> Option<i64> {
        Some(pod.view.priority)
    }
}
