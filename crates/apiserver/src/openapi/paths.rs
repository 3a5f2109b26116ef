//! Encodes operations as OpenAPI v2 and v3 paths.

use super::operations::{Content, Methods, Operation, Parameter};
use super::{Dialect, REF2, REF3, Texts, raw};
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use meta::Value;
use serde_json::{Map, json};
use std::collections::{BTreeMap, BTreeSet};

/// Paths of v3. Adds the definitions they reference to `definitions`.
pub(super) fn v3(paths: &BTreeMap<String, Methods>, definitions: &mut BTreeSet<String>) -> Texts {
    let mut text = |methods| raw(&of_path(methods, Dialect::V3, &mut |p| p, definitions));
    paths.iter().map(|(path, methods)| (path.clone(), text(methods))).collect()
}

/// Paths of v2, and their shared parameters.
pub(super) fn v2(paths: &BTreeMap<String, Methods>, definitions: &mut BTreeSet<String>) -> (Texts, Value) {
    let mut shared = Map::new();
    let mut share = |p: Value| {
        // Parameters that differ between paths are inline.
        let is_common = match p["in"].as_str() {
            Some("body") => {
                p["schema"]["$ref"].as_str().is_some_and(|r| r.ends_with(".Patch") || r.ends_with(".DeleteOptions"))
            }
            Some("path") => p["name"] != "name",
            _ => true,
        };
        if !is_common {
            return p;
        }
        let hash = digest(&SHA256, p.to_string().as_bytes());
        let name =
            format!("{}-{}", p["name"].as_str().unwrap_or_default(), URL_SAFE_NO_PAD.encode(&hash.as_ref()[..6]));
        let reference = json!({"$ref": format!("#/parameters/{name}")});
        shared.entry(name).or_insert(p);
        reference
    };
    let mut text = |methods| raw(&of_path(methods, Dialect::V2, &mut share, definitions));
    let paths = paths.iter().map(|(path, methods)| (path.clone(), text(methods))).collect();
    (paths, shared.into())
}

fn of_path(
    methods: &Methods,
    dialect: Dialect,
    share: &mut dyn FnMut(Value) -> Value,
    definitions: &mut BTreeSet<String>,
) -> Value {
    // Parameters of all methods belong to the path.
    let mut common: Vec<Parameter> = methods.values().next().map(|o| o.parameters.clone()).unwrap_or_default();
    common.retain(|p| methods.values().all(|o| o.parameters.contains(p)));
    let named = methods.values().find_map(|o| o.named.as_deref());
    let mut out = Map::new();
    for (method, o) in methods {
        out.insert((*method).to_owned(), of_operation(o, &common, dialect, share, definitions));
    }
    let mut at_path: Vec<Value> = common.iter().map(|p| parameter(p, dialect)).collect();
    if let Some(kind) = named {
        let text = format!("name of the {kind}");
        at_path.push(parameter_of("name", "path", "string", &text, dialect));
    }
    if !at_path.is_empty() {
        at_path.sort_by_key(|p| p["name"].as_str().unwrap_or_default().to_owned());
        out.insert("parameters".into(), at_path.into_iter().map(share).collect());
    }
    out.into()
}

fn of_operation(
    o: &Operation,
    common: &[Parameter],
    dialect: Dialect,
    share: &mut dyn FnMut(Value) -> Value,
    definitions: &mut BTreeSet<String>,
) -> Value {
    let mut schema = |c: &Content| match c {
        Content::Definition(name) => {
            definitions.insert(name.clone());
            let prefix = if dialect == Dialect::V2 { REF2 } else { REF3 };
            json!({"$ref": format!("{prefix}{name}")})
        }
        Content::Text => json!({"type": "string"}),
    };
    let mut v = json!({"description": o.text, "operationId": o.id, "tags": [o.tag]});
    let mut own: Vec<Value> =
        o.parameters.iter().filter(|p| !common.contains(p)).map(|p| parameter(p, dialect)).collect();
    let body = o.body.as_ref().map(|(c, required)| (schema(c), *required));
    match (body, dialect) {
        (Some((schema, required)), Dialect::V2) => {
            let mut p = json!({"name": "body", "in": "body", "schema": schema});
            if required {
                p["required"] = true.into();
            }
            own.push(p);
        }
        (Some((schema, required)), Dialect::V3) => {
            let content: Map<String, Value> =
                o.consumes.iter().map(|c| ((*c).to_owned(), json!({"schema": schema}))).collect();
            let mut body = json!({"content": content});
            if required {
                body["required"] = true.into();
            }
            v["requestBody"] = body;
        }
        (None, _) => {}
    }
    if !own.is_empty() {
        own.sort_by_key(|p| p["name"].as_str().unwrap_or_default().to_owned());
        v["parameters"] = own.into_iter().map(&mut *share).collect();
    }
    let mut responses = Map::new();
    for (code, content) in &o.answers {
        let mut r = json!({"description": code_text(*code)});
        match (schema(content), dialect) {
            (schema, Dialect::V2) => r["schema"] = schema,
            (schema, Dialect::V3) => {
                let content = |media: &&str| ((*media).to_owned(), json!({"schema": schema}));
                r["content"] = Value::Object(o.produces.iter().map(content).collect());
            }
        }
        responses.insert(code.to_string(), r);
    }
    responses.insert("401".into(), json!({"description": code_text(401)}));
    v["responses"] = responses.into();
    if dialect == Dialect::V2 {
        v["schemes"] = json!(["https"]);
        for (key, media) in [("consumes", &o.consumes), ("produces", &o.produces)] {
            if !media.is_empty() {
                v[key] = json!(media);
            }
        }
    }
    if let Some(action) = o.action {
        v["x-kubernetes-action"] = action.into();
    }
    if let Some(gvk) = &o.gvk {
        v["x-kubernetes-group-version-kind"] = gvk.clone();
    }
    v
}

fn code_text(code: u16) -> &'static str {
    match code {
        201 => "Created",
        202 => "Accepted",
        401 => "Unauthorized",
        _ => "OK",
    }
}

fn parameter(p: &Parameter, dialect: Dialect) -> Value {
    parameter_of(p.name, if p.in_path { "path" } else { "query" }, p.ty, p.text, dialect)
}

fn parameter_of(name: &str, location: &str, ty: &str, text: &str, dialect: Dialect) -> Value {
    let mut v = json!({"name": name, "in": location, "description": text});
    match dialect {
        Dialect::V2 => (v["type"], v["uniqueItems"]) = (ty.into(), true.into()),
        Dialect::V3 => v["schema"] = json!({"type": ty, "uniqueItems": true}),
    }
    if location == "path" {
        v["required"] = true.into();
    }
    v
}
