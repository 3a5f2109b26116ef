//! Every message of every kind, every field set, against an independent protobuf library (`prost-reflect`) whose descriptors are
//! upstream's field names, numbers and types (`data/protobuf.json.gz`), in both directions.

#![allow(clippy::unwrap_used, reason = "a test may")]

#[path = "protobuf/descriptors.rs"]
mod descriptors;
#[path = "protobuf/samples.rs"]
mod samples;

use bytes::Bytes;
use descriptors::Facts;
use meta::{Map, Value};
use prost_reflect::prost::Message;
use prost_reflect::{DynamicMessage, ReflectMessage};
use serde_json::json;
use std::collections::BTreeSet;

/// Whether upstream has a message for a definition: not for what it serves as JSON only, for lists of what is never listed, and
/// for what is no longer part of it.
fn has_message(definition: &str) -> bool {
    let listed = kinds::catalog().kinds.iter().any(|k| {
        let own = k.schema.name.as_deref().unwrap_or_default();
        k.has_verb("list") && definition.strip_suffix("List") == Some(own)
    });
    let is_list = kinds::catalog().kinds.iter().any(|k| k.schema.name.as_deref() == definition.strip_suffix("List"));
    let json_only = definition == "io.k8s.apimachinery.pkg.version.Info";
    !json_only && !definition.starts_with("io.k8s.api.settings.") && (listed || !is_list)
}

fn fields_of(schema: &schema::Schema, value: &Value) -> Vec<u8> {
    codec::protobuf::encode_message(value.as_object().unwrap(), schema).unwrap()
}

#[test]
fn every_field_of_every_message_is_where_upstream_has_it() {
    let facts = Facts::load();
    let (mut problems, mut held) = (Vec::new(), 0);
    for (name, schema) in kinds::catalog().definitions.iter() {
        let is_struct = schema.ty == schema::Type::Struct;
        if !is_struct || !has_message(name) {
            continue;
        }
        let Some(message) = facts.message(name) else {
            problems.push(format!("{name} is no message upstream"));
            continue;
        };
        // A value of several shapes has another one each time.
        for variant in 0..3 {
            let value = samples::full(schema, variant);
            let mut unset = BTreeSet::new();
            let want = facts.dynamic(&message, &value, &mut unset);
            let want = match want {
                Ok(m) => m,
                Err(e) => {
                    problems.push(format!("{name}: {e}"));
                    continue;
                }
            };
            problems.extend(unset.iter().map(|f| format!("{name}: no value reaches {f}")));
            let bytes = match codec::protobuf::encode_message(value.as_object().unwrap(), schema) {
                Ok(b) => b,
                Err(e) => {
                    problems.push(format!("{name}: {e}"));
                    continue;
                }
            };
            match DynamicMessage::decode(want.descriptor(), &bytes[..]) {
                Ok(m) if m == want => held += 1,
                Ok(m) => problems.push(format!("{name} is written as {m} instead of {want}")),
                Err(e) => problems.push(format!("{name} cannot be read: {e}")),
            }
            match codec::protobuf::decode_message(&want.encode_to_vec(), schema) {
                Ok(m) if Value::Object(m.clone()) == value => {}
                Ok(m) => problems.push(format!("{name} is read as {} instead of {value}", Value::Object(m))),
                Err(e) => problems.push(format!("{name} cannot be decoded: {e}")),
            }
        }
    }
    let shown: Vec<String> = problems.iter().map(|p| p.chars().take(1500).collect()).collect();
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), shown.join("\n"));
    assert!(held > 1500, "only {held} messages were held");
}

