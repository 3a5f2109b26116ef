//! Carries out a resize of the pod.

use client::Severity;
use k8s_openapi::api::core::v1::{Container as Spec, ResourceRequirements};
use runtime::{Container, Pod, Resources};
use supervisor::blocking;
use tokio::time::Instant;

use super::Worker;
use super::observe::Observed;
use crate::admission::{self, Unfit};
use crate::pod::plan::{Kill, Plan, Sandbox};
use crate::pod::resize::{
    Allocation, InProgress, Limits, Pending, RETRY, check_usage, lowered, message, restarts, same, settings, widest,
};
use crate::resources;

/// A change of the resources of a running container, which has the limits of the pod where it has none.
struct Change {
    container: Container,
    spec: Spec,
    old: ResourceRequirements,
    new: ResourceRequirements,
}

impl Worker {
    /// Allocates the desired resources if the node grants them, and applies them to running containers. Adds containers that have to
    /// restart, and the time of the next try, to the plan.
    pub(super) async fn resize(&mut self, seen: &Observed, plan: &mut Plan) {
        let running: Vec<Container> = seen.running().filter(|c| c.pod == seen.id()).cloned().collect();
        self.resize.actuated.retain(|id, _| running.iter().any(|c| c.id == *id));
        self.resize.effective.retain(|id, _| running.iter().any(|c| c.id == *id));
        for c in &running {
            let allocated = self.resize.allocation.container(&c.name);
            self.resize.actuated.entry(c.id.clone()).or_insert_with(|| allocated.clone());
            let effective = self.resize.allocation.effective(&c.name);
            self.resize.effective.entry(c.id.clone()).or_insert(effective);
        }
        let sandbox = seen.sandbox.as_ref().filter(|_| seen.state() == Sandbox::Ready);
        if let Some(sandbox) = sandbox.filter(|_| self.resize.limits == Limits::Adopted) {
            self.restore_limits(&running, sandbox).await;
        }
        self.resize.limits = Limits::Set;
        self.allocate();
        if self.resize.in_progress.is_none() || plan.finished {
            return;
        }
        let Some(sandbox) = sandbox else {
            // Containers start with their allocated resources.
            self.resize.in_progress = None;
            self.resize.complete_pod();
            return;
        };
        // A failed resize is not tried again with every change of the pod, since reporting the failure changes it.
        let failed = self.resize.in_progress.as_ref().and_then(|p| p.failed);
        if let Some(left) = failed.and_then(|at| RETRY.checked_sub(at.elapsed())) {
            plan.wake = Some(plan.wake.map_or(left, |w| w.min(left)));
            return;
        }
        let change = |container: &Container| {
            let (old, new) =
                (self.resize.effective.get(&container.id)?, self.resize.allocation.effective(&container.name));
            let spec = self.spec_of(&container.name).filter(|_| !same(old, &new))?;
            Some(Change { container: container.clone(), spec, old: old.clone(), new })
        };
        let changes: Vec<Change> = running.iter().filter_map(change).collect();
        let (restarted, updated): (Vec<Change>, Vec<Change>) =
            changes.into_iter().partition(|c| restarts(&c.spec, &c.old, &c.new));
        let result = self.actuate(&running, &updated, restarted.is_empty(), sandbox).await;
        let error = result.err();
        if let Some(error) = &error {
            plan.wake = Some(plan.wake.map_or(RETRY, |w| w.min(RETRY)));
            tracing::debug!(pod = %self.name(), error, "a resize failed; it is tried again");
        }
        let failed_before = self.resize.in_progress.as_ref().and_then(|p| p.error.clone());
        let generation = self.resize.in_progress.as_ref().and_then(|p| p.generation);
        if let Some(why) = error.as_deref().filter(|_| error != failed_before) {
            let text = message("error", &self.pod, generation, Some(why));
            self.event(None, Severity::Warning, "ResizeError", text);
        }
        if error.is_none() && restarted.is_empty() {
            self.resize.in_progress = None;
            let text = message("completed", &self.pod, generation, None);
            self.event(None, Severity::Normal, "ResizeCompleted", text);
            return;
        }
        if let Some(p) = &mut self.resize.in_progress {
            p.failed = error.as_ref().map(|_| Instant::now());
            p.error = error;
        }
        for Change { container, .. } in restarted {
            if !plan.kill.iter().any(|k| k.id == container.id) {
                let message = format!("Container {} resize requires restart", container.name);
                plan.kill.push(Kill { name: container.name, id: container.id, message, grace: None });
            }
        }
        if !plan.kill.is_empty() {
            // Stopping may take as long as the grace period.
            self.report(false).await;
        }
    }

