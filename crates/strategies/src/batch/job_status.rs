//! What the status of a Job may say, and how it may go on (`ValidateJobUpdateStatus`). What was wrong before is not blamed on an
//! update that changes something else.

use super::success_policy::{intervals, number_of};
use crate::read::{is_set, items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};
use std::collections::HashSet;

const COUNTS: [&str; 5] = ["active", "succeeded", "failed", "ready", "terminating"];

/// One status, as it is asked for.
struct Side<'a> {
    status: &'a Value,
}

impl Side<'_> {
    fn is(&self, condition: &str) -> bool {
        items(self.status, "conditions").iter().any(|c| text(c, "type") == condition && text(c, "status") == "True")
    }

    fn finished(&self) -> bool {
        self.is("Complete") || self.is("Failed")
    }

    fn count(&self, key: &str) -> i64 {
        self.status[key].as_i64().unwrap_or(0)
    }
}

pub fn validate(o: &Object, old: &Object, errors: &mut ErrorList) {
    let null = Value::Null;
    let spec = o.get("spec").unwrap_or(&null);
    let now = Side { status: o.get("status").unwrap_or(&null) };
    let was = Side { status: old.get("status").unwrap_or(&null) };
    let at = FieldPath::new("status");
    for k in COUNTS.into_iter().filter(|k| now.count(k) < 0) {
        errors.push(FieldError::invalid(&at.child(k), now.count(k), "must be greater than or equal to 0"));
    }
    uncounted(&now.status["uncountedTerminatedPods"], &at.child("uncountedTerminatedPods"), errors);
    conditions(spec, &now, &was, &at.child("conditions"), errors);
    times(spec, &now, &was, &at, errors);
    finished(&now, &was, &at, errors);
    indexes(spec, &now, &was, &at, errors);
    if ["ready", "active"].iter().any(|k| now.status[*k] != was.status[*k]) && now.count("ready") > now.count("active")
    {
        errors.push(FieldError::invalid(
            &at.child("ready"),
            now.count("ready"),
            "cannot set more ready pods than active",
        ));
    }
    if now.count("failed") < was.count("failed") {
        let why = "cannot decrease the failed counter";
        errors.push(FieldError::invalid(&at.child("failed"), now.count("failed"), why));
    }
    // An indexed job that is as wide as it is long can shrink.
    let shrinks = text(spec, "completionMode") == "Indexed" && spec["completions"] == spec["parallelism"];
    if !shrinks && now.count("succeeded") < was.count("succeeded") {
        let why = "cannot decrease the succeeded counter";
        errors.push(FieldError::invalid(&at.child("succeeded"), now.count("succeeded"), why));
    }
}

/// Pods that ended and are not counted yet are named once.
fn uncounted(u: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let mut seen = HashSet::new();
    for list in ["succeeded", "failed"] {
        for (i, uid) in items(u, list).iter().filter_map(Value::as_str).enumerate() {
            let at = at.child(list).index(i);
            if uid.is_empty() {
                errors.push(FieldError::invalid(&at, uid, "must not be empty"));
            } else if !seen.insert(uid) {
                errors.push(FieldError::duplicate(&at, uid));
            }
        }
    }
}

fn conditions(spec: &Value, now: &Side<'_>, was: &Side<'_>, at: &FieldPath, errors: &mut ErrorList) {
    let changed = |c: &str| now.is(c) != was.is(c);
    let (complete, failed, met, target) =
        (now.is("Complete"), now.is("Failed"), now.is("SuccessCriteriaMet"), now.is("FailureTarget"));
    let mut wrong = |when: bool, why: &str| {
        if when {
            errors.push(FieldError::invalid_altogether(at, why));
        }
    };
    wrong(
        (changed("Complete") || changed("Failed")) && complete && failed,
        "cannot set Complete=True and Failed=true conditions",
    );
    wrong(
        (changed("Complete") || changed("FailureTarget")) && complete && target,
        "cannot set Complete=True and FailureTarget=true conditions",
    );
    wrong(
        (changed("Failed") || changed("FailureTarget")) && failed && !target,
        "cannot set Failed=True condition without the FailureTarget=true condition",
    );
    wrong(
        (changed("Complete") || changed("SuccessCriteriaMet")) && complete && !met,
        "cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
    );
    wrong(met && failed, "cannot set SuccessCriteriaMet=True and Failed=true conditions");
    wrong(met && target, "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions");
    wrong(
        is_set(spec, "successPolicy") && complete && !met,
        "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True",
    );
    for c in ["Failed", "Complete", "FailureTarget"] {
        wrong(was.is(c) && !now.is(c), &format!("cannot disable the terminal {c}=True condition"));
    }
    wrong(was.is("SuccessCriteriaMet") && !met, "cannot disable the SuccessCriteriaMet=True condition");
    wrong(
        was.is("Complete") && !was.is("SuccessCriteriaMet") && met,
        "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions",
    );
}

