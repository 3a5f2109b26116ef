//! Jobs: indexes and status.

use crate::devices::{Case, check};
use serde_json::{Value, json};
use testkit::Cluster;

#[tokio::test]
async fn jobs_their_indexes_and_who_runs_them() {
    let c = Cluster::start(1).await;
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    let rules = json!({"rules": [{"succeededIndexes": "0,2-4", "succeededCount": 3}]});
    let spec = json!({"completionMode": "Indexed", "completions": 5, "parallelism": 2, "template": template,
        "successPolicy": rules, "managedBy": "example.com/runner"});
    let job = json!({"metadata": {"name": "j"}, "spec": spec.clone()});
    let rule = |v: Value| json!({"rules": [v]});
    let indexes = |s: &str| rule(json!({"succeededIndexes": s}));
    const INDEXES: &[&str] = &["spec.successPolicy.rules[0].succeededIndexes"];
    const COUNT: &[&str] = &["spec.successPolicy.rules[0].succeededCount"];
    let failure =
        json!({"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]});
    let mut failing = spec.clone();
    failing["podFailurePolicy"] = failure;
    failing["podReplacementPolicy"] = json!("TerminatingOrFailed");
    let mut many = spec.clone();
    for (k, v) in
        [("completions", 200_000), ("parallelism", 10_001), ("maxFailedIndexes", 10_001), ("backoffLimitPerIndex", 1)]
    {
        many[k] = json!(v);
    }
    let cases: Vec<Case> = vec![
        ("/spec/completionMode", json!("NonIndexed"), &["spec.successPolicy"]),
        ("/spec/successPolicy", json!({"rules": []}), &["spec.successPolicy.rules"]),
        ("/spec/successPolicy", rule(json!({})), &["spec.successPolicy.rules[0]"]),
        ("/spec/successPolicy", indexes("5"), INDEXES),
        ("/spec/successPolicy", indexes("2-2"), INDEXES),
        ("/spec/successPolicy", indexes("1,1"), INDEXES),
        ("/spec/successPolicy", indexes("1-2-3"), INDEXES),
        ("/spec/successPolicy", indexes("a"), INDEXES),
        ("/spec/successPolicy", rule(json!({"succeededCount": 6})), COUNT),
        ("/spec/successPolicy", rule(json!({"succeededCount": -1})), COUNT),
        ("/spec/successPolicy", rule(json!({"succeededIndexes": "1-2", "succeededCount": 3})), COUNT),
        ("/spec/managedBy", json!("runner"), &["spec.managedBy"]),
        ("/spec/parallelism", json!(100_001), &["spec.parallelism"]),
        ("/spec/podReplacementPolicy", json!("Soon"), &["spec.podReplacementPolicy"]),
        ("/spec", failing, &["spec.podReplacementPolicy"]),
        ("/spec", many, &["spec.maxFailedIndexes", "spec.parallelism"]),
    ];
    check(&c, "POST", "/apis/batch/v1/namespaces/golden/jobs", &job, cases).await;
    let cron = json!({"metadata": {"name": "c"}, "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": spec}}});
    let cases: Vec<Case> = vec![
        ("/spec/jobTemplate/spec/selector", json!({"matchLabels": {"a": "b"}}), &["spec.jobTemplate.spec.selector"]),
        ("/spec/jobTemplate/spec/manualSelector", json!(true), &["spec.jobTemplate.spec.manualSelector"]),
    ];
    check(&c, "POST", "/apis/batch/v1/namespaces/golden/cronjobs", &cron, cases).await;
}

