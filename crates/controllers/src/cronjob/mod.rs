//! CronJobs start jobs at the times of a schedule (upstream `cronjob_controllerv2.go`).
//!
//! [`decide`] decides whether a job is due, [`schedule`] finds missed times, [`history`] the finished jobs to delete; this module
//! executes their decisions. Invariant: the name of a job follows from its time, so that there are never two for one time.

mod decide;
mod history;
mod schedule;
mod view;

use crate::consistency::Writes;
use crate::context::{Context, Error, object};
use crate::controller::{Builder, Reconcile};
use crate::job::{self, JobView};
use crate::meters;
use crate::ownership::{controller_reference, owner_of};
use client::{
    Api, ApiResource, Change, DeleteOptions, Entry, Informer, Key, Outcome, Propagation, Recorder, Regarding,
    WorkQueue, WriteOptions,
};
use decide::{after_change, job_name, scheduled_timestamp};
use jiff::Timestamp;
use meta::{Map, Object, Value};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use view::{CronView, Reference};

const WORKERS: usize = 5;
/// How soon a CronJob is tried again whose cache does not show the last write.
const STALE: Duration = Duration::from_millis(100);

type JobEntry = Arc<Entry<JobView>>;

struct Controller {
    context: Context,
    resource: ApiResource,
    cron_jobs: Informer<CronView>,
    jobs: Informer<JobView>,
    writes: Writes,
    recorder: Recorder,
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let mut builder = Builder::new(&context);
    let resource = ApiResource::typed::<k8s_openapi::api::batch::v1::CronJob>();
    let c = Arc::new(Controller {
        cron_jobs: builder.watch(&resource),
        jobs: builder.watch(&job::resource()),
        writes: Writes::default(),
        recorder: context.recorder(),
        resource,
        context,
    });
    builder.handle(&c, &c.cron_jobs, Controller::cron_job_changed);
    builder.handle(&c, &c.jobs, Controller::job_changed);
    builder.run(WORKERS, c).await;
}

impl Controller {
    /// A changed schedule takes effect at its next time: times before the change were not missed.
    fn cron_job_changed(&self, c: &Change<CronView>, queue: &WorkQueue<Key>) {
        let schedule = |e: &Arc<Entry<CronView>>| (e.view.spec.schedule.clone(), e.view.spec.time_zone.clone());
        let (Some(old), Some(new)) = (&c.old, &c.new) else { return queue.add(c.key()) };
        if schedule(old) == schedule(new) {
            return queue.add(c.key());
        }
        let now = self.context.now();
        match after_change(&new.view, new.meta.creation_timestamp.unwrap_or(now), now) {
            Ok(Some(wait)) => queue.add_after(c.key(), wait),
            Ok(None) => queue.add(c.key()),
            Err(event) => self.record(&Regarding::from_meta("batch/v1", "CronJob", &new.meta), event),
        }
    }

    fn job_changed(&self, c: &Change<JobView>, queue: &WorkQueue<Key>) {
        for owner in [&c.old, &c.new].into_iter().flatten().filter_map(|e| self.owner_of(e)) {
            queue.add(owner);
        }
    }

    fn owner_of(&self, job: &JobEntry) -> Option<Key> {
        owner_of(self.resource.kind(), &self.cron_jobs, &job.meta).map(|owner| owner.key())
    }

    fn record(&self, about: &Regarding, decide::Event(severity, reason, message): decide::Event) {
        self.recorder.event(about.clone(), severity, reason, message);
    }
}

/// A CronJob that is being reconciled.
struct Sync {
    cron_job: Object,
    view: CronView,
    /// Whether the status differs from the stored one.
    changed: bool,
    about: Regarding,
    jobs: Api<Object>,
    cron_jobs: Api<Object>,
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(entry) = self.cron_jobs.get(&key) else {
            self.writes.forget(&key);
            return Ok(Outcome::Done);
        };
        if self.writes.is_stale(&key, &entry.meta.uid, &entry.meta.resource_version) {
            return Ok(Outcome::After(STALE));
        }
        let cron_job = object(&self.resource, &entry)?;
        let client = &self.context.client;
        let mut s = Sync {
            view: entry.view.clone(),
            changed: false,
            about: Regarding::object(&cron_job),
            jobs: client.dynamic(&job::resource()).namespace(&key.namespace),
            cron_jobs: client.dynamic(&self.resource).namespace(&key.namespace),
            cron_job,
        };
        let jobs: Vec<JobEntry> = self.jobs.cache().controlled_by(&entry.meta.uid).cloned().collect();
        self.delete_history(&mut s, &jobs).await;
        // Also those that were just deleted: with a limit of 0 this is the only time that their success is seen.
        let result = self.sync(&mut s, &jobs).await;
        if s.changed {
            self.write_status(&key, &mut s).await?;
        }
        Ok(result?.map_or(Outcome::Done, Outcome::After))
    }
}

