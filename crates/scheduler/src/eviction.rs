//! Carries out a preemption: withdraws nominations of lower priority, marks the victims and deletes them (upstream `executor.go`).

use crate::framework::Nomination;
use crate::pod::Pod;
use crate::service::Options;
use crate::status::{Condition, NominatedNode, write};
use client::{DeleteOptions, Error, Recorder, Regarding, Severity};
use futures::StreamExt;
use k8s_openapi::api::core::v1 as core;
use std::sync::Arc;

/// How many victims are deleted at once.
const PARALLEL: usize = 16;

/// A preemption to carry out.
pub(crate) struct Eviction {
    pub pod: Arc<Pod>,
    pub nomination: Nomination,
    /// Pods of lower priority that are nominated for the same node: they may not fit any more.
    pub displaced: Vec<Arc<Pod>>,
    /// Victims whose binding was cancelled in memory: they are not deleted.
    pub cancelled: Vec<Arc<Pod>>,
}

impl Eviction {
    /// Deletes the victims. Errors if one could not be deleted; the others are deleted nevertheless.
    pub async fn run(self, options: &Options, recorder: &Recorder) -> Result<(), Error> {
        for pod in &self.displaced {
            let cleared = write(&options.client, &*options.clock, pod, None, NominatedNode::Clear).await;
            if let Err(e) = client::optional(cleared) {
                tracing::debug!(pod = %pod.key(), "withdrawing the nomination of a pod failed: {e}");
            }
        }
        for victim in &self.cancelled {
            self.report(recorder, victim, " (in kube-scheduler memory).");
        }
        let victims = self.nomination.victims.iter().filter(|v| !v.meta.is_deleting());
        let victims = victims.filter(|v| !self.cancelled.iter().any(|c| c.meta.uid == v.meta.uid));
        let evictions: Vec<_> = victims.map(|v| self.evict(options, recorder, v)).collect();
        let results: Vec<_> = futures::stream::iter(evictions).buffer_unordered(PARALLEL).collect().await;
        results.into_iter().collect()
    }

    async fn evict(&self, options: &Options, recorder: &Recorder, victim: &Arc<Pod>) -> Result<(), Error> {
        let message = format!("{}: preempting to accommodate a higher priority pod", self.pod.view.scheduler_name);
        let condition = Condition {
            r#type: "DisruptionTarget",
            status: "True",
            reason: "PreemptionByScheduler",
            message: &message,
        };
        let marked = write(&options.client, &*options.clock, victim, Some(condition), NominatedNode::Keep).await;
        if client::optional(marked)?.is_none() {
            return Ok(());
        }
        let pods = options.client.api::<core::Pod>().namespace(&victim.meta.namespace);
        let deleted = pods.delete(&victim.meta.name, &DeleteOptions::uid(&victim.meta.uid)).await;
        match deleted {
            Err(e) if e.is_not_found() || e.is_conflict() => return Ok(()),
            Err(e) => {
                tracing::warn!(victim = %victim.key(), pod = %self.pod.key(), "deleting a pod for one of higher priority failed: {e}");
                return Err(e);
            }
            Ok(_) => {}
        }
        self.report(recorder, victim, "");
        Ok(())
    }

    fn report(&self, recorder: &Recorder, victim: &Pod, end: &str) {
        let text = format!("Preempted by pod {} on node {}{end}", self.pod.meta.uid, self.nomination.node);
        let victim = Regarding::from_meta("v1", "Pod", &victim.meta);
        let preemptor = Regarding::from_meta("v1", "Pod", &self.pod.meta);
        recorder.action_for(victim, Some(preemptor), Severity::Normal, "Preempted", "Preempting", text);
    }
}
