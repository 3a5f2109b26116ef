//! Schedules one pod, and takes the outcome of its binding or preemption (upstream `schedule_one.go`).

use crate::binding::{self, BindingError};
use crate::decide::{choose, filter};
use crate::decision::{Decision, Diagnosis, Refusal};
use crate::eviction::Eviction;
use crate::extender;
use crate::framework::{Event, Nomination, PostFilterContext};
use crate::pod::Pod;
use crate::preemption;
use crate::profile::ReserveError;
use crate::queue::Taken;
use crate::service::Scheduler;
use crate::status::{Condition, NominatedNode, write};
use client::{Regarding, Severity};
use futures::future::BoxFuture;
use std::sync::Arc;
use supervisor::panics::{caught, caught_now};
use tokio::sync::oneshot;

/// What a task of a pod came to.
pub(crate) enum Outcome {
    BindingFailed(Failed),
    /// The victims of a pod are deleted, or `failed` to be.
    Preempted {
        pod: Arc<Pod>,
        failed: bool,
    },
}

/// A binding that failed.
pub(crate) struct Failed {
    taken: Taken,
    node: Arc<str>,
    error: BindingError,
}

impl Outcome {
    pub fn pod(&self) -> &Arc<Pod> {
        match self {
            Self::BindingFailed(failed) => &failed.taken.pod,
            Self::Preempted { pod, .. } => pod,
        }
    }
}

/// The binding of a pod.
pub(crate) struct Binding {
    /// Ends the wait for Permit plugins with a reason; dropped when the pod needs no binding any more.
    pub wait: Option<oneshot::Sender<&'static str>>,
    /// The pod as it was changed since.
    pub changed: Option<Arc<Pod>>,
}

/// Why a pod goes back to the queue, for its status.
struct Failure {
    reason: &'static str,
    message: String,
    nominated: Nominated,
}

/// An owned [`NominatedNode`].
#[derive(Clone)]
enum Nominated {
    Keep,
    Clear,
    Set(Arc<str>),
}

impl Scheduler {
    pub async fn schedule(&mut self, taken: Taken) {
        let (pod, framework) = (taken.pod.clone(), taken.framework.clone());
        if let Err(refusal) = framework.gate(&pod, &self.cluster) {
            return self.hold(taken, refusal);
        }
        let filtered = filter(&framework, &pod, &self.cluster, self.start);
        let mut d = filtered.decision;
        if let Some(message) = d.error.take() {
            return self.fail(taken, Failure::error(message)).await;
        }
        let narrowed = extender::narrow(&self.extenders, &pod, filtered.feasible, &mut d).await;
        let feasible = match narrowed {
            Ok(feasible) => feasible,
            Err(e) => return self.fail(taken, Failure::error(e)).await,
        };
        let scores = extender::scores(&self.extenders, &pod, &feasible).await;
        choose(&framework, &pod, &self.cluster, &feasible, &scores, &mut d);
        self.start = (self.start + d.evaluated) % self.cluster.live().max(1);
        if let Some(message) = d.error.take() {
            return self.fail(taken, Failure::error(message)).await;
        }
        let Some(node) = d.node.clone() else {
            return self.refuse(taken, d).await;
        };
        match framework.reserve(&pod, &node, &self.cluster) {
            Ok(()) => {
                self.cluster.nominations_mut().remove(&pod.meta.uid);
                self.cluster.add_pod(pod, &node);
                self.bind(taken, node).await;
            }
            Err(ReserveError::Refused(refusal)) => {
                let refused_by = [refusal.plugin].into();
                let failure = Failure::refused(&node, refusal);
                self.withdraw_nomination(&pod);
                self.queue.refused(taken.clone(), refused_by);
                self.report(&taken, failure, None, Vec::new()).await;
            }
            Err(ReserveError::Panicked) => self.fail(taken, Failure::error(BindingError::Panicked)).await,
        }
    }

