//! Packs the description of every built-in kind: names, types and texts from the schemas of `k8s-openapi`, everything else
//! from `data/*.kinds` (grammar.md). A field that only one of the two knows stops the build.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod absent;
mod data;

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

kinds_roots::add_roots!("data");

fn main() {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=data");
    let mut generator = SchemaSettings::openapi3().into_generator();
    add_roots(&mut generator);
    let mut upstream: BTreeMap<String, Value> =
        generator.definitions().iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    absent::add(&mut upstream);
    let data = data::read(Path::new("data"));
    let mut texts = Map::new();
    let mut definitions = Map::new();
    for (name, def) in &upstream {
        let own = data.messages.get(name).unwrap_or_else(|| panic!("data/ has no message for {name}"));
        definitions.insert(name.clone(), definition(name, def, own));
        texts.insert(name.clone(), texts_of(def));
    }
    for name in data.messages.keys() {
        assert!(upstream.contains_key(name), "data/ describes {name}, which k8s-openapi does not have");
    }
    let table = json!({"versions": data.versions, "definitions": definitions});
    let out = std::env::var("OUT_DIR").unwrap();
    std::fs::write(Path::new(&out).join("table.json"), table.to_string()).unwrap();
    let mut z = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    z.write_all(Value::Object(texts).to_string().as_bytes()).unwrap();
    std::fs::write(Path::new(&out).join("texts.bin"), z.finish().unwrap()).unwrap();
}

/// The texts of a definition: its own under `""`, its fields' under their names.
fn texts_of(def: &Value) -> Value {
    let mut out = Map::new();
    if let Some(d) = def["description"].as_str() {
        out.insert(String::new(), d.into());
    }
    for (name, p) in def["properties"].as_object().into_iter().flatten() {
        if let Some(d) = p["description"].as_str() {
            out.insert(name.clone(), d.into());
        }
    }
    out.into()
}

fn definition(name: &str, def: &Value, own: &data::Message) -> Value {
    let mut fields = Vec::new();
    let required: Vec<&str> = def["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = def["properties"].as_object();
    for (field, p) in properties.into_iter().flatten() {
        let facts = match own.fields.get(field) {
            Some(f) => f.clone(),
            None if field == "apiVersion" || field == "kind" => data::Field::default(),
            None => panic!("{name}.{field} has no protobuf number in data/"),
        };
        // Metadata is required by the types of k8s-openapi, not by the API.
        let is_required = match facts.required {
            Some(r) => r,
            None => required.contains(&field.as_str()) && !(field == "metadata" && facts.presence == "{}"),
        };
        let mut f = json!({"n": field, "t": ty(p)});
        let m = f.as_object_mut().unwrap();
        if is_required {
            m.insert("r".into(), true.into());
        }
        facts.write(m);
        fields.push(f);
    }
    for field in own.fields.keys() {
        assert!(properties.is_some_and(|p| p.contains_key(field)), "data/ names {name}.{field}, which does not exist");
    }
    let mut d = json!({"t": special(name).unwrap_or("struct"), "f": fields});
    if own.atomic {
        d["atomic"] = true.into();
    }
    if !own.either.is_empty() {
        d["either"] = json!(own.either);
    }
    if !own.order.is_empty() {
        d["order"] = own.order.clone().into();
    }
    d
}

/// Definitions that are no structs.
fn special(name: &str) -> Option<&'static str> {
    Some(match name.rsplit('.').next()? {
        "Quantity" => "quantity",
        "IntOrString" => "int-or-string",
        "Time" => "time",
        "MicroTime" => "micro-time",
        "Duration" => "duration",
        "FieldsV1" | "RawExtension" | "Patch" => "raw",
        "JSON" | "JSONSchemaPropsOrArray" | "JSONSchemaPropsOrBool" | "JSONSchemaPropsOrStringArray" => "any",
        _ => return None,
    })
}

/// A type in short: `string`, `&definition`, `[type`, `{type`.
fn ty(p: &Value) -> String {
    let reference = p["$ref"].as_str().or_else(|| p["allOf"][0]["$ref"].as_str());
    if let Some(r) = reference {
        return format!("&{}", r.rsplit('/').next().unwrap());
    }
    match (p["type"].as_str().unwrap_or("any"), p["format"].as_str()) {
        ("array", _) => format!("[{}", ty(&p["items"])),
        ("object", _) if p["additionalProperties"].is_object() => format!("{{{}", ty(&p["additionalProperties"])),
        ("string", Some("byte")) => "bytes".into(),
        ("integer", Some("int64")) => "int64".into(),
        ("integer", _) => "int32".into(),
        ("number", _) => "double".into(),
        ("string", _) => "string".into(),
        ("boolean", _) => "boolean".into(),
        ("object", _) => "raw".into(),
        (other, _) => panic!("a type nobody knows: {other}"),
    }
}
