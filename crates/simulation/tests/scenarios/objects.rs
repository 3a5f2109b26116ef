//! Objects of scenarios.

use serde_json::{Value, json};
use simulation::scenario::{Condition, ObjectName, Step};

pub fn container(image: &str) -> Value {
    json!({"name": "c", "image": image, "resources": {"requests": {"cpu": "500m", "memory": "256Mi"}}})
}

pub fn template(app: &str, image: &str) -> Value {
    json!({"metadata": {"labels": {"app": app}}, "spec": {"containers": [container(image)]}})
}

/// A workload of a kind with a selector and a template.
pub fn workload(api_version: &str, kind: &str, name: &str, replicas: i64, more: Value) -> Value {
    let mut spec =
        json!({"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template(name, "app:1")});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec})
}

pub fn deployment(name: &str, replicas: i64, more: Value) -> Value {
    workload("apps/v1", "Deployment", name, replicas, more)
}

pub fn service(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {
        "selector": {"app": name}, "ports": [{"name": "http", "port": 80}]}})
}

pub fn budget(name: &str, spec: Value) -> Value {
    let mut all = json!({"selector": {"matchLabels": {"app": name}}});
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": all})
}

/// The spec of a job whose containers have this image.
pub fn job_spec(image: &str, more: Value) -> Value {
    let mut all = json!({"template": {"spec": {"restartPolicy": "Never", "containers": [container(image)]}}});
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all
}

pub fn job(name: &str, image: &str, more: Value) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": job_spec(image, more)})
}

pub fn cron_job(name: &str, schedule: &str, more: Value) -> Value {
    let mut spec = json!({"schedule": schedule, "jobTemplate": {"spec": job_spec("exit:0", json!({}))}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": name}, "spec": spec})
}

pub fn config_map(name: &str, owners: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": owners}})
}

/// Names an object of a kind that scenarios use.
pub fn named(kind: &str, name: &str) -> ObjectName {
    let api_version = match kind {
        "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" => "apps/v1",
        "Job" | "CronJob" => "batch/v1",
        "PodDisruptionBudget" => "policy/v1",
        "HorizontalPodAutoscaler" => "autoscaling/v2",
        "ResourceClaimTemplate" | "ResourceClaim" => "resource.k8s.io/v1",
        _ => "v1",
    };
    ObjectName::new(api_version, kind, name)
}

/// A patch that sets the image of a workload's containers.
pub fn set_image(kind: &str, name: &str, image: &str) -> Step {
    let patch = json!({"spec": {"template": {"spec": {"containers": [container(image)]}}}});
    Step::Patch { object: named(kind, name), patch }
}

pub fn delete(kind: &str, name: &str) -> Step {
    Step::Delete { object: named(kind, name), propagation: Default::default() }
}

pub fn wait_for_field(kind: &str, name: &str, field: &str, value: impl Into<Value>) -> Step {
    Step::WaitFor(Condition::field(named(kind, name), field, value))
}
