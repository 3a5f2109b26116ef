//! CronJobs over hours, days and changes of clocks.

use super::lab::{Lab, condition, job_spec};
use meta::{Clock, Object, Value};
use serde_json::json;
use std::time::Duration;

const TIME: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

impl Lab {
    /// Creates the CronJob `c` with jobs of an image. Members of `spec` are added.
    async fn cron(&self, schedule: &str, image: &str, spec: Value) -> Object {
        let mut all = json!({"schedule": schedule, "jobTemplate": {
            "metadata": {"labels": {"of": "c"}, "annotations": {"a": "b"}}, "spec": job_spec(image, json!({})),
        }});
        all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        self.create(
            "cronjobs",
            json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "c"}, "spec": all}),
        )
        .await
    }

    /// The times of the jobs that exist, in order.
    async fn times(&self) -> Vec<String> {
        let mut all: Vec<String> =
            self.list("jobs").await.iter().map(|j| j.annotation(TIME).unwrap().to_owned()).collect();
        all.sort();
        all
    }

    async fn sleep(&self, minutes: u64) {
        tokio::time::sleep(Duration::from_secs(60 * minutes)).await;
    }

    /// The names of the active jobs.
    async fn active(&self) -> Vec<String> {
        let c = self.api("cronjobs").get("c").await.unwrap();
        let all = c.at(&["status", "active"]).and_then(Value::as_array).cloned().unwrap_or_default();
        all.iter().map(|j| j["name"].as_str().unwrap().to_owned()).collect()
    }

    async fn reasons(&self) -> Vec<String> {
        self.events("CronJob", "c").await.into_iter().map(|(reason, _)| reason).collect()
    }
}

/// Clauses: C13.names, C13.status
#[tokio::test(start_paused = true)]
async fn a_job_is_started_at_each_time() {
    let lab = Lab::start().await;
    let cron_job = lab.cron("*/10 * * * *", "run", json!({})).await;
    lab.sleep(11).await;
    let jobs = lab.list("jobs").await;
    let job = &jobs[0];
    assert_eq!((jobs.len(), job.name()), (1, "c-29453770"), "minutes since 1970");
    assert_eq!(job.annotation(TIME), Some("2026-01-01T00:10:00Z"));
    assert_eq!((job.label("of"), job.annotation("a")), (Some("c"), Some("b")));
    let owner = job.controller_of().unwrap();
    assert_eq!((owner.kind, owner.uid), ("CronJob", cron_job.uid()));
    let c = lab.api("cronjobs").get("c").await.unwrap();
    let active = &c.at(&["status", "active"]).unwrap()[0];
    assert_eq!(
        (&active["kind"], &active["apiVersion"], &active["uid"]),
        (&json!("Job"), &json!("batch/v1"), &json!(job.uid()))
    );
    assert_eq!(c.str_at(&["status", "lastScheduleTime"]), Some("2026-01-01T00:10:00Z"));
    lab.end(lab.pods_of(job).await[0].name(), 0).await;
    let done = lab.condition(job.name(), "Complete").await;
    lab.until("no active job", async || lab.active().await.is_empty().then_some(())).await;
    let c = lab.api("cronjobs").get("c").await.unwrap();
    assert_eq!(c.str_at(&["status", "lastSuccessfulTime"]), done.str_at(&["status", "completionTime"]));
    let events = lab.events("CronJob", "c").await;
    let event = |reason: &str, message: &str| (reason.to_owned(), message.to_owned());
    assert_eq!(
        events,
        [
            event("SuccessfulCreate", "Created job c-29453770"),
            event("SawCompletedJob", "Saw completed job: c-29453770, condition: Complete")
        ]
    );
}

/// Clauses: C13.concurrencyPolicy
#[tokio::test(start_paused = true)]
async fn running_jobs_are_joined_awaited_or_replaced() {
    for (policy, jobs, event) in
        [("Allow", 3, None), ("Forbid", 1, Some("JobAlreadyActive")), ("Replace", 1, Some("SuccessfulDelete"))]
    {
        let lab = Lab::start().await;
        lab.cron("* * * * *", "run", json!({"concurrencyPolicy": policy})).await;
        lab.sleep(3).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!((lab.list("jobs").await.len(), lab.active().await.len()), (jobs, jobs), "{policy}");
        let reasons = lab.reasons().await;
        assert!(event.is_none_or(|e| reasons.iter().any(|r| r == e)), "{policy}: {reasons:?}");
        if policy == "Forbid" {
            // The time that was missed meanwhile is made up for.
            let first = lab.list("jobs").await.remove(0);
            lab.end(lab.pods_of(&first).await[0].name(), 0).await;
            lab.until("the next job", async || (lab.list("jobs").await.len() == 2).then_some(())).await;
            assert_eq!(lab.times().await, ["2026-01-01T00:01:00Z", "2026-01-01T00:03:00Z"]);
        }
    }
}

