//! Validation of the job status, whichever controller runs the job (`managedBy`): a finished job stays finished.
//!
//! A rule applies only when its part of the status changes, so that an old error does not block other updates (upstream
//! `pkg/apis/batch/validation` and the options of `pkg/registry/batch/job`).

use super::success_policy::{intervals, number_of};
use crate::read::{is_set, items, shown, text};
use meta::field::{BadValue, ErrorList};
use meta::{FieldError, FieldPath, Object, Value};
use std::collections::HashSet;

const NULL: &Value = &Value::Null;

/// The status and spec of a job.
struct JobView<'a> {
    spec: &'a Value,
    status: &'a Value,
}

impl<'a> JobView<'a> {
    fn new(o: &'a Object) -> Self {
        Self { spec: o.get("spec").unwrap_or(NULL), status: o.get("status").unwrap_or(NULL) }
    }

    fn is(&self, condition: &str) -> bool {
        items(self.status, "conditions").iter().any(|c| text(c, "type") == condition && text(c, "status") == "True")
    }

    fn finished(&self) -> bool {
        self.is("Complete") || self.is("Failed")
    }

    fn number(&self, key: &str) -> i64 {
        self.status[key].as_i64().unwrap_or(0)
    }

    fn time(&self, key: &str) -> Option<jiff::Timestamp> {
        self.status[key].as_str().and_then(meta::time::parse)
    }

    fn uncounted(&self) -> usize {
        let pods = &self.status["uncountedTerminatedPods"];
        items(pods, "succeeded").len() + items(pods, "failed").len()
    }
}

pub fn validate(o: &Object, old: &Object, errors: &mut ErrorList) {
    let (new, old, path) = (JobView::new(o), JobView::new(old), FieldPath::new("status"));
    let conditions = path.child("conditions");
    counters(&new, &path, errors);
    exclusive_conditions(&new, &old, &conditions, errors);
    times(&new, &old, &path, errors);
    interim_conditions(&new, &old, &conditions, errors);
    finished_job(&new, &old, &path, errors);
    indexes(&new, &old, &path, errors);
    pods(&new, &old, &path, errors);
    success_criteria(&new, &conditions, errors);
    no_reverts(&new, &old, &path, errors);
}

fn counters(new: &JobView<'_>, path: &FieldPath, errors: &mut ErrorList) {
    for k in ["active", "succeeded", "failed", "ready", "terminating"] {
        if new.number(k) < 0 {
            errors.push(FieldError::invalid(&path.child(k), new.number(k), "must be greater than or equal to 0"));
        }
    }
    let (pods, at) = (&new.status["uncountedTerminatedPods"], path.child("uncountedTerminatedPods"));
    let mut seen = HashSet::new();
    for k in ["succeeded", "failed"] {
        for (i, uid) in items(pods, k).iter().enumerate() {
            let at = at.child(k).index(i);
            if uid == "" {
                errors.push(FieldError::invalid(&at, "", "must not be empty"));
            } else if !seen.insert(uid.as_str()) {
                errors.push(FieldError::duplicate(&at, uid));
            }
        }
    }
}

fn changed(new: &JobView<'_>, old: &JobView<'_>, conditions: &[&str]) -> bool {
    conditions.iter().any(|c| new.is(c) != old.is(c))
}

/// Checks that exclusive terminal conditions are not set together.
fn exclusive_conditions(new: &JobView<'_>, old: &JobView<'_>, at: &FieldPath, errors: &mut ErrorList) {
    let complete = new.is("Complete");
    if complete && new.is("Failed") && changed(new, old, &["Complete", "Failed"]) {
        errors.push(FieldError::invalid(at, BadValue::Omitted, "cannot set Complete=True and Failed=true conditions"));
    }
    if complete && new.is("FailureTarget") && changed(new, old, &["Complete", "FailureTarget"]) {
        errors.push(FieldError::invalid(
            at,
            BadValue::Omitted,
            "cannot set Complete=True and FailureTarget=true conditions",
        ));
    }
}

