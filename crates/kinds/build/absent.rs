//! Schemas that `k8s-openapi` does not have: of types that Kubernetes had once and that are still served on request, and of the watch event,
//! which is generic there.

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
}
