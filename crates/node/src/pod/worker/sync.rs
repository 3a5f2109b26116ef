//! One round of work for a pod that is not being deleted: observe, plan, act.

use std::time::Duration;

use client::Severity;
use supervisor::blocking;

use super::observe::Observed;
use super::stop::{Stopped, UNPREPARE_AGAIN};
use super::{Failure, RESYNC, Stage, Worker, unless_ending};
use crate::admission::{Admitted, PREEMPTING};
use crate::eviction::{EVICTED, Eviction};
use crate::pod::backoff::go_duration;
use crate::pod::holds::SANDBOX;
use crate::pod::keyring;
use crate::pod::plan::{self, Plan, Role, Sandbox, Seen};
use crate::pod::security;
use crate::pod::spec::text;
use crate::pod::status::Waiting;
use crate::shutdown::TERMINATED;
use crate::{env, volumes};

/// Steps of a round, after which it reports the status and continues later.
const MAX_STEPS: usize = 32;

impl Worker {
    /// One round: observes, plans and acts until there is nothing left to do. Returns when the next round is due.
    pub(super) async fn sync(&mut self) -> Duration {
        self.follow_mirror();
        let terminal = matches!(self.base.1.phase.as_deref(), Some("Succeeded" | "Failed"));
        if self.stage == Stage::Ended || terminal {
            if self.stage != Stage::Ended {
                self.stop_everything(self.grace()).await;
                self.stage = Stage::Ended;
                self.end_admission().await;
            }
            // The end may not be reported yet.
            let next = if terminal { RESYNC } else { self.report(true).await.map_or(RESYNC, |u| u.retry) };
            return next.min(self.end_volumes().await);
        }
        if let Some(failure) = self.failed.clone() {
            // It could not be ended completely.
            return self.fail_within(failure, Duration::ZERO).await;
        }
        if let Some(ended) = self.refuse().await {
            return ended;
        }
        let mut references = env::references(&self.pod);
        references.extend(volumes::references(&self.pod));
        references.extend(keyring::references(&self.pod));
        self.shared.objects.register(&self.uid, &references);
        self.refresh().await;
        for _ in 0..MAX_STEPS {
            if self.is_ending() {
                return Duration::ZERO;
            }
            let seen = match self.observe().await {
                Ok(seen) => seen,
                Err(error) => {
                    tracing::warn!(pod = %self.name(), %error, "reading the runtime's state failed; it is tried again");
                    return Duration::from_secs(5);
                }
            };
            if seen.state() == Sandbox::Ready && self.ips.is_empty() {
                self.ips = self.shared.addresses(&self.uid).await;
            }
            self.probe(&seen);
            let deadline = self.deadline();
            if deadline == Some(Duration::ZERO) {
                let message = "Pod was active on the node longer than the specified deadline";
                self.event(None, Severity::Normal, "DeadlineExceeded", message);
                return self.fail(Failure::new("DeadlineExceeded", message)).await;
            }
            if let Some(next) = self.check_storage(&seen).await {
                return next;
            }
            let mut plan = self.plan(&seen);
            // Checked before the first start only: a pod that runs was admitted.
            if plan.new_sandbox
                && let Some(refusal) = {
                    let shared = self.shared.clone();
                    let host = blocking(move || security::Host::read(&shared.options)).await;
                    security::refusal(&self.pod, &host, &self.shared.options.sysctls)
                }
            {
                self.event(None, Severity::Warning, refusal.reason, refusal.message.clone());
                return self.fail(Failure::rejection(refusal.reason, &refusal.message)).await;
            }
            if let Some(left) = deadline {
                plan.wake = Some(plan.wake.map_or(left, |w| w.min(left)));
            }
            self.resize(&seen, &mut plan).await;
            let acted = self.act(&plan, &seen).await;
            if self.rejected.is_some() {
                return Duration::ZERO;
            }
            if plan.finished {
                return self.finish().await;
            }
            if !acted {
                self.start_permit = None;
                let retry = self.report(false).await.map(|u| u.retry);
                let waits =
                    [plan.wake, retry, self.holds.first_end(self.now()), self.next_labels(), self.next_storage()];
                return waits.into_iter().flatten().min().unwrap_or(RESYNC);
            }
        }
        self.report(false).await.map_or(Duration::from_millis(100), |u| u.retry)
    }

