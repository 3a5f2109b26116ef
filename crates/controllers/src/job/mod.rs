//! Jobs run pods until enough of them have succeeded (upstream `job_controller.go`).
//!
//! [`state`] evaluates a job and its pods, [`manage`] decides which pods to create and delete, [`tracking`] accounts for those that have
//! ended; this module executes their decisions. Invariants: no pod is created or deleted while the cache does not show earlier creations
//! and deletions; a pod is counted exactly once, at whatever point the controller ends and is started again.

mod backoff;
mod intervals;
mod manage;
mod orphans;
mod pod;
mod pods;
mod policy;
mod spec;
mod state;
#[cfg(test)]
mod testing;
mod tracking;
mod view;

use crate::consistency::{Known, Writes};
use crate::context::{Context, Error, object};
use crate::controller::{Builder, Reconcile};
use crate::meters;
use crate::ownership::{Claims, candidates, owner_of};
use crate::pod_control::{PodControl, Supply};
use crate::views::{Pod, PodEntry, pods as pod_resource};
use backoff::Failures;
use client::{
    Api, ApiResource, Change, Entry, Expectations, Informer, Key, Meta, Outcome, PendingRemovals, RateLimit, Recorder,
    Regarding, Severity, WorkQueue, WriteOptions,
};
use intervals::Intervals;
use meta::{LabelSelector, Object};
use orphans::Orphan;
use parking_lot::Mutex;
use pod::{FINALIZER, JobPod, has_finalizer};
use pods::PodCounts;
use spec::{Condition, Spec, Status};
use state::{Evaluation, Observed};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

pub use view::JobView;

/// Changes of pods and statuses are handled together after this time.
const BATCH: Duration = Duration::from_secs(1);
const BACKOFF: RateLimit = RateLimit { base: Duration::from_secs(1), max: Duration::from_secs(60) };
/// How soon a job is tried again whose cache is not current.
const STALE: Duration = Duration::from_millis(100);
const WORKERS: usize = 5;

pub fn resource() -> ApiResource {
    ApiResource::typed::<k8s_openapi::api::batch::v1::Job>()
}

struct Controller {
    context: Context,
    resource: ApiResource,
    jobs: Informer<JobView>,
    pods: Informer<Pod>,
    expected: Expectations<Key>,
    removals: PendingRemovals<Key>,
    writes: Writes,
    known: Known,
    failures: Mutex<BTreeMap<Key, Failures>>,
    supply: Supply,
    recorder: Recorder,
    orphans: Arc<WorkQueue<Orphan>>,
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let mut builder = Builder::with_rate_limit(&context, BACKOFF);
    let mut orphans = Builder::with_rate_limit(&context, BACKOFF);
    let resource = resource();
    let pods = builder.watch(&pod_resource());
    let c = Arc::new(Controller {
        jobs: builder.watch(&resource),
        supply: Supply::new(&pods),
        pods,
        expected: Expectations::default(),
        removals: PendingRemovals::default(),
        writes: Writes::default(),
        known: Known::default(),
        failures: Mutex::default(),
        recorder: context.recorder(),
        orphans: orphans.queue(),
        resource,
        context,
    });
    builder.handle(&c, &c.jobs, Controller::job_changed);
    builder.handle(&c, &c.pods, Controller::pod_changed);
    orphans.wait_for(&c.jobs);
    orphans.wait_for(&c.pods);
    let sweeper = orphans::Sweeper(c.clone());
    let orphans = orphans.run_as("job_orphan_pod", WORKERS, Arc::new(sweeper));
    tokio::join!(builder.run(WORKERS, c), orphans);
}

impl Controller {
    /// The job that controls a pod, if it has the UID that the pod names.
    fn owner_of(&self, pod: &Meta) -> Option<Arc<Entry<JobView>>> {
        owner_of(self.resource.kind(), &self.jobs, pod)
    }

    fn job_changed(&self, c: &Change<JobView>, queue: &WorkQueue<Key>) {
        self.known.observe(c);
        let key = c.key();
        match (&c.old, &c.new) {
            (Some(old), Some(new)) if old.meta.uid == new.meta.uid => {
                if new.view.is_finished() {
                    // Finalizers were removed before. This is a backup.
                    self.orphans.add(Orphan::OfJob(new.meta.uid.clone()));
                }
                match old.meta.generation == new.meta.generation {
                    true => queue.add_after(key, BATCH),
                    false => queue.add(key),
                }
            }
            // Created, deleted, or replaced by another job of the same name.
            (old, _) => {
                if let Some(old) = old {
                    self.orphans.add(Orphan::OfJob(old.meta.uid.clone()));
                    self.forget(&key);
                }
                let other = c.new.as_ref().and_then(|job| job.view.other_manager());
                if let Some(other) = other {
                    meters::count(&meters::JOBS_OF_OTHERS, &[other]);
                }
                queue.add(key);
            }
        }
    }