/// Checks that a terminal condition follows its interim condition.
fn interim_conditions(new: &JobView<'_>, old: &JobView<'_>, at: &FieldPath, errors: &mut ErrorList) {
    for (end, by) in [("Failed", "FailureTarget"), ("Complete", "SuccessCriteriaMet")] {
        if new.is(end) && !new.is(by) && changed(new, old, &[end, by]) {
            let why = format!("cannot set {end}=True condition without the {by}=true condition");
            errors.push(FieldError::invalid(at, BadValue::Omitted, &why));
        }
    }
}

/// Checks that a job with met success criteria has not failed.
fn success_criteria(new: &JobView<'_>, at: &FieldPath, errors: &mut ErrorList) {
    let met = new.is("SuccessCriteriaMet");
    for failure in ["Failed", "FailureTarget"] {
        if met && new.is(failure) {
            let why = format!("cannot set SuccessCriteriaMet=True and {failure}=true conditions");
            errors.push(FieldError::invalid(at, BadValue::Omitted, &why));
        }
    }
    if new.is("Complete") && !met && is_set(new.spec, "successPolicy") {
        let why = "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True";
        errors.push(FieldError::invalid(at, BadValue::Omitted, why));
    }
}

fn times(new: &JobView<'_>, old: &JobView<'_>, path: &FieldPath, errors: &mut ErrorList) {
    let differs = |k: &str| new.status[k] != old.status[k];
    let (at, value) = (path.child("completionTime"), new.status["completionTime"].clone());
    let complete = new.is("Complete");
    if complete != old.is("Complete") || differs("completionTime") {
        if !value.is_null() && !complete {
            let why = "cannot set completionTime when there is no Complete=True condition";
            errors.push(FieldError::invalid(&at, &value, why));
        }
        if value.is_null() && complete {
            errors.push(FieldError::required(&at, "completionTime is required for Complete jobs"));
        }
    }
    let (start, end) = (new.time("startTime"), new.time("completionTime"));
    if (differs("startTime") || differs("completionTime")) && start.zip(end).is_some_and(|(s, e)| e < s) {
        errors.push(FieldError::invalid(&at, value, "must be equal to or after `startTime`"));
    }
}

/// Checks that a finished job has no active pods and a start time.
fn finished_job(new: &JobView<'_>, old: &JobView<'_>, path: &FieldPath, errors: &mut ErrorList) {
    let finished = new.finished();
    let applies = |k: &str| finished && (!old.finished() || new.status[k] != old.status[k]);
    let number = |k: &str| (path.child(k), new.number(k));
    if applies("active") && new.number("active") > 0 {
        let (at, n) = number("active");
        errors.push(FieldError::invalid(&at, n, "active>0 is invalid for finished job"));
    }
    // A suspended job with zero completions may finish without starting.
    let nothing = new.spec["suspend"] == true && new.spec["completions"] == 0;
    if applies("startTime") && !is_set(new.status, "startTime") && !nothing {
        errors.push(FieldError::required(&path.child("startTime"), "startTime is required for finished job"));
    }
    if applies("uncountedTerminatedPods") && new.uncounted() > 0 {
        let why = "must be empty for finished job";
        let at = path.child("uncountedTerminatedPods");
        let shown = shown(&new.status["uncountedTerminatedPods"], "io.k8s.api.batch.v1.UncountedTerminatedPods", &at);
        errors.push(FieldError::invalid(&at, shown, why));
    }
}

/// Checks the counts of ready and terminating pods.
fn pods(new: &JobView<'_>, old: &JobView<'_>, path: &FieldPath, errors: &mut ErrorList) {
    let differs = |k: &str| new.status[k] != old.status[k];
    let number = |k: &str| (path.child(k), new.number(k));
    if new.finished() && (!old.finished() || differs("terminating")) && new.number("terminating") > 0 {
        let (at, n) = number("terminating");
        errors.push(FieldError::invalid(&at, n, "terminating>0 is invalid for finished job"));
    }
    if (differs("ready") || differs("active")) && new.number("ready") > new.number("active") {
        let (at, n) = number("ready");
        errors.push(FieldError::invalid(&at, n, "cannot set more ready pods than active"));
    }
}