    /// Ends a pod that the node rejects or that is preempted. Returns when the next round is due, also for a pod that waits for the
    /// end of others; `None` if the pod may run.
    async fn refuse(&mut self) -> Option<Duration> {
        if let Some(rejection) = self.rejected.take() {
            self.event(None, Severity::Warning, &rejection.reason, rejection.message.clone());
            return Some(self.fail(Failure::rejection(&rejection.reason, &rejection.message)).await);
        }
        if let Some(period) = self.shared.known.shutdown.period(&self.uid) {
            let (reason, message) = TERMINATED;
            let failure = Failure::new(reason, message).disrupted(message);
            let next = self.fail_within(failure, self.grace().min(period)).await;
            self.shared.known.shutdown.pod_ended(&self.uid);
            return Some(next);
        }
        if self.shared.admission.is_preempted(&self.uid) {
            let (reason, message) = PREEMPTING;
            self.event(None, Severity::Warning, reason, message);
            let failure =
                Failure::new(reason, message).disrupted("Pod was preempted by Kubelet to accommodate a critical pod.");
            return Some(self.fail(failure).await);
        }
        // Its event has been recorded when it was chosen.
        if let Some(Eviction { message, grace_period }) = self.shared.known.evictions.of(&self.uid) {
            let failure = Failure::new(EVICTED, message.clone()).disrupted(message);
            let next = self.fail_within(failure, grace_period).await;
            self.shared.known.evictions.forget(&self.uid);
            return Some(next);
        }
        if self.admitted.as_ref().is_some_and(Admitted::waits) {
            // Nothing is reported: a new agent has to admit the pod again.
            return Some(RESYNC);
        }
        None
    }

    /// The time left of `activeDeadlineSeconds`.
    fn deadline(&self) -> Option<Duration> {
        let seconds = self.pod.spec.as_ref()?.active_deadline_seconds?;
        let start = self.base.1.start_time.as_ref()?.0;
        Some(meta::time::left(self.now(), meta::time::plus(start, seconds.max(0))))
    }

    fn plan(&mut self, seen: &Observed) -> Plan {
        let now = self.now();
        let health = self.probes.health();
        let mut plan = plan::plan(
            &self.pod,
            &Seen {
                sandbox: seen.state(),
                sandbox_id: seen.id(),
                newest: &seen.newest,
                previous: &seen.previous,
                health: &health,
                backoffs: &self.backoffs,
                killed: &self.killed,
                now,
            },
        );
        self.back_off_sandbox(&mut plan, seen, now);
        plan.start.retain(|s| !self.holds.is_held(&s.name, now));
        if self.holds.is_held(SANDBOX, now) {
            plan.new_sandbox = false;
            plan.start.clear();
        }
        // Only what is held or backs off has a reason to wait.
        let backing: Vec<&String> = plan.backing_off.iter().map(|(n, _)| n).collect();
        self.waiting.retain(|n, _| self.holds.is_held(n, now) || backing.contains(&n));
        for (name, delay) in &plan.backing_off {
            let message = format!(
                "back-off {} restarting failed container={name} pod={}_{}({})",
                go_duration(*delay),
                text(&self.pod.metadata.name),
                text(&self.pod.metadata.namespace),
                self.uid
            );
            let waiting = Waiting { reason: "CrashLoopBackOff".into(), message };
            if self.waiting.get(name) != Some(&waiting) {
                let m = &self.pod.metadata;
                let message = format!(
                    "Back-off restarting failed container {name} in pod {}_{}({})",
                    text(&m.name),
                    text(&m.namespace),
                    self.uid
                );
                self.event(Some(name), Severity::Warning, "BackOff", message);
                self.waiting.insert(name.clone(), waiting);
            }
        }
        plan
    }