    fn pod_changed(&self, c: &Change<Pod>, queue: &WorkQueue<Key>) {
        let (old, latest) = (c.old.as_ref(), c.latest());
        let ended = |p: Option<&Arc<PodEntry>>| p.is_some_and(|p| p.view.is_terminal() && has_finalizer(p));
        match (ended(old), ended(c.new.as_ref())) {
            (false, true) => meters::count(&meters::JOB_TRACKED_PODS, &["add"]),
            (true, false) => meters::count(&meters::JOB_TRACKED_PODS, &["delete"]),
            _ => {}
        }
        let gone = c.new.is_none();
        let going = gone || latest.meta.is_deleting();
        let owner = self.owner_of(&latest.meta);
        let tracked = has_finalizer(latest);
        // The job that had the pod before has one less.
        if let Some(before) = old.and_then(|o| self.owner_of(&o.meta))
            && owner.as_ref().is_none_or(|o| o.meta.uid != before.meta.uid)
        {
            if !tracked {
                self.removals.observed(&before.key(), &latest.meta.uid);
            }
            queue.add_after(before.key(), BATCH);
        }
        let Some(job) = owner.filter(|job| !(going && job.view.is_finished())) else {
            return self.ownerless_changed(c, tracked && !gone, queue);
        };
        let key = job.key();
        if going {
            self.expected.deletion_observed(&key, &latest.meta.uid);
        } else if old.is_none() {
            self.expected.creation_observed(&key);
        }
        if gone || !tracked {
            self.removals.observed(&key, &latest.meta.uid);
        }
        queue.add_after(key, BATCH);
    }

    /// A pod changed whose job does not account for it: it has none, or the job has finished.
    fn ownerless_changed(&self, c: &Change<Pod>, tracked: bool, queue: &WorkQueue<Key>) {
        let latest = c.latest();
        let has_owner = latest.meta.controller().is_some();
        if tracked && (!has_owner || latest.meta.is_deleting()) {
            self.orphans.add(Orphan::Pod(c.key()));
        }
        if has_owner || latest.meta.is_deleting() || c.new.is_none() {
            return;
        }
        let same = |o: &PodEntry| o.meta.labels == latest.meta.labels && o.meta.controller().is_none();
        if c.old.as_ref().is_some_and(|o| same(o)) {
            return;
        }
        for job in self.jobs.cache().in_namespace(&latest.meta.namespace) {
            if job.view.selects(&latest.meta) {
                queue.add_after(job.key(), BATCH);
            }
        }
    }

    fn forget(&self, key: &Key) {
        self.failures.lock().remove(key);
        self.writes.forget(key);
        self.expected.forget(key);
        self.removals.forget(key);
    }
}

/// A job that is being reconciled.
struct Sync<'a> {
    key: &'a Key,
    job: Object,
    jobs: Api<Object>,
    pods: Api<Object>,
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        self.known.begin();
        let Some(entry) = self.jobs.get(&key) else {
            self.forget(&key);
            return Ok(Outcome::Done);
        };
        if entry.view.is_managed_by_other() {
            return Ok(Outcome::Done);
        }
        if entry.view.is_finished() {
            self.forget(&key);
            return Ok(Outcome::Done);
        }
        if self.writes.is_stale(&key, &entry.meta.uid, &entry.meta.resource_version) {
            meters::count(&meters::JOB_STALE, &["batch", "jobs"]);
            return Ok(Outcome::After(STALE));
        }
        let job = object(&self.resource, &entry)?;
        let jobs = self.context.client.dynamic(&self.resource).namespace(&key.namespace);
        let pods = self.context.client.dynamic(&pod_resource()).namespace(&key.namespace);
        self.sync(Sync { key: &key, job, jobs, pods }).await
    }
}

impl Controller {
    async fn sync(&self, mut s: Sync<'_>) -> Result<Outcome, Error> {
        let part =
            |name: &str| s.job.get(name).cloned().filter(|v| v.is_object()).unwrap_or_else(|| serde_json::json!({}));
        let invalid = |why: serde_json::Error| Error::Invalid { what: "job", why: why.to_string() };
        let spec: Spec = serde_json::from_value(part("spec")).map_err(invalid)?;
        let stored: Status = serde_json::from_value(part("status")).map_err(invalid)?;
        let mode = completion_mode(&spec);
        let (begun, mut action) = (Instant::now(), "reconciling");
        let result = self.sync_parsed(&mut s, spec, stored, &mut action).await;
        let labels = [mode, if result.is_ok() { "success" } else { "error" }, action];
        meters::count(&meters::JOB_SYNCS, &labels);
        meters::took(&meters::JOB_SYNC_SECONDS, &labels, begun.elapsed());
        result
    }