impl Controller {
    /// Returns when to look again.
    async fn sync(&self, s: &mut Sync, jobs: &[JobEntry]) -> Result<Option<Duration>, Error> {
        self.update_active(s, jobs).await?;
        self.drop_missing(s, jobs).await?;
        if s.cron_job.is_deleting() {
            return Ok(None);
        }
        let now = self.context.now();
        let created = meta::time::parse(s.cron_job.creation_timestamp()).unwrap_or(now);
        let decision = decide::decide(s.cron_job.name(), &s.view, created, now);
        for event in decision.events {
            self.record(&s.about, event);
        }
        match decision.start {
            Some(time) if !self.start(s, time).await? => Ok(None),
            _ => Ok(decision.again),
        }
    }

    /// Deletes the oldest finished jobs beyond the limits.
    async fn delete_history(&self, s: &mut Sync, jobs: &[JobEntry]) {
        for job in history::excess(&s.view.spec, jobs) {
            self.delete(s, &job.meta.name, &job.meta.uid).await;
        }
    }

    /// Deletes a job and removes it from the list of active jobs. Returns whether it is deleted.
    async fn delete(&self, s: &mut Sync, name: &str, uid: &str) -> bool {
        let options = DeleteOptions { propagation_policy: Some(Propagation::Background), ..DeleteOptions::uid(uid) };
        match s.jobs.delete(name, &options).await {
            Ok(_) => {
                s.view.status.remove_active(uid);
                s.changed = true;
                self.recorder.normal(s.about.clone(), "SuccessfulDelete", format!("Deleted job {name}"));
                true
            }
            Err(e) => {
                self.recorder.warning(s.about.clone(), "FailedDelete", format!("Deleted job: {e}"));
                false
            }
        }
    }