    /// Carries out the plan. Returns whether the runtime's state may have changed.
    async fn act(&mut self, plan: &Plan, seen: &Observed) -> bool {
        let mut acted = false;
        if !plan.kill.is_empty() || plan.finished {
            // Stopping may take as long as the grace period.
            self.start_permit = None;
        }
        if plan.restarts_all && !plan.kill.is_empty() {
            // The status shows why containers end.
            self.report(false).await;
        }
        for kill in &plan.kill {
            self.event(Some(&kill.name), Severity::Normal, "Killing", kill.message.clone());
            let grace = kill.grace.map_or(self.grace(), meta::time::seconds);
            self.probes.stop(&kill.name);
            self.killed.insert(kill.id.clone());
            acted = true;
            if let Some(spec) = self.spec_of(&kill.name)
                && self.stop_container(&kill.id, &spec, grace).await == Stopped::PodEnds
            {
                return acted;
            }
        }
        if plan.finished || !plan.new_sandbox && plan.start.is_empty() {
            return acted;
        }
        if !self.acquire_start_permit().await {
            return acted;
        }
        if plan.new_sandbox {
            return self.make_sandbox(seen).await || acted;
        }
        let Some(volumes) = self.set_up_volumes(plan).await else { return acted };
        self.refreshed = Some(tokio::time::Instant::now());
        for s in &plan.start {
            if !self.acquire_start_permit().await {
                break;
            }
            acted |= self.start(&s.name, s.role, seen, &volumes).await;
            if self.is_ending() {
                break;
            }
            // Containers start in order: the next one waits for the image.
            if self.pulls.is_running(&s.name) {
                break;
            }
            // Init containers start one after the other. An app container starts even if another one fails.
            if s.role == Role::Init {
                break;
            }
        }
        acted
    }

    /// Waits for permission to start something. Returns `false` if the pod terminates instead.
    async fn acquire_start_permit(&mut self) -> bool {
        if self.start_permit.is_none() {
            self.start_permit = self.shared.starts.try_acquire();
        }
        if self.start_permit.is_none() {
            // The status shows meanwhile that the node has the pod.
            self.report(false).await;
            let (inbox, shared) = (self.inbox.clone(), self.shared.clone());
            self.start_permit = unless_ending(inbox, shared.starts.acquire(text(&self.pod.metadata.namespace))).await;
        }
        self.start_permit.is_some()
    }

    /// Ends a pod whose containers have finished: stops sidecars, and keeps the records.
    async fn finish(&mut self) -> Duration {
        self.stop_everything(self.grace()).await;
        if !self.unprepare().await {
            return UNPREPARE_AGAIN;
        }
        self.stage = Stage::Ended;
        self.end_admission().await;
        self.waiting.clear();
        let next = self.report(true).await.map_or(RESYNC, |u| u.retry);
        next.min(self.end_volumes().await)
    }

    async fn fail(&mut self, failure: Failure) -> Duration {
        self.fail_within(failure, self.grace()).await
    }

    /// Ends the pod within this grace period.
    pub(super) async fn fail_within(&mut self, failure: Failure, grace: Duration) -> Duration {
        self.failed = Some(failure);
        self.stop_everything(grace).await;
        if !self.unprepare().await {
            return UNPREPARE_AGAIN;
        }
        self.stage = Stage::Ended;
        self.end_admission().await;
        let next = self.report(true).await.map_or(RESYNC, |u| u.retry);
        next.min(self.end_volumes().await)
    }

    /// Tears down the volumes of a pod that has ended, as upstream: they may have much of the node's disk, and the pod may stay in the
    /// API for long. Returns when this has to be tried again.
    async fn end_volumes(&mut self) -> Duration {
        if self.volumes_ended {
            return RESYNC;
        }
        match self.shared.volumes.tear_down_volumes(&self.uid).await {
            Ok(()) => {
                self.volumes_ended = true;
                RESYNC
            }
            Err(error) => {
                tracing::warn!(pod = %self.name(), %error, "tearing down the volumes of a pod that has ended failed; it is tried again");
                UNPREPARE_AGAIN
            }
        }
    }
}