/// What Go's types make of the shapes that JSON has for one field.
#[test]
fn values_of_several_shapes_are_written_as_upstreams_types() {
    let facts = Facts::load();
    let name = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
    let schema = kinds::catalog().definitions.get(name).unwrap();
    let message = facts.message(name).unwrap();
    for (value, field, text) in [
        (json!({"additionalProperties": true}), "additionalProperties", "allows:true"),
        (json!({"additionalProperties": false}), "additionalProperties", "allows:false"),
        (
            json!({"additionalProperties": {"type": "string"}}),
            "additionalProperties",
            "allows:true,schema{type:\"string\"}",
        ),
        (json!({"items": {"type": "string"}}), "items", "schema{type:\"string\"}"),
        (json!({"items": [{"type": "string"}, {}]}), "items", "jSONSchemas:[{type:\"string\"},{}]"),
        (json!({"default": null, "enum": [null, 1, "a"]}), "enum", "[{},{raw:\"1\"},{raw:\"\\\"a\\\"\"}]"),
        (json!({"default": {"a": [1]}}), "default", "raw:\"{\\\"a\\\":[1]}\""),
    ] {
        let m = DynamicMessage::decode(facts.descriptor(&message), &fields_of(schema, &value)[..]).unwrap();
        let shown = m.get_field_by_name(field).unwrap().to_string();
        assert_eq!(shown.trim_start_matches('{').trim_end_matches('}'), text.trim_end_matches('}'), "{value}");
        let back = codec::protobuf::decode_message(&m.encode_to_vec(), schema).unwrap();
        let mut want = value;
        want.as_object_mut().unwrap().retain(|_, v| !v.is_null());
        assert_eq!(Value::Object(back), want);
    }
    // Of what Go's encoder writes beyond that: the zeros of both fields.
    let both = [0xf2, 0x01, 2, 0x08, 0];
    let read = codec::protobuf::decode_message(&both, schema).unwrap();
    assert_eq!(Value::Object(read), json!({"additionalProperties": false}));
    let nothing = codec::protobuf::decode_message(&[0xc2, 0x01, 0], schema).unwrap();
    assert_eq!(Value::Object(nothing), json!({}), "neither a schema nor a list");
}

/// A definition is created from what an independent encoder wrote, and read by an independent decoder.
#[tokio::test]
async fn definitions_are_written_and_read_as_protobuf() {
    const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
    let facts = Facts::load();
    let message =
        facts.message("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition").unwrap();
    let unknown = facts.message("io.k8s.apimachinery.pkg.runtime.Unknown").unwrap();
    let cluster = testkit::Cluster::start(1).await;
    let definition = json!({
        "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object",
                "properties": {"spec": {"type": "object", "properties": {
                    "list": {"type": "array", "items": {"type": "string", "default": "x", "enum": ["x", "y"]}},
                    "open": {"type": "object", "additionalProperties": {"type": "integer"}},
                    "free": {"type": "object", "additionalProperties": true}}}}}}}]}});
    let raw = facts.dynamic(&message, &definition, &mut BTreeSet::new()).unwrap().encode_to_vec();
    let mut envelope = DynamicMessage::new(facts.descriptor(&unknown));
    let mut type_meta =
        DynamicMessage::new(facts.descriptor(&facts.message("io.k8s.apimachinery.pkg.runtime.TypeMeta").unwrap()));
    type_meta.set_field_by_name("apiVersion", prost_reflect::Value::String("apiextensions.k8s.io/v1".into()));
    type_meta.set_field_by_name("kind", prost_reflect::Value::String("CustomResourceDefinition".into()));
    envelope.set_field_by_name("typeMeta", prost_reflect::Value::Message(type_meta));
    envelope.set_field_by_name("raw", prost_reflect::Value::Bytes(raw.into()));
    let body = [&b"k8s\0"[..], &envelope.encode_to_vec()].concat();

    let base = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let headers = [("accept", PROTOBUF), ("content-type", PROTOBUF)];
    let r = cluster.request("POST", base, &headers, Bytes::from(body)).await;
    let (parts, body) = r.into_parts();
    let sent = body.collect().await.unwrap();
    assert_eq!(parts.status, 201, "{}", String::from_utf8_lossy(&sent));
    let path = format!("{base}/things.example.com");
    let stored = cluster.call("GET", &path, Value::Null).await.body;
    assert_eq!(stored["spec"]["versions"], definition["spec"]["versions"]);

    let (parts, body) = cluster.request("GET", &path, &headers, Bytes::new()).await.into_parts();
    assert_eq!(parts.headers["content-type"], PROTOBUF);
    let body = body.collect().await.unwrap();
    let envelope = DynamicMessage::decode(facts.descriptor(&unknown), &body[4..]).unwrap();
    let raw = envelope.get_field_by_name("raw").unwrap().as_bytes().unwrap().clone();
    let got = DynamicMessage::decode(facts.descriptor(&message), raw).unwrap();
    let versions = Value::Object(Map::from_iter([("versions".to_owned(), stored["spec"]["versions"].clone())]));
    let spec =
        facts.message("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionSpec").unwrap();
    let want = facts.dynamic(&spec, &versions, &mut BTreeSet::new()).unwrap();
    let got_spec = got.get_field_by_name("spec").unwrap();
    assert_eq!(got_spec.as_message().unwrap().get_field_by_name("versions"), want.get_field_by_name("versions"));
}
