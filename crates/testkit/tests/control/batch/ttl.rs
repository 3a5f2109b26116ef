//! The TTL of finished jobs.

use super::lab::Lab;
use serde_json::json;
use std::time::Duration;

async fn gone(lab: &Lab, name: &str) {
    lab.until(&format!("{name} to go"), async || {
        let job = lab.api("jobs").get_opt(name).await.unwrap();
        (job.is_none() && lab.list("pods").await.is_empty()).then_some(())
    })
    .await;
}

/// Clauses: C11.ttl, C11.zero
#[tokio::test(start_paused = true)]
async fn finished_jobs_are_deleted_after_their_ttl() {
    let lab = Lab::start().await;
    lab.job("at-once", "exit:0", json!({"ttlSecondsAfterFinished": 0})).await;
    gone(&lab, "at-once").await;
    for (name, image, end) in [("good", "exit:0", "Complete"), ("bad", "exit:1", "Failed")] {
        lab.job(name, image, json!({"ttlSecondsAfterFinished": 100, "backoffLimit": 0})).await;
        lab.condition(name, end).await;
        tokio::time::sleep(Duration::from_secs(95)).await;
        assert!(!lab.api("jobs").get(name).await.unwrap().is_deleting());
        tokio::time::sleep(Duration::from_secs(10)).await;
        gone(&lab, name).await;
    }
    lab.job("kept", "exit:0", json!({})).await;
    lab.condition("kept", "Complete").await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(!lab.api("jobs").get("kept").await.unwrap().is_deleting());
    // Set later.
    lab.patch("jobs", "kept", json!({"spec": {"ttlSecondsAfterFinished": 60}})).await;
    gone(&lab, "kept").await;
}

/// Clauses: C11.changed
#[tokio::test(start_paused = true)]
async fn a_ttl_may_change() {
    let lab = Lab::start().await;
    for (name, ttl, after, change) in
        [("longer", 100, 50, json!(1000)), ("shorter", 1000, 50, json!(60)), ("never", 100, 90, json!(null))]
    {
        lab.job(name, "exit:0", json!({"ttlSecondsAfterFinished": ttl})).await;
        lab.condition(name, "Complete").await;
        tokio::time::sleep(Duration::from_secs(after)).await;
        lab.patch("jobs", name, json!({"spec": {"ttlSecondsAfterFinished": change}})).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(lab.api("jobs").get_opt(name).await.unwrap().is_none(), name == "shorter", "{name}");
    }
    tokio::time::sleep(Duration::from_secs(1000)).await;
    assert!(lab.api("jobs").get_opt("longer").await.unwrap().is_none());
    assert!(lab.api("jobs").get_opt("never").await.unwrap().is_some());
}

/// Clauses: C11.finalizers
#[tokio::test(start_paused = true)]
async fn finalizers_of_a_job_are_respected() {
    let lab = Lab::start().await;
    lab.job("held", "exit:0", json!({"ttlSecondsAfterFinished": 10})).await;
    lab.patch("jobs", "held", json!({"metadata": {"finalizers": ["example.com/keep"]}})).await;
    lab.condition("held", "Complete").await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    let job = lab.api("jobs").get("held").await.unwrap();
    assert!(job.is_deleting() && job.finalizers().eq(["example.com/keep"]));
    assert!(lab.list("pods").await.is_empty(), "the pods are deleted first");
    lab.patch("jobs", "held", json!({"metadata": {"finalizers": null}})).await;
    gone(&lab, "held").await;
}

/// Clauses: C11.clock
#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_back_delays_the_deletion() {
    let lab = Lab::start().await;
    lab.job("back", "exit:0", json!({"ttlSecondsAfterFinished": 100})).await;
    lab.condition("back", "Complete").await;
    lab.clock.jump(-500);
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(!lab.api("jobs").get("back").await.unwrap().is_deleting());
    tokio::time::sleep(Duration::from_secs(400)).await;
    gone(&lab, "back").await;
}
