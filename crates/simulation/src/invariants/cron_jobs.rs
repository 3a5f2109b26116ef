//! A CronJob never has two Jobs for one time, nor two active ones that it forbids.

use super::objects::{Objects, by_uid, controlled_by, controller, is_deleting, name, true_condition, uid};
use super::{Excused, Invariant};
use crate::trace::Commit;
use meta::Value;

pub(super) struct OneJobPerTime;

const TIME: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

fn is_finished(job: &Value) -> bool {
    ["Complete", "Failed"].iter().any(|kind| true_condition(job, kind).is_some())
}

impl Invariant for OneJobPerTime {
    fn name(&self) -> &'static str {
        "cron jobs have one job per time"
    }

    fn observe(&mut self, commit: &Commit, objects: &Objects, _: &Excused) -> Result<(), String> {
        for change in commit.changes.iter().filter(|c| &*c.key.resource == "batch/jobs" && c.old.is_none()) {
            let Some(job) = &change.new else { continue };
            let Some(owner) = controller(job).filter(|o| o["kind"] == "CronJob") else { continue };
            let owner = owner["uid"].as_str().unwrap_or_default();
            let Some((_, cron_job)) = by_uid(objects, "batch/cronjobs", owner) else { continue };
            let time = |j: &Value| j["metadata"]["annotations"][TIME].as_str().map(str::to_owned);
            let mut others = controlled_by(objects, "batch/jobs", owner).filter(|j| uid(j) != uid(job));
            if others.any(|other| time(other) == time(job)) {
                return Err(format!("cron job {} has two jobs for {:?}", name(cron_job), time(job)));
            }
            let active = controlled_by(objects, "batch/jobs", owner).filter(|j| !is_finished(j) && !is_deleting(j));
            let active = active.count();
            if active > 1 && cron_job["spec"]["concurrencyPolicy"] == "Forbid" {
                return Err(format!("cron job {} has {active} active jobs, which it forbids", name(cron_job)));
            }
        }
        Ok(())
    }
}
