//! How many pods a job runs, and how it ends.

use super::lab::{Lab, condition, counts, tracked};
use crate::harness::Plane;
use meta::{Clock, Object, Value};
use serde_json::json;
use std::time::Duration;

fn reasons(events: &[(String, String)]) -> Vec<&str> {
    events.iter().map(|(reason, _)| reason.as_str()).collect()
}

/// The types of the conditions, with their reasons.
fn conditions(job: &Object) -> Vec<String> {
    let all = job.at(&["status", "conditions"]).and_then(Value::as_array).cloned().unwrap_or_default();
    all.iter().map(|c| format!("{} {}", c["type"].as_str().unwrap(), c["reason"].as_str().unwrap())).collect()
}

/// Clauses: C12.single, C12.tracking, C12.interim-conditions
#[tokio::test(start_paused = true)]
async fn a_job_runs_a_pod_to_completion() {
    let lab = Lab::start().await;
    lab.job("pi", "exit:0", json!({})).await;
    let started = lab.count("pi", "active", 1).await;
    assert_eq!(counts(&started), [1, 0, 0, 0, 0]);
    lab.count("pi", "ready", 1).await;
    let job = lab.condition("pi", "Complete").await;
    assert_eq!(counts(&job), [0, 0, 0, 1, 0]);
    assert_eq!(conditions(&job), ["SuccessCriteriaMet CompletionsReached", "Complete CompletionsReached"]);
    let complete = condition(&job, "Complete").unwrap();
    assert_eq!(complete["message"], "Reached expected number of succeeded pods");
    let status = job.get("status").unwrap();
    assert_eq!(status["uncountedTerminatedPods"], json!({}));
    assert_eq!((&status["ready"], &status["terminating"]), (&json!(0), &json!(0)));
    assert_eq!(status["completionTime"], complete["lastTransitionTime"]);
    assert!(!tracked(&lab.list("pods").await));
    let events = lab.events("Job", "pi").await;
    assert_eq!(reasons(&events), ["SuccessfulCreate", "Completed"]);
    assert_eq!(events[1].1, "Job completed");
    let pod = &lab.pods_of(&job).await[0];
    assert_eq!(events[0].1, format!("Created pod: {}", pod.name()));
    assert_eq!(pod.label("batch.kubernetes.io/job-name"), Some("pi"));
}

