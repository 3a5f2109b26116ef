//! Schemas for this crate's tests, written as OpenAPI with Kubernetes' extensions.

use meta::Value;
use schema::{Definitions, Field, ListType, PatchStrategy, Schema, SchemaRef, Type};
use std::sync::Arc;

fn text<'a>(v: &'a Value, key: &str) -> &'a str {
    v[key].as_str().unwrap_or_default()
}

fn reference(v: &Value, defs: &mut Definitions) -> SchemaRef {
    let target = text(v, "$ref");
    let target = if target.is_empty() { text(&v["allOf"][0], "$ref") } else { target };
    match target.rsplit('/').next() {
        Some(name) if !name.is_empty() => defs.reference(name),
        _ => SchemaRef::Inline(Arc::new(schema(v, defs))),
    }
}

/// One schema; `$ref`s go to definitions by the last part of their path.
pub fn schema(v: &Value, defs: &mut Definitions) -> Schema {
    let mut s = Schema::new(match (text(v, "type"), text(v, "format")) {
        ("string", "int-or-string") => Type::IntOrString,
        ("string", "date-time") => Type::Time,
        ("string", _) => Type::String,
        ("integer", _) => Type::Int64,
        ("number", _) => Type::Double,
        ("boolean", _) => Type::Boolean,
        ("array", _) => Type::Array,
        ("object", _) if v["properties"].is_object() => Type::Struct,
        ("object", _) if v["additionalProperties"].is_object() => Type::Map,
        ("object", _) => Type::Raw,
        _ if v["oneOf"].is_array() => Type::Quantity,
        _ => Type::Any,
    });
    s.atomic = text(v, "x-kubernetes-map-type") == "atomic";
    s.list = match text(v, "x-kubernetes-list-type") {
        "set" => ListType::Set,
        "map" => ListType::Map(
            v["x-kubernetes-list-map-keys"].as_array().unwrap().iter().map(|k| k.as_str().unwrap().into()).collect(),
        ),
        _ => ListType::Atomic,
    };
    if v["items"].is_object() {
        s.items = Some(reference(&v["items"], defs));
    }
    if v["additionalProperties"].is_object() {
        s.additional = Some(reference(&v["additionalProperties"], defs));
    }
    for (name, p) in v["properties"].as_object().into_iter().flatten() {
        let strategy = text(p, "x-kubernetes-patch-strategy");
        let mut field = Field::new(name.as_str(), reference(p, defs));
        field.default = p.get("default").cloned();
        field.patch = PatchStrategy {
            merge: strategy.starts_with("merge"),
            retain_keys: strategy.ends_with("retainKeys"),
            replace: strategy == "replace",
            merge_key: p["x-kubernetes-patch-merge-key"].as_str().map(Into::into),
        };
        field.atomic = text(p, "x-kubernetes-map-type") == "atomic";
        s.fields.push(field);
    }
    s.fields.sort_by(|a, b| a.name.cmp(&b.name));
    s
}

/// A workload with the shapes that matter: keyed lists (one and two keys, with a default), sets, atomic maps and lists,
/// nested structs, `retainKeys`.
pub fn workload() -> Schema {
    let mut defs = Definitions::default();
    let metadata: Value = serde_json::from_str(
        r#"{"type":"object","properties":{
            "name":{"type":"string"},"namespace":{"type":"string"},"uid":{"type":"string"},
            "resourceVersion":{"type":"string"},"creationTimestamp":{"type":"string"},"generation":{"type":"integer"},
            "labels":{"type":"object","additionalProperties":{"type":"string"}},
            "annotations":{"type":"object","additionalProperties":{"type":"string"}},
            "finalizers":{"type":"array","items":{"type":"string"},"x-kubernetes-list-type":"set","x-kubernetes-patch-strategy":"merge"},
            "managedFields":{"type":"array","items":{"type":"object"}}}}"#,
    )
    .unwrap();
    let m = schema(&metadata, &mut defs);
    defs.define("Meta", m);
    let v: Value = serde_json::from_str(
        r##"{"type":"object","properties":{
        "apiVersion":{"type":"string"},"kind":{"type":"string"},
        "metadata":{"allOf":[{"$ref":"#/Meta"}],"default":{}},
        "data":{"type":"object","additionalProperties":{"type":"string"}},
        "spec":{"type":"object","properties":{
            "replicas":{"type":"integer"},"minReadySeconds":{"type":"integer"},"paused":{"type":"boolean"},
            "selector":{"type":"object","x-kubernetes-map-type":"atomic","properties":{"matchLabels":{"type":"object","additionalProperties":{"type":"string"}}}},
            "budget":{"type":"object","x-kubernetes-patch-strategy":"replace","additionalProperties":{"type":"string"}},
            "strategy":{"type":"object","x-kubernetes-patch-strategy":"retainKeys","properties":{
                "type":{"type":"string"},"rollingUpdate":{"type":"object","properties":{"maxSurge":{"type":"string","format":"int-or-string"},"maxUnavailable":{"type":"string","format":"int-or-string"}}}}},
            "template":{"type":"object","properties":{"metadata":{"$ref":"#/Meta"},"spec":{"type":"object","properties":{
                "nodeSelector":{"type":"object","additionalProperties":{"type":"string"},"x-kubernetes-map-type":"atomic"},
                "tolerations":{"type":"array","x-kubernetes-list-type":"atomic","items":{"type":"object","properties":{"key":{"type":"string"}}}},
                "volumes":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name"],"x-kubernetes-patch-strategy":"merge,retainKeys","x-kubernetes-patch-merge-key":"name",
                    "items":{"type":"object","properties":{"name":{"type":"string"},"emptyDir":{"type":"object","properties":{"medium":{"type":"string"}}},"hostPath":{"type":"object","properties":{"path":{"type":"string"}}}}}},
                "containers":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name"],"x-kubernetes-patch-strategy":"merge","x-kubernetes-patch-merge-key":"name",
                    "items":{"type":"object","properties":{
                        "name":{"type":"string"},"image":{"type":"string"},
                        "args":{"type":"array","items":{"type":"string"},"x-kubernetes-list-type":"atomic"},
                        "env":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name"],"x-kubernetes-patch-strategy":"merge","x-kubernetes-patch-merge-key":"name",
                            "items":{"type":"object","properties":{"name":{"type":"string"},"value":{"type":"string"}}}},
                        "ports":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["containerPort","protocol"],"x-kubernetes-patch-strategy":"merge","x-kubernetes-patch-merge-key":"containerPort",
                            "items":{"type":"object","properties":{"containerPort":{"type":"integer"},"protocol":{"type":"string","default":"TCP"},"name":{"type":"string"}}}},
                        "resources":{"type":"object","properties":{"requests":{"type":"object","additionalProperties":{"oneOf":[]}}}}}}}}}}}}},
        "free":{"x-comment":"any JSON"},
        "status":{"type":"object","properties":{"replicas":{"type":"integer"},"conditions":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["type"],"x-kubernetes-patch-strategy":"merge","x-kubernetes-patch-merge-key":"type",
            "items":{"type":"object","properties":{"type":{"type":"string"},"status":{"type":"string"}}}}}}}}"##,
    )
    .unwrap();
    schema(&v, &mut defs)
}
