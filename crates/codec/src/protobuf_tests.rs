use super::*;
use meta::{Object, Value};
use proptest::prelude::*;
use schema::types::Presence;
use schema::{Field, Schema, SchemaRef, Type};
use serde_json::json;
use std::sync::Arc;

fn schema_of(ty: Type) -> Schema {
    Schema::new(ty)
}

fn list(items: Schema) -> Schema {
    Schema { items: Some(SchemaRef::Inline(Arc::new(items))), ..schema_of(Type::Array) }
}

fn map(values: Schema) -> Schema {
    Schema { additional: Some(SchemaRef::Inline(Arc::new(values))), ..schema_of(Type::Map) }
}

fn record(fields: Vec<(&str, u32, Option<&str>, Schema)>) -> Schema {
    let mut s = schema_of(Type::Struct);
    s.fields = fields
        .into_iter()
        .map(|(name, number, inline, schema)| Field {
            number,
            inline_of: inline.map(Into::into),
            presence: if name == "text" { Presence::OmitZero } else { Presence::Pointer },
            ..Field::new(name, SchemaRef::Inline(Arc::new(schema)))
        })
        .collect();
    s.fields.sort_by(|a, b| a.name.cmp(&b.name));
    s
}

fn kind() -> Schema {
    let volume = record(vec![
        ("name", 1, None, schema_of(Type::String)),
        ("path", 1, Some("source#2"), schema_of(Type::String)),
        ("size", 2, Some("source#2"), schema_of(Type::Quantity)),
    ]);
    record(vec![
        ("apiVersion", 0, None, schema_of(Type::String)),
        ("kind", 0, None, schema_of(Type::String)),
        ("text", 1, None, schema_of(Type::String)),
        ("bytes", 2, None, schema_of(Type::Bytes)),
        ("int", 3, None, schema_of(Type::Int32)),
        ("long", 4, None, schema_of(Type::Int64)),
        ("double", 5, None, schema_of(Type::Double)),
        ("bool", 6, None, schema_of(Type::Boolean)),
        ("time", 7, None, schema_of(Type::Time)),
        ("micro", 8, None, schema_of(Type::MicroTime)),
        ("duration", 9, None, schema_of(Type::Duration)),
        ("port", 10, None, schema_of(Type::IntOrString)),
        ("raw", 11, None, schema_of(Type::Raw)),
        ("volumes", 12, None, list(volume)),
        ("labels", 13, None, map(schema_of(Type::String))),
        ("limits", 14, None, map(schema_of(Type::Quantity))),
        ("extra", 15, None, map(list(schema_of(Type::String)))),
        ("ints", 16, None, list(schema_of(Type::Int32))),
        ("empty", 17, None, record(vec![])),
    ])
}

fn object() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Thing", "text": "é", "bytes": "AAEC/w==", "int": -5, "long": i64::MIN, "double": 1.5,
        "bool": false, "time": "2026-11-20T10:00:00Z", "micro": "2026-11-20T10:00:00.123456Z", "duration": "1h30m0.5s",
        "port": "http", "raw": {"a": [1, "x", null]}, "labels": {"a": "1", "b": ""}, "limits": {"cpu": "100m"},
        "extra": {"k": ["a", "b"], "none": []}, "ints": [1, -1, 0], "empty": {},
        "volumes": [{"name": "v", "path": "/x", "size": "1Gi"}, {"name": "w"}, {}]
    })
}

#[test]
fn objects_go_there_and_back() {
    let (s, o) = (kind(), Object::from_value(object()).unwrap());
    let bytes = encode(&o, &s).unwrap();
    assert!(bytes.starts_with(b"k8s\0\x0a"));
    let back = decode(&bytes, |v, k| (v == "v1" && k == "Thing").then_some(&s)).unwrap();
    assert_eq!(back, o);
    let mut int_port = o.clone();
    int_port.set(&["port"], 8080);
    assert_eq!(decode(&encode(&int_port, &s).unwrap(), |_, _| Some(&s)).unwrap(), int_port);
}