fn times(spec: &Value, now: &Side<'_>, was: &Side<'_>, at: &FieldPath, errors: &mut ErrorList) {
    let changed = |k: &str| now.status[k] != was.status[k];
    let (start, end) = (&now.status["startTime"], &now.status["completionTime"]);
    let (start_at, end_at) = (at.child("startTime"), at.child("completionTime"));
    if changed("completionTime") || now.is("Complete") != was.is("Complete") {
        if !end.is_null() && !now.is("Complete") {
            let why = "cannot set completionTime when there is no Complete=True condition";
            errors.push(FieldError::invalid(&end_at, end.clone(), why));
        }
        if end.is_null() && now.is("Complete") {
            errors.push(FieldError::required(&end_at, "completionTime is required for Complete jobs"));
        }
    }
    // Written the same way, to the second.
    if (changed("startTime") || changed("completionTime"))
        && let (Some(start), Some(end)) = (start.as_str(), end.as_str())
        && end < start
    {
        errors.push(FieldError::invalid(&end_at, end, "must be equal to or after `startTime`"));
    }
    if !end.is_null() && !was.status["completionTime"].is_null() && changed("completionTime") {
        errors.push(FieldError::invalid(&end_at, end.clone(), "field is immutable"));
    }
    if changed("startTime") && !was.status["startTime"].is_null() && spec["suspend"] != true {
        errors.push(FieldError::required(&start_at, "startTime cannot be removed for unsuspended job"));
    }
    let never_runs = spec["suspend"] == true && spec["completions"] == 0;
    let asked = changed("startTime") || now.finished() != was.finished();
    if asked && !never_runs && start.is_null() && now.finished() {
        errors.push(FieldError::required(&start_at, "startTime is required for finished job"));
    }
}

/// Who is done has no pods left.
fn finished(now: &Side<'_>, was: &Side<'_>, at: &FieldPath, errors: &mut ErrorList) {
    if !now.finished() {
        return;
    }
    let asked = |k: &str| now.finished() != was.finished() || now.status[k] != was.status[k];
    for k in ["active", "terminating"] {
        if asked(k) && now.count(k) > 0 {
            errors.push(FieldError::invalid(&at.child(k), now.count(k), format!("{k}>0 is invalid for finished job")));
        }
    }
    let left = &now.status["uncountedTerminatedPods"];
    let any = ["succeeded", "failed"].iter().any(|k| !items(left, k).is_empty());
    if asked("uncountedTerminatedPods") && any {
        let at = at.child("uncountedTerminatedPods");
        errors.push(FieldError::invalid(&at, left.clone(), "must be empty for finished job"));
    }
}

/// Indexes that are done and indexes that failed: each of those that there are, in one of them at most.
fn indexes(spec: &Value, now: &Side<'_>, was: &Side<'_>, at: &FieldPath, errors: &mut ErrorList) {
    let changed = |k: &str| now.status[k] != was.status[k];
    let (done, failed) = (text(now.status, "completedIndexes"), now.status["failedIndexes"].as_str());
    let (done_at, failed_at) = (at.child("completedIndexes"), at.child("failedIndexes"));
    let limited = !spec["backoffLimitPerIndex"].is_null();
    if changed("completedIndexes") {
        if let Some(Err(e)) = spec["completions"].as_i64().map(|n| number_of(done, n)) {
            errors.push(FieldError::invalid(&done_at, done, format!("error parsing completedIndexes: {e}")));
        }
        if !done.is_empty() && text(spec, "completionMode") != "Indexed" {
            let why = "cannot set non-empty completedIndexes when non-indexed completion mode";
            errors.push(FieldError::invalid(&done_at, done, why));
        }
    }
    let Some(failed) = failed else { return };
    if changed("failedIndexes") {
        if limited && let Some(Err(e)) = spec["completions"].as_i64().map(|n| number_of(failed, n)) {
            errors.push(FieldError::invalid(&failed_at, failed, format!("error parsing failedIndexes: {e}")));
        }
        if !limited {
            let why = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
            errors.push(FieldError::invalid(&failed_at, failed, why));
        }
    }
    if let Some(n) = spec["completions"].as_i64().filter(|_| changed("failedIndexes") || changed("completedIndexes")) {
        let (done, failed) = (intervals(done, n), intervals(failed, n));
        let both = failed.iter().flat_map(|f| done.iter().map(move |d| (d.0.max(f.0), d.1.min(f.1))));
        if let Some((first, _)) = both.filter(|(from, to)| from <= to).min() {
            let why = format!("failedIndexes and completedIndexes overlap at index: {first}");
            errors.push(FieldError::invalid(&failed_at, now.status["failedIndexes"].clone(), why));
        }
    }
}
