//! Makes room for a pod by evicting pods of lower priority.

use crate::framework::{Plugin, Point, PostFilter, PostFilterContext, Refusal};
use crate::pod::Pod;
use crate::preemption::{Candidates, candidates, ineligible};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;

const NAME: &str = "DefaultPreemption";

/// The pods whose victims are being evicted.
pub type Preempting = Arc<Mutex<HashSet<Arc<str>>>>;

#[derive(Default)]
pub struct DefaultPreemption {
    pub candidates: Candidates,
    /// Shared with the scheduler, which evicts.
    pub preempting: Preempting,
}

impl Plugin for DefaultPreemption {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreEnqueue, Point::PostFilter]
    }

    /// A pod waits until its victims are deleted or terminating.
    fn pre_enqueue(&self, pod: &Pod) -> Result<(), Refusal> {
        if self.preempting.lock().contains(&pod.meta.uid) {
            return Err(Refusal::unresolvable(NAME, "waiting for the preemption for this pod to be finished"));
        }
        Ok(())
    }

    fn post_filter(&self, context: &PostFilterContext<'_>) -> PostFilter {
        let PostFilterContext { framework, pod, cluster, decision, rng } = *context;
        if let Some(reason) = ineligible(pod, cluster, decision) {
            return PostFilter::Refused(format!("preemption: {reason}"));
        }
        match candidates(framework, pod, cluster, decision, self.candidates, rng) {
            Ok(found) => PostFilter::Candidates(found),
            Err(diagnosis) => PostFilter::Hopeless(format!("preemption: {}", diagnosis.message())),
        }
    }
}
