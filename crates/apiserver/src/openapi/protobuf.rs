//! Encodes the OpenAPI v2 document as protobuf (`openapi.v2.Document` of gnostic), which `kubectl` uses to validate
//! lists, and before v1.25 everything. Supports only the fields that our document has; extensions are stored as YAML,
//! a superset of JSON.

use super::{Texts, V2};
use codec::protobuf::wire::{put_bytes, put_int};
use http::header::ACCEPT;
use http::request::Parts;
use meta::Value;

/// The media type in responses: the `@` in the requested one is not valid in a media type.
pub const MEDIA_TYPE: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

pub fn is_asked_for(parts: &Parts) -> bool {
    let mut accepted = parts.headers.get_all(ACCEPT).iter().filter_map(|v| v.to_str().ok());
    accepted.any(|v| v.contains("com.github.proto-openapi.spec.v2"))
}

pub fn encode(document: &V2) -> Vec<u8> {
    let mut m = Message::default();
    put_bytes(&mut m.0, 1, document.swagger.as_bytes());
    m.message(2, |info| {
        info.text(1, &document.info["title"]);
        info.text(2, &document.info["version"]);
    });
    m.message(8, |paths| paths.texts_named(2, &document.paths, path));
    m.message(9, |definitions| definitions.texts_named(1, &document.definitions, schema));
    m.message(10, |parameters| parameters.named(1, &document.parameters, parameter));
    for requirement in document.security.as_array().into_iter().flatten() {
        m.message(12, |r| r.named(1, requirement, |m, scopes| m.texts(1, scopes)));
    }
    m.message(13, |all| all.named(1, &document.security_definitions, security));
    m.0
}

#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn text(&mut self, field: u32, v: &Value) {
        if let Some(s) = v.as_str() {
            put_bytes(&mut self.0, field, s.as_bytes());
        }
    }

    fn texts(&mut self, field: u32, v: &Value) {
        v.as_array().into_iter().flatten().for_each(|s| self.text(field, s));
    }

    fn boolean(&mut self, field: u32, v: &Value) {
        if v.as_bool() == Some(true) {
            put_int(&mut self.0, field, 1);
        }
    }

    fn message(&mut self, field: u32, write: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        write(&mut inner);
        put_bytes(&mut self.0, field, &inner.0);
    }

    /// A map: its entries are messages with a name and a value.
    fn named(&mut self, field: u32, map: &Value, write: fn(&mut Message, &Value)) {
        for (name, value) in map.as_object().into_iter().flatten() {
            self.entry(field, name, value, write);
        }
    }

    fn texts_named(&mut self, field: u32, all: &Texts, write: fn(&mut Message, &Value)) {
        for (name, text) in all {
            // The JSON was encoded here, so it is valid.
            self.entry(field, name, &serde_json::from_str(text.get()).unwrap_or_default(), write);
        }
    }

    fn entry(&mut self, field: u32, name: &str, value: &Value, write: fn(&mut Message, &Value)) {
        self.message(field, |entry| {
            put_bytes(&mut entry.0, 1, name.as_bytes());
            entry.message(2, |m| write(m, value));
        });
    }

    /// Extensions (`x-`).
    fn extensions(&mut self, field: u32, source: &Value) {
        for (name, value) in source.as_object().into_iter().flatten().filter(|(n, _)| n.starts_with("x-")) {
            self.message(field, |entry| {
                put_bytes(&mut entry.0, 1, name.as_bytes());
                entry.message(2, |m| any(m, value));
            });
        }
    }
}

fn any(m: &mut Message, v: &Value) {
    put_bytes(&mut m.0, 2, format!("{v}\n").as_bytes());
}

fn path(m: &mut Message, v: &Value) {
    let fields = [("get", 2), ("put", 3), ("post", 4), ("delete", 5), ("options", 6), ("head", 7), ("patch", 8)];
    for (method, field) in fields {
        if let Some(o) = v.get(method) {
            m.message(field, |m| operation(m, o));
        }
    }
    parameters(m, 9, v);
}

/// The parameters of a path or operation: each inline, or a reference to a shared one.
fn parameters(m: &mut Message, field: u32, source: &Value) {
    for p in source["parameters"].as_array().into_iter().flatten() {
        m.message(field, |m| match p.get("$ref") {
            Some(shared) => m.message(2, |m| m.text(1, shared)),
            None => m.message(1, |m| parameter(m, p)),
        });
    }
}

fn operation(m: &mut Message, v: &Value) {
    m.texts(1, &v["tags"]);
    m.text(3, &v["description"]);
    m.text(5, &v["operationId"]);
    m.texts(6, &v["produces"]);
    m.texts(7, &v["consumes"]);
    parameters(m, 8, v);
    m.message(9, |m| m.named(1, &v["responses"], response));
    m.texts(10, &v["schemes"]);
    m.extensions(13, v);
}

/// A parameter: each location has its own message.
fn parameter(m: &mut Message, v: &Value) {
    let common = |m: &mut Message| {
        m.boolean(1, &v["required"]);
        m.text(2, &v["in"]);
        m.text(3, &v["description"]);
        m.text(4, &v["name"]);
    };
    match v["in"].as_str() {
        Some("body") => m.message(1, |m| {
            m.text(1, &v["description"]);
            m.text(2, &v["in"]);
            m.text(3, &v["name"]);
            m.boolean(4, &v["required"]);
            m.message(5, |m| m.message(1, |m| schema(m, &v["schema"])));
        }),
        Some("path") => m.message(2, |m| {
            m.message(4, |m| {
                common(m);
                m.text(5, &v["type"]);
                m.boolean(19, &v["uniqueItems"]);
            });
        }),
        _ => m.message(2, |m| {
            m.message(3, |m| {
                common(m);
                m.text(6, &v["type"]);
                m.boolean(20, &v["uniqueItems"]);
            });
        }),
    }
}