    /// Sets the allocated limits of running containers again. An earlier agent may have carried out a resize that it did not report, and
    /// that has been undone since.
    async fn restore_limits(&mut self, running: &[Container], sandbox: &Pod) {
        let unknown = ResourceRequirements::default();
        let change = |container: &Container| {
            let (spec, new) = (self.spec_of(&container.name)?, self.resize.allocation.effective(&container.name));
            Some(Change { container: container.clone(), spec, old: unknown.clone(), new })
        };
        let changes: Vec<Change> = running.iter().filter_map(change).collect();
        let limit = self.pod_resources(&self.resize.allocation).memory_limit;
        let restored = match self.check_pod_usage(limit, sandbox).await {
            Ok(()) => self.actuate(running, &changes, true, sandbox).await,
            Err(error) => Err(error),
        };
        if let Err(error) = restored {
            tracing::warn!(pod = %self.name(), error, "restoring the limits of containers of an earlier agent failed");
        }
    }

    /// Lets the node grant the resources that the pod requests, or reports why it does not.
    fn allocate(&mut self) {
        let generation = self.desired.metadata.generation;
        if self.resize.allocation.is_desired_by(&self.desired) {
            self.resize.pending = None;
            return;
        }
        let Ok(view) = admission::view(&self.desired) else { return };
        let granted = match self.shared.managers.is_fixed(&self.desired) {
            Some(why) => Err(Unfit::Infeasible(why.to_owned())),
            None => self.shared.admission.resize(view.into()),
        };
        let (reason, event, why) = match granted {
            Ok(()) => {
                self.resize.allocate(Allocation::of_spec(&self.desired));
                self.pod = self.desired.clone();
                self.resize.pending = None;
                self.resize.in_progress = Some(InProgress { generation, error: None, failed: None });
                let text = message("started", &self.pod, generation, None);
                self.event(None, Severity::Normal, "ResizeStarted", text);
                return;
            }
            Err(Unfit::Deferred(why)) => ("Deferred", "ResizeDeferred", why),
            Err(Unfit::Infeasible(why)) => ("Infeasible", "ResizeInfeasible", why),
        };
        let pending = Some(Pending { reason, message: why.clone(), generation });
        if self.resize.pending != pending {
            self.resize.pending = pending;
            let text = message(reason, &self.desired, generation, Some(&why));
            self.event(None, Severity::Warning, event, text);
        }
    }

    /// Sets the limits of running containers and of the pod's control group. The latter gets the allocated limits only if `all`
    /// containers have theirs then; before, it is as wide as any of them needs.
    async fn actuate(
        &mut self,
        running: &[Container],
        changes: &[Change],
        all: bool,
        sandbox: &Pod,
    ) -> Result<(), String> {
        let runtime = self.shared.options.runtime.clone();
        for Change { container, old, new, .. } in changes {
            let [old, new] = [old, new].map(|r| resources::container(Some(r)).memory_limit);
            if let Some(limit) = lowered(old, new) {
                let stats = runtime.container_stats(&container.id).await.map_err(|e| e.to_string())?;
                check_usage(&format!("container {:?}", container.name), limit, stats.usage.memory)?;
            }
        }
        let allocated = self.pod_resources(&self.resize.allocation);
        let mut actual = self.resize.allocation.clone();
        for c in running {
            if let Some(actuated) = self.resize.actuated.get(&c.id) {
                actual.containers.insert(c.name.clone(), actuated.clone());
            }
        }
        let wide = widest(&allocated, &self.pod_resources(&actual));
        let limit = lowered(wide.memory_limit, allocated.memory_limit);
        self.check_pod_usage(limit.filter(|_| all), sandbox).await?;
        self.set_pod(sandbox, wide).await?;
        for Change { container, new, .. } in changes {
            let limits = settings(&resources::container(Some(new)));
            let updated = runtime.update_container(&container.id, limits).await;
            updated.map_err(|e| e.to_string())?;
            let own = self.resize.allocation.container(&container.name).clone();
            self.resize.actuated.insert(container.id.clone(), own);
            self.resize.effective.insert(container.id.clone(), new.clone());
        }
        if all {
            self.set_pod(sandbox, allocated).await?;
            self.resize.complete_pod();
        }
        Ok(())
    }

    /// Errors if the pod uses more memory than `limit`. It may use more than its containers: files in memory of those that are gone.
    async fn check_pod_usage(&self, limit: Option<i64>, sandbox: &Pod) -> Result<(), String> {
        let Some(limit) = limit else { return Ok(()) };
        let stats = self.shared.options.runtime.pod_stats(&sandbox.id).await.map_err(|e| e.to_string())?;
        check_usage("pod", limit, stats.usage.memory)
    }

    /// The limits of the pod's control group with these resources.
    fn pod_resources(&self, allocation: &Allocation) -> Resources {
        let pod = allocation.apply(&self.pod);
        pod.spec.as_ref().map(|s| resources::pod(s, None)).unwrap_or_default()
    }

    /// Sets the limits of the pod's control group, which stays where it was made.
    async fn set_pod(&self, sandbox: &Pod, limits: Resources) -> Result<(), String> {
        let (host, path) = (self.shared.options.host.clone(), sandbox.config.cgroup_parent.clone());
        blocking(move || host.set_cgroup(&path, &settings(&limits))).await.map_err(|e| e.to_string())
    }
}
