//! Whether an object is ready: workloads when their rollout is complete, definitions when they are served, custom resources
//! by their usual conditions. Objects without such a state are ready.

use crate::commands::rollout::status;
use meta::{Object, Value};

/// Whether an object is ready, and why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Ready,
    Waiting(String),
    /// The object will not become ready.
    Failed(String),
}

fn condition<'a>(o: &'a Object, ty: &str) -> Option<&'a Value> {
    o.at(&["status", "conditions"])?.as_array()?.iter().find(|c| c["type"] == ty)
}

fn has_condition(o: &Object, ty: &str, value: &str) -> bool {
    condition(o, ty).is_some_and(|c| c["status"] == value)
}

/// Returns why a condition has its status.
fn why(o: &Object, ty: &str, otherwise: &str) -> String {
    let text = |key: &str| condition(o, ty)?.get(key)?.as_str().filter(|t| !t.is_empty());
    text("message").or(text("reason")).unwrap_or(otherwise).to_owned()
}

/// Returns the state of an object.
pub fn state(o: &Object) -> State {
    if o.is_deleting() {
        return State::Waiting("is being deleted".to_owned());
    }
    let group = o.api_version().split_once('/').map_or("", |(g, _)| g);
    match (group, o.kind()) {
        ("apps", kind @ ("Deployment" | "StatefulSet" | "DaemonSet")) => rollout(kind, o),
        ("apps", "ReplicaSet") | ("", "ReplicationController") => replicas(o),
        ("", "Pod") => pod(o),
        ("batch", "Job") => match () {
            () if has_condition(o, "Failed", "True") => State::Failed(why(o, "Failed", "the job failed")),
            () if has_condition(o, "Complete", "True") || o.str_at(&["status", "startTime"]).is_some() => State::Ready,
            () => State::Waiting("has not started".to_owned()),
        },
        ("apiextensions.k8s.io", "CustomResourceDefinition") => match () {
            () if has_condition(o, "Established", "True") => State::Ready,
            () if has_condition(o, "NamesAccepted", "False") => {
                State::Failed(why(o, "NamesAccepted", "its names are taken"))
            }
            () => State::Waiting("is not established".to_owned()),
        },
        ("apiregistration.k8s.io", "APIService") if !has_condition(o, "Available", "True") => {
            State::Waiting(why(o, "Available", "is not available"))
        }
        _ if o.gvk().is_some_and(|g| kinds::catalog().kind(&g).is_some()) => State::Ready,
        _ => custom(o),
    }
}

fn rollout(kind: &str, o: &Object) -> State {
    // Pods of the strategy OnDelete are replaced by users: do not wait for them.
    if o.str_at(&["spec", "updateStrategy", "type"]) == Some("OnDelete") {
        return State::Ready;
    }
    match status::state(kind, o, 0) {
        Ok((_, true)) => State::Ready,
        Ok((message, false)) => State::Waiting(message.trim_end().to_owned()),
        Err(e) => State::Failed(e.to_string()),
    }
}

fn replicas(o: &Object) -> State {
    let (desired, ready) = (o.int_at(&["spec", "replicas"]).unwrap_or(1), o.int_at(&["status", "readyReplicas"]));
    let ready = ready.unwrap_or(0);
    if ready >= desired { State::Ready } else { State::Waiting(format!("{ready} of {desired} replicas are ready")) }
}

fn pod(o: &Object) -> State {
    match o.str_at(&["status", "phase"]) {
        Some("Succeeded") => return State::Ready,
        Some("Failed") => {
            let why = o.str_at(&["status", "message"]).or(o.str_at(&["status", "reason"]));
            return State::Failed(why.unwrap_or("the pod failed").to_owned());
        }
        _ if has_condition(o, "Ready", "True") => return State::Ready,
        _ => {}
    }
    let containers = o.at(&["status", "containerStatuses"]).and_then(Value::as_array);
    let waiting = containers.into_iter().flatten().find_map(|c| c["state"]["waiting"]["reason"].as_str());
    State::Waiting(waiting.map_or_else(|| why(o, "PodScheduled", "is not ready"), str::to_owned))
}

fn custom(o: &Object) -> State {
    if o.int_at(&["status", "observedGeneration"]).is_some_and(|seen| seen < o.generation()) {
        return State::Waiting("has not been seen by its controller".to_owned());
    }
    if has_condition(o, "Stalled", "True") {
        return State::Failed(why(o, "Stalled", "is stalled"));
    }
    if has_condition(o, "Reconciling", "True") {
        return State::Waiting(why(o, "Reconciling", "is being reconciled"));
    }
    match condition(o, "Ready") {
        Some(c) if c["status"] != "True" => State::Waiting(why(o, "Ready", "is not ready")),
        _ => State::Ready,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Clauses: G03.readiness
    #[test]
    fn reports_ready_waiting_and_failed_objects() {
        let w = |t: &str| State::Waiting(t.to_owned());
        for (o, expected) in [
            (json!({"apiVersion": "v1", "kind": "ConfigMap"}), State::Ready),
            (
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"deletionTimestamp": "x"}}),
                w("is being deleted"),
            ),
            (
                json!({"apiVersion": "v1", "kind": "Pod", "status": {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}}),
                w("ImagePullBackOff"),
            ),
            (
                json!({"apiVersion": "v1", "kind": "Pod", "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}),
                State::Ready,
            ),
            (
                json!({"apiVersion": "v1", "kind": "Pod", "status": {"phase": "Failed", "reason": "Evicted"}}),
                State::Failed("Evicted".into()),
            ),
            (
                json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "spec": {"replicas": 2}, "status": {"readyReplicas": 1}}),
                w("1 of 2 replicas are ready"),
            ),
            (
                json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "w", "generation": 2}, "spec": {"replicas": 1}, "status": {"observedGeneration": 1}}),
                w("Waiting for deployment spec update to be observed..."),
            ),
            (
                json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "spec": {"updateStrategy": {"type": "OnDelete"}}}),
                State::Ready,
            ),
            (json!({"apiVersion": "batch/v1", "kind": "Job"}), w("has not started")),
            (
                json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}),
                w("is not established"),
            ),
            (
                json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "status": {"conditions": [{"type": "NamesAccepted", "status": "False", "message": "taken"}]}}),
                State::Failed("taken".into()),
            ),
            (json!({"apiVersion": "e.com/v1", "kind": "Widget"}), State::Ready),
            (
                json!({"apiVersion": "e.com/v1", "kind": "Widget", "metadata": {"generation": 2}, "status": {"observedGeneration": 1}}),
                w("has not been seen by its controller"),
            ),
            (
                json!({"apiVersion": "e.com/v1", "kind": "Widget", "status": {"conditions": [{"type": "Ready", "status": "False", "message": "soon"}]}}),
                w("soon"),
            ),
            (
                json!({"apiVersion": "e.com/v1", "kind": "Widget", "status": {"conditions": [{"type": "Stalled", "status": "True", "reason": "Bad"}]}}),
                State::Failed("Bad".into()),
            ),
        ] {
            assert_eq!(state(&Object::from_value(o.clone()).unwrap()), expected, "{o}");
        }
    }
}