fn indexes(new: &JobView<'_>, old: &JobView<'_>, path: &FieldPath, errors: &mut ErrorList) {
    let differs = |k: &str| new.status[k] != old.status[k];
    let (completed, failed) = (text(new.status, "completedIndexes"), new.status["failedIndexes"].as_str());
    let (completions, per_index) = (new.spec["completions"].as_i64(), is_set(new.spec, "backoffLimitPerIndex"));
    let (at_completed, at_failed) = (path.child("completedIndexes"), path.child("failedIndexes"));
    if differs("completedIndexes") {
        if let Some(Err(e)) = completions.map(|n| number_of(completed, n)) {
            let why = format!("error parsing completedIndexes: {e}");
            errors.push(FieldError::invalid(&at_completed, completed, why));
        }
        if !completed.is_empty() && text(new.spec, "completionMode") != "Indexed" {
            let why = "cannot set non-empty completedIndexes when non-indexed completion mode";
            errors.push(FieldError::invalid(&at_completed, completed, why));
        }
    }
    let Some(failed) = failed else { return };
    if differs("failedIndexes") {
        if let Some(Err(e)) = completions.filter(|_| per_index).map(|n| number_of(failed, n)) {
            errors.push(FieldError::invalid(&at_failed, failed, format!("error parsing failedIndexes: {e}")));
        }
        if !per_index {
            let why = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
            errors.push(FieldError::invalid(&at_failed, failed, why));
        }
    }
    if let Some(n) = completions.filter(|_| differs("failedIndexes") || differs("completedIndexes")) {
        let done = intervals(completed, n);
        let both = intervals(failed, n).into_iter().find_map(|(a, b)| {
            let at = done.iter().find(|(c, d)| *c <= b && a <= *d);
            at.map(|(c, _)| a.max(*c))
        });
        if let Some(i) = both {
            let why = format!("failedIndexes and completedIndexes overlap at index: {i}");
            errors.push(FieldError::invalid(&at_failed, failed, why));
        }
    }
}

/// Checks that values which only grow, or are final, are not reverted.
fn no_reverts(new: &JobView<'_>, old: &JobView<'_>, path: &FieldPath, errors: &mut ErrorList) {
    let conditions = path.child("conditions");
    for c in ["Failed", "Complete", "FailureTarget"] {
        if old.is(c) && !new.is(c) {
            let why = format!("cannot disable the terminal {c}=True condition");
            errors.push(FieldError::invalid(&conditions, BadValue::Omitted, &why));
        }
    }
    // An indexed job can shrink together with its parallelism.
    let shrinks = text(new.spec, "completionMode") == "Indexed" && new.spec["completions"] == new.spec["parallelism"];
    for (k, fixed) in [("failed", true), ("succeeded", !shrinks)] {
        if fixed && new.number(k) < old.number(k) {
            let why = format!("cannot decrease the {k} counter");
            errors.push(FieldError::invalid(&path.child(k), new.number(k), why));
        }
    }
    let (end, was) = (&new.status["completionTime"], &old.status["completionTime"]);
    if !end.is_null() && !was.is_null() && end != was {
        let why = "field is immutable";
        errors.push(FieldError::invalid(&path.child("completionTime"), end, why));
    }
    let was = &old.status["startTime"];
    if !was.is_null() && new.status["startTime"] != *was && new.spec["suspend"] != true {
        let why = "field is immutable for unsuspended job once set";
        errors.push(FieldError::invalid(&path.child("startTime"), new.status["startTime"].clone(), why));
    }
    let (met, had) = (new.is("SuccessCriteriaMet"), old.is("SuccessCriteriaMet"));
    if had && !met {
        let why = "cannot disable the SuccessCriteriaMet=True condition";
        errors.push(FieldError::invalid(&conditions, BadValue::Omitted, why));
    }
    if old.is("Complete") && !had && met {
        let why = "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions";
        errors.push(FieldError::invalid(&conditions, BadValue::Omitted, why));
    }
}

#[cfg(test)]
mod tests {
    use crate::batch::job::Job;
    use crate::testing::check_status;
    use serde_json::{Value, json};

