//! DaemonSet: update strategy, and template generation.

use super::workload::{Workload, at_most_100_percent, count};
use crate::Config;
use crate::read::{shown, text};
use crate::replicas::Counts;
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};
use serde_json::json;

pub fn row(_: &Config) -> Row {
    Row::stored(workload())
}

fn workload() -> Workload {
    Workload {
        empty_status,
        default,
        prepare_for_update,
        validate,
        ..Workload::new("io.k8s.api.apps.v1.DaemonSetSpec", &COUNTS)
    }
}

const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

const COUNTS: Counts = Counts {
    all: &[
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "observedGeneration",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
        "collisionCount",
    ],
    parts: &[],
    ready: None,
};

fn empty_status() -> Value {
    json!({"currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0, "numberReady": 0})
}

fn default(o: &mut Object) {
    if o.annotation(TEMPLATE_GENERATION).is_none() {
        o.set_annotation(TEMPLATE_GENERATION, "1");
    }
}

fn prepare_for_update(o: &mut Object, old: &Object) {
    let template = |o: &Object| o.at(&["spec", "template"]).cloned();
    let was: i64 = old.annotation(TEMPLATE_GENERATION).and_then(|n| n.parse().ok()).unwrap_or(0);
    let now = was + i64::from(template(o) != template(old));
    o.set_annotation(TEMPLATE_GENERATION, &now.to_string());
}

fn validate(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let strategy = &spec["updateStrategy"];
    let at = path.child("updateStrategy");
    match text(strategy, "type") {
        "OnDelete" => {}
        "RollingUpdate" if !strategy["rollingUpdate"].is_object() => {
            errors.push(FieldError::required(&at.child("rollingUpdate"), ""));
        }
        "RollingUpdate" => {
            let at = at.child("rollingUpdate");
            let rolling = &strategy["rollingUpdate"];
            let (most, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
            let (most_at, last) = (at.child("maxUnavailable"), at.child("maxSurge"));
            at_most_100_percent(most, &most_at, &last, errors);
            at_most_100_percent(surge, &last, &last, errors);
            match (count(most), count(surge)) {
                (0, 0) => {
                    let e = FieldError::required(&most_at, "cannot be 0 when maxSurge is 0");
                    errors.push(e.ordered_at(&last));
                }
                (0, _) | (_, 0) => {}
                _ => {
                    let why = "may not be set when maxUnavailable is non-zero";
                    errors.push(FieldError::invalid(&last, surge, why));
                }
            }
        }
        _ => {
            let shown = shown(strategy, "io.k8s.api.apps.v1.DaemonSetUpdateStrategy", &at);
            errors.push(FieldError::not_supported(&at, shown, &["RollingUpdate", "OnDelete"]));
        }
    }
}
