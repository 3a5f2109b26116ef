//! Validation of the job spec, for Jobs and CronJobs.

use super::{pod_failure_policy, success_policy};
use crate::networking::domain_prefixed;
use crate::pod_template;
use crate::read::{is_set, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};

/// Maximum completions with per-index limits.
const COMPLETIONS_MAX_PER_INDEX: i64 = 100_000;
/// Maximum parallelism and failed indexes of an indexed job.
const INDEXED_MAX: i64 = 100_000;
/// Maximum parallelism and failed indexes above that number of completions.
const MANY_MAX: i64 = 10_000;
const MANAGER_MAX: usize = 63;

pub fn default(o: &mut Object, path: &[&str]) {
    let at = |k: &'static str| -> Vec<&str> { path.iter().copied().chain([k]).collect() };
    let absent = |o: &Object, k: &'static str| o.at(&at(k)).is_none();
    if absent(o, "completionMode") {
        o.set(&at("completionMode"), "NonIndexed");
    }
    if absent(o, "suspend") {
        o.set(&at("suspend"), false);
    }
    if absent(o, "manualSelector") {
        o.set(&at("manualSelector"), false);
    }
    if absent(o, "backoffLimit") {
        let limit = if absent(o, "backoffLimitPerIndex") { 6 } else { i64::from(i32::MAX) };
        o.set(&at("backoffLimit"), limit);
    }
    if absent(o, "completions") && absent(o, "parallelism") {
        o.set(&at("completions"), 1);
    }
    if absent(o, "parallelism") {
        o.set(&at("parallelism"), 1);
    }
    if absent(o, "podReplacementPolicy") {
        let failed = o.at(&at("podFailurePolicy")).is_some();
        o.set(&at("podReplacementPolicy"), if failed { "Failed" } else { "TerminatingOrFailed" });
    }
    let template: Vec<&str> = path.iter().copied().chain(["template", "spec"]).collect();
    pod_template::default(o, &template);
}

pub fn validate(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    if text(spec, "completionMode") == "Indexed" && !is_set(spec, "completions") {
        errors.push(FieldError::required(&path.child("completions"), "when completion mode is Indexed"));
    }
    per_index(spec, path, errors);
    if is_set(spec, "podFailurePolicy") {
        pod_failure_policy::validate(spec, &path.child("podFailurePolicy"), errors);
    }
    if is_set(spec, "successPolicy") {
        success_policy::validate(spec, &path.child("successPolicy"), errors);
    }
    if let Some(manager) = spec["managedBy"].as_str() {
        let at = path.child("managedBy");
        domain_prefixed(manager, &at, errors);
        if manager.len() > MANAGER_MAX {
            errors.push(FieldError::too_long(&at, MANAGER_MAX));
        }
    }
    // With a pod failure policy, pods are replaced only after they terminated.
    let when: &[&str] = match is_set(spec, "podFailurePolicy") {
        true => &["Failed"],
        false => &["Failed", "TerminatingOrFailed"],
    };
    if let Some(policy) = spec["podReplacementPolicy"].as_str().filter(|p| !when.contains(p)) {
        errors.push(FieldError::not_supported(&path.child("podReplacementPolicy"), policy, when));
    }
    let at = path.child("template");
    pod_template::validate(spec.get("template"), &at, errors);
    let policy = text(&spec["template"]["spec"], "restartPolicy");
    let at = at.child("spec").child("restartPolicy");
    match policy {
        "Always" | "" => errors.push(FieldError::required(&at, "valid values: \"OnFailure\", \"Never\"")),
        "OnFailure" | "Never" => {
            if policy == "OnFailure" && is_set(spec, "podFailurePolicy") {
                let why = "only \"Never\" is supported when podFailurePolicy is specified";
                errors.push(FieldError::invalid(&at, policy, why));
            }
        }
        other => errors.push(FieldError::not_supported(&at, other, &["OnFailure", "Never"])),
    }
}

/// Returns the warning for more indexes than can be recorded.
pub fn warnings(spec: &Value, path: &FieldPath) -> Vec<String> {
    let above = |k: &str, limit: i64| spec[k].as_i64().is_some_and(|n| n > limit);
    let many = above("completions", COMPLETIONS_MAX_PER_INDEX) && above("parallelism", MANY_MAX);
    if text(spec, "completionMode") != "Indexed" || !many {
        return Vec::new();
    }
    let why = "In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail";
    vec![format!("{path}: {why}")]
}

/// Validates per-index limits, which require an indexed job.
fn per_index(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let mode = text(spec, "completionMode");
    let (indexed, counted) = (mode == "Indexed", mode == "NonIndexed" || !is_set(spec, "completionMode"));
    let limit = &spec["backoffLimitPerIndex"];
    let most = &spec["maxFailedIndexes"];
    let completions = spec["completions"].as_i64();
    let why = "requires indexed completion mode";
    let parallelism = spec["parallelism"].as_i64().unwrap_or(0);
    if indexed && parallelism > INDEXED_MAX {
        let why = format!("must be less than or equal to {INDEXED_MAX} when completion mode is Indexed");
        errors.push(FieldError::invalid(&path.child("parallelism"), parallelism, why));
    }
    let many = indexed && !limit.is_null() && completions.is_some_and(|c| c > COMPLETIONS_MAX_PER_INDEX);
    if many && parallelism > MANY_MAX {
        let why = format!(
            "must be less than or equal to {MANY_MAX} when completions are above {COMPLETIONS_MAX_PER_INDEX} and used with backoff limit per index"
        );
        errors.push(FieldError::invalid(&path.child("parallelism"), parallelism, why));
    }
    if let Some(m) = most.as_i64().filter(|m| many && *m > MANY_MAX) {
        let why = format!(
            "must be less than or equal to {MANY_MAX} when completions are above {COMPLETIONS_MAX_PER_INDEX} and used with backoff limit per index"
        );
        errors.push(FieldError::invalid(&path.child("maxFailedIndexes"), m, why));
    }
    if !limit.is_null() && counted {
        errors.push(FieldError::invalid(&path.child("backoffLimitPerIndex"), limit, why));
    }
    if most.is_null() {
        if indexed && completions.is_some_and(|c| c > COMPLETIONS_MAX_PER_INDEX) && !limit.is_null() {
            let why = "must be specified when completions is above 100000";
            errors.push(FieldError::required(&path.child("maxFailedIndexes"), why));
        }
        return;
    }
    if limit.is_null() {
        errors.push(FieldError::required(&path.child("backoffLimitPerIndex"), "when maxFailedIndexes is specified"));
    }
    let at = path.child("maxFailedIndexes");
    if counted {
        errors.push(FieldError::invalid(&at, most, why));
    } else if indexed
        && let (Some(m), Some(c)) = (most.as_i64(), completions)
        && m > c
    {
        errors.push(FieldError::invalid(&at, m, "must be less than or equal to completions"));
    }
    if let Some(m) = most.as_i64().filter(|m| indexed && *m > INDEXED_MAX) {
        errors.push(FieldError::invalid(&at, m, format!("must be less than or equal to {INDEXED_MAX}")));
    }
}
