//! The status of a replica set.

use crate::views::{PodEntry, condition};
use jiff::Timestamp;
use meta::Object;
use serde_json::{Map, Value, json};

/// Why pods could not be created or deleted, for the condition `ReplicaFailure`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// `FailedCreate` or `FailedDelete`.
    pub reason: &'static str,
    pub message: String,
}

/// Computes the status from the active pods (upstream `calculateStatus`).
pub fn calculate(
    set: &Object,
    pods: &[&PodEntry],
    terminating: usize,
    failure: Option<&Failure>,
    now: Timestamp,
) -> Map<String, Value> {
    let mut status = set.get("status").and_then(Value::as_object).cloned().unwrap_or_default();
    let min_ready = set.int_at(&["spec", "minReadySeconds"]).unwrap_or(0);
    let template = set.at(&["spec", "template", "metadata", "labels"]).and_then(Value::as_object);
    let labelled = |p: &&&PodEntry| template.is_none_or(|t| t.iter().all(|(k, v)| p.meta.label(k) == v.as_str()));
    let counts = [
        ("replicas", pods.len()),
        ("fullyLabeledReplicas", pods.iter().filter(labelled).count()),
        ("readyReplicas", pods.iter().filter(|p| p.view.is_ready()).count()),
        ("availableReplicas", pods.iter().filter(|p| p.view.is_available(min_ready, now)).count()),
    ];
    for (k, n) in counts {
        // Zero is omitted, except in the one required field.
        if n == 0 && k != "replicas" {
            status.remove(k);
        } else {
            status.insert(k.into(), n.into());
        }
    }
    if set.kind() == "ReplicaSet" {
        status.insert("terminatingReplicas".into(), terminating.into());
    }
    status.insert("observedGeneration".into(), set.generation().into());

    let mut conditions = status.remove("conditions").and_then(|c| c.as_array().cloned()).unwrap_or_default();
    match failure {
        Some(f) if condition(Some(&Value::Array(conditions.clone())), "ReplicaFailure").is_none() => {
            conditions.push(json!({
                "type": "ReplicaFailure", "status": "True", "reason": f.reason, "message": f.message,
                "lastTransitionTime": meta::time::format(now),
            }));
        }
        Some(_) => {}
        None => conditions.retain(|c| c["type"] != "ReplicaFailure"),
    }
    if !conditions.is_empty() {
        status.insert("conditions".into(), conditions.into());
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_failures() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let set = Object::from_value(json!({
            "kind": "ReplicaSet", "metadata": {"generation": 3},
            "spec": {"minReadySeconds": 30, "template": {"metadata": {"labels": {"a": "1", "b": "2"}}}},
            "status": {"replicas": 9, "readyReplicas": 9},
        }))
        .unwrap();
        let pod = |ready: &str, b: &str| {
            let v = json!({
                "metadata": {"name": "p", "labels": {"a": "1", "b": b}},
                "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": ready}]},
            });
            PodEntry::new(serde_json::to_vec(&v).unwrap().into()).unwrap()
        };
        let (p, q) = (pod("2026-01-01T00:00:30Z", "2"), pod("2026-01-01T00:00:31Z", "x"));
        let failure = Failure { reason: "FailedCreate", message: "quota".into() };
        let s = calculate(&set, &[&p, &q], 1, Some(&failure), now);
        assert_eq!(
            Value::Object(s.clone()),
            json!({
                "replicas": 2, "fullyLabeledReplicas": 1, "readyReplicas": 2, "availableReplicas": 1,
                "terminatingReplicas": 1, "observedGeneration": 3,
                "conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "quota",
                    "lastTransitionTime": "2026-01-01T00:01:00Z"}],
            })
        );
        let mut set = set;
        set.set(&["status"], s);
        let s = calculate(&set, &[], 0, None, now);
        assert_eq!(Value::Object(s), json!({"replicas": 0, "terminatingReplicas": 0, "observedGeneration": 3}));
    }
}
