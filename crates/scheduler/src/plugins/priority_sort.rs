//! Orders waiting pods by priority.

use crate::framework::{Plugin, Point};
use crate::pod::Pod;

pub struct PrioritySort;

impl Plugin for PrioritySort {
    fn name(&self) -> &'static str {
        "PrioritySort"
    }

    fn points(&self) -> &'static [Point] {
        &[Point::QueueSort]
    }

    fn queue_rank(&self, pod: &Pod) -> Option<i64> {
        Some(pod.view.priority)
    }
}
