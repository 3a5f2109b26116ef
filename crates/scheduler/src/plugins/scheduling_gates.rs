//! Pods with scheduling gates wait until the gates are removed.

use crate::framework::{Plugin, Point, Refusal};
use crate::pod::Pod;

const NAME: &str = "SchedulingGates";

pub struct SchedulingGates;

impl Plugin for SchedulingGates {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreEnqueue]
    }

    fn pre_enqueue(&self, pod: &Pod) -> Result<(), Refusal> {
        if pod.view.gated {
            return Err(Refusal::unresolvable(NAME, "waiting for scheduling gates"));
        }
        Ok(())
    }
}
