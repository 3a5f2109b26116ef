//! No pod of a Job is counted twice, and none is forgotten.
//!
//! A Job that fails counts the pods that it ends as failed, like upstream's (`trackJobStatusAndRemoveFinalizers` in `job_controller.go`), also
//! if one has succeeded at the same moment.

use super::objects::{Objects, controller, count, in_resource, is_deleting, name, true_condition, uid};
use super::{Excused, Invariant};
use crate::trace::{Commit, ObjectChange};
use meta::Value;
use std::collections::{BTreeMap, BTreeSet};

const JOBS: &str = "batch/jobs";

/// The pods of a Job that ended, by UID.
#[derive(Default)]
struct Ended {
    succeeded: BTreeSet<String>,
    failed: BTreeSet<String>,
}

#[derive(Default)]
pub(super) struct JobCounts {
    /// By UID of the Job.
    ended: BTreeMap<String, Ended>,
}

impl Invariant for JobCounts {
    fn name(&self) -> &'static str {
        "jobs count every pod once"
    }

    fn observe(&mut self, commit: &Commit, _: &Objects, _: &Excused) -> Result<(), String> {
        for change in &commit.changes {
            match &*change.key.resource {
                "pods" => self.record(change),
                JOBS => {
                    if let Some(job) = &change.new {
                        self.check(job)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn settled(&mut self, objects: &Objects) -> Result<(), String> {
        for (_, job) in in_resource(objects, JOBS).filter(|(_, job)| !is_deleting(job)) {
            let Some(ended) = self.ended.get(uid(job)) else { continue };
            let status = &job["status"];
            let counts = (count(&status["succeeded"]), count(&status["failed"]));
            let found = (ended.succeeded.len() as i64, ended.failed.len() as i64);
            let indexed = job["spec"]["completionMode"] == "Indexed";
            let same = if is_failing(job) { counts.0 + counts.1 == found.0 + found.1 } else { counts == found };
            if !indexed && !same {
                return Err(format!(
                    "job {}: (succeeded, failed) is {counts:?}, but {found:?} pods ended so",
                    name(job)
                ));
            }
            let uncounted = &status["uncountedTerminatedPods"];
            if ["succeeded", "failed"].iter().any(|f| uncounted[*f].as_array().is_some_and(|a| !a.is_empty())) {
                return Err(format!("job {} still has uncounted pods: {uncounted}", name(job)));
            }
        }
        Ok(())
    }
}

fn is_failing(job: &Value) -> bool {
    ["FailureTarget", "Failed"].iter().any(|kind| true_condition(job, kind).is_some())
}

impl JobCounts {
    fn record(&mut self, change: &ObjectChange) {
        let Some(pod) = change.new.as_ref().or(change.old.as_ref()) else { return };
        let Some(owner) = controller(pod).filter(|o| o["kind"] == "Job") else { return };
        let job = owner["uid"].as_str().unwrap_or_default();
        let ended = self.ended.entry(job.to_owned()).or_default();
        match pod["status"]["phase"].as_str() {
            Some("Succeeded") => {
                ended.succeeded.insert(uid(pod).to_owned());
            }
            // A deleted pod counts as failed, unless it succeeded before.
            phase if phase == Some("Failed") || is_deleting(pod) || change.new.is_none() => {
                ended.failed.insert(uid(pod).to_owned());
            }
            _ => {}
        }
        if ended.succeeded.contains(uid(pod)) {
            ended.failed.remove(uid(pod));
        }
    }

    fn check(&self, job: &Value) -> Result<(), String> {
        let none = Ended::default();
        let ended = self.ended.get(uid(job)).unwrap_or(&none);
        let status = &job["status"];
        let uncounted =
            |field: &str| status["uncountedTerminatedPods"][field].as_array().map_or(0, |pods| pods.len() as i64);
        let (succeeded, failed) = (ended.succeeded.len(), ended.failed.len());
        let may_have_failed = if is_failing(job) { failed + succeeded } else { failed };
        let total = |field: &str| count(&status[field]) + uncounted(field);
        if total("succeeded") + total("failed") > (succeeded + failed) as i64 {
            return Err(format!("job {} counts more than the {succeeded} + {failed} pods that ended", name(job)));
        }
        for (field, found) in [("succeeded", succeeded), ("failed", may_have_failed)] {
            let counted = total(field);
            if counted > found as i64 {
                return Err(format!("job {} counts {counted} {field} pods, but {found} ended so", name(job)));
            }
        }
        let completions = job["spec"]["completions"].as_i64();
        if true_condition(job, "Complete").is_some()
            && completions.is_some_and(|c| count(&status["succeeded"]) < c)
            && job["spec"]["successPolicy"].is_null()
        {
            return Err(format!("job {} is complete with {} successes", name(job), count(&status["succeeded"])));
        }
        Ok(())
    }
}
