//! Validation of schemas of custom resources (`k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation`).

use super::field_path;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value};

pub const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// The position of a schema, which determines the allowed fields.
#[derive(Clone, Copy)]
pub struct Position<'a> {
    pub root: bool,
    /// The reason why defaults are forbidden.
    pub no_defaults: Option<&'a str>,
    /// Whether the schema is below `metadata`, `kind` or `apiVersion`.
    pub in_meta: bool,
}

/// Visits a schema and all schemas within it, until `visit` returns true. Returns whether it did.
pub fn any(s: &Value, visit: &mut impl FnMut(&Value) -> bool) -> bool {
    if !s.is_object() {
        return false;
    }
    let maps = ["properties", "patternProperties", "definitions", "dependencies"];
    let lists = ["allOf", "anyOf", "oneOf"];
    let single = ["not", "items", "additionalProperties", "additionalItems"];
    visit(s)
        || lists.iter().any(|k| s[*k].as_array().into_iter().flatten().any(|v| any(v, visit)))
        || maps.iter().any(|k| s[*k].as_object().into_iter().flatten().any(|(_, v)| any(v, visit)))
        || single.iter().any(|k| any(&s[*k], visit))
        || s["items"].as_array().into_iter().flatten().any(|v| any(v, visit))
}

fn text<'a>(s: &'a Value, k: &str) -> &'a str {
    s[k].as_str().unwrap_or_default()
}

fn set(s: &Value, k: &str) -> bool {
    s.get(k).is_some_and(|v| !v.is_null())
}

/// Whether the request sent an empty list or map. What all versions share is reported at the path of the internal type.
pub fn is_sent_empty(s: &Value, k: &str, path: &FieldPath) -> bool {
    if !s[k].is_null() {
        return false;
    }
    let at = path.child(k).to_string();
    let at = at.strip_prefix("spec.validation").map(|rest| format!("spec.versions[0].schema{rest}")).unwrap_or(at);
    !schema::sent::at(&at).is_null()
}

fn filled(s: &Value, k: &str) -> bool {
    match &s[k] {
        Value::Array(a) => !a.is_empty(),
        Value::Object(m) => !m.is_empty(),
        _ => false,
    }
}

pub fn validate(s: &Value, path: &FieldPath, position: Position<'_>, errors: &mut ErrorList) {
    standard(s, path, position, errors);
    let forbid = |errors: &mut ErrorList, k: &str, why: &str| errors.push(FieldError::forbidden(&path.child(k), why));
    if s["uniqueItems"] == true {
        let why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        forbid(errors, "uniqueItems", why);
    }
    let inner = Position { root: false, ..position };
    let additional = &s["additionalProperties"];
    if !additional.is_null() && *additional != true && filled(s, "properties") {
        forbid(errors, "additionalProperties", "additionalProperties and properties are mutual exclusive");
    }
    if additional.is_object() {
        let why = "inside additionalProperties applying to object metadata";
        let below = if position.in_meta { Position { no_defaults: Some(why), ..inner } } else { inner };
        validate(additional, &path.child("additionalProperties"), below, errors);
    }
    for (k, p) in s["properties"].as_object().into_iter().flatten() {
        let meta = (position.root || s["x-kubernetes-embedded-resource"] == true)
            && matches!(k.as_str(), "metadata" | "kind" | "apiVersion");
        let why = format!("in top-level {k}");
        let below = Position {
            in_meta: inner.in_meta || meta,
            no_defaults: if meta && position.root { Some(&why) } else { inner.no_defaults },
            ..inner
        };
        validate(p, &path.child("properties").key(k), below, errors);
    }
    if s["not"].is_object() {
        validate(&s["not"], &path.child("not"), inner, errors);
    }
    for k in ["allOf", "oneOf", "anyOf"] {
        for (i, v) in s[k].as_array().into_iter().flatten().enumerate() {
            validate(v, &path.child(k).index(i), inner, errors);
        }
    }
    for k in ["definitions", "dependencies"] {
        for (name, v) in s[k].as_object().into_iter().flatten().filter(|(_, v)| v.is_object()) {
            validate(v, &path.child(k).key(name), inner, errors);
        }
    }
    match &s["items"] {
        Value::Object(_) => validate(&s["items"], &path.child("items"), inner, errors),
        Value::Array(a) => {
            a.iter().enumerate().for_each(|(i, v)| validate(v, &path.child("items").index(i), inner, errors))
        }
        _ => {}
    }
    topology(s, path, errors);
    rules(s, path, errors);
}