    /// Puts a pod back into the queue that is not to be scheduled yet.
    fn hold(&mut self, taken: Taken, refusal: Refusal) {
        let uid = taken.pod.meta.uid.clone();
        self.queue.gated(taken, refusal.plugin);
        let diagnosis = Diagnosis { nodes: self.cluster.live(), ..Diagnosis::default() };
        let decision = Decision { diagnosis, pod_refusal: Some(refusal), ..Decision::default() };
        self.options.decisions.set(&uid, self.options.clock.now(), decision);
    }

    /// Puts a pod back into the queue whose scheduling failed with an error.
    async fn fail(&mut self, taken: Taken, failure: Failure) {
        self.withdraw_nomination(&taken.pod);
        self.queue.failed(taken.clone());
        self.report(&taken, failure, None, Vec::new()).await;
    }

    /// Puts a pod that no node fits back into the queue, after the PostFilter plugins had a look at it.
    async fn refuse(&mut self, taken: Taken, mut d: Decision) {
        let pod = taken.pod.clone();
        let mut nominated = Nominated::Clear;
        let (mut nomination, mut repairs) = (None, Vec::new());
        if d.diagnosis.nodes > 0 {
            let context = PostFilterContext {
                framework: &taken.framework,
                pod: &pod,
                cluster: &self.cluster,
                decision: &d,
                rng: &*self.options.rng,
            };
            let result = taken.framework.post_filter(&context);
            d.post_filter = result.message;
            nomination = result.nomination;
            repairs = result.repairs;
            let mut keep = !result.clear;
            if !result.candidates.is_empty() {
                let candidates = extender::preempt(&self.extenders, &pod, result.candidates, &self.cluster).await;
                match candidates.map(|c| preemption::best(c, &*self.options.rng)) {
                    Ok(best) => nomination = best.map(Nomination::from),
                    Err(e) => d.post_filter = e.to_string(),
                }
                if nomination.is_none() && d.post_filter.is_empty() {
                    d.post_filter = "preemption: no candidate node for preemption".into();
                }
                keep = true;
            }
            nominated = match &nomination {
                Some(nomination) => Nominated::Set(nomination.node.clone()),
                None if keep => Nominated::Keep,
                None => Nominated::Clear,
            };
        }
        let eviction = nomination.map(|nomination| self.prepare(&pod, nomination));
        match &nominated {
            Nominated::Set(node) => self.cluster.nominations_mut().set(pod.clone(), node),
            Nominated::Clear => self.withdraw_nomination(&pod),
            Nominated::Keep => {}
        }
        let message = d.message();
        self.queue.refused(taken.clone(), d.refused_by());
        self.options.decisions.set(&pod.meta.uid, self.options.clock.now(), d);
        self.report(&taken, Failure { reason: "Unschedulable", message, nominated }, eviction, repairs).await;
    }

    /// Prepares a preemption: later decisions know of it, and the pod waits for it.
    fn prepare(&mut self, pod: &Arc<Pod>, nomination: Nomination) -> Eviction {
        let lower = self.cluster.nominated(&nomination.node).iter().filter(|p| p.view.priority < pod.view.priority);
        let displaced: Vec<Arc<Pod>> = lower.cloned().collect();
        for other in &displaced {
            self.withdraw_nomination(other);
        }
        let mut cancelled = Vec::new();
        for victim in &nomination.victims {
            let wait = self.bindings.get_mut(&victim.meta.uid).and_then(|b| b.wait.take());
            if wait.is_some_and(|wait| wait.send("preempted").is_ok()) {
                cancelled.push(victim.clone());
            }
        }
        self.preempting.lock().insert(pod.meta.uid.clone());
        Eviction { pod: pod.clone(), nomination, displaced, cancelled }
    }

    /// Forgets the nomination of a pod. Pods that yielded to it may fit.
    fn withdraw_nomination(&mut self, pod: &Arc<Pod>) {
        if self.cluster.nominations().node_of(&pod.meta.uid).is_some() {
            self.cluster.nominations_mut().remove(&pod.meta.uid);
            self.queue.handle_event(&Event::PodGone(pod));
        }
    }

