//! Stops the pod or a container: hooks, signals, grace periods, and cleaning up.

use std::sync::Arc;
use std::time::Duration;

use client::{DeleteOptions, Severity};
use futures::future::join_all;
use k8s_openapi::api::core::v1::{Container as Spec, Pod};
use runtime::ContainerState;
use supervisor::blocking;

use super::events::regarding;
use super::{Origin, RESYNC, Stage, Worker, unless_ending};
use crate::pod::hooks;
use crate::pod::spec::text;
use crate::probe::Names;
use crate::resources::is_sidecar;
use crate::shared::Shared;

/// The grace period of a container whose hook has used it up.
const MINIMUM: Duration = Duration::from_secs(2);

/// How long after a failure claims are unprepared again.
pub(super) const UNPREPARE_AGAIN: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Runtime(#[from] runtime::Error),
    #[error(transparent)]
    Network(#[from] network::Error),
    #[error(transparent)]
    Volumes(#[from] crate::volumes::Error),
}

/// The result of stopping a container of a pod that keeps running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    Stopped,
    /// The pod terminates. [`Worker::stop_everything`] stops all its containers within its grace period.
    PodEnds,
}

/// What stopping a container needs of the worker.
struct Ending {
    shared: Arc<Shared>,
    pod: Arc<Pod>,
    ip: Option<std::net::IpAddr>,
    names: Names,
}

impl Ending {
    async fn container(&self, id: &str, spec: &Spec, grace: Duration) {
        let options = &self.shared.options;
        let began = tokio::time::Instant::now();
        let hook = spec.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref());
        let mut left = grace;
        if let Some(hook) = hook.filter(|_| !grace.is_zero()) {
            let run =
                hooks::run(hook, &options.runtime, id, spec, self.ip, options.node_namespace.clone(), &self.names);
            match tokio::time::timeout(grace, run).await {
                Ok(Ok(())) => {}
                Ok(Err(why)) => {
                    tracing::debug!(container = id, why, "preStop failed");
                    let about = regarding(&self.pod).field(&format!("spec.containers{{{}}}", spec.name));
                    self.shared.recorder.warning(about, "FailedPreStopHook", "PreStopHook failed");
                }
                Err(_) => tracing::debug!(container = id, "preStop did not end within the grace period"),
            }
            left = grace.saturating_sub(began.elapsed()).max(MINIMUM);
        }
        if let Err(error) = options.runtime.stop_container(id, left).await {
            tracing::warn!(container = id, %error, "stopping a container failed");
        }
    }
}

impl Worker {
    fn ending(&self) -> Ending {
        Ending { shared: self.shared.clone(), pod: self.pod.clone(), ip: self.probe_ip(), names: self.names() }
    }

    /// Stops a container of a pod that keeps running. Returns early if the pod terminates meanwhile.
    pub(super) async fn stop_container(&mut self, id: &str, spec: &Spec, grace: Duration) -> Stopped {
        let (ending, inbox) = (self.ending(), self.inbox.clone());
        match unless_ending(inbox, ending.container(id, spec, grace)).await {
            Some(()) => Stopped::Stopped,
            None => Stopped::PodEnds,
        }
    }

    /// Stops all containers and the sandbox, sidecars last, and reports the status as it changes. A shorter grace period that arrives
    /// meanwhile applies.
    pub(super) async fn stop_everything(&mut self, grace: Duration) {
        self.start_permit = None;
        self.pulls.stop();
        self.probes.end_restarts();
        let wake = self.wake.clone();
        let Ok(seen) = self.observe().await else { return };
        let running: Vec<(String, Spec)> = seen
            .running()
            .filter(|c| c.state == ContainerState::Running)
            .filter_map(|c| Some((c.id.clone(), self.spec_of(&c.name)?)))
            .collect();
        for (_, spec) in &running {
            let message = format!("Stopping container {}", spec.name);
            self.event(Some(&spec.name), Severity::Normal, "Killing", message);
        }
        let mut grace = grace;
        loop {
            let ending = self.ending();
            let began = tokio::time::Instant::now();
            let whole = grace;
            let work = async {
                let (sidecars, others): (Vec<_>, Vec<_>) = running.iter().partition(|(_, s)| is_sidecar(s));
                join_all(others.iter().map(|(id, spec)| ending.container(id, spec, whole))).await;
                let mut waiting = sidecars.iter().rev();
                // Sidecars stop one after the other until the grace period is over, then the rest together.
                while began.elapsed() < whole
                    && let Some((id, spec)) = waiting.next()
                {
                    ending.container(id, spec, whole.saturating_sub(began.elapsed())).await;
                }
                join_all(waiting.map(|(id, spec)| ending.container(id, spec, MINIMUM.min(whole)))).await;
            };
            tokio::pin!(work);
            let shorter = loop {
                tokio::select! {
                    () = &mut work => break None,
                    // A container has ended, or is not ready any more.
                    () = wake.notified() => if self.observe().await.is_ok_and(|seen| seen.running().next().is_some()) {
                        self.report(false).await;
                    },
                    changed = self.inbox.changed() => {
                        if changed.is_err() {
                            work.await;
                            break None;
                        }
                        let grace_left = match &*self.inbox.borrow_and_update() {
                            // A static pod whose manifest is gone keeps its grace period.
                            None if self.origin == Origin::Manifest => continue,
                            None => Duration::from_secs(1),
                            Some(p) => match p.metadata.deletion_grace_period_seconds {
                                Some(s) => meta::time::seconds(s),
                                None => continue,
                            },
                        };
                        if grace_left < whole.saturating_sub(began.elapsed()) {
                            break Some(grace_left);
                        }
                    }
                }
            };
            match shorter {
                Some(shorter) => grace = shorter,
                None => break,
            }
        }
        // The next round handles changes that arrived meanwhile.
        self.inbox.mark_changed();
        if let Some(sandbox) = &seen.sandbox
            && let Err(error) = self.shared.options.runtime.stop_pod(&sandbox.id).await
        {
            tracing::warn!(pod = %self.name(), %error, "stopping the sandbox failed");
        }
        if let Some(network) = &self.shared.options.network
            && let Err(error) = network.detach(&self.uid).await
        {
            tracing::warn!(pod = %self.name(), %error, "detaching the pod from the network failed");
        }
    }