/// Rejects fields that no supported OpenAPI version has.
fn standard(s: &Value, path: &FieldPath, position: Position<'_>, errors: &mut ErrorList) {
    let mut forbid = |k: &str, why: &str| errors.push(FieldError::forbidden(&path.child(k), why));
    if set(s, "default") && position.no_defaults.is_some() {
        forbid("default", &format!("must not be set {}", position.no_defaults.unwrap_or_default()));
    }
    if !text(s, "id").is_empty() {
        forbid("id", "id is not supported");
    }
    for k in ["additionalItems", "$ref", "dependencies"] {
        if set(s, k) || is_sent_empty(s, k, path) {
            forbid(k, &format!("{k} is not supported"));
        }
    }
    for k in ["patternProperties", "definitions"] {
        if filled(s, k) {
            forbid(k, &format!("{k} is not supported"));
        }
    }
    if s["type"] == "null" {
        forbid("type", "type cannot be set to null, use nullable as an alternative");
    }
    if s["items"].as_array().is_some_and(|a| !a.is_empty()) {
        forbid("items", "items must be a schema object and not an array");
    }
    if position.in_meta && s["x-kubernetes-embedded-resource"] == true {
        forbid("x-kubernetes-embedded-resource", "must not be used inside of resource meta");
    }
    let ty = text(s, "type");
    if !ty.is_empty() && !TYPES.contains(&ty) {
        errors.push(FieldError::not_supported(&path.child("type"), ty, &TYPES));
    }
    if s["x-kubernetes-preserve-unknown-fields"] == false {
        let at = path.child("x-kubernetes-preserve-unknown-fields");
        errors.push(FieldError::invalid(&at, false, "must be true or undefined"));
    }
}