    /// Writes why a pod is not scheduled into an event and its status, evicts the victims of its preemption, and does what may make it fit
    /// later.
    async fn report(
        &mut self,
        taken: &Taken,
        failure: Failure,
        eviction: Option<Eviction>,
        repairs: Vec<BoxFuture<'static, Result<(), client::Error>>>,
    ) {
        let pod = taken.pod.clone();
        let Some(recorder) = self.recorders.get(&taken.framework.name).cloned() else { return };
        let about = Regarding::from_meta("v1", "Pod", &pod.meta);
        recorder.action(about, Severity::Warning, "FailedScheduling", "Scheduling", failure.message.as_str());
        let (options, outcomes) = (self.options.clone(), self.outcomes.clone());
        let permit = self.permit().await;
        tokio::spawn(async move {
            let condition = Condition {
                r#type: "PodScheduled",
                status: "False",
                reason: failure.reason,
                message: &failure.message,
            };
            let nominated = match &failure.nominated {
                Nominated::Keep => NominatedNode::Keep,
                Nominated::Clear => NominatedNode::Clear,
                Nominated::Set(node) => NominatedNode::Set(node),
            };
            let written = write(&options.client, &*options.clock, &pod, Some(condition), nominated).await;
            if let Err(e) = written
                && !e.is_not_found()
            {
                tracing::debug!(pod = %pod.key(), "writing the condition of an unschedulable pod failed: {e}");
            }
            for repair in repairs {
                if let Err(e) = repair.await {
                    tracing::debug!(pod = %pod.key(), "what may make a pod fit failed: {e}");
                }
            }
            if let Some(eviction) = eviction {
                let evicted = caught("scheduler", pod.key(), eviction.run(&options, &recorder)).await;
                let failed = !matches!(evicted, Ok(Ok(())));
                let _ = outcomes.send(Outcome::Preempted { pod, failed }).await;
            }
            drop(permit);
        });
    }

    /// Starts the binding. The pod counts as placed meanwhile. One that waits for a Permit plugin takes no place among the bindings.
    async fn bind(&mut self, taken: Taken, node: Arc<str>) {
        let (wait, cancelled) = oneshot::channel();
        self.bindings.insert(taken.pod.meta.uid.clone(), Binding { wait: Some(wait), changed: None });
        let waits = caught_now("scheduler", taken.pod.key(), || binding::permits(&taken.framework, &taken.pod, &node));
        let Ok(waits) = waits else {
            return self.binding_failed(Failed { taken, node, error: BindingError::Panicked });
        };
        let permit = match waits.is_empty() {
            true => {
                // It cannot be cancelled any more.
                if let Some(binding) = self.bindings.get_mut(&taken.pod.meta.uid) {
                    binding.wait = None;
                }
                Some(self.permit().await)
            }
            false => None,
        };
        let (permits, outcomes, options) = (self.permits.clone(), self.outcomes.clone(), self.options.clone());
        let Some(recorder) = self.recorders.get(&taken.framework.name).cloned() else { return };
        let extenders = self.extenders.clone();
        tokio::spawn(async move {
            let pod = &taken.pod;
            let bound = async {
                let (permit, permitted) = match permit {
                    Some(permit) => (permit, Ok(())),
                    None => {
                        // Others see where the pod will go.
                        let expected = NominatedNode::Set(&node);
                        let written = write(&options.client, &*options.clock, pod, None, expected).await;
                        if let Err(e) = written {
                            tracing::debug!(pod = %pod.key(), "writing the nominated node of a pod failed: {e}");
                        }
                        let permitted = caught("scheduler", pod.key(), binding::permitted(waits, cancelled)).await;
                        (permits.acquire_owned().await.ok(), permitted.unwrap_or(Err(BindingError::Panicked)))
                    }
                };
                let bound = match permitted {
                    Ok(()) => {
                        let extender = extenders.iter().find(|e| e.binds(pod));
                        caught("scheduler", pod.key(), binding::bind(&taken.framework, extender, pod, &node)).await
                    }
                    refused => Ok(refused),
                };
                (permit, bound.unwrap_or(Err(BindingError::Panicked)))
            };
            let (permit, bound) = bound.await;
            let m = &pod.meta;
            match bound {
                Ok(()) => {
                    let text = format!("Successfully assigned {}/{} to {node}", m.namespace, m.name);
                    recorder.action(
                        Regarding::from_meta("v1", "Pod", m),
                        Severity::Normal,
                        "Scheduled",
                        "Binding",
                        text,
                    );
                }
                Err(error) => {
                    let failed = Failed { taken, node, error };
                    let _ = outcomes.send(Outcome::BindingFailed(failed)).await;
                }
            }
            drop(permit);
        });
    }

