//! Validation of structural schemas (`k8s.io/apiextensions-apiserver/pkg/apiserver/schema`): every field has one type,
//! declared outside junctors (`allOf`, `anyOf`, `oneOf`, `not`), which only add constraints.

use super::json_schema;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value};
use schema::structural::is_int_or_string;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

pub fn validate(s: &Value, path: &FieldPath, errors: &mut ErrorList) {
    invariants(s, Level::Root, path, errors);
    completeness(s, Some(s), path, path, errors);
}

/// Fields that structural schemas may not have, with their names in errors.
const UNSUPPORTED: [(&str, &str); 7] = [
    ("id", "id"),
    ("$schema", "schema"),
    ("$ref", "$ref"),
    ("patternProperties", "patternProperties"),
    ("dependencies", "dependencies"),
    ("additionalItems", "additionalItems"),
    ("definitions", "definitions"),
];

/// Returns the first field of a schema, or of a schema within it, that structural schemas may not have.
pub fn unsupported(s: &Value) -> Option<&'static str> {
    let mut found = None;
    json_schema::any(s, &mut |s| {
        let is_set = |k: &str| match &s[k] {
            Value::Null => false,
            Value::String(t) => !t.is_empty(),
            Value::Object(m) => k == "additionalItems" || !m.is_empty(),
            _ => true,
        };
        found = UNSUPPORTED.iter().find(|(k, _)| is_set(k)).map(|(_, reported)| *reported);
        found.is_some()
    });
    found
}

fn is_true(s: &Value, k: &str) -> bool {
    s[k] == true
}

fn text<'a>(s: &'a Value, k: &str) -> &'a str {
    s[k].as_str().unwrap_or_default()
}

const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const EMBEDDED: &str = "x-kubernetes-embedded-resource";
const INT_OR_STRING: &str = "x-kubernetes-int-or-string";

fn invariants(s: &Value, level: Level, path: &FieldPath, errors: &mut ErrorList) {
    let ty = text(s, "type");
    if ty == "array" && !s["items"].is_object() {
        errors.push(FieldError::required(&path.child("items"), "must be specified"));
    }
    if s["items"].is_object() {
        invariants(&s["items"], Level::Item, &path.child("items"), errors);
    }
    for (k, v) in s["properties"].as_object().into_iter().flatten() {
        invariants(v, Level::Field, &path.child("properties").key(k), errors);
    }
    let additional = &s["additionalProperties"];
    if !additional.is_null() {
        let at = path.child("additionalProperties");
        if level == Level::Root {
            errors.push(FieldError::forbidden(&at, "must not be used at the root"));
        }
        if is_true(s, EMBEDDED) {
            errors.push(FieldError::forbidden(&at, "must not be used if x-kubernetes-embedded-resource is set"));
        }
        if additional.is_object() {
            invariants(additional, Level::Field, &at, errors);
        }
    }
    for k in [PRESERVE, EMBEDDED] {
        if is_true(s, INT_OR_STRING) && is_true(s, k) {
            let why = "must be false if x-kubernetes-int-or-string is true";
            errors.push(FieldError::invalid(&path.child(k), true, why));
        }
    }
    junctors(s, path, is_int_or_string(&s["anyOf"]), is_int_or_string(&s["allOf"][0]["anyOf"]), errors);
    let at = path.child("type");
    if is_true(s, EMBEDDED) && ty != "object" {
        let why = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(if ty.is_empty() { FieldError::required(&at, why) } else { FieldError::invalid(&at, ty, why) });
    } else if ty.is_empty() && !is_true(s, INT_OR_STRING) && !is_true(s, PRESERVE) {
        let why = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(FieldError::required(&at, why));
    }
    if level == Level::Root && !ty.is_empty() && ty != "object" {
        errors.push(FieldError::invalid(&at, ty, "must be object at the root"));
    }
    if level == Level::Root || is_true(s, EMBEDDED) {
        identity(s, level, path, errors);
    }
    let nothing = s["properties"].as_object().is_none_or(|p| p.is_empty());
    if is_true(s, EMBEDDED) && !is_true(s, PRESERVE) && nothing {
        let why =
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.push(FieldError::required(&path.child("properties"), why));
    }
}