/// Clauses: C13.suspend
#[tokio::test(start_paused = true)]
async fn a_suspended_cron_job_starts_nothing() {
    let lab = Lab::start().await;
    lab.cron("* * * * *", "exit:0", json!({"suspend": true, "startingDeadlineSeconds": 30})).await;
    lab.sleep(10).await;
    assert!(lab.list("jobs").await.is_empty());
    tokio::time::sleep(Duration::from_secs(45)).await;
    lab.patch("cronjobs", "c", json!({"spec": {"suspend": false}})).await;
    lab.sleep(2).await;
    assert_eq!(lab.times().await, ["2026-01-01T00:11:00Z", "2026-01-01T00:12:00Z"], "the deadline of 00:10 has passed");
}

/// Clauses: C13.history
#[tokio::test(start_paused = true)]
async fn old_jobs_are_deleted() {
    let lab = Lab::start().await;
    lab.cron("* * * * *", "exit:0", json!({})).await;
    lab.sleep(10).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(lab.times().await, ["2026-01-01T00:08:00Z", "2026-01-01T00:09:00Z", "2026-01-01T00:10:00Z"]);
    let failing = json!({"spec": {"successfulJobsHistoryLimit": 0, "jobTemplate": {"spec": job_spec("exit:1", json!({"backoffLimit": 0}))}}});
    lab.patch("cronjobs", "c", failing).await;
    lab.sleep(5).await;
    assert_eq!(lab.times().await, ["2026-01-01T00:15:00Z"], "one failed job is kept");
    lab.until("pods of deleted jobs to go", async || (lab.list("pods").await.len() == 1).then_some(())).await;
}

/// Clauses: C13.missed, C13.startingDeadlineSeconds
#[tokio::test(start_paused = true)]
async fn after_a_pause_the_last_missed_time_is_made_up_for() {
    for (deadline, warned) in [(json!(null), true), (json!(200), false)] {
        let lab = Lab::start().await;
        lab.cron("* * * * *", "exit:0", json!({"startingDeadlineSeconds": deadline, "successfulJobsHistoryLimit": 50}))
            .await;
        lab.sleep(2).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        // Nobody saw this time pass.
        lab.clock.jump(7200);
        lab.patch("cronjobs", "c", json!({"metadata": {"labels": {"look": "again"}}})).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(lab.times().await, ["2026-01-01T00:01:00Z", "2026-01-01T00:02:00Z", "2026-01-01T02:02:00Z"]);
        let events = lab.events("CronJob", "c").await;
        let many = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
        assert_eq!(events.iter().any(|(r, m)| r == "TooManyMissedTimes" && m == many), warned);
    }
    let lab = Lab::start().await;
    lab.cron("0 * * * *", "exit:0", json!({"startingDeadlineSeconds": 60})).await;
    lab.clock.jump(3600 + 120);
    lab.patch("cronjobs", "c", json!({"metadata": {"labels": {"look": "again"}}})).await;
    lab.sleep(1).await;
    assert!(lab.list("jobs").await.is_empty());
    lab.clock.jump(-7200);
    lab.patch("cronjobs", "c", json!({"metadata": {"labels": {"look": "back"}}})).await;
    lab.sleep(1).await;
    assert!(lab.list("jobs").await.is_empty(), "before it was created");
}

/// Clauses: C13.week
#[tokio::test(start_paused = true)]
async fn a_week_of_hourly_jobs() {
    let lab = Lab::dying_after(usize::MAX).await;
    lab.cron("0 * * * *", "exit:0", json!({"successfulJobsHistoryLimit": 1000})).await;
    lab.sleep(7 * 24 * 60 + 1).await;
    let times = lab.times().await;
    assert_eq!(
        (times.len(), times[0].as_str(), times[167].as_str()),
        (168, "2026-01-01T01:00:00Z", "2026-01-08T00:00:00Z")
    );
    let done = lab.list("jobs").await.iter().filter(|j| condition(j, "Complete").is_some()).count();
    assert_eq!(done, 168);
}