    /// Reconciles a job whose spec and status could be read. `action` becomes what was done.
    async fn sync_parsed(
        &self,
        s: &mut Sync<'_>,
        spec: Spec,
        stored: Status,
        action: &mut &'static str,
    ) -> Result<Outcome, Error> {
        if !matches!(spec.completion_mode.as_deref(), None | Some("Indexed" | "NonIndexed")) {
            let message = "Skipped Job sync because completion mode is unknown";
            self.recorder.warning(Regarding::object(&s.job), "UnknownCompletionMode", message);
            return Ok(Outcome::Done);
        }
        let selector = LabelSelector::from_value(spec.selector.as_ref())
            .map_err(|why| Error::Invalid { what: "selector", why })?;
        // Before pods are read: one that arrives later is in the next sync.
        let may_act = self.expected.satisfied(s.key);
        if !self.caches_are_current(s, &selector).await? {
            meters::count(&meters::JOB_STALE, &["", "pods"]);
            return Ok(Outcome::After(STALE));
        }
        let observed = self.observe(s, spec, stored, selector).await?;
        let evaluation = state::evaluate(&observed);
        let mut status = observed.status.clone();
        let mut end = evaluation.end.clone();
        let mut changed = false;
        let mut counts = PodCounts::unchanged(&evaluation);
        if end.is_some() {
            counts = self.stop_pods(s, &observed, &evaluation).await;
            // Pods may be left, or may not be in the cache yet.
            if counts.active > 0 || !may_act {
                end = None;
            }
        } else {
            let manages = may_act && !observed.deleting;
            if manages {
                counts = self.manage_pods(s, &observed, &evaluation).await;
                *action = counts.action;
            }
            if may_act && is_complete(&observed.spec, &evaluation, counts.active) {
                let message = "Reached expected number of succeeded pods";
                end = Some(Condition::new("SuccessCriteriaMet", "CompletionsReached", message, observed.now));
            } else if manages {
                changed |= self.suspend_or_resume(s, &observed, &mut status);
            }
        }
        let shown = (counts.active, Some(counts.ready), Some(counts.terminating));
        changed |= shown != (status.active, status.ready, status.terminating);
        (status.active, status.ready, status.terminating) = shown;
        let record = tracking::record(&observed, &evaluation, status, end, changed);
        self.account(s, &observed, &evaluation, record).await?;
        if let Some(e) = counts.failure {
            return Err(e.into());
        }
        let next = [counts.wait, evaluation.deadline].into_iter().flatten().min();
        Ok(next.map_or(Outcome::Done, Outcome::After))
    }

    /// The pods that the job controls, and those without a controller that it selects.
    fn entries(&self, s: &Sync<'_>, selector: &LabelSelector) -> Vec<Arc<PodEntry>> {
        candidates(&self.pods, &s.key.namespace, s.job.uid(), |pod| selector.matches(|k| pod.label(k)))
    }

    /// Whether the caches show what an earlier controller wrote, which this one does not remember. Once true, it stays so.
    async fn caches_are_current(&self, s: &Sync<'_>, selector: &LabelSelector) -> Result<bool, Error> {
        if self.known.has(&s.job) {
            return Ok(true);
        }
        let live = s.jobs.get(s.job.name()).await?;
        Ok(live.resource_version() == s.job.resource_version()
            && self.known.is_current(&s.job, selector, &s.pods, &self.pods).await?)
    }

    /// Adopts and releases pods, and collects what the decisions depend on.
    async fn observe(
        &self,
        s: &Sync<'_>,
        spec: Spec,
        mut status: Status,
        selector: LabelSelector,
    ) -> Result<Observed, Error> {
        let mut claims = Claims::new(&s.job, &s.jobs, &s.pods).with_finalizer(FINALIZER);
        let restarts = spec.template.spec.restart_policy == "OnFailure";
        let mut pods = Vec::new();
        for p in self.entries(s, &selector) {
            if claims.claim(selector.matches(|k| p.meta.label(k)), &p.meta).await? {
                let adopted = p.meta.controller().is_none();
                pods.push(JobPod::new(p, adopted, restarts)?);
            }
        }
        pods.sort_by(|a, b| a.entry.meta.name.cmp(&b.entry.meta.name));
        let now = self.context.now();
        if status.start_time.is_none() && !spec.is_suspended() {
            status.start_time = Some(now);
        }
        let removals = self.removals.pending(s.key);
        let failures = self.failures.lock().get(s.key).copied().unwrap_or_default();
        Ok(Observed { spec, status, deleting: s.job.is_deleting(), pods, removals, failures, now })
    }