/// Clauses: C12.completions, C12.parallelism
#[tokio::test(start_paused = true)]
async fn completions_are_reached_within_parallelism() {
    let lab = Lab::start().await;
    lab.job("five", "exit:0", json!({"completions": 5, "parallelism": 2})).await;
    let mut most = 0;
    let job = loop {
        let job = lab.api("jobs").get("five").await.unwrap();
        let pods = lab.pods_of(&job).await;
        let active =
            pods.iter().filter(|p| matches!(p.str_at(&["status", "phase"]), Some("Pending" | "Running"))).count();
        most = most.max(active);
        if condition(&job, "Complete").is_some() {
            break job;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!((most, counts(&job), lab.list("pods").await.len()), (2, [0, 0, 0, 5, 0], 5));

    // A parallelism of 0 pauses.
    lab.job("paused", "exit:0", json!({"completions": 2, "parallelism": 0})).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let job = lab.api("jobs").get("paused").await.unwrap();
    assert!(lab.pods_of(&job).await.is_empty() && job.str_at(&["status", "startTime"]).is_some());
    lab.patch("jobs", "paused", json!({"spec": {"parallelism": 5}})).await;
    assert_eq!(counts(&lab.condition("paused", "Complete").await)[3], 2);

    lab.job("empty", "exit:0", json!({"completions": 0})).await;
    assert_eq!(counts(&lab.condition("empty", "Complete").await), [0, 0, 0, 0, 0]);
}

/// Clauses: C12.work-queue
#[tokio::test(start_paused = true)]
async fn the_first_success_ends_a_work_queue() {
    let lab = Lab::start().await;
    lab.job("queue", "run", json!({"parallelism": 3})).await;
    let job = lab.count("queue", "ready", 3).await;
    let pods = lab.pods_of(&job).await;
    lab.end(pods[0].name(), 1).await;
    lab.until("a replacement", async || (lab.pods_of(&job).await.len() == 4).then_some(())).await;
    lab.end(pods[1].name(), 0).await;
    lab.count("queue", "succeeded", 1).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let running = lab.api("jobs").get("queue").await.unwrap();
    assert_eq!(
        (lab.pods_of(&job).await.len(), counts(&running)),
        (4, [2, 2, 0, 1, 1]),
        "no pod is added, none stopped"
    );
    for p in lab.pods_of(&job).await.iter().filter(|p| p.str_at(&["status", "phase"]) == Some("Running")) {
        lab.end(p.name(), 0).await;
    }
    assert_eq!(counts(&lab.condition("queue", "Complete").await), [0, 0, 0, 3, 1]);
}

/// Clauses: C12.indexed
#[tokio::test(start_paused = true)]
async fn each_index_is_completed_once() {
    let lab = Lab::start().await;
    lab.failing.store(1, std::sync::atomic::Ordering::SeqCst);
    lab.job("indexed", "exit:0", json!({"completions": 5, "parallelism": 3, "completionMode": "Indexed"})).await;
    let job = lab.condition("indexed", "Complete").await;
    assert_eq!(counts(&job), [0, 0, 0, 5, 1]);
    assert_eq!(job.str_at(&["status", "completedIndexes"]), Some("0-4"));
    let pods = lab.pods_of(&job).await;
    let mut indexes = Vec::new();
    for p in &pods {
        let index = p.annotation("batch.kubernetes.io/job-completion-index").unwrap();
        assert_eq!(p.label("batch.kubernetes.io/job-completion-index"), Some(index));
        assert!(p.name().starts_with(&format!("indexed-{index}-")), "{}", p.name());
        assert_eq!(p.str_at(&["spec", "hostname"]), Some(format!("indexed-{index}").as_str()));
        let env = &p.at(&["spec", "containers"]).unwrap()[0]["env"][0];
        assert_eq!(env["name"], "JOB_COMPLETION_INDEX");
        assert_eq!(
            env["valueFrom"]["fieldRef"]["fieldPath"],
            "metadata.labels['batch.kubernetes.io/job-completion-index']"
        );
        indexes.push(index.to_owned());
    }
    indexes.sort();
    indexes.dedup();
    assert_eq!((pods.len(), indexes.len()), (6, 5));
}

/// Clauses: C12.indexed
#[tokio::test(start_paused = true)]
async fn an_indexed_job_grows_and_shrinks() {
    let lab = Lab::start().await;
    let resize = |n: i64| json!({"spec": {"completions": n, "parallelism": n}});
    lab.job("elastic", "run", json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed"})).await;
    let job = lab.count("elastic", "ready", 3).await;
    let index = |p: &Object| p.annotation("batch.kubernetes.io/job-completion-index").unwrap().parse::<i64>().unwrap();
    for p in lab.pods_of(&job).await.iter().filter(|p| index(p) > 0) {
        lab.end(p.name(), 0).await;
    }
    lab.count("elastic", "succeeded", 2).await;
    lab.patch("jobs", "elastic", resize(5)).await;
    lab.count("elastic", "ready", 3).await;
    lab.patch("jobs", "elastic", resize(2)).await;
    let job = lab.count("elastic", "active", 1).await;
    assert_eq!(
        (job.str_at(&["status", "completedIndexes"]), counts(&job)[3]),
        (Some("1"), 1),
        "index 2 does not count any more"
    );
    let pods = lab.pods_of(&job).await;
    let left = pods.iter().find(|p| index(p) == 0 && !p.is_deleting()).unwrap();
    lab.end(left.name(), 0).await;
    assert_eq!(counts(&lab.condition("elastic", "Complete").await)[3], 2);
}

/// Clauses: C12.backoff, C12.backoffLimit
#[tokio::test(start_paused = true)]
async fn failing_pods_are_replaced_after_longer_and_longer_pauses() {
    let lab = Lab::start().await;
    let start = lab.cluster.clock.now();
    lab.job("bad", "exit:1", json!({"backoffLimit": 3})).await;
    let job = lab.condition("bad", "Failed").await;
    assert_eq!(counts(&job), [0, 0, 0, 0, 4]);
    assert_eq!(conditions(&job), ["FailureTarget BackoffLimitExceeded", "Failed BackoffLimitExceeded"]);
    assert_eq!(condition(&job, "Failed").unwrap()["message"], "Job has reached the specified backoff limit");
    assert!(job.str_at(&["status", "completionTime"]).is_none());
    let mut times: Vec<i64> = lab
        .pods_of(&job)
        .await
        .iter()
        .map(|p| meta::time::parse(p.creation_timestamp()).unwrap().duration_since(start).as_secs())
        .collect();
    times.sort_unstable();
    let gaps: Vec<i64> = times.windows(2).map(|w| w[1] - w[0]).collect();
    for (gap, pause) in gaps.iter().zip([10, 20, 40]) {
        assert!((pause + 1..pause + 6).contains(gap), "{gaps:?}: pods run for two seconds");
    }
    let events = lab.events("Job", "bad").await;
    assert_eq!(
        events.last().unwrap(),
        &("BackoffLimitExceeded".to_owned(), "Job has reached the specified backoff limit".to_owned())
    );
}

/// Clauses: C12.activeDeadlineSeconds
#[tokio::test(start_paused = true)]
async fn the_deadline_comes_before_the_back_off_limit() {
    let lab = Lab::start().await;
    lab.job("late", "exit:1", json!({"backoffLimit": 5, "activeDeadlineSeconds": 30})).await;
    lab.job("slow", "run", json!({"activeDeadlineSeconds": 30, "parallelism": 2, "completions": 2})).await;
    let late = lab.condition("late", "Failed").await;
    let slow = lab.condition("slow", "Failed").await;
    for (job, failed) in [(&late, 2), (&slow, 2)] {
        let end = condition(job, "Failed").unwrap();
        assert_eq!(
            (&end["reason"], &end["message"]),
            (&json!("DeadlineExceeded"), &json!("Job was active longer than specified deadline"))
        );
        assert_eq!(counts(job), [0, 0, 0, 0, failed]);
    }
    lab.until("the pods to be deleted", async || lab.pods_of(&slow).await.is_empty().then_some(())).await;
}

/// Clauses: C12.suspend
#[tokio::test(start_paused = true)]
async fn a_suspended_job_has_no_pods() {
    let lab = Lab::start().await;
    let spec = json!({"parallelism": 2, "completions": 2, "suspend": true, "activeDeadlineSeconds": 100});
    lab.job("held", "run", spec).await;
    let job = lab.condition("held", "Suspended").await;
    assert!(lab.pods_of(&job).await.is_empty() && job.str_at(&["status", "startTime"]).is_none());
    let suspend = |on: bool| json!({"spec": {"suspend": on}});
    lab.patch("jobs", "held", suspend(false)).await;
    let job = lab.count("held", "ready", 2).await;
    let resumed = condition(&job, "Suspended").unwrap();
    assert_eq!(
        (&resumed["status"], &resumed["reason"], &resumed["message"]),
        (&json!("False"), &json!("JobResumed"), &json!("Job resumed"))
    );
    let first = job.str_at(&["status", "startTime"]).unwrap().to_owned();
    lab.patch("jobs", "held", suspend(true)).await;
    let job = lab.condition("held", "Suspended").await;
    let suspended = condition(&job, "Suspended").unwrap();
    assert_eq!((&suspended["reason"], &suspended["message"]), (&json!("JobSuspended"), &json!("Job suspended")));
    assert!(job.str_at(&["status", "startTime"]).is_none());
    lab.until("the pods to go", async || lab.pods_of(&job).await.is_empty().then_some(())).await;
    // Longer than the deadline, which only runs while the job does.
    tokio::time::sleep(Duration::from_secs(200)).await;
    let job = lab.api("jobs").get("held").await.unwrap();
    assert_eq!(counts(&job), [0, 0, 0, 0, 0], "deleted pods have not failed");
    lab.patch("jobs", "held", suspend(false)).await;
    let job = lab.count("held", "ready", 2).await;
    assert_ne!(job.str_at(&["status", "startTime"]), Some(first.as_str()));
    let events = lab.events("Job", "held").await;
    let changes: Vec<_> = reasons(&events).into_iter().filter(|r| matches!(*r, "Suspended" | "Resumed")).collect();
    assert_eq!(changes, ["Suspended", "Resumed"], "each of them twice, which are counted");
}

/// Clauses: C12.podReplacementPolicy
#[tokio::test(start_paused = true)]
async fn deleted_pods_have_failed_at_once_or_when_they_stop() {
    let lab = Lab::start().await;
    for (policy, early) in [("TerminatingOrFailed", [0, 0, 0, 0, 1]), ("Failed", [0, 0, 1, 0, 0])] {
        let name = policy.to_lowercase();
        lab.job(&name, "run", json!({"podReplacementPolicy": policy})).await;
        let job = lab.count(&name, "ready", 1).await;
        let pod = lab.pods_of(&job).await.remove(0);
        lab.api("pods").delete(pod.name(), &Default::default()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let job = lab.api("jobs").get(&name).await.unwrap();
        assert_eq!(counts(&job), early, "{policy}");
        lab.until("a replacement", async || {
            let job = lab.api("jobs").get(&name).await.unwrap();
            (counts(&job) == [1, 1, 0, 0, 1]).then_some(())
        })
        .await;
    }
}

/// Clauses: C12.completions
#[tokio::test(start_paused = true)]
async fn a_job_with_a_thousand_completions() {
    let lab = Lab::start().await;
    lab.failing.store(3, std::sync::atomic::Ordering::SeqCst);
    let start = tokio::time::Instant::now();
    lab.job("many", "exit:0", json!({"completions": 1000, "parallelism": 1000, "backoffLimit": 10})).await;
    let job = lab.condition("many", "Complete").await;
    assert_eq!(counts(&job), [0, 0, 0, 1000, 3]);
    assert_eq!((lab.list("pods").await.len(), tracked(&lab.list("pods").await)), (1003, false));
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

/// A clock that is set back neither ends a job early nor keeps it from ending.
#[tokio::test(start_paused = true)]
async fn a_job_survives_a_clock_that_jumps() {
    let lab = Lab::start().await;
    lab.job("back", "run", json!({"activeDeadlineSeconds": 1000, "backoffLimit": 3})).await;
    let job = lab.count("back", "ready", 1).await;
    lab.clock.jump(-3600);
    let pod = lab.pods_of(&job).await.remove(0);
    lab.end(pod.name(), 1).await;
    lab.until("a replacement, after no more than the back-off", async || {
        (lab.pods_of(&job).await.len() == 2).then_some(())
    })
    .await;
    let pods = lab.pods_of(&job).await;
    let next = pods.iter().find(|p| p.name() != pod.name()).unwrap();
    lab.end(next.name(), 0).await;
    let job = lab.condition("back", "Complete").await;
    let time = |f: &str| meta::time::parse(job.str_at(&["status", f]).unwrap()).unwrap();
    assert!(time("completionTime") >= time("startTime"));
}

/// With the scheduler, and pods on nodes.
#[tokio::test(start_paused = true)]
async fn a_job_runs_on_nodes() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    let spec = super::lab::job_spec("i", json!({"completions": 3, "parallelism": 2}));
    p.create("jobs", json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": spec})).await;
    let job = p
        .until("the job to complete", async || {
            for pod in p.list("pods").await.iter().filter(|o| o.str_at(&["status", "phase"]) == Some("Running")) {
                assert_eq!(pod.str_at(&["spec", "nodeName"]), Some("n1"));
                let ended = client::Patch::Strategic(json!({"status": {"phase": "Succeeded"}}));
                p.api("pods").patch_status(pod.name(), &Default::default(), &ended).await.unwrap();
            }
            let job = p.api("jobs").get("j").await.unwrap();
            condition(&job, "Complete").is_some().then_some(job)
        })
        .await;
    assert_eq!(counts(&job), [0, 0, 0, 3, 0]);
    p.api("jobs").delete("j", &super::lab::delete(client::Propagation::Background)).await.unwrap();
    p.until("the pods to go", async || p.list("pods").await.is_empty().then_some(())).await;
}