    fn job(spec: Value, status: Value) -> Value {
        let mut job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": {"spec": {}}},
            "status": status});
        spec.as_object().into_iter().flatten().for_each(|(k, v)| job["spec"][k] = v.clone());
        job
    }

    fn conditions(types: &[&str]) -> Value {
        types.iter().map(|t| json!({"type": t, "status": "True"})).collect()
    }

    #[test]
    fn validates_terminal_conditions() {
        let start = "2026-01-01T00:00:00Z";
        let field = "/status/conditions";
        let required = "status.completionTime: Required value: completionTime is required for Complete jobs";
        let interim = "status.conditions: Invalid value: cannot set Failed=True condition without the FailureTarget=true condition";
        check_status(
            &Job,
            &job(json!({}), json!({"startTime": start})),
            &[
                ("", Value::Null, &[]),
                (field, conditions(&["FailureTarget"]), &[]),
                (field, conditions(&["FailureTarget", "Failed"]), &[]),
                (field, conditions(&["Failed"]), &[interim]),
                (field, conditions(&["SuccessCriteriaMet", "Complete"]), &[required]),
                (
                    field,
                    conditions(&["SuccessCriteriaMet", "FailureTarget"]),
                    &[
                        "status.conditions: Invalid value: cannot set SuccessCriteriaMet=True and FailureTarget=true conditions",
                    ],
                ),
                (
                    "/status/completionTime",
                    json!(start),
                    &[
                        "status.completionTime: Invalid value: …: cannot set completionTime when there is no Complete=True condition",
                    ],
                ),
            ],
        );
        let failed =
            job(json!({}), json!({"startTime": start, "conditions": conditions(&["FailureTarget", "Failed"])}));
        check_status(
            &Job,
            &failed,
            &[
                (
                    "/status/conditions",
                    conditions(&["FailureTarget"]),
                    &["status.conditions: Invalid value: cannot disable the terminal Failed=True condition"],
                ),
                (
                    "/status/active",
                    json!(1),
                    &["status.active: Invalid value: 1: active>0 is invalid for finished job"],
                ),
                (
                    "/status/terminating",
                    json!(1),
                    &["status.terminating: Invalid value: 1: terminating>0 is invalid for finished job"],
                ),
                (
                    "/status/startTime",
                    Value::Null,
                    &[
                        "status.startTime: Required value: startTime is required for finished job",
                        "status.startTime: Invalid value: null: field is immutable for unsuspended job once set",
                    ],
                ),
            ],
        );
    }

    #[test]
    fn validates_counters_and_indexes() {
        let spec = json!({"completionMode": "Indexed", "completions": 5, "parallelism": 2, "backoffLimitPerIndex": 1});
        let old = job(spec, json!({"failed": 2, "succeeded": 2, "active": 1}));
        check_status(
            &Job,
            &old,
            &[
                ("/status/failed", json!(1), &["status.failed: Invalid value: 1: cannot decrease the failed counter"]),
                (
                    "/status/succeeded",
                    json!(-1),
                    &[
                        "status.succeeded: Invalid value: -1: must be greater than or equal to 0",
                        "status.succeeded: Invalid value: -1: cannot decrease the succeeded counter",
                    ],
                ),
                (
                    "/status/ready",
                    json!(2),
                    &["status.ready: Invalid value: 2: cannot set more ready pods than active"],
                ),
                ("/status/completedIndexes", json!("0-2,4"), &[]),
                (
                    "/status/completedIndexes",
                    json!("5"),
                    &["status.completedIndexes: Invalid value: \"5\": error parsing completedIndexes: …"],
                ),
                (
                    "/status/uncountedTerminatedPods",
                    json!({"succeeded": ["a"], "failed": ["a", ""]}),
                    &[
                        "status.uncountedTerminatedPods.failed[0]: Duplicate value: \"a\"",
                        "status.uncountedTerminatedPods.failed[1]: Invalid value: \"\": must not be empty",
                    ],
                ),
            ],
        );
        let mut both = old.clone();
        both["status"]["completedIndexes"] = "0-2".into();
        check_status(
            &Job,
            &both,
            &[
                ("/status/failedIndexes", json!("3"), &[]),
                (
                    "/status/failedIndexes",
                    json!("2-3"),
                    &[
                        "status.failedIndexes: Invalid value: \"2-3\": failedIndexes and completedIndexes overlap at index: 2",
                    ],
                ),
            ],
        );
    }
}
