//! CronJob: schedule, time zone and job template.

use super::job_spec;
use crate::Config;
use crate::pod_template;
use crate::read::{is_set, shown_selector};
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};
use registry::{CreateStrategy, UpdateStrategy};

pub fn row(_: &Config) -> Row {
    Row::stored(CronJob)
}

pub struct CronJob;

/// The path in the message is upstream's.
const ZONED: &str = "CRON_TZ or TZ used in spec.spec.schedule is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details";

/// Maximum name length: names of jobs append eleven characters.
const NAME_MAX: usize = 52;

impl CreateStrategy for CronJob {
    fn default(&self, o: &mut Object) {
        let template: Vec<&str> = vec!["spec", "jobTemplate", "spec", "template", "spec"];
        pod_template::default(o, &template);
    }

    fn warnings(&self, o: &Object, old: Option<&Object>) -> Vec<String> {
        let path = ["spec", "jobTemplate", "spec"];
        let mut out = if old.is_none() { pod_template::name_warnings(o.name()) } else { Vec::new() };
        out.extend(job_spec::warnings(o.at(&path).unwrap_or(&Value::Null), &FieldPath::new(path.join("."))));
        out.extend(pod_template::workload_warnings(o, old, &["spec", "jobTemplate", "spec", "template"]));
        if o.str_at(&["spec", "schedule"]).is_some_and(|s| s.contains("TZ")) {
            out.push(ZONED.to_owned());
        }
        out
    }

    fn validate_since(&self, o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
        if old.is_some() {
            return;
        }
        schedule_and_zone(o, None, errors);
        if o.name().len() > NAME_MAX {
            let why = format!("must be no more than {NAME_MAX} characters");
            errors.push(FieldError::invalid(&FieldPath::new("metadata.name"), o.name(), why));
        }
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        let path = FieldPath::new("spec");
        let spec = o.at(&["spec", "jobTemplate", "spec"]).unwrap_or(&Value::Null);
        let path = path.child("jobTemplate").child("spec");
        job_spec::validate(spec, &path, errors);
        // Selectors of jobs are generated.
        if is_set(spec, "selector") {
            let why = "`selector` will be auto-generated";
            let at = path.child("selector");
            errors.push(FieldError::invalid(&at, shown_selector(&spec["selector"], &at), why));
        }
        if spec["manualSelector"] == true {
            errors.push(FieldError::not_supported(&path.child("manualSelector"), true, &["nil", "false"]));
        }
    }
}

impl UpdateStrategy for CronJob {
    fn validate_update(&self, o: &Object, old: &Object, errors: &mut ErrorList) {
        schedule_and_zone(o, Some(old), errors);
    }
}

registry::strategy!(CronJob: CreateStrategy, UpdateStrategy);

/// Validates schedule and time zone. An object whose schedule had a zone before may keep it.
fn schedule_and_zone(o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
    let path = FieldPath::new("spec");
    let schedule = o.str_at(&["spec", "schedule"]).unwrap_or_default();
    let at = path.child("schedule");
    let zone_at = ["spec", "timeZone"];
    if schedule.is_empty() {
        errors.push(FieldError::required(&at, ""));
    } else {
        if let Err(why) = cron::Schedule::parse(schedule) {
            errors.push(FieldError::invalid(&at, schedule, why));
        }
        let zoned = |o: &Object| o.str_at(&["spec", "schedule"]).is_some_and(|s| s.contains("TZ"));
        let why = match (zoned(o), old.is_some_and(zoned)) {
            (true, true) if o.at(&zone_at).is_some() => {
                Some("cannot use both timeZone field and TZ or CRON_TZ in schedule")
            }
            (true, false) => Some("cannot use TZ or CRON_TZ in schedule, use timeZone field instead"),
            _ => None,
        };
        errors.extend(why.map(|why| FieldError::invalid(&at, schedule, why)));
    }
    if old.is_none_or(|old| old.at(&zone_at) != o.at(&zone_at)) {
        zone(o.at(&zone_at), &path.child("timeZone"), errors);
    }
}