/// Validates the schemas of `kind`, `apiVersion` and `metadata`.
fn identity(s: &Value, level: Level, path: &FieldPath, errors: &mut ErrorList) {
    for k in ["kind", "apiVersion"] {
        if let Some(p) = s["properties"].get(k).filter(|p| p["type"] != "string") {
            let at = path.child("properties").key(k).child("type");
            errors.push(FieldError::invalid(&at, text(p, "type"), "must be string"));
        }
    }
    let Some(m) = s["properties"].get("metadata") else { return };
    let at = path.child("properties").key("metadata");
    if m["type"] != "object" {
        errors.push(FieldError::invalid(&at.child("type"), text(m, "type"), "must be object"));
    }
    if level != Level::Root {
        return;
    }
    let only_names =
        m["properties"].as_object().is_none_or(|p| p.keys().all(|k| matches!(k.as_str(), "name" | "generateName")));
    let nothing_else = m.as_object().into_iter().flatten().all(|(k, v)| {
        matches!(k.as_str(), "type" | "default" | "properties") || v.is_null() || *v == false || *v == ""
    });
    if !only_names || !nothing_else {
        let why = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        errors.push(FieldError::forbidden(&at, why));
    }
}

fn junctors(s: &Value, path: &FieldPath, skip_any_of: bool, skip_first_all_of: bool, errors: &mut ErrorList) {
    let list = |k: &str| s[k].as_array().into_iter().flatten().enumerate();
    if !skip_any_of {
        for (i, v) in list("anyOf") {
            nested(v, &path.child("anyOf").index(i), false, errors);
        }
    }
    for (i, v) in list("allOf") {
        nested(v, &path.child("allOf").index(i), skip_first_all_of && i == 0, errors);
    }
    for (i, v) in list("oneOf") {
        nested(v, &path.child("oneOf").index(i), false, errors);
    }
    if s["not"].is_object() {
        nested(&s["not"], &path.child("not"), false, errors);
    }
    let pattern = text(s, "pattern");
    if let Err(e) = super::patterns::check(pattern) {
        let why = format!("must be a valid regular expression, but isn't: {e}");
        errors.push(FieldError::invalid(&path.child("pattern"), pattern, why));
    }
}

/// Validates a schema within a junctor, which may not declare structure.
fn nested(s: &Value, path: &FieldPath, skip_any_of: bool, errors: &mut ErrorList) {
    junctors(s, path, skip_any_of, false, errors);
    if s["items"].is_object() {
        nested(&s["items"], &path.child("items"), false, errors);
    }
    for (k, v) in s["properties"].as_object().into_iter().flatten() {
        nested(v, &path.child("properties").key(k), false, errors);
    }
    let mut forbid = |k: &str, why: &str| errors.push(FieldError::forbidden(&path.child(k), why));
    for k in ["type", "title", "description"] {
        if !text(s, k).is_empty() {
            forbid(k, "must be empty to be structural");
        }
    }
    for k in ["default", "x-kubernetes-list-type", "x-kubernetes-map-type"] {
        if s.get(k).is_some_and(|v| !v.is_null()) {
            forbid(k, "must be undefined to be structural");
        }
    }
    if s["additionalProperties"].is_object() || is_true(s, "additionalProperties") {
        forbid("additionalProperties", "must be undefined to be structural");
    }
    for k in ["nullable", PRESERVE, EMBEDDED, INT_OR_STRING] {
        if is_true(s, k) {
            forbid(k, "must be false to be structural");
        }
    }
    for k in ["x-kubernetes-list-map-keys", "x-kubernetes-validations"] {
        if s[k].as_array().is_some_and(|a| !a.is_empty()) {
            forbid(k, "must be empty to be structural");
        }
    }
    if s["properties"].get("metadata").is_some() {
        let at = path.child("properties").key("metadata");
        errors.push(FieldError::forbidden(&at, "must not be specified in a nested context"));
    }
}

/// Checks that fields in junctors are declared outside of them. `used` is the path of `v` in the junctor, `declared`
/// that of its declaration.
fn completeness(v: &Value, s: Option<&Value>, declared: &FieldPath, used: &FieldPath, errors: &mut ErrorList) {
    let Some(s) = s else {
        errors.push(FieldError::required(declared, &format!("because it is defined in {used}")));
        return;
    };
    let mut each = |v: &Value, used: FieldPath| below(v, s, declared, &used, errors);
    if v["not"].is_object() {
        each(&v["not"], used.child("not"));
    }
    for k in ["allOf", "anyOf", "oneOf"] {
        for (i, v) in v[k].as_array().into_iter().flatten().enumerate() {
            each(v, used.child(k).index(i));
        }
    }
}