    /// Removes finished jobs from the list of active ones, and takes over the time of the last success.
    async fn update_active(&self, s: &mut Sync, jobs: &[JobEntry]) -> Result<(), Error> {
        for job in jobs {
            let (uid, name) = (&*job.meta.uid, &*job.meta.name);
            let is_active = s.view.status.is_active(uid);
            match job.view.finished() {
                None if !is_active => self.check_unexpected(s, uid, name).await?,
                None => {}
                Some(condition) => {
                    if is_active {
                        s.view.status.remove_active(uid);
                        s.changed = true;
                        let message = format!("Saw completed job: {name}, condition: {}", condition.r#type);
                        self.recorder.normal(s.about.clone(), "SawCompletedJob", message);
                    }
                    let success = job.view.completion_time().filter(|_| job.view.has_succeeded());
                    if success > s.view.status.last_successful_time {
                        s.view.status.last_successful_time = success;
                        s.changed = true;
                    }
                }
            }
        }
        Ok(())
    }

    /// A running job is not in the list of active ones: the cache is stale, the controller ended before it wrote the status, or somebody
    /// else created the job.
    async fn check_unexpected(&self, s: &mut Sync, uid: &str, name: &str) -> Result<(), Error> {
        let current = s.cron_jobs.get(s.cron_job.name()).await?;
        let invalid = |why: serde_json::Error| Error::Invalid { what: "cron job", why: why.to_string() };
        let view: CronView = serde_json::from_value(Value::Object(current.0.clone())).map_err(invalid)?;
        if current.uid() == s.cron_job.uid() && view.status.is_active(uid) {
            // What was changed in the old version is changed again when its write has failed.
            if !s.changed {
                (s.cron_job, s.view) = (current, view);
            }
            return Ok(());
        }
        let message = format!("Saw a job that the controller did not create or forgot: {name}");
        self.recorder.warning(s.about.clone(), "UnexpectedJob", message);
        Ok(())
    }

    /// Removes jobs that are gone from the list of active ones.
    async fn drop_missing(&self, s: &mut Sync, jobs: &[JobEntry]) -> Result<(), Error> {
        let is_missing = |j: &&Reference| jobs.iter().all(|job| *job.meta.uid != *j.uid());
        let missing: Vec<Reference> = s.view.status.active.iter().filter(is_missing).cloned().collect();
        for j in missing {
            // The cache may not have it yet.
            if s.jobs.get_opt(j.name()).await?.is_none() {
                let message = format!("Active job went missing: {}", j.name());
                self.recorder.normal(s.about.clone(), "MissingJob", message);
                s.view.status.remove_active(j.uid());
                s.changed = true;
            }
        }
        Ok(())
    }

    /// Starts the job of a time. Returns false if it was started before.
    async fn start(&self, s: &mut Sync, time: Timestamp) -> Result<bool, Error> {
        if s.view.spec.concurrency_policy == "Replace" {
            self.replace_active(s).await?;
        }
        let job = new_job(&s.cron_job, &s.view, time);
        let job = match s.jobs.create(&WriteOptions::default(), &job).await {
            Ok(job) => {
                self.recorder.normal(s.about.clone(), "SuccessfulCreate", format!("Created job {}", job.name()));
                let created = meta::time::parse(job.creation_timestamp()).unwrap_or(time);
                meters::observe(&meters::CRONJOB_SKEW, &[], created.duration_since(time).as_secs_f64());
                job
            }
            Err(e) if e.is_already_exists() => {
                let held = s.jobs.get(job.name()).await?;
                let own = held.controller_of().is_some_and(|o| o.uid == s.cron_job.uid());
                if !own || s.view.status.is_active(held.uid()) {
                    return Ok(false);
                }
                held
            }
            Err(e) => {
                if !e.is_namespace_terminating() {
                    self.recorder.warning(s.about.clone(), "FailedCreate", format!("Error creating job: {e}"));
                }
                return Err(e.into());
            }
        };
        s.view.status.active.push(reference(&job));
        s.view.status.last_schedule_time = Some(time);
        s.changed = true;
        Ok(true)
    }

    /// Deletes the jobs that are still running when their successor starts.
    async fn replace_active(&self, s: &mut Sync) -> Result<(), Error> {
        for j in s.view.status.active.clone() {
            let job = match s.jobs.get(j.name()).await {
                Ok(job) => job,
                Err(e) => {
                    self.recorder.warning(s.about.clone(), "FailedGet", format!("Get job: {e}"));
                    return Err(e.into());
                }
            };
            if !self.delete(s, job.name(), job.uid()).await {
                return Err(Error::Waiting(format!("could not replace job {}/{}", job.namespace(), job.name())));
            }
            s.view.status.remove_active(j.uid());
        }
        Ok(())
    }

    async fn write_status(&self, key: &Key, s: &mut Sync) -> Result<(), Error> {
        let mut status: Map<String, Value> =
            s.cron_job.get("status").and_then(Value::as_object).cloned().unwrap_or_default();
        s.view.status.write(&mut status);
        s.cron_job.set(&["status"], status);
        let written = s.cron_jobs.update_status(s.cron_job.name(), &WriteOptions::default(), &s.cron_job).await?;
        self.writes.written(key, &written);
        Ok(())
    }
}

/// The job of a time.
fn new_job(cron_job: &Object, view: &CronView, time: Timestamp) -> Object {
    let template = cron_job.at(&["spec", "jobTemplate"]).unwrap_or(&Value::Null);
    let mut metadata = json!({
        "name": job_name(cron_job.name(), time),
        "namespace": cron_job.namespace(),
        "annotations": template["metadata"]["annotations"].as_object().cloned().unwrap_or_default(),
        "ownerReferences": [controller_reference(cron_job)],
    });
    if let Some(labels) = template["metadata"]["labels"].as_object() {
        metadata["labels"] = labels.clone().into();
    }
    metadata["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"] = scheduled_timestamp(view, time).into();
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": template["spec"]});
    Object::from_value(job).unwrap_or_default()
}

fn reference(job: &Object) -> Reference {
    let members = [
        ("apiVersion", "batch/v1"),
        ("kind", "Job"),
        ("name", job.name()),
        ("namespace", job.namespace()),
        ("resourceVersion", job.resource_version()),
        ("uid", job.uid()),
    ];
    Reference(members.into_iter().map(|(k, v)| (k.to_owned(), v.into())).collect())
}
