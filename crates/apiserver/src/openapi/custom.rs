//! Custom resources in OpenAPI: the schema as its definition writes it, with what every object has
//! (`k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder`).

use super::META;
use meta::Value;
use serde_json::json;

/// The definition of a kind.
pub(super) fn object(mut s: Value, gvks: &[Value], prefix: &str, v2: bool) -> Value {
    // Readers of v2 take any property that is named for one of all: an object that may have others is published as no more than that.
    if v2 && s["x-kubernetes-preserve-unknown-fields"] == true {
        s = json!({"type": "object"});
    } else {
        if v2 {
            for_v2(&mut s);
        }
        embed(&mut s, prefix, v2);
    }
    s["x-kubernetes-group-version-kind"] = gvks.to_vec().into();
    s
}

/// The definition of a list of a kind.
pub(super) fn list(name: &str, gvks: &[Value], prefix: &str) -> Value {
    let of = |g: &Value| {
        let mut g = g.clone();
        g["kind"] = format!("{}List", g["kind"].as_str().unwrap_or_default()).into();
        g
    };
    let lists: Vec<Value> = gvks.iter().map(of).collect();
    json!({"type": "object", "required": ["items"], "x-kubernetes-group-version-kind": lists, "properties": {
        "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"$ref": format!("{prefix}{META}ListMeta")},
        "items": {"type": "array", "items": {"$ref": format!("{prefix}{name}")}}}})
}

/// What every object has, at the root and in embedded objects.
fn embed(s: &mut Value, prefix: &str, v2: bool) {
    let reference = json!({"$ref": format!("{prefix}{META}ObjectMeta")});
    let text = |what: &str| json!({"type": "string", "description": what});
    let p = &mut s["properties"];
    if !p.is_object() {
        *p = json!({});
    }
    p["apiVersion"] = text("The group and version of this object's schema.");
    p["kind"] = text("The kind of this object.");
    p["metadata"] = if v2 { reference } else { json!({"allOf": [reference]}) };
}

/// Leaves out what OpenAPI v2 cannot say, or what its readers take otherwise.
fn for_v2(s: &mut Value) {
    let Some(m) = s.as_object_mut() else { return };
    for k in ["allOf", "anyOf", "oneOf", "not", "default"] {
        m.remove(k);
    }
    let nullable = m.remove("nullable").is_some_and(|v| v == true);
    let int_or_string = m.get("x-kubernetes-int-or-string").is_some_and(|v| *v == true);
    if nullable || int_or_string {
        for k in ["type", "items", "properties", "additionalProperties"] {
            m.remove(k);
        }
    }
    if m.get("x-kubernetes-preserve-unknown-fields").is_some_and(|v| *v == true) {
        for k in ["items", "properties", "additionalProperties"] {
            m.remove(k);
        }
        if m.get("type").is_some_and(|t| t == "array") {
            m.remove("type");
        }
    }
    if let Some(Value::Object(p)) = m.get_mut("properties") {
        p.values_mut().for_each(for_v2);
    }
    for k in ["items", "additionalProperties"] {
        if let Some(v) = m.get_mut(k) {
            for_v2(v);
        }
    }
}
