//! Which pods belong to a job, and what becomes of them when it is deleted.

use super::lab::{Lab, condition, counts, delete, tracked};
use client::Propagation;
use meta::{Object, Value};
use serde_json::json;
use std::time::Duration;

/// Clauses: C12.adopt, C12.release
#[tokio::test(start_paused = true)]
async fn pods_are_adopted_and_released() {
    let lab = Lab::start().await;
    lab.job("own", "run", json!({"parallelism": 2, "completions": 2})).await;
    let job = lab.count("own", "ready", 2).await;
    let pods = lab.pods_of(&job).await;
    let pod = &pods[0];
    lab.patch("pods", pod.name(), json!({"metadata": {"ownerReferences": null}})).await;
    let adopted = lab
        .until("the orphan to be adopted", async || {
            let p = lab.api("pods").get(pod.name()).await.unwrap();
            p.controller_of().is_some_and(|o| o.uid == job.uid()).then_some(p)
        })
        .await;
    lab.until("its finalizer", async || tracked(&[lab.api("pods").get(pod.name()).await.unwrap()]).then_some(())).await;
    assert_eq!(adopted.uid(), pod.uid());
    lab.patch("pods", pod.name(), json!({"metadata": {"labels": null}})).await;
    let released = lab
        .until("the pod to be released", async || {
            let p = lab.api("pods").get(pod.name()).await.unwrap();
            p.controller_of().is_none().then_some(p)
        })
        .await;
    assert!(!tracked(&[released]));
    lab.until("another pod instead", async || (lab.pods_of(&job).await.len() == 2).then_some(())).await;
}

/// The manual's story: a job takes over the pods of another one that was deleted without them.
///
/// Clauses: C12.manualSelector
#[tokio::test(start_paused = true)]
async fn a_job_takes_over_the_pods_of_another_one() {
    let lab = Lab::start().await;
    lab.job("old", "run", json!({})).await;
    let old = lab.count("old", "ready", 1).await;
    let pod = lab.pods_of(&old).await.remove(0);
    lab.api("jobs").delete("old", &delete(Propagation::Orphan)).await.unwrap();
    lab.until("the orphan", async || {
        let p = lab.api("pods").get(pod.name()).await.unwrap();
        (p.controller_of().is_none() && !tracked(std::slice::from_ref(&p))).then_some(())
    })
    .await;
    let labels = old.at(&["spec", "selector", "matchLabels"]).unwrap().clone();
    let new = lab
        .create("jobs", json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "new"}, "spec": {
            "manualSelector": true, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "other"}]}},
        }}))
        .await;
    lab.until("the pod to be adopted", async || (lab.pods_of(&new).await.len() == 1).then_some(())).await;
    lab.end(pod.name(), 0).await;
    assert_eq!(counts(&lab.condition("new", "Complete").await), [0, 0, 0, 1, 0]);
    assert_eq!(lab.list("pods").await.len(), 1);
}

/// Two jobs with one selector do not count or delete each other's pods.
#[tokio::test(start_paused = true)]
async fn jobs_with_one_selector_do_not_fight() {
    let lab = Lab::start().await;
    let labels = json!({"shared": "yes"});
    for name in ["a", "b"] {
        lab.create("jobs", json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {
            "manualSelector": true, "selector": {"matchLabels": labels}, "completions": 3, "parallelism": 2,
            "template": {"metadata": {"labels": labels}, "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "exit:0"}]}},
        }}))
        .await;
    }
    for name in ["a", "b"] {
        assert_eq!(counts(&lab.condition(name, "Complete").await), [0, 0, 0, 3, 0]);
    }
    assert_eq!(lab.list("pods").await.len(), 6);
}

/// Clauses: C12.managedBy
#[tokio::test(start_paused = true)]
async fn a_job_of_another_controller_is_left_alone() {
    let lab = Lab::start().await;
    lab.job("theirs", "exit:0", json!({"managedBy": "example.com/queue"})).await;
    lab.job("ours", "exit:0", json!({"managedBy": "kubernetes.io/job-controller"})).await;
    lab.condition("ours", "Complete").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let job = lab.api("jobs").get("theirs").await.unwrap();
    assert!(lab.pods_of(&job).await.is_empty() && job.get("status").is_none_or(|s| s == &json!({})));
}

