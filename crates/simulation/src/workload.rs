//! Reads of workloads and pods that rehearsals share.

pub(crate) use crate::invariants::{controller, is_deleting, is_terminal, true_condition, uid};
use meta::Value;

/// A count in an object; 0 if it is absent.
fn count(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

/// The resource of a workload's kind, with the name of the kind.
pub(crate) const KINDS: [(&str, &str); 5] = [
    ("apps/deployments", "Deployment"),
    ("apps/statefulsets", "StatefulSet"),
    ("apps/daemonsets", "DaemonSet"),
    ("apps/replicasets", "ReplicaSet"),
    ("replicationcontrollers", "ReplicationController"),
];

/// How many pods a workload should have.
pub(crate) fn desired(kind: &str, object: &Value) -> i64 {
    match kind {
        "DaemonSet" => count(&object["status"]["desiredNumberScheduled"]),
        _ => object["spec"]["replicas"].as_i64().unwrap_or(1),
    }
}

/// Whether all pods of a workload are of its current template, and available.
pub(crate) fn is_rolled_out(object: &Value) -> bool {
    let (meta, spec, status) = (&object["metadata"], &object["spec"], &object["status"]);
    if count(&status["observedGeneration"]) < count(&meta["generation"]) {
        return false;
    }
    if let Some(desired) = status["desiredNumberScheduled"].as_i64() {
        return count(&status["updatedNumberScheduled"]) >= desired && count(&status["numberAvailable"]) >= desired;
    }
    let replicas = spec["replicas"].as_i64().unwrap_or(1);
    let partition = count(&spec["updateStrategy"]["rollingUpdate"]["partition"]);
    let updated = count(&status["updatedReplicas"]) >= replicas - partition.min(replicas);
    updated && count(&status["replicas"]) == replicas && count(&status["availableReplicas"]) >= replicas
}

/// How far a rollout is, as text.
pub(crate) fn progress(object: &Value) -> String {
    let status = &object["status"];
    if let Some(desired) = status["desiredNumberScheduled"].as_i64() {
        let (updated, available) = (count(&status["updatedNumberScheduled"]), count(&status["numberAvailable"]));
        return format!("{updated} of {desired} pods updated, {available} available");
    }
    let replicas = object["spec"]["replicas"].as_i64().unwrap_or(1);
    let (updated, available) = (count(&status["updatedReplicas"]), count(&status["availableReplicas"]));
    format!("{updated} of {replicas} pods updated, {available} available")
}
