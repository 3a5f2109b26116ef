//! Schemas that `k8s-openapi` does not have: of types that Kubernetes had once and that are still served on request, of types that
//! servers beside kube-apiserver serve in a usual cluster (`k8s.io/metrics`), and of the watch event, which is generic there.

use serde_json::{Value, json};
use std::collections::BTreeMap;

pub fn add(upstream: &mut BTreeMap<String, Value>) {
    let of = |name: &str| json!({"$ref": format!("#/components/schemas/io.k8s.api.core.v1.{name}")});
    let meta =
        |name: &str| json!({"$ref": format!("#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.{name}")});
    let list = |name: &str, text: &str| json!({"type": "array", "items": of(name), "description": text});
    upstream.insert(
        "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent".into(),
        json!({"type": "object", "required": ["type", "object"], "description": "One event of a watch.", "properties": {
            "type": {"type": "string"},
            "object": {"description": "The object as it is now; of a deletion, as it was last; of an error, a Status.",
                "$ref": "#/components/schemas/io.k8s.apimachinery.pkg.runtime.RawExtension"}}}),
    );
    let prefix = "io.k8s.api.settings.v1alpha1";
    upstream.insert(
        format!("{prefix}.PodPreset"),
        json!({"type": "object", "required": ["metadata"],
            "description": "What is put into the pods of a namespace when they are created.", "properties": {
            "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": meta("ObjectMeta"),
            "spec": {"$ref": format!("#/components/schemas/{prefix}.PodPresetSpec")}}}),
    );
    upstream.insert(
        format!("{prefix}.PodPresetSpec"),
        json!({"type": "object", "description": "What is put into which pods.", "properties": {
            "selector": {"allOf": [meta("LabelSelector")], "description": "Chooses pods by their labels; an empty one chooses all."},
            "env": list("EnvVar", "Variables for every container."),
            "envFrom": list("EnvFromSource", "Sources of variables for every container."),
            "volumes": list("Volume", "Volumes for the pod."),
            "volumeMounts": list("VolumeMount", "Mounts of volumes for every container.")}}),
    );
    upstream.insert(
        "io.k8s.apimachinery.pkg.apis.meta.v1.Duration".into(),
        json!({"type": "string", "description": "A duration as Go writes it: `1m30s`."}),
    );
    let prefix = "io.k8s.metrics.pkg.apis.metrics.v1beta1";
    let usage = json!({"type": "object", "description": "CPU (cores) and memory (working set, bytes).", "additionalProperties":
        {"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.api.resource.Quantity"}});
    let metrics = |text: &str, more: &str, field: Value| {
        let described = |name: &str, text: &str| json!({"allOf": [meta(name)], "description": text});
        json!({"type": "object", "required": ["timestamp", "window", more], "description": text, "properties": {
            "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": meta("ObjectMeta"),
            "timestamp": described("Time", "The end of the window."),
            "window": described("Duration", "The time over which CPU usage is averaged."),
            more: field}})
    };
    let containers = json!({"type": "array", "description": "Usage of the containers.",
        "items": {"$ref": format!("#/components/schemas/{prefix}.ContainerMetrics")}});
    upstream.insert(format!("{prefix}.NodeMetrics"), metrics("Usage of a node.", "usage", usage.clone()));
    upstream.insert(format!("{prefix}.PodMetrics"), metrics("Usage of a pod.", "containers", containers));
    upstream.insert(
        format!("{prefix}.ContainerMetrics"),
        json!({"type": "object", "required": ["name", "usage"], "description": "Usage of a container.", "properties": {
            "name": {"type": "string", "description": "The name of the container."}, "usage": usage}}),
    );
}