    /// Sets the condition `Suspended` and the start time. Returns whether they changed.
    fn suspend_or_resume(&self, s: &Sync<'_>, o: &Observed, status: &mut Status) -> bool {
        let suspended = o.spec.is_suspended();
        let (reason, message, event) = match suspended {
            true => ("JobSuspended", "Job suspended", "Suspended"),
            false => ("JobResumed", "Job resumed", "Resumed"),
        };
        let mut condition = Condition::new("Suspended", reason, message, o.now);
        if !suspended {
            condition.status = "False".into();
        }
        let changed = status.set_condition(condition);
        if changed {
            self.recorder.normal(Regarding::object(&s.job), event, message);
            // The deadline is a time of continuous activity.
            status.start_time = if suspended { None } else { Some(o.now) };
        }
        changed
    }

    /// Writes the status, removes finalizers of pods that it records, and writes the counters.
    async fn account(
        &self,
        s: &mut Sync<'_>,
        o: &Observed,
        e: &Evaluation,
        mut record: tracking::Record,
    ) -> Result<(), Error> {
        if record.changed {
            self.write_status(s, &o.spec, &record.status).await?;
            for action in &record.handled {
                meters::count(&meters::JOB_FAILURES_HANDLED, &[action]);
            }
            self.failures.lock().insert(s.key.clone(), e.failures);
        }
        let remove: Vec<&JobPod> = record.remove.iter().map(|i| &o.pods[*i]).collect();
        let (removed, failure) = self.remove_finalizers(s, &remove).await;
        record.removed(removed.iter().map(|p| p.uid()));
        if let Some(e) = failure {
            if record.changed {
                self.write_status(s, &o.spec, &record.status).await?;
            }
            return Err(e.into());
        }
        let end = record.finish(self.context.now());
        if record.changed {
            self.write_status(s, &o.spec, &record.status).await?;
        }
        if let Some(end) = end {
            self.report_end(s, &o.spec, &record.status, &end);
        }
        Ok(())
    }

    async fn write_status(&self, s: &mut Sync<'_>, spec: &Spec, counted: &Status) -> Result<(), Error> {
        let status = counted;
        let before = |field: &str| s.job.int_at(&["status", field]).unwrap_or(0);
        let (succeeded, failed) = (counted.succeeded - before("succeeded"), counted.failed - before("failed"));
        let indexes = |text: Option<&str>| Intervals::parse(text.unwrap_or_default(), spec.indexes()).total();
        let failed_indexes =
            indexes(counted.failed_indexes.as_deref()) - indexes(s.job.str_at(&["status", "failedIndexes"]));
        let status =
            serde_json::to_value(status).map_err(|why| Error::Invalid { what: "status", why: why.to_string() })?;
        s.job.set(&["status"], status);
        s.job = s.jobs.update_status(s.job.name(), &WriteOptions::default(), &s.job).await?;
        self.writes.written(s.key, &s.job);
        meters::add(&meters::JOB_PODS_FINISHED, &[completion_mode(spec), "succeeded"], succeeded);
        meters::add(&meters::JOB_PODS_FINISHED, &[completion_mode(spec), "failed"], failed);
        if spec.is_indexed() {
            let limit = if spec.backoff_limit_per_index.is_some() { "perIndex" } else { "global" };
            meters::add(&meters::JOB_INDEXES_FINISHED, &["succeeded", limit], succeeded);
            meters::add(&meters::JOB_INDEXES_FINISHED, &["failed", limit], failed_indexes);
        }
        Ok(())
    }

    fn report_end(&self, s: &Sync<'_>, spec: &Spec, status: &Status, end: &Condition) {
        let event = |severity, reason: &str, message: &str| {
            self.recorder.event(Regarding::object(&s.job), severity, reason, message);
        };
        let result = if end.is("Complete") { "succeeded" } else { "failed" };
        meters::count(&meters::JOBS_FINISHED, &[completion_mode(spec), result, &end.reason]);
        if !end.is("Complete") {
            return event(Severity::Warning, &end.reason, &end.message);
        }
        if spec.completions.is_some_and(|n| status.succeeded > n) {
            let message = "Too many succeeded pods running after completion count reached";
            event(Severity::Warning, "TooManySucceededPods", message);
        }
        event(Severity::Normal, "Completed", "Job completed");
    }

    fn control<'a>(&'a self, s: &'a Sync<'_>) -> PodControl<'a> {
        PodControl { pods: &s.pods, recorder: &self.recorder, owner: &s.job }
    }
}

fn completion_mode(spec: &Spec) -> &'static str {
    if spec.is_indexed() { "Indexed" } else { "NonIndexed" }
}

/// Whether enough pods have succeeded and none is left. One success ends a work queue.
fn is_complete(spec: &Spec, e: &Evaluation, active: i64) -> bool {
    active == 0
        && match spec.completions {
            None => e.succeeded > 0,
            Some(n) => e.succeeded >= n,
        }
}
