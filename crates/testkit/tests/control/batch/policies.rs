//! Pod failure policies, success policies, and limits for each index.

use super::lab::{Lab, condition, counts};
use meta::Object;
use serde_json::{Value, json};

fn indexed(completions: i64, extra: Value) -> Value {
    let mut spec = json!({"completionMode": "Indexed", "completions": completions, "parallelism": completions});
    spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    spec
}

fn end(job: &Object, kind: &str) -> (String, String) {
    let c = condition(job, kind).unwrap();
    (c["reason"].as_str().unwrap().to_owned(), c["message"].as_str().unwrap().to_owned())
}

fn indexes(job: &Object) -> (Option<&str>, Option<&str>) {
    (job.str_at(&["status", "completedIndexes"]), job.str_at(&["status", "failedIndexes"]))
}

/// Clauses: C12.podFailurePolicy
#[tokio::test(start_paused = true)]
async fn an_exit_code_fails_the_job() {
    let lab = Lab::start().await;
    let rule = json!({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}});
    let spec = indexed(3, json!({"backoffLimit": 6, "podFailurePolicy": {"rules": [rule]}}));
    lab.job("strict", "exit:0,42,100", spec).await;
    let job = lab.condition("strict", "Failed").await;
    let pods = lab.pods_of(&job).await;
    let pod = pods.iter().find(|p| p.name().starts_with("strict-1-")).unwrap();
    let message =
        format!("Container c for pod default/{} failed with exit code 42 matching FailJob rule at index 0", pod.name());
    assert_eq!(end(&job, "Failed"), ("PodFailurePolicy".into(), message.clone()));
    assert_eq!(end(&job, "FailureTarget"), ("PodFailurePolicy".into(), message.clone()));
    assert_eq!(counts(&job)[..3], [0, 0, 0]);
    assert_eq!(lab.events("Job", "strict").await.last().unwrap(), &("PodFailurePolicy".to_owned(), message));
}

/// Clauses: C12.podFailurePolicy
#[tokio::test(start_paused = true)]
async fn a_disruption_is_ignored() {
    let lab = Lab::start().await;
    let rule = json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]});
    lab.job("moved", "run", json!({"backoffLimit": 0, "podFailurePolicy": {"rules": [rule]}})).await;
    let job = lab.count("moved", "ready", 1).await;
    let pod = lab.pods_of(&job).await.remove(0);
    let disrupted = json!([{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]);
    lab.patch_status("pods", pod.name(), json!({"conditions": disrupted})).await;
    lab.api("pods").delete(pod.name(), &Default::default()).await.unwrap();
    let next =
        lab.until("a replacement", async || lab.pods_of(&job).await.into_iter().find(|p| p.name() != pod.name())).await;
    lab.count("moved", "ready", 1).await;
    lab.end(next.name(), 0).await;
    assert_eq!(counts(&lab.condition("moved", "Complete").await), [0, 0, 0, 1, 0]);
}

/// Clauses: C12.backoffLimitPerIndex, C12.podFailurePolicy
#[tokio::test(start_paused = true)]
async fn failed_indexes_let_the_others_complete() {
    let lab = Lab::start().await;
    lab.job("some", "exit:0,1,0,1,0", indexed(5, json!({"backoffLimitPerIndex": 1}))).await;
    let job = lab.condition("some", "Failed").await;
    assert_eq!(end(&job, "Failed"), ("FailedIndexes".into(), "Job has failed indexes".into()));
    assert_eq!(indexes(&job), (Some("0,2,4"), Some("1,3")));
    assert_eq!(counts(&job), [0, 0, 0, 3, 4], "each failed index had a second pod");
    let failures = |p: &Object| p.annotation("batch.kubernetes.io/job-index-failure-count").map(str::to_owned);
    let mut of_one: Vec<_> =
        lab.pods_of(&job).await.iter().filter(|p| p.name().starts_with("some-1-")).map(failures).collect();
    of_one.sort();
    assert_eq!(of_one, [Some("0".to_owned()), Some("1".to_owned())]);

    let rule = json!({"action": "FailIndex", "onExitCodes": {"operator": "NotIn", "values": [2]}});
    let spec = indexed(2, json!({"backoffLimitPerIndex": 1, "podFailurePolicy": {"rules": [rule]}}));
    lab.job("index", "exit:1,0", spec).await;
    let job = lab.condition("index", "Failed").await;
    assert_eq!((indexes(&job), counts(&job)), ((Some("1"), Some("0")), [0, 0, 0, 1, 1]), "no second pod");
}

/// Clauses: C12.maxFailedIndexes
#[tokio::test(start_paused = true)]
async fn too_many_failed_indexes_end_the_job() {
    let lab = Lab::start().await;
    let spec = indexed(5, json!({"backoffLimitPerIndex": 0, "maxFailedIndexes": 1, "parallelism": 5}));
    lab.job("many", "exit:0,1,1,1,0", spec).await;
    let job = lab.condition("many", "Failed").await;
    let message = "Job has exceeded the specified maximal number of failed indexes";
    assert_eq!(end(&job, "Failed"), ("MaxFailedIndexesExceeded".into(), message.into()));
    assert_eq!(counts(&job)[..3], [0, 0, 0]);
}

/// Clauses: C12.backoff, C12.backoffLimitPerIndex
#[tokio::test(start_paused = true)]
async fn each_index_backs_off_by_itself() {
    let lab = Lab::start().await;
    lab.job("slow", "exit:1,0", indexed(2, json!({"backoffLimitPerIndex": 3, "parallelism": 1}))).await;
    let job = lab.condition("slow", "Failed").await;
    assert_eq!((indexes(&job), counts(&job)), ((Some("1"), Some("0")), [0, 0, 0, 1, 4]));
    let start = meta::time::parse(job.str_at(&["status", "startTime"]).unwrap()).unwrap();
    let end = condition(&job, "Failed").unwrap()["lastTransitionTime"].as_str().and_then(meta::time::parse).unwrap();
    let took = end.duration_since(start).as_secs();
    assert!((70..110).contains(&took), "10 + 20 + 40 seconds between the pods of index 0: {took}");
}

/// Clauses: C12.successPolicy
#[tokio::test(start_paused = true)]
async fn a_success_policy_ends_the_job_early() {
    let lab = Lab::start().await;
    let check = async |name: &str, rules: Value, completed: &str| {
        lab.job(name, "run", indexed(4, json!({"successPolicy": {"rules": rules}}))).await;
        let job = lab.count(name, "ready", 4).await;
        for p in lab.pods_of(&job).await {
            let index = p.annotation("batch.kubernetes.io/job-completion-index").unwrap();
            if completed.contains(index) {
                lab.end(p.name(), 0).await;
            }
        }
        let job = lab.condition(name, "Complete").await;
        assert_eq!(end(&job, "SuccessCriteriaMet"), ("SuccessPolicy".into(), "Matched rules at index 0".into()));
        assert_eq!(end(&job, "Complete"), ("SuccessPolicy".into(), "Matched rules at index 0".into()));
        assert_eq!(indexes(&job).0, Some(completed));
        assert_eq!(counts(&job), [0, 0, 0, completed.split(',').count() as i64, 0], "stopped pods have not failed");
        lab.until("only those that succeeded", async || {
            (lab.pods_of(&job).await.len() == completed.split(',').count()).then_some(())
        })
        .await;
    };
    check("leader", json!([{"succeededIndexes": "0"}]), "0").await;
    check("any", json!([{"succeededCount": 2}]), "1,3").await;
    check("some", json!([{"succeededIndexes": "0-2", "succeededCount": 1}]), "2").await;
}