/// Validates list and map types.
fn topology(s: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let ty = text(s, "type");
    let require_type = |errors: &mut ErrorList, required: &str, why: &str| {
        if ty != required {
            let at = path.child("type");
            errors.push(if ty.is_empty() { FieldError::required(&at, why) } else { FieldError::invalid(&at, ty, why) });
        }
        ty == required
    };
    if let Some(m) = s["x-kubernetes-map-type"].as_str() {
        require_type(errors, "object", "must be object if x-kubernetes-map-type is specified");
        if !matches!(m, "atomic" | "granular") {
            let at = path.child("x-kubernetes-map-type");
            errors.push(FieldError::not_supported(&at, m, &["atomic", "granular"]));
        }
    }
    let keys: Vec<&str> =
        s["x-kubernetes-list-map-keys"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let items = Some(&s["items"]).filter(|i| i.is_object());
    let list = s["x-kubernetes-list-type"].as_str();
    let at = path.child("x-kubernetes-list-type");
    if let Some(l) = list {
        let is_array = require_type(errors, "array", "must be array if x-kubernetes-list-type is specified");
        if is_array && l == "set" {
            set_items(items, &path.child("items"), errors);
        }
        if !matches!(l, "atomic" | "set" | "map") {
            errors.push(FieldError::not_supported(&at, l, &["atomic", "set", "map"]));
        }
    }
    let why = "must be map if x-kubernetes-list-map-keys is non-empty";
    match list {
        None if !keys.is_empty() => errors.push(FieldError::required(&at, why)),
        Some(l) if !keys.is_empty() && l != "map" => errors.push(FieldError::invalid(&at, l, why)),
        _ => {}
    }
    if list == Some("map") {
        map_keys(s, items, &keys, path, errors);
    }
    if matches!(list, Some("set" | "map")) && items.is_some_and(|i| i["nullable"] == true) {
        let why = format!("cannot be nullable when x-kubernetes-list-type is {}", list.unwrap_or_default());
        errors.push(FieldError::forbidden(&path.child("items").child("nullable"), &why));
    }
}

fn set_items(items: Option<&Value>, path: &FieldPath, errors: &mut ErrorList) {
    let Some(i) = items else { return };
    let why = "must be atomic as item of a list with x-kubernetes-list-type=set";
    let (k, wrong) = match i["type"].as_str() {
        Some("array") => ("x-kubernetes-list-type", set(i, "x-kubernetes-list-type")),
        Some("object") => ("x-kubernetes-map-type", true),
        _ => return,
    };
    if wrong && i[k] != "atomic" {
        errors.push(FieldError::invalid(&path.child(k), &i["x-kubernetes-list-type"], why));
    }
}

/// Maximum number of errors about the keys of one list.
const MAX_KEY_ERRORS: usize = 100;

fn map_keys(s: &Value, items: Option<&Value>, keys: &[&str], path: &FieldPath, errors: &mut ErrorList) {
    let at = path.child("x-kubernetes-list-map-keys");
    if keys.is_empty() {
        errors.push(FieldError::required(&at, "must not be empty if x-kubernetes-list-type is map"));
    }
    let Some(items) = items else {
        let items = path.child("items");
        errors.push(match s.get("items") {
            Some(v) if !v.is_null() => {
                let why = "must only have a single schema if x-kubernetes-list-type is map";
                FieldError::invalid(&items, v, why)
            }
            _ => FieldError::required(&items, "must have a schema if x-kubernetes-list-type is map"),
        });
        return;
    };
    let below = path.child("items");
    if items["type"] != "object" {
        let why = "must be object if parent array's x-kubernetes-list-type is map";
        errors.push(FieldError::invalid(&below.child("type"), text(items, "type"), why));
    } else {
        let (again, before) = (crate::read::repeats(keys), errors.len());
        for (i, k) in keys.iter().enumerate() {
            // Each error lists all keys.
            if errors.len() > before + MAX_KEY_ERRORS {
                break;
            }
            let type_at = below.child("properties").key(k).child("type");
            match items["properties"].get(*k) {
                Some(p) if matches!(text(p, "type"), "array" | "object") => {
                    let why = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                    errors.push(FieldError::invalid(&type_at, text(items, "type"), why));
                }
                Some(_) => {}
                None => errors.push(FieldError::invalid(&at, keys, "entries must all be names of item properties")),
            }
            if again[i] {
                errors.push(FieldError::invalid(&at, keys, "must not contain duplicate entries"));
            }
        }
    }
    for k in keys {
        let Some(p) = items["properties"].get(*k) else { continue };
        let property = below.child("properties").key(k);
        let required = items["required"].as_array().into_iter().flatten().any(|r| r == k);
        if !required && !set(p, "default") {
            let why =
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errors.push(FieldError::required(&property.child("default"), why));
        }
        if p["nullable"] == true {
            let why = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.push(FieldError::forbidden(&property.child("nullable"), why));
        }
    }
}

/// Validates the syntax of `x-kubernetes-validations`; [`super::rules`] compiles the expressions.
fn rules(s: &Value, path: &FieldPath, errors: &mut ErrorList) {
    const REASONS: [&str; 4] =
        ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];
    let broken = |s: &str| s.contains(['\n', '\r']);
    for (i, r) in s["x-kubernetes-validations"].as_array().into_iter().flatten().enumerate() {
        let at = path.child("x-kubernetes-validations").index(i);
        let (rule, message, expression) = (text(r, "rule"), text(r, "message"), text(r, "messageExpression"));
        if rule.trim().is_empty() {
            errors.push(FieldError::required(&at.child("rule"), "rule is not specified"));
        } else if !message.is_empty() && message.trim().is_empty() {
            errors.push(FieldError::invalid(&at.child("message"), message, "must be non-empty if specified"));
        } else if broken(message.trim()) {
            errors.push(FieldError::invalid(&at.child("message"), message, "must not contain line breaks"));
        } else if broken(rule.trim()) && message.trim().is_empty() {
            let why = "message must be specified if rule contains line breaks";
            errors.push(FieldError::required(&at.child("message"), why));
        }
        if !expression.is_empty() && expression.trim().is_empty() {
            let why = "messageExpression must be non-empty if specified";
            errors.push(FieldError::required(&at.child("messageExpression"), why));
        }
        if let Some(reason) = r["reason"].as_str().filter(|r| !REASONS.contains(r)) {
            errors.push(FieldError::not_supported(&at.child("reason"), reason, &REASONS));
        }
        let field_path = text(r, "fieldPath");
        if field_path.is_empty() {
            continue;
        }
        let at = at.child("fieldPath");
        if field_path.trim().is_empty() {
            errors.push(FieldError::invalid(&at, field_path, "must be non-empty if specified"));
        }
        if broken(field_path) {
            errors.push(FieldError::invalid(&at, field_path, "must not contain line breaks"));
        }
        if field_path::find(field_path, s).is_err() {
            errors.push(FieldError::invalid(&at, field_path, "must be a valid path"));
        }
    }
}