#[test]
fn the_wire_is_protobufs() {
    for (v, want) in [
        (json!({"text": "ab"}), vec![0x0a, 2, b'a', b'b']),
        (json!({"int": 300}), vec![0x18, 0xac, 0x02]),
        (json!({"int": -1}), [vec![0x18], vec![0xff; 9], vec![0x01]].concat()),
        (json!({"limits": {"c": "1"}}), vec![0x72, 8, 0x0a, 1, b'c', 0x12, 3, 0x0a, 1, b'1']),
        (json!({"volumes": [{"path": "/"}]}), vec![0x62, 5, 0x12, 3, 0x0a, 1, b'/']),
        (json!({"port": 80}), vec![0x52, 6, 0x08, 0, 0x10, 80, 0x1a, 0]),
    ] {
        let got = encode_message(v.as_object().unwrap(), &kind()).unwrap();
        assert_eq!(got, want, "{v}");
        assert_eq!(Value::Object(decode_message(&want, &kind()).unwrap()), v);
    }
}

#[test]
fn what_others_send_is_read() {
    let s = kind();
    for (bytes, want) in [
        // Unknown fields, packed numbers, empty strings and zero times.
        (vec![0xfa, 0x01, 1, 9, 0x18, 1], json!({"int": 1})),
        (vec![0x82, 0x01, 3, 1, 2, 3], json!({"ints": [1, 2, 3]})),
        (vec![0x0a, 0, 0x3a, 0], json!({})),
        // A pointer keeps what it points to.
        (vec![0x18, 0, 0x30, 0], json!({"int": 0, "bool": false})),
        // A time is one unless its message is empty, and a plain one has whole seconds.
        (vec![0x3a, 4, 0x08, 0, 0x10, 0], json!({"time": "1970-01-01T00:00:00Z"})),
        (vec![0x3a, 2, 0x10, 2], json!({"time": "1970-01-01T00:00:00Z"})),
        (vec![0x42, 0, 0x42, 2, 0x08, 1], json!({"micro": "1970-01-01T00:00:01.000000Z"})),
        (vec![0x6a, 3, 0x0a, 1, b'k'], json!({"labels": {"k": ""}})),
    ] {
        assert_eq!(Value::Object(decode_message(&bytes, &s).unwrap()), want, "{bytes:?}");
    }
}

#[test]
fn bad_bytes_and_values_are_errors() {
    let s = kind();
    assert_eq!(decode(b"{}", |_, _| Some(&s)), Err(Error::NoMagic));
    assert!(matches!(decode(b"k8s\0", |_, _| None), Err(Error::UnknownKind { .. })));
    for bytes in [
        &[0x0a, 5, 1][..],
        &[0x0a],
        &[0x18, 0xff],
        &[0x0b],
        &[0x0a, 1, 0xff],
        &[0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
    ] {
        assert!(decode_message(bytes, &s).is_err(), "{bytes:?}");
    }
    for v in [
        json!({"int": "x"}),
        json!({"bytes": "*"}),
        json!({"time": "yesterday"}),
        json!({"volumes": {}}),
        json!({"duration": "1x"}),
    ] {
        assert!(matches!(encode_message(v.as_object().unwrap(), &s), Err(Error::Value { .. })), "{v}");
    }
}

#[test]
fn durations_are_gos() {
    for (text, nanos) in [
        ("0s", 0),
        ("1h30m0s", 5_400_000_000_000),
        ("-1.5s", -1_500_000_000),
        ("2.5ms", 2_500_000),
        ("3ns", 3),
        ("4µs", 4_000),
        ("1m0s", 60_000_000_000),
    ] {
        assert_eq!(super::write::duration(text), Some(nanos), "{text}");
        let v = json!({ "duration": text });
        let bytes = encode_message(v.as_object().unwrap(), &kind()).unwrap();
        assert_eq!(Value::Object(decode_message(&bytes, &kind()).unwrap()), v);
    }
}

proptest! {
    #[test]
    fn any_scalars_go_there_and_back(t in ".{1,20}", i: i32, l: i64, d in proptest::num::f64::NORMAL, b: bool, m in proptest::collection::btree_map(".{0,5}", ".{0,5}", 1..4)) {
        // Whole numbers come back without a point.
        let whole = d.fract() == 0.0 && d.abs() < 9e15;
        let d = if whole { json!(d as i64) } else { json!(d) };
        let v = json!({"text": t, "int": i, "long": l, "double": d, "bool": b, "labels": m});
        let bytes = encode_message(v.as_object().unwrap(), &kind()).unwrap();
        prop_assert_eq!(Value::Object(decode_message(&bytes, &kind()).unwrap()), v);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = decode_message(&bytes, &kind());
    }
}
