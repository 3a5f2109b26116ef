//! Pods for the tests of this module.

use crate::views::PodEntry;
use meta::Object;
use serde_json::json;
use std::sync::Arc;

pub fn entry(pod: &Object) -> Arc<PodEntry> {
    Arc::new(PodEntry::new(serde_json::to_vec(pod).unwrap().into()).unwrap())
}

/// A pod with the port `web`, 8080.
pub fn pod(name: &str, ready: bool, deleting: bool) -> Object {
    let mut p = Object::from_value(json!({"metadata": {"name": name, "namespace": "x"},
        "spec": {"nodeName": "n", "containers": [{"ports": [{"name": "web", "containerPort": 8080, "protocol": "TCP"}]}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}}))
    .unwrap();
    if deleting {
        p.set(&["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z");
    }
    p
}