fn below(v: &Value, s: &Value, declared: &FieldPath, used: &FieldPath, errors: &mut ErrorList) {
    completeness(v, Some(s), declared, used, errors);
    if v["items"].is_object() {
        let (declared, used) = (declared.child("items"), used.child("items"));
        match Some(&s["items"]).filter(|i| i.is_object()) {
            Some(i) => below(&v["items"], i, &declared, &used, errors),
            None => completeness(v, None, &declared, &used, errors),
        }
    }
    for (k, v) in v["properties"].as_object().into_iter().flatten() {
        let (declared, used) = (declared.child("properties").key(k), used.child("properties").key(k));
        match s["properties"].get(k) {
            Some(p) => below(v, p, &declared, &used, errors),
            None => completeness(v, None, &declared, &used, errors),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(schema: Value, expected: &[&str]) {
        let mut errors = ErrorList::new();
        validate(&schema, &FieldPath::new("s"), &mut errors);
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(errors, expected, "{schema}");
    }

    fn root(properties: Value) -> Value {
        json!({"type": "object", "properties": properties})
    }

    #[test]
    fn every_field_has_a_type() {
        check(root(json!({"a": {"type": "string"}, "b": {"x-kubernetes-int-or-string": true}})), &[]);
        check(json!({}), &["s.type: Required value: must not be empty at the root"]);
        check(
            json!({"type": "array", "items": {"type": "string"}}),
            &["s.type: Invalid value: \"array\": must be object at the root"],
        );
        check(
            root(json!({"a": {}})),
            &["s.properties[a].type: Required value: must not be empty for specified object fields"],
        );
        check(root(json!({"a": {"type": "array"}})), &["s.properties[a].items: Required value: must be specified"]);
        check(
            root(json!({"a": {"type": "array", "items": {}}})),
            &["s.properties[a].items.type: Required value: must not be empty for specified array items"],
        );
        check(
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            &["s.additionalProperties: Forbidden: must not be used at the root"],
        );
    }

    #[test]
    fn extensions_exclude_each_other() {
        let embedded = |more: Value| {
            let mut s = json!({"type": "object", EMBEDDED: true});
            more.as_object().into_iter().flatten().for_each(|(k, v)| s[k] = v.clone());
            root(json!({"a": s}))
        };
        check(embedded(json!({PRESERVE: true})), &[]);
        let properties =
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        check(embedded(json!({})), &[&format!("s.properties[a].properties: Required value: {properties}")]);
        check(
            embedded(json!({"type": "string", PRESERVE: true})),
            &[
                "s.properties[a].type: Invalid value: \"string\": must be object if x-kubernetes-embedded-resource is true",
            ],
        );
        check(
            root(json!({"a": {INT_OR_STRING: true, PRESERVE: true}})),
            &[&format!(
                "s.properties[a].{PRESERVE}: Invalid value: true: must be false if x-kubernetes-int-or-string is true"
            )],
        );
        check(
            embedded(json!({PRESERVE: true, "properties": {"kind": {"type": "integer"}}})),
            &["s.properties[a].properties[kind].type: Invalid value: \"integer\": must be string"],
        );
        check(
            root(json!({"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}})),
            &[
                "s.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
            ],
        );
    }

    #[test]
    fn junctors_only_constrain() {
        let with = |constraint: Value| json!({"type": "object", "properties": {"a": {"type": "string"}}, "allOf": [constraint]});
        let within = |field: &str, why: &str| {
            format!("s.allOf[0].properties[a].{field}: Forbidden: must be {why} to be structural")
        };
        check(with(json!({"properties": {"a": {"minLength": 1}}})), &[]);
        for (constraint, error) in [
            (json!({"type": "string"}), within("type", "empty")),
            (json!({"description": "d"}), within("description", "empty")),
            (json!({"default": 1}), within("default", "undefined")),
            (json!({"additionalProperties": true}), within("additionalProperties", "undefined")),
            (json!({"nullable": true}), within("nullable", "false")),
            (json!({INT_OR_STRING: true}), within(INT_OR_STRING, "false")),
            (json!({"x-kubernetes-validations": [{}]}), within("x-kubernetes-validations", "empty")),
        ] {
            check(with(json!({"properties": {"a": constraint}})), &[&error]);
        }
        check(
            with(json!({"properties": {"b": {"minLength": 1}}})),
            &["s.properties[b]: Required value: because it is defined in s.allOf[0].properties[b]"],
        );
        check(
            json!({"type": "object", "not": {"items": {}}}),
            &["s.items: Required value: because it is defined in s.not.items"],
        );
        check(
            with(json!({"pattern": "("})).clone(),
            &[&format!("s.allOf[0].pattern: Invalid value: \"(\": {}", pattern_error())],
        );
    }

    fn pattern_error() -> String {
        let why = crate::apiextensions::patterns::check("(").expect_err("an error").to_string();
        format!("must be a valid regular expression, but isn't: {why}")
    }
}
