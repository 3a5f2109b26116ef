//! Job and CronJob.

use crate::pod_template;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};
use registry::{Env, Request, Strategy};
use serde_json::json;

pub struct Job;
pub struct CronJob;

/// What may change in the template of a job that is suspended.
const MUTABLE_IN_TEMPLATE: [&[&str]; 6] = [
    &["metadata", "labels"],
    &["metadata", "annotations"],
    &["spec", "nodeSelector"],
    &["spec", "affinity", "nodeAffinity"],
    &["spec", "tolerations"],
    &["spec", "schedulingGates"],
];

fn default_job(o: &mut Object, path: &[&str]) {
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

fn validate_spec(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let at = path.child("template");
    pod_template::validate(spec.get("template"), &at, errors);
    let policy = spec["template"]["spec"]["restartPolicy"].as_str().unwrap_or_default();
    if policy == "Always" {
        let path = at.child("spec").child("restartPolicy");
        errors.push(FieldError::required(&path, "valid values: \"OnFailure\", \"Never\""));
    }
}

impl Strategy for Job {
    fn default(&self, o: &mut Object) {
        if o.labels().next().is_none()
            && let Some(l) = o.at(&["spec", "template", "metadata", "labels"]).cloned()
        {
            o.set(&["metadata", "labels"], l);
        }
        default_job(o, &["spec"]);
    }

    fn prepare_for_create(&self, _env: Env<'_>, _request: &Request, o: &mut Object) {
        o.set(&["status"], json!({}));
        if o.at(&["spec", "manualSelector"]) == Some(&Value::Bool(true)) {
            return;
        }
        // The labels that make a job's pods its own; a job that took its labels from the template takes these as well.
        let (uid, name) = (o.uid().to_owned(), o.name().to_owned());
        let labels = ["spec", "template", "metadata", "labels"];
        let own = o.at(&["metadata", "labels"]);
        let shared = own.is_none() || own == o.at(&labels);
        for (k, v) in [
            ("batch.kubernetes.io/controller-uid", &uid),
            ("controller-uid", &uid),
            ("batch.kubernetes.io/job-name", &name),
            ("job-name", &name),
        ] {
            let path: Vec<&str> = labels.into_iter().chain([k]).collect();
            if o.at(&path).is_none() {
                o.set(&path, v.as_str());
            }
            if shared {
                o.set_label(k, v);
            }
        }
        o.set(&["spec", "selector"], json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}));
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        let manual = o.at(&["spec", "manualSelector"]) == Some(&Value::Bool(true));
        if o.at(&["spec", "selector"]).is_none() {
            // Missed twice: by the job, and by the pods it is to find.
            let path = FieldPath::new("spec.selector");
            errors.push(FieldError::required(&path, ""));
            if !manual {
                errors.push(FieldError::required(&path, ""));
            }
        }
        if !manual {
            let labels = FieldPath::new("spec.template.metadata.labels");
            for (k, want) in [("controller-uid", o.uid()), ("job-name", o.name())] {
                if o.str_at(&["spec", "template", "metadata", "labels", k]) != Some(want) {
                    errors.push(FieldError::invalid(
                        &labels,
                        o.at(&["spec", "template", "metadata", "labels"]).cloned().unwrap_or_default(),
                        format!("must be '{want}'"),
                    ));
                }
            }
        }
        validate_spec(o.get("spec").unwrap_or(&Value::Null), &FieldPath::new("spec"), errors);
    }

    fn validate_update(&self, o: &Object, old: &Object, errors: &mut ErrorList) {
        // A suspended job that never ran may still be told where to run.
        let suspended = old.at(&["spec", "suspend"]) == Some(&Value::Bool(true));
        let mut allowed = old.clone();
        if suspended && old.at(&["status", "startTime"]).is_none() {
            for path in MUTABLE_IN_TEMPLATE {
                let path: Vec<&str> = ["spec", "template"].iter().chain(path.iter()).copied().collect();
                match o.at(&path).cloned() {
                    Some(v) => allowed.set(&path, v),
                    None => {
                        allowed.remove(&path);
                    }
                }
            }
        }
        let old = &allowed;
        for k in [
            "completions",
            "selector",
            "template",
            "completionMode",
            "podFailurePolicy",
            "backoffLimitPerIndex",
            "managedBy",
            "successPolicy",
        ] {
            let (new, was) = (o.at(&["spec", k]), old.at(&["spec", k]));
            if new != was {
                let path = FieldPath::new("spec").child(k);
                errors.push(FieldError::invalid(&path, new.cloned().unwrap_or_default(), "field is immutable"));
            }
        }
    }

    fn orphans_by_default(&self) -> bool {
        // Only the oldest version of the group did.
        false
    }
}

impl Strategy for CronJob {
    fn default(&self, o: &mut Object) {
        let template: Vec<&str> = vec!["spec", "jobTemplate", "spec", "template", "spec"];
        pod_template::default(o, &template);
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        let path = FieldPath::new("spec");
        let schedule = o.str_at(&["spec", "schedule"]).unwrap_or_default();
        if schedule.is_empty() {
            errors.push(FieldError::required(&path.child("schedule"), ""));
        } else if !plausible(schedule) {
            errors.push(FieldError::invalid(
                &path.child("schedule"),
                schedule,
                format!("expected exactly 5 fields, found {}: {schedule}", schedule.split_whitespace().count()),
            ));
        }
        let spec = o.at(&["spec", "jobTemplate", "spec"]).unwrap_or(&Value::Null);
        validate_spec(spec, &path.child("jobTemplate").child("spec"), errors);
    }
}

/// Five fields, or a word such as `@hourly`.
fn plausible(schedule: &str) -> bool {
    let named = ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];
    if schedule.starts_with('@') {
        return named.contains(&schedule) || schedule.strip_prefix("@every ").is_some_and(|d| !d.is_empty());
    }
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    let ranges = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)];
    fields.len() == 5 && fields.iter().zip(ranges).enumerate().all(|(i, (f, r))| f.split(',').all(|p| field(p, r, i)))
}

fn field(part: &str, (low, high): (u32, u32), place: usize) -> bool {
    let (range, step) = part.split_once('/').unwrap_or((part, "1"));
    if !step.parse::<u32>().is_ok_and(|s| s > 0) {
        return false;
    }
    let names: &[&str] = match place {
        3 => &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
        4 => &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
        _ => &[],
    };
    let number = |t: &str| {
        let word = names.iter().position(|n| *n == t.to_lowercase()).map(|i| i as u32 + u32::from(place == 3));
        t.parse::<u32>().ok().or(word).filter(|n| (low..=high).contains(n))
    };
    if range == "*" || range == "?" {
        return true;
    }
    match range.split_once('-') {
        Some((a, b)) => matches!((number(a), number(b)), (Some(a), Some(b)) if a <= b),
        None => number(range).is_some(),
    }
}
