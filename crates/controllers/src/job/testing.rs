//! Jobs and pods for the tables of the tests.

use super::pod::{FINALIZER, INDEX, JobPod};
use super::state::Observed;
use crate::views::PodEntry;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;

/// This many seconds after the start.
pub fn time(second: i64) -> Timestamp {
    Timestamp::from_second(1_767_225_600 + second).unwrap()
}

/// A pod from the fields that matter. Without a name it is `p`; without finalizers it has the one of jobs.
pub fn pod(mut v: Value) -> JobPod {
    let name = v["metadata"]["name"].as_str().unwrap_or("p").to_owned();
    for (k, default) in [
        ("name", json!(name)),
        ("namespace", json!("default")),
        ("uid", json!(format!("uid-{name}"))),
        ("creationTimestamp", json!(meta::time::format(time(0)))),
        ("finalizers", json!([FINALIZER])),
    ] {
        if v["metadata"][k].is_null() {
            v["metadata"][k] = default;
        }
    }
    let entry = PodEntry::new(v.to_string().into()).unwrap();
    JobPod::new(Arc::new(entry), false, true).unwrap()
}

/// A pod in a phase.
pub fn in_phase(name: &str, phase: &str) -> JobPod {
    pod(json!({"metadata": {"name": name}, "status": {"phase": phase}}))
}

/// A pod of an index.
pub fn of_index(name: &str, index: i64, phase: &str) -> JobPod {
    pod(json!({"metadata": {"name": name, "annotations": {INDEX: index.to_string()}}, "status": {"phase": phase}}))
}

/// A job that started at the start, an hour ago.
pub fn observed(spec: Value, status: Value, pods: Vec<JobPod>) -> Observed {
    let mut status = status;
    if status["startTime"].is_null() {
        status["startTime"] = meta::time::format(time(0)).into();
    }
    Observed {
        spec: serde_json::from_value(spec).unwrap(),
        status: serde_json::from_value(status).unwrap(),
        deleting: false,
        pods,
        removals: Default::default(),
        failures: Default::default(),
        now: time(3600),
    }
}