    /// Terminates a pod that is marked for deletion or `gone` from the API: stops it, cleans up, and deletes it from the API.
    pub(super) async fn end(&mut self, gone: bool) -> Duration {
        if self.stage != Stage::Removed {
            if self.stage == Stage::Running {
                let forced = gone && self.origin == Origin::Api;
                self.stop_everything(if forced { Duration::from_secs(1) } else { self.grace() }).await;
                self.stage = Stage::Ended;
            }
            if self.stage == Stage::Ended {
                if !self.unprepare().await {
                    return UNPREPARE_AGAIN;
                }
                // A status that the API never accepts does not block the removal.
                if !gone && let Some(failed) = self.report(true).await.filter(|u| !u.permanent) {
                    return failed.retry;
                }
                self.stage = Stage::Reported;
            }
            if let Err(error) = self.remove().await {
                tracing::warn!(pod = %self.name(), %error, "cleaning up the pod failed; it is tried again");
                if let Error::Network(error) = error {
                    let (uid, error) = (&self.uid, error.to_string());
                    let what = format!("failed to \"KillPodSandbox\" for {uid:?} with KillPodSandboxError: {error:?}");
                    self.event(None, Severity::Warning, "FailedKillPod", format!("error killing pod: {what}"));
                }
                return Duration::from_secs(2);
            }
            self.stage = Stage::Removed;
            self.end_admission().await;
            self.shared.known.shutdown.pod_ended(&self.uid);
            self.shared.known.evictions.forget(&self.uid);
        }
        if gone {
            return RESYNC;
        }
        let m = &self.pod.metadata;
        let api = self.shared.client.api::<Pod>().namespace(text(&m.namespace));
        match api.delete(text(&m.name), &DeleteOptions::uid(&self.uid).with_grace(0)).await {
            Ok(_) => RESYNC,
            Err(e) if e.is_not_found() || e.is_conflict() => RESYNC,
            Err(error) => {
                tracing::warn!(pod = %self.name(), %error, "deleting the pod from the API failed; it is tried again");
                Duration::from_secs(1)
            }
        }
    }

    /// Unprepares the claims of the pod, whose containers have ended. Returns whether that was possible: until then the pod has not ended,
    /// since its devices are given to others afterwards.
    pub(super) async fn unprepare(&self) -> bool {
        match self.shared.dra.unprepare(&self.uid).await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(pod = %self.name(), %error, "unpreparing dynamic resources failed; it is tried again");
                false
            }
        }
    }

    /// Returns what the pod holds of the node to other pods.
    pub(super) async fn end_admission(&mut self) {
        self.shared.managers.release(&self.uid).await;
        self.admitted = None;
    }

    pub(super) fn grace(&self) -> Duration {
        let seconds = self.pod.metadata.deletion_grace_period_seconds;
        let seconds = seconds.or(self.pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds)).unwrap_or(30);
        meta::time::seconds(seconds)
    }

    /// Removes the pod from the node.
    pub(super) async fn remove(&mut self) -> Result<(), Error> {
        self.shared.remove_pod(&self.uid).await?;
        self.shared.objects.forget(&self.uid);
        self.shared.tokens.forget(&self.uid);
        let logs = self.log_directory();
        if let Err(error) = blocking(move || runtime::beneath::remove_tree(&logs)).await {
            tracing::debug!(pod = text(&self.pod.metadata.name), %error, "removing the pod's logs failed");
        }
        Ok(())
    }
}

impl Shared {
    /// Removes the sandboxes, containers, network and volumes of a pod.
    pub(super) async fn remove_pod(&self, uid: &str) -> Result<(), Error> {
        let runtime = &self.options.runtime;
        for pod in runtime.pod_records(uid).await?.pods {
            runtime.remove_pod(&pod.id).await?;
        }
        if let Some(network) = &self.options.network {
            network.detach(uid).await?;
        }
        self.volumes.tear_down(uid).await?;
        // It waits while a range is assigned to another pod, which writes to the disk.
        let (users, uid) = (self.users.clone(), uid.to_owned());
        blocking(move || users.release(&uid)).await;
        Ok(())
    }

    /// Removes a pod that the API does not have. Returns whether nothing is left.
    pub(crate) async fn remove_orphan(&self, uid: &str) -> bool {
        let removed = self.remove_pod(uid).await;
        if let Err(error) = &removed {
            tracing::warn!(uid, %error, "removing what is left of a deleted pod failed");
        }
        removed.is_ok()
    }
}