fn security(m: &mut Message, v: &Value) {
    // An `apiKey`.
    m.message(2, |m| {
        m.text(1, &v["type"]);
        m.text(2, &v["name"]);
        m.text(3, &v["in"]);
        m.text(4, &v["description"]);
    });
}

fn response(m: &mut Message, v: &Value) {
    m.message(1, |m| {
        m.text(1, &v["description"]);
        if let Some(s) = v.get("schema") {
            m.message(2, |m| m.message(1, |m| schema(m, s)));
        }
    });
}

fn schema(m: &mut Message, v: &Value) {
    m.text(1, &v["$ref"]);
    m.text(2, &v["format"]);
    m.text(4, &v["description"]);
    m.texts(19, &v["required"]);
    for e in v["enum"].as_array().into_iter().flatten() {
        m.message(20, |m| any(m, e));
    }
    if let Some(a) = v.get("additionalProperties") {
        m.message(21, |m| m.message(1, |m| schema(m, a)));
    }
    if v["type"].is_string() {
        m.message(22, |m| m.text(1, &v["type"]));
    }
    if let Some(items) = v.get("items") {
        m.message(23, |m| m.message(1, |m| schema(m, items)));
    }
    if let Some(properties) = v.get("properties") {
        m.message(25, |m| m.named(1, properties, schema));
    }
    m.extensions(31, v);
}

#[cfg(test)]
mod tests {
    use super::super::raw;
    use super::*;
    use codec::protobuf::wire::Reader;
    use serde_json::json;

    /// The bytes of a nested field.
    fn at<'a>(bytes: &'a [u8], fields: &[u32]) -> &'a [u8] {
        let Some((first, rest)) = fields.split_first() else { return bytes };
        let mut reader = Reader(bytes);
        while let Some((n, wire)) = reader.field().unwrap() {
            if n == *first {
                return at(wire.bytes(n).unwrap(), rest);
            }
        }
        panic!("no field {first}");
    }

    #[test]
    fn fields_lie_where_gnostic_reads_them() {
        let gvk = json!([{"group": "", "kind": "Thing", "version": "v1"}]);
        let document = json!({
            "info": {"title": "Kubernetes", "version": "v1"},
            "paths": {"/things": {"post": {
                "operationId": "createThing", "x-kubernetes-action": "post",
                "parameters": [{"in": "query", "name": "dryRun", "type": "string", "uniqueItems": true},
                    {"in": "body", "name": "body", "required": true, "schema": {"$ref": "#/definitions/Body"}}],
                "consumes": ["*/*"],
                "responses": {"200": {"description": "OK", "schema": {"$ref": "#/definitions/Thing"}}},
            }, "parameters": [{"$ref": "#/parameters/namespace"}]}},
            "parameters": {"namespace": {"in": "path", "name": "namespace", "type": "string", "required": true}},
            "definitions": {"Thing": {
                "type": "object", "required": ["a"], "x-kubernetes-group-version-kind": gvk,
                "properties": {"a": {"type": "array", "items": {"type": "string"}}},
            }},
        });
        let texts = |part: &str| document[part].as_object().unwrap().iter().map(|(k, v)| (k.clone(), raw(v))).collect();
        let bytes = encode(&V2 {
            swagger: "2.0",
            info: document["info"].clone(),
            paths: texts("paths"),
            parameters: document["parameters"].clone(),
            definitions: texts("definitions"),
            security_definitions: json!({}),
            security: json!([]),
        });
        let text = |fields: &[u32]| String::from_utf8(at(&bytes, fields).to_vec()).unwrap();
        assert_eq!((text(&[1]), text(&[2, 1])), ("2.0".into(), "Kubernetes".into()));
        assert_eq!((text(&[8, 2, 1]), text(&[8, 2, 2, 4, 5])), ("/things".into(), "createThing".into()));
        assert_eq!(text(&[8, 2, 2, 4, 8, 1, 2, 3, 4]), "dryRun");
        assert_eq!(text(&[8, 2, 2, 4, 7]), "*/*");
        assert_eq!(text(&[8, 2, 2, 9, 2, 1]), "#/parameters/namespace");
        assert_eq!((text(&[10, 1, 1]), text(&[10, 1, 2, 2, 4, 5])), ("namespace".into(), "string".into()));
        assert_eq!(text(&[8, 2, 2, 4, 9, 1, 2, 1, 2, 1, 1]), "#/definitions/Thing");
        assert_eq!(text(&[8, 2, 2, 4, 13, 2, 2]), "\"post\"\n");
        let thing = [9, 1, 2];
        assert_eq!(text(&[9, 1, 1]), "Thing");
        assert_eq!(
            (text(&[&thing[..], &[22, 1]].concat()), text(&[&thing[..], &[19]].concat())),
            ("object".into(), "a".into())
        );
        assert_eq!(text(&[&thing[..], &[31, 2, 2]].concat()), format!("{gvk}\n"));
        assert_eq!(text(&[&thing[..], &[25, 1, 2, 23, 1, 22, 1]].concat()), "string");
    }
}