    pub fn finish(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::BindingFailed(failed) => self.binding_failed(failed),
            Outcome::Preempted { pod, failed } => {
                self.preempting.lock().remove(&pod.meta.uid);
                // What failed is not repeated by an event.
                if failed { self.queue.activate(&pod.meta.uid) } else { self.queue.admit(&pod.meta.uid) }
            }
        }
    }

    fn binding_failed(&mut self, Failed { mut taken, node, error }: Failed) {
        let pod = taken.pod.clone();
        let binding = self.bindings.remove(&pod.meta.uid);
        taken.framework.unreserve(&pod, &node);
        // A change of the pod overrides the assumption: it may be gone, or bound after all.
        let assumed = self.cluster.pod(&pod.meta.uid).is_some_and(|p| p.view.node_name.is_empty());
        if !assumed {
            return;
        }
        self.cluster.remove_pod(&pod.meta.uid);
        self.queue.handle_event(&Event::PodGone(&pod));
        let Some(binding) = binding.filter(|_| !error.pod_is_gone()) else { return };
        let failure = match &error {
            BindingError::Refused(refusal) => Failure::refused(&node, refusal.clone()),
            error => Failure::error(error),
        };
        let changed = binding.changed.is_some();
        taken.pod = binding.changed.unwrap_or(pod);
        match error {
            // Its plugins have not seen the change.
            _ if changed => self.queue.failed(taken.clone()),
            BindingError::Refused(refusal) => self.queue.refused(taken.clone(), [refusal.plugin].into()),
            _ => self.queue.failed(taken.clone()),
        }
        self.report_now(&taken, failure);
    }

    /// Like [`Self::report`], without a preemption; does not wait for a permit.
    fn report_now(&self, taken: &Taken, failure: Failure) {
        let Some(recorder) = self.recorders.get(&taken.framework.name) else { return };
        let pod = taken.pod.clone();
        let about = Regarding::from_meta("v1", "Pod", &pod.meta);
        recorder.action(about, Severity::Warning, "FailedScheduling", "Scheduling", failure.message.as_str());
        let (options, permits) = (self.options.clone(), self.permits.clone());
        tokio::spawn(async move {
            let permit = permits.acquire_owned().await;
            let condition = Condition {
                r#type: "PodScheduled",
                status: "False",
                reason: failure.reason,
                message: &failure.message,
            };
            let written = write(&options.client, &*options.clock, &pod, Some(condition), NominatedNode::Clear).await;
            if let Err(e) = written
                && !e.is_not_found()
            {
                tracing::debug!(pod = %pod.key(), "writing the condition of a pod that was not bound failed: {e}");
            }
            drop(permit);
        });
    }
}

impl Failure {
    /// A refusal by a Reserve or Permit plugin.
    fn refused(node: &Arc<str>, refusal: Refusal) -> Self {
        let diagnosis = Diagnosis { nodes: 1, refusals: vec![(node.clone(), refusal)], others: None };
        Self { reason: "Unschedulable", message: diagnosis.message(), nominated: Nominated::Clear }
    }

    fn error(error: impl ToString) -> Self {
        Self { reason: "SchedulerError", message: error.to_string(), nominated: Nominated::Clear }
    }
}
