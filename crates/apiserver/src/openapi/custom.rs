//! Custom resources in OpenAPI: the schema of the definition plus the fields of every object
//! (`k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder`).

use super::descriptions::{Texts, list_descriptions, object_description};
use super::{META, list_name};
use kinds::Kind;
use meta::Value;
use serde_json::{Map, json};

/// How to publish definitions.
pub(super) struct Publisher<'a> {
    /// Prefix of references to definitions.
    pub prefix: &'a str,
    pub v2: bool,
    /// Descriptions of built-in kinds.
    pub texts: &'a Texts,
}

impl Publisher<'_> {
    /// The definitions of a kind and its list, by name. `name`: of the kind's definition.
    pub fn definitions(&self, name: &str, kind: &Kind, mut s: Value) -> [(String, Value); 2] {
        // v2 clients treat listed properties as complete, even where any property is allowed, so none are listed.
        if self.v2 && s["x-kubernetes-preserve-unknown-fields"] == true {
            s = json!({"type": "object"});
        } else {
            if self.v2 {
                for_v2(&mut s);
            } else {
                unfold(&mut s);
            }
            self.add_common(&mut s);
            self.embed(&mut s);
        }
        let mut list = self.list(name, kind);
        for (v, kind_name) in [(&mut s, &*kind.kind), (&mut list, &*kind.list_kind())] {
            v["x-kubernetes-group-version-kind"] =
                json!([{"group": &*kind.group, "version": &*kind.version, "kind": kind_name}]);
            if !kind.selectable.is_empty() {
                let fields = kind.selectable.iter().map(|f| json!({"fieldPath": &**f}));
                v["x-kubernetes-selectable-fields"] = fields.collect();
            }
        }
        [(name.to_owned(), s), (list_name(name, kind), list)]
    }

    fn list(&self, name: &str, kind: &Kind) -> Value {
        let texts = list_descriptions(self.texts, kind);
        let text = |field: &str| json!({"type": "string", "description": texts[field]});
        json!({
            "type": "object",
            "description": texts[""],
            "required": ["items"],
            "properties": {
                "apiVersion": text("apiVersion"),
                "kind": text("kind"),
                "metadata": self.reference("ListMeta", &texts["metadata"]),
                "items": {"type": "array", "items": {"$ref": format!("{}{name}", self.prefix)}, "description": texts["items"]},
            },
        })
    }

    /// The fields of every object.
    fn add_common(&self, s: &mut Value) {
        let p = &mut s["properties"];
        if !p.is_object() {
            *p = json!({});
        }
        p["apiVersion"] = self.text("apiVersion");
        p["kind"] = self.text("kind");
        p["metadata"] = self.reference("ObjectMeta", object_description(self.texts, "metadata"));
    }

    /// Applied wherever a complete object is embedded.
    fn embed(&self, s: &mut Value) {
        for_children(s, &mut |s| self.embed(s));
        let is = |key: &str| s[key] == true;
        // In v2, an object that lists properties has no others.
        let open = self.v2 && is("x-kubernetes-preserve-unknown-fields");
        if open || !is("x-kubernetes-embedded-resource") {
            return;
        }
        self.add_common(s);
        if !s["required"].is_array() {
            s["required"] = json!([]);
        }
        let Some(required) = s["required"].as_array_mut() else { return };
        for field in ["kind", "apiVersion"] {
            if !required.iter().any(|r| r == field) {
                required.push(field.into());
            }
        }
    }

    fn text(&self, field: &str) -> Value {
        json!({"type": "string", "description": object_description(self.texts, field)})
    }

    /// A reference to a definition of the API machinery.
    fn reference(&self, definition: &str, description: &str) -> Value {
        let reference = json!({"$ref": format!("{}{META}{definition}", self.prefix)});
        let mut v = if self.v2 { reference } else { json!({"allOf": [reference]}) };
        v["description"] = description.into();
        v
    }
}

/// The direct subschemas, except those of value validation (`allOf` and the like).
fn for_children(s: &mut Value, f: &mut dyn FnMut(&mut Value)) {
    let Some(m) = s.as_object_mut() else { return };
    if let Some(Value::Object(p)) = m.get_mut("properties") {
        p.values_mut().for_each(&mut *f);
    }
    for k in ["items", "additionalProperties"] {
        if let Some(v) = m.get_mut(k).filter(|v| v.is_object()) {
            f(v);
        }
    }
}

/// Expresses int-or-string in standard OpenAPI (`structuralschema.Unfold`).
fn unfold(s: &mut Value) {
    let either = || json!([{"type": "integer"}, {"type": "string"}]);
    if s["x-kubernetes-int-or-string"] == true && s["anyOf"] != either() && s["allOf"][0]["anyOf"] != either() {
        if s["anyOf"].is_null() {
            s["anyOf"] = either();
        } else {
            if !s["allOf"].is_array() {
                s["allOf"] = json!([]);
            }
            if let Some(all) = s["allOf"].as_array_mut() {
                all.insert(0, json!({"anyOf": either()}));
            }
        }
    }
    for_children(s, &mut unfold);
}

/// Removes what OpenAPI v2 cannot express, or its clients misinterpret (`ToStructuralOpenAPIV2`, `PruneDefaults`).
fn for_v2(s: &mut Value) {
    let Some(m) = s.as_object_mut() else { return };
    for k in ["allOf", "anyOf", "oneOf", "not", "default"] {
        m.remove(k);
    }
    let on = |m: &Map<String, Value>, k: &str| m.get(k).is_some_and(|v| *v == true);
    let preserving = on(m, "x-kubernetes-preserve-unknown-fields");
    let nullable = on(m, "nullable");
    m.remove("nullable");
    if nullable {
        m.remove("type");
    }
    if nullable || preserving {
        m.remove("items");
        m.remove("properties");
    }
    let is = |m: &Map<String, Value>, t: &str| m.get("type").is_some_and(|v| v == t);
    if (is(m, "array") && !m.contains_key("items")) || (is(m, "object") && preserving) {
        m.remove("type");
    }
    require_no_nullable(m);
    for_children(s, &mut for_v2);
}

/// A nullable field cannot be required in v2, which lacks null.
fn require_no_nullable(m: &mut Map<String, Value>) {
    let nullable = |v: Option<&Value>| v.is_some_and(|v| v["nullable"] == true);
    let all = nullable(m.get("additionalProperties"));
    let properties = m.get("properties").cloned();
    let Some(Value::Array(required)) = m.get_mut("required") else { return };
    let property = |r: &Value| r.as_str().and_then(|r| properties.as_ref()?.get(r));
    required.retain(|r| !all && !nullable(property(r)));
    if required.is_empty() {
        m.remove("required");
    }
}