/// Validates the name of a time zone, which is case-sensitive.
fn zone(v: Option<&Value>, at: &FieldPath, errors: &mut ErrorList) {
    let Some(zone) = v.and_then(Value::as_str) else { return };
    let unknown = FieldError::invalid(at, zone, format!("unknown time zone {zone}"));
    let part = |p: &str| {
        let allowed = p.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_+".contains(&b));
        allowed && (1..=PART_MAX).contains(&p.len()) && p != "." && p != ".." && !p.starts_with('-')
    };
    if zone.is_empty() {
        errors.push(FieldError::invalid(at, zone, "timeZone must be nil or non-empty string"));
        return;
    }
    if !zone.split('/').all(part) {
        errors.push(unknown);
        return;
    }
    if zone.eq_ignore_ascii_case("local") {
        errors.push(FieldError::invalid(
            at,
            zone,
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones",
        ));
    }
    if cron::time_zone(zone).is_err() {
        errors.push(unknown);
    }
}

/// Maximum length of a part of a zone name.
const PART_MAX: usize = 14;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_create, check_update};
    use serde_json::json;

    fn cron_job(schedule: &str) -> Value {
        json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "c"}, "spec": {"schedule": schedule,
            "jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": "Never",
                "containers": [{"name": "c", "image": "i"}]}}}}}})
    }

    #[test]
    fn validates_schedules_and_zones() {
        let field = "spec.schedule: Invalid value:";
        check_create(
            &CronJob,
            &cron_job("@daily"),
            &[
                ("", Value::Null, &[]),
                ("/spec/schedule", json!("*/5 0-4 1,15 jan-mar mon"), &[]),
                ("/spec/schedule", json!(""), &["spec.schedule: Required value"]),
                (
                    "/spec/schedule",
                    json!("* * *"),
                    &[&format!("{field} \"* * *\": expected exactly 5 fields, found 3: [* * *]")],
                ),
                (
                    "/spec/schedule",
                    json!("60 * * * *"),
                    &[&format!("{field} \"60 * * * *\": end of range (60) above maximum (59): 60")],
                ),
                ("/spec/schedule", json!("@never"), &[&format!("{field} \"@never\": unrecognized descriptor: @never")]),
                (
                    "/spec/schedule",
                    json!("TZ=UTC 0 0 * * *"),
                    &[&format!(
                        "{field} \"TZ=UTC 0 0 * * *\": cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
                    )],
                ),
                ("/spec/timeZone", json!("Europe/Zurich"), &[]),
                (
                    "/spec/timeZone",
                    json!("Europe/Nowhere"),
                    &["spec.timeZone: Invalid value: \"Europe/Nowhere\": unknown time zone Europe/Nowhere"],
                ),
                (
                    "/spec/timeZone",
                    json!(""),
                    &["spec.timeZone: Invalid value: \"\": timeZone must be nil or non-empty string"],
                ),
                (
                    "/spec/timeZone",
                    json!("Local"),
                    &[
                        "spec.timeZone: Invalid value: \"Local\": timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones",
                    ],
                ),
                (
                    "/metadata/name",
                    json!("a".repeat(53)),
                    &[&format!(
                        "metadata.name: Invalid value: \"{}\": must be no more than 52 characters",
                        "a".repeat(53)
                    )],
                ),
                (
                    "/spec/jobTemplate/spec/selector",
                    json!({"matchLabels": {"a": "b"}}),
                    &["spec.jobTemplate.spec.selector: Invalid value: …: `selector` will be auto-generated"],
                ),
                (
                    "/spec/concurrencyPolicy",
                    json!("Other"),
                    &[
                        "spec.concurrencyPolicy: Unsupported value: \"Other\": supported values: \"Allow\", \"Forbid\", \"Replace\"",
                    ],
                ),
            ],
        );
    }

    #[test]
    fn keeps_a_zone_in_an_old_schedule() {
        let both = "spec.schedule: Invalid value: \"TZ=UTC 0 0 * * *\": cannot use both timeZone field and TZ or CRON_TZ in schedule";
        check_update(
            &CronJob,
            &cron_job("TZ=UTC 0 0 * * *"),
            &[
                ("", Value::Null, &[]),
                ("/spec/timeZone", json!("UTC"), &[both]),
                ("/spec/schedule", json!("0 0 * * *"), &[]),
            ],
        );
    }
}
