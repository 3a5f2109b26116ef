//! Controllers that die after any of their writes, and are started again: every pod is counted once, and every time has one job.

use super::lab::{Lab, counts, job_spec, tracked};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

async fn completes(writes: usize, failing: usize, spec: Value, expect: [i64; 5]) {
    let lab = Lab::dying_after(writes).await;
    lab.failing.store(failing, Ordering::SeqCst);
    lab.job("j", "exit:0", spec.clone()).await;
    let job = lab.condition("j", "Complete").await;
    let (pods, title) = (lab.list("pods").await, format!("{spec}, dying after {writes} writes"));
    assert_eq!(counts(&job), expect, "{title}");
    assert_eq!(pods.len() as i64, expect[3] + expect[4], "{title}: pods");
    assert!(!tracked(&pods), "{title}");
    assert!(lab.deaths.load(Ordering::SeqCst) > 0);
    assert_eq!(job.at(&["status", "uncountedTerminatedPods"]), Some(&json!({})));
}

/// Clauses: C12.tracking
#[tokio::test(start_paused = true)]
async fn pods_are_counted_once_over_restarts() {
    for writes in 1..=7 {
        completes(writes, 0, json!({"completions": 6, "parallelism": 3}), [0, 0, 0, 6, 0]).await;
    }
}

/// Clauses: C12.tracking
#[tokio::test(start_paused = true)]
async fn failures_are_counted_once_over_restarts() {
    for writes in 1..=5 {
        completes(writes, 3, json!({"completions": 5, "parallelism": 5, "backoffLimit": 3}), [0, 0, 0, 5, 3]).await;
        let spec = json!({"completions": 4, "parallelism": 4, "completionMode": "Indexed", "backoffLimitPerIndex": 3});
        completes(writes, 3, spec, [0, 0, 0, 4, 3]).await;
    }
}

/// Clauses: C12.tracking, C12.backoffLimit
#[tokio::test(start_paused = true)]
async fn a_job_fails_exactly_once_over_restarts() {
    for writes in 1..=4 {
        let lab = Lab::dying_after(writes).await;
        lab.job("j", "exit:1", json!({"completions": 3, "parallelism": 1, "backoffLimit": 2})).await;
        let job = lab.condition("j", "Failed").await;
        assert_eq!(counts(&job), [0, 0, 0, 0, 3], "dying after {writes} writes");
        assert!(!tracked(&lab.list("pods").await));
    }
}

/// Clauses: C13.names
#[tokio::test(start_paused = true)]
async fn each_time_has_one_job_over_restarts() {
    for writes in 1..=3 {
        let lab = Lab::dying_after(writes).await;
        lab.create(
            "cronjobs",
            json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "c"}, "spec": {
                "schedule": "* * * * *", "successfulJobsHistoryLimit": 100, "concurrencyPolicy": "Allow",
                "jobTemplate": {"spec": job_spec("exit:0", json!({}))},
            }}),
        )
        .await;
        tokio::time::sleep(Duration::from_secs(10 * 60 + 30)).await;
        let jobs = lab.list("jobs").await;
        let times: BTreeSet<String> = jobs
            .iter()
            .map(|j| j.annotation("batch.kubernetes.io/cronjob-scheduled-timestamp").unwrap().to_owned())
            .collect();
        assert_eq!((jobs.len(), times.len()), (10, 10), "dying after {writes} writes");
        let cron_job = lab
            .until("no active job", async || {
                let c = lab.api("cronjobs").get("c").await.unwrap();
                c.at(&["status", "active"]).is_none().then_some(c)
            })
            .await;
        assert_eq!(cron_job.str_at(&["status", "lastScheduleTime"]), times.iter().next_back().map(String::as_str));
    }
}