/// Writes a status from one state, and compares what is blamed.
async fn job_status(c: &Cluster, spec: Value, was: Value, cases: &[(Value, &[(&str, &str)])]) {
    const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
    const JSON: &str = "application/json";
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    let mut job = json!({"metadata": {"generateName": "j-"}, "spec": {"template": template}});
    job["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let made = c.call("POST", JOBS, job).await.body;
    let path = format!("{JOBS}/{}/status", made["metadata"]["name"].as_str().unwrap_or_else(|| panic!("{made}")));
    let patch = async |query: &str, status: &Value| {
        let body = json!({"status": status}).to_string().into();
        c.send("PATCH", &format!("{path}{query}"), Some("application/merge-patch+json"), JSON, body).await
    };
    let a = patch("", &was).await;
    assert_eq!(a.code, 200, "{was}: {}", a.body);
    for (status, want) in cases {
        let a = patch("?dryRun=All", status).await;
        let causes = a.body["details"]["causes"].as_array().into_iter().flatten();
        let found: Vec<(&str, &str)> = causes
            .map(|c| {
                let why = c["message"].as_str().unwrap();
                (c["field"].as_str().unwrap(), why.rsplit(": ").next().unwrap())
            })
            .collect();
        assert_eq!((a.code, found), (if want.is_empty() { 200 } else { 422 }, want.to_vec()), "{was} -> {status}");
    }
}

fn conditions(all: &[&str]) -> Value {
    let all: Vec<Value> = all.iter().map(|c| json!({"type": c, "status": "True"})).collect();
    json!(all)
}

#[tokio::test]
async fn job_statuses_are_consistent() {
    let c = Cluster::start(1).await;
    let (start, end) = ("2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z");
    let (at, done) = ("status.conditions", ["SuccessCriteriaMet", "Complete"]);
    let counts = json!({"active": 2, "ready": 1, "succeeded": 3, "failed": 3, "startTime": start});
    let complete =
        json!({"active": 0, "ready": 0, "startTime": start, "completionTime": end, "conditions": conditions(&done)});
    job_status(
        &c,
        json!({}),
        counts,
        &[
            (json!({"active": 3}), &[]),
            (
                json!({"active": -1, "ready": -2, "terminating": -1}),
                &[
                    ("status.active", "must be greater than or equal to 0"),
                    ("status.ready", "must be greater than or equal to 0"),
                    ("status.terminating", "must be greater than or equal to 0"),
                ],
            ),
            (json!({"ready": 3}), &[("status.ready", "cannot set more ready pods than active")]),
            (
                json!({"succeeded": 2, "failed": 2}),
                &[
                    ("status.failed", "cannot decrease the failed counter"),
                    ("status.succeeded", "cannot decrease the succeeded counter"),
                ],
            ),
            (json!({"startTime": end}), &[("status.startTime", "field is immutable for unsuspended job once set")]),
            (json!({"startTime": null}), &[("status.startTime", "field is immutable for unsuspended job once set")]),
            (
                json!({"completionTime": end}),
                &[("status.completionTime", "cannot set completionTime when there is no Complete=True condition")],
            ),
            (
                json!({"uncountedTerminatedPods": {"succeeded": ["a", ""], "failed": ["a", "b"]}}),
                &[
                    ("status.uncountedTerminatedPods.succeeded[1]", "must not be empty"),
                    ("status.uncountedTerminatedPods.failed[0]", "\"a\""),
                ],
            ),
            (
                json!({"completedIndexes": "1", "failedIndexes": "1"}),
                &[
                    ("status.completedIndexes", "\"1\""),
                    (
                        "status.completedIndexes",
                        "cannot set non-empty completedIndexes when non-indexed completion mode",
                    ),
                    ("status.failedIndexes", "cannot set non-null failedIndexes when backoffLimitPerIndex is null"),
                ],
            ),
            (complete.clone(), &[]),
            (
                json!({"active": 1, "ready": 0, "terminating": 1, "conditions": conditions(&["Complete", "Failed"]),
                    "uncountedTerminatedPods": {"failed": ["a"]}}),
                &[
                    (at, "cannot set Complete=True and Failed=true conditions"),
                    ("status.completionTime", "completionTime is required for Complete jobs"),
                    (at, "cannot set Failed=True condition without the FailureTarget=true condition"),
                    (at, "cannot set Complete=True condition without the SuccessCriteriaMet=true condition"),
                    ("status.active", "active>0 is invalid for finished job"),
                    ("status.uncountedTerminatedPods", "must be empty for finished job"),
                    ("status.terminating", "terminating>0 is invalid for finished job"),
                ],
            ),
            (
                json!({"conditions": conditions(&["SuccessCriteriaMet", "FailureTarget"])}),
                &[(at, "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions")],
            ),
        ],
    )
    .await;
    job_status(
        &c,
        json!({}),
        complete,
        &[
            (json!({"conditions": conditions(&done)}), &[]),
            (
                json!({"conditions": null, "completionTime": null}),
                &[
                    (at, "cannot disable the terminal Complete=True condition"),
                    (at, "cannot disable the SuccessCriteriaMet=True condition"),
                ],
            ),
            (json!({"completionTime": "2026-01-01T00:00:03Z"}), &[("status.completionTime", "field is immutable")]),
            (json!({"active": 1}), &[("status.active", "active>0 is invalid for finished job")]),
            (
                json!({"completionTime": "2025-01-01T00:00:03Z"}),
                &[
                    ("status.completionTime", "must be equal to or after `startTime`"),
                    ("status.completionTime", "field is immutable"),
                ],
            ),
        ],
    )
    .await;
    job_status(
        &c,
        json!({"completionMode": "Indexed", "completions": 5, "parallelism": 5, "backoffLimitPerIndex": 1}),
        json!({"succeeded": 2, "completedIndexes": "0,1"}),
        &[
            (json!({"succeeded": 1, "completedIndexes": "0"}), &[]),
            (json!({"failedIndexes": "2-4"}), &[]),
            (json!({"failedIndexes": "1-2"}), &[("status.failedIndexes", "1")]),
            (json!({"failedIndexes": "2-5"}), &[("status.failedIndexes", "\"5\"")]),
            (json!({"completedIndexes": "3,2"}), &[("status.completedIndexes", "2")]),
        ],
    )
    .await;
    // A job of nothing may end before it begins.
    let nothing = json!({"suspend": true, "completions": 0});
    let ended = json!({"completionTime": end, "conditions": conditions(&done)});
    job_status(&c, nothing, json!({}), &[(ended.clone(), &[])]).await;
    let why = [("status.startTime", "startTime is required for finished job")];
    job_status(&c, json!({}), json!({}), &[(ended, &why)]).await;
}