/// Jobs of a daily and an hourly schedule where clocks change.
///
/// Clauses: C13.daylight-saving, C13.time-zone
#[tokio::test(start_paused = true)]
async fn jobs_follow_the_clock_of_their_zone() {
    for (schedule, now, hours, expect) in [
        // 02:30 does not exist on the 29th.
        ("30 2 * * *", "2026-03-28T00:00:00Z", 60, vec!["2026-03-28T02:30:00+01:00", "2026-03-30T02:30:00+02:00"]),
        ("0 0 * * *", "2026-03-28T12:00:00Z", 36, vec!["2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"]),
        (
            "0 * * * *",
            "2026-03-29T00:00:30Z",
            3,
            vec!["2026-03-29T03:00:00+02:00", "2026-03-29T04:00:00+02:00", "2026-03-29T05:00:00+02:00"],
        ),
        // 02:30 comes twice on the 25th.
        (
            "30 2 * * *",
            "2026-10-24T00:00:00Z",
            60,
            vec![
                "2026-10-24T02:30:00+02:00",
                "2026-10-25T02:30:00+01:00",
                "2026-10-25T02:30:00+02:00",
                "2026-10-26T02:30:00+01:00",
            ],
        ),
    ] {
        let lab = Lab::dying_after(usize::MAX).await;
        lab.clock.set(now);
        lab.cron(
            schedule,
            "exit:0",
            json!({"timeZone": "Europe/Berlin", "suspend": true, "successfulJobsHistoryLimit": 50}),
        )
        .await;
        lab.patch_status("cronjobs", "c", json!({"lastScheduleTime": now})).await;
        lab.patch("cronjobs", "c", json!({"spec": {"suspend": false}})).await;
        lab.sleep(hours * 60).await;
        assert_eq!(lab.times().await, expect, "{schedule} from {now}");
    }
}

/// The success of a job that is not kept is seen only while it is deleted.
#[tokio::test(start_paused = true)]
async fn the_last_success_is_known_without_a_history() {
    let lab = Lab::start().await;
    lab.cron("*/10 * * * *", "exit:0", json!({"successfulJobsHistoryLimit": 0})).await;
    lab.sleep(11).await;
    lab.until("no job", async || lab.list("jobs").await.is_empty().then_some(())).await;
    lab.until("the time of its success", async || {
        let c = lab.api("cronjobs").get("c").await.unwrap();
        c.str_at(&["status", "lastSuccessfulTime"]).map(|_| ())
    })
    .await;
}

/// Clauses: C13.schedule-change
#[tokio::test(start_paused = true)]
async fn a_changed_schedule_takes_effect_at_its_next_time() {
    let lab = Lab::start().await;
    lab.cron("0 * * * *", "exit:0", json!({})).await;
    lab.sleep(7).await;
    lab.patch("cronjobs", "c", json!({"spec": {"schedule": "*/5 * * * *"}})).await;
    lab.sleep(1).await;
    assert!(lab.list("jobs").await.is_empty(), "00:05 was not missed");
    lab.sleep(3).await;
    assert_eq!(lab.times().await, ["2026-01-01T00:10:00Z"]);
}

/// Jobs that others created for the CronJob (`kubectl create job --from`), or took away.
///
/// Clauses: C13.create-job-from
#[tokio::test(start_paused = true)]
async fn jobs_of_others_are_noticed() {
    let lab = Lab::start().await;
    let cron_job = lab.cron("0 * * * *", "run", json!({})).await;
    let owner =
        json!([{"apiVersion": "batch/v1", "kind": "CronJob", "name": "c", "uid": cron_job.uid(), "controller": true}]);
    lab.create("jobs", json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "manual", "annotations": {"cronjob.kubernetes.io/instantiate": "manual"}, "ownerReferences": owner},
        "spec": job_spec("exit:0", json!({}))}))
    .await;
    let done = lab.condition("manual", "Complete").await;
    lab.until("the time of its success", async || {
        let c = lab.api("cronjobs").get("c").await.unwrap();
        (c.str_at(&["status", "lastSuccessfulTime"]) == done.str_at(&["status", "completionTime"])).then_some(())
    })
    .await;
    let unexpected =
        ("UnexpectedJob".to_owned(), "Saw a job that the controller did not create or forgot: manual".to_owned());
    assert!(lab.events("CronJob", "c").await.contains(&unexpected));
    lab.sleep(61).await;
    let active = lab.active().await;
    assert_eq!(active.len(), 1);
    lab.api("jobs").delete(&active[0], &super::lab::delete(client::Propagation::Background)).await.unwrap();
    lab.until("no active job", async || lab.active().await.is_empty().then_some(())).await;
    let missing = ("MissingJob".to_owned(), format!("Active job went missing: {}", active[0]));
    assert!(lab.events("CronJob", "c").await.contains(&missing));
    assert!(lab.clock.now() > lab.cluster.clock.now() - jiff::SignedDuration::from_secs(1));
}