/// Clauses: C12.deletion
#[tokio::test(start_paused = true)]
async fn pods_go_with_their_job() {
    for policy in [Propagation::Background, Propagation::Foreground] {
        let lab = Lab::start().await;
        lab.job("gone", "run", json!({"parallelism": 3, "completions": 4})).await;
        let job = lab.count("gone", "ready", 3).await;
        lab.end(lab.pods_of(&job).await[0].name(), 0).await;
        lab.api("jobs").delete("gone", &delete(policy)).await.unwrap();
        lab.until("everything to go", async || {
            (lab.list("pods").await.is_empty() && lab.list("jobs").await.is_empty()).then_some(())
        })
        .await;
    }
}

/// A job is deleted at any moment of its life; no pod keeps its finalizer.
///
/// Clauses: C12.deletion
#[tokio::test(start_paused = true)]
async fn a_job_may_be_deleted_at_any_time() {
    let lab = Lab::start().await;
    for tenth in 0..50 {
        let name = format!("j{tenth}");
        lab.job(&name, "exit:0,1", json!({"parallelism": 2, "completions": 3, "backoffLimit": 2})).await;
        tokio::time::sleep(Duration::from_millis(100 * tenth)).await;
        lab.api("jobs").delete(&name, &delete(Propagation::Background)).await.unwrap();
    }
    lab.until("everything to go", async || {
        (lab.list("pods").await.is_empty() && lab.list("jobs").await.is_empty()).then_some(())
    })
    .await;
}

/// A namespace's quota allows fewer pods than the job would run.
#[tokio::test(start_paused = true)]
async fn pods_that_cannot_be_created_are_retried() {
    let lab = Lab::start().await;
    let limit = json!({"metadata": {"name": "q"}, "spec": {"hard": {"count/pods": "1"}}, "status": {"hard": {"count/pods": "1"}, "used": {"count/pods": "0"}}});
    let quota = "/api/v1/namespaces/default/resourcequotas";
    assert_eq!(lab.cluster.call("POST", quota, limit.clone()).await.code, 201);
    let status = json!({"status": limit["status"]});
    let path = format!("{quota}/q/status");
    let body = status.to_string().into();
    let answer = lab.cluster.send("PATCH", &path, Some("application/merge-patch+json"), "application/json", body).await;
    assert_eq!(answer.code, 200, "{answer:?}");
    lab.job("big", "run", json!({"parallelism": 3, "completions": 3})).await;
    let job = lab.count("big", "ready", 1).await;
    let events = lab.events("Job", "big").await;
    assert!(
        events.iter().any(|(reason, message)| reason == "FailedCreate" && message.contains("exceeded quota: q")),
        "{events:?}"
    );
    assert_eq!(counts(&job), [1, 1, 0, 0, 0]);
    assert_eq!(lab.cluster.call("DELETE", &path.replace("/status", ""), Value::Null).await.code, 200);
    lab.count("big", "ready", 3).await;
}

/// A status that others wrote is not trusted blindly, and conditions that they set do not end the job.
#[tokio::test(start_paused = true)]
async fn conditions_of_others_are_kept() {
    let lab = Lab::start().await;
    lab.job("tagged", "run", json!({})).await;
    let job = lab.count("tagged", "ready", 1).await;
    let other = json!({"type": "example.com/Seen", "status": "True", "reason": "R", "message": "m"});
    lab.patch_status("jobs", "tagged", json!({"conditions": [other]})).await;
    lab.end(lab.pods_of(&job).await[0].name(), 0).await;
    let job: Object = lab.condition("tagged", "Complete").await;
    assert_eq!(condition(&job, "example.com/Seen").unwrap()["reason"], "R");
}
