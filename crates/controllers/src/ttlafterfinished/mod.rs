//! Deletes finished jobs after `ttlSecondsAfterFinished` (upstream `ttlafterfinished_controller.go`).
//!
//! A job is deleted in the foreground, so that its pods go first. Invariant: the TTL is that of the version that is deleted.

use crate::context::{Context, Error};
use crate::controller::{Builder, Reconcile};
use crate::job::{self, JobView};
use crate::meters;
use client::{Api, ApiResource, DeleteOptions, Entry, Informer, Key, Outcome, Preconditions, Propagation, optional};
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;

const WORKERS: usize = 5;

struct Controller {
    context: Context,
    resource: ApiResource,
    jobs: Informer<JobView>,
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let mut builder = Builder::new(&context);
    let resource = job::resource();
    let jobs = builder.watch::<JobView>(&resource);
    builder.on_change(&jobs, |c, queue| {
        if c.new.as_ref().is_some_and(|job| !job.meta.is_deleting() && needs_cleanup(&job.view)) {
            queue.add(c.key());
        }
    });
    builder.run(WORKERS, Arc::new(Controller { context, resource, jobs })).await;
}

fn needs_cleanup(job: &JobView) -> bool {
    job.ttl_seconds().is_some() && job.is_finished()
}

/// How long the job stays: zero if it is to be deleted. None if it stays for ever, or has not finished. Fails if the time at which it
/// finished is unknown.
fn time_left(job: &JobView, now: Timestamp) -> Result<Option<Duration>, &'static str> {
    let Some((end, ttl)) = job.finished().zip(job.ttl_seconds()) else { return Ok(None) };
    let finished = end.last_transition_time.ok_or("the time at which it finished is missing")?;
    Ok(Some(meta::time::left(now, meta::time::plus(finished, ttl))))
}

impl Controller {
    fn left(&self, job: &Entry<JobView>) -> Result<Option<Duration>, Error> {
        if job.meta.is_deleting() {
            return Ok(None);
        }
        let invalid = |why: &str| Error::Invalid { what: "finished job", why: format!("{}: {why}", job.key()) };
        time_left(&job.view, self.context.now()).map_err(invalid)
    }
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(cached) = self.jobs.get(&key) else { return Ok(Outcome::Done) };
        match self.left(&cached)? {
            None => return Ok(Outcome::Done),
            Some(Duration::ZERO) => {}
            Some(left) => return Ok(Outcome::After(left)),
        }
        // The TTL may have changed since.
        let api: Api<serde_json::Value> = Api::new(self.context.client.clone(), self.resource.clone());
        let api = api.namespace(&key.namespace);
        let Some(current) = api.get_opt(&key.name).await? else { return Ok(Outcome::Done) };
        let invalid = |why: serde_json::Error| Error::Invalid { what: "job", why: why.to_string() };
        let current = Entry::<JobView>::new(current.to_string().into()).map_err(invalid)?;
        match self.left(&current)? {
            None => Ok(Outcome::Done),
            Some(Duration::ZERO) => {
                let options = DeleteOptions {
                    preconditions: Some(Preconditions {
                        uid: Some(current.meta.uid.to_string()),
                        resource_version: Some(current.meta.resource_version.clone()),
                    }),
                    ..DeleteOptions::propagation(Propagation::Foreground)
                };
                if optional(api.delete(&key.name, &options).await)?.is_some()
                    && let Some((end, ttl)) = current.view.finished().zip(current.view.ttl_seconds())
                    && let Some(finished) = end.last_transition_time
                {
                    let late = self.context.now().duration_since(meta::time::plus(finished, ttl));
                    meters::observe(&meters::TTL_DELETION_SECONDS, &[], late.as_secs_f64());
                }
                Ok(Outcome::Done)
            }
            Some(left) => Ok(Outcome::After(left)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Clauses: C11.ttl
    #[test]
    fn a_finished_job_stays_for_its_ttl() {
        let now = meta::time::parse("2026-01-01T00:01:00Z").unwrap();
        let check = |ttl: Value, condition: Value, expect: Result<Option<u64>, &'static str>| {
            let v = json!({"spec": {"ttlSecondsAfterFinished": ttl}, "status": {"conditions": [condition]}});
            let job: JobView = serde_json::from_value(v.clone()).unwrap();
            assert_eq!(time_left(&job, now), expect.map(|s| s.map(Duration::from_secs)), "{v}");
        };
        let at =
            |kind: &str, status: &str, time: &str| json!({"type": kind, "status": status, "lastTransitionTime": time});
        let complete = || at("Complete", "True", "2026-01-01T00:00:50Z");
        check(json!(null), complete(), Ok(None));
        check(json!(0), complete(), Ok(Some(0)));
        check(json!(5), complete(), Ok(Some(0)));
        check(json!(15), complete(), Ok(Some(5)));
        check(json!(15), at("Failed", "True", "2026-01-01T00:00:50Z"), Ok(Some(5)));
        check(json!(15), at("FailureTarget", "True", "2026-01-01T00:00:00Z"), Ok(None));
        check(json!(15), at("Complete", "False", "2026-01-01T00:00:00Z"), Ok(None));
        // Finished in the future.
        check(json!(10), at("Complete", "True", "2026-01-01T01:00:00Z"), Ok(Some(3550)));
        check(
            json!(10),
            json!({"type": "Complete", "status": "True"}),
            Err("the time at which it finished is missing"),
        );
    }
}
