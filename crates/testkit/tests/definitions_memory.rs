//! What a custom resource definition costs in memory: its bytes, its rows, its schema; the event log has a bound of its own. Issue 3, item 4.
//! And what answers cost that are made of much: documents of many definitions, lists of large objects.
#![allow(clippy::unwrap_used, reason = "a test may")]

use cap::Cap;
use meta::{Object, Value};
use testkit::Cluster;

use registry::Rows;
use serde_json::json;
use std::alloc::System;
use stored::encode;
use strategies::apiextensions::definition;
use tokio::sync::Mutex;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

const COUNT: usize = 400;

/// A definition as operators have them: some 120 fields with texts, defaults, constraints and rules (23 kB of JSON). Names of fields
/// are each definition's own, so that of the schemas only what looks alike can be shared.
fn definition(number: usize) -> Value {
    let text = "Says what the field is for, in a sentence or two as generators take them from comments in the code.";
    let leaf = |i: usize| match i % 4 {
        0 => json!({"type": "string", "description": text, "maxLength": 63, "pattern": "^[a-z]+$"}),
        1 => json!({"type": "integer", "description": text, "format": "int32", "minimum": 0, "default": 3}),
        2 => json!({"type": "boolean", "description": text}),
        _ => json!({"type": "string", "description": text, "enum": ["Always", "Never"]}),
    };
    let group = |depth: usize| -> Value {
        let fields: serde_json::Map<String, Value> =
            (0..20).map(|i| (format!("field{number}x{depth}x{i}"), leaf(i))).collect();
        json!({"type": "object", "description": text, "required": [format!("field{number}x{depth}x0")], "properties": fields,
            "x-kubernetes-validations": [{"rule": format!("!has(self.field{number}x{depth}x1) || self.field{number}x{depth}x1 < 100"),
                "message": "is too much"}]})
    };
    let groups: serde_json::Map<String, Value> = (0..6).map(|d| (format!("group{d}"), group(d))).collect();
    let schema = json!({"type": "object", "description": text, "properties": {
        "spec": {"type": "object", "properties": groups}, "status": {"type": "object", "properties": {
            "conditions": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
                "items": {"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}}}}}}}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("things{number}.example.com")}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": format!("things{number}"), "kind": format!("Thing{number}")},
        "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": schema}}]}})
}

/// The tests count what the whole process has, so one runs at a time.
static ALONE: Mutex<()> = Mutex::const_new(());

#[test]
fn a_definition_costs_less_than_a_hundred_kilobytes() {
    let _alone = ALONE.blocking_lock();
    let of = |number: usize| {
        let mut v = definition(number);
        let names = v["spec"]["names"].clone();
        v["status"] = json!({"acceptedNames": names, "conditions": [{"type": "Established", "status": "True"}]});
        Object::from_value(v).unwrap()
    };
    // What all share is made first.
    let warm = definition::rows(&of(COUNT), 0).unwrap();
    let before = ALLOCATOR.allocated();
    let mut rows = Rows::default();
    let mut kept = Vec::with_capacity(COUNT);
    let mut bytes = 0;
    for number in 0..COUNT {
        let o = of(number);
        let d = definition::rows(&o, 0).unwrap();
        let encoded = encode::encode(&o);
        bytes += encoded.len();
        kept.push((d.stored, encoded));
        d.served.into_iter().for_each(|r| rows.insert(r));
    }
    let each = (ALLOCATOR.allocated() - before) / COUNT;
    println!("{each} bytes for each definition of {} bytes", bytes / COUNT);
    assert!(each <= 100_000, "{each} bytes for each definition of {} bytes", bytes / COUNT);
    assert_eq!((rows.iter().count(), kept.len(), warm.served.len()), (COUNT, COUNT, 1));
}

/// While a document of all schemas is made, the server holds a few times its text, and not the values of all schemas at once.
#[tokio::test(flavor = "multi_thread")]
async fn documents_of_many_definitions_are_made_piece_by_piece() {
    const DEFINITIONS: usize = 150;
    let _alone = ALONE.lock().await;
    let cluster = Cluster::start(1).await;
    for number in 0..DEFINITIONS {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let made = cluster.call("POST", path, definition(number)).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
    let last = format!("/apis/example.com/v1/things{}", DEFINITIONS - 1);
    while cluster.call("GET", &last, Value::Null).await.code != 200 {
        tokio::task::yield_now().await;
    }
    let v2 = "/openapi/v2";
    let v3 = "/openapi/v3/apis/example.com/v1";
    for (path, accept) in [
        (v2, "application/json"),
        (v3, "application/json"),
        (v2, "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"),
    ] {
        let (length, cost) = answer(&cluster, path, accept).await;
        println!("{path} {accept}: {length} bytes, {cost} bytes while it is made");
        assert!(length > DEFINITIONS * 10_000, "{length}");
        assert!(cost < length * 5, "{path} {accept}: {length} bytes took {cost} bytes");
    }
}

/// How long an answer is, and how much memory is taken while it is made, if that is more than ever before.
async fn answer(cluster: &Cluster, path: &str, accept: &str) -> (usize, usize) {
    let (before, peak) = (ALLOCATOR.allocated(), ALLOCATOR.max_allocated());
    let r = cluster.request("GET", path, &[("accept", accept)], bytes::Bytes::new()).await;
    assert_eq!(r.status(), 200);
    let length = http_body_util::BodyExt::collect(r.into_body()).await.unwrap().to_bytes().len();
    let now = ALLOCATOR.max_allocated();
    (length, if now > peak { now - before } else { 0 })
}

/// Of the objects of a list that cannot be sent as they are stored, few are decoded at a time.
#[tokio::test(flavor = "multi_thread")]
async fn lists_of_large_objects_are_made_piece_by_piece() {
    const OBJECTS: usize = 40;
    let _alone = ALONE.lock().await;
    let cluster = Cluster::start(1).await;
    let all = "/api/v1/namespaces/default/configmaps";
    let data: serde_json::Map<String, Value> = (0..20_000).map(|n| (format!("k{n}"), "".into())).collect();
    let mut stored = 0;
    for number in 0..OBJECTS {
        let made = cluster.call("POST", all, json!({"metadata": {"name": format!("m{number}")}, "data": data})).await;
        assert_eq!(made.code, 201);
        stored += encode::encode(&Object::from_value(made.body).unwrap()).len();
    }
    for (kind, accept) in [
        ("YAML", "application/yaml"),
        ("protobuf", "application/vnd.kubernetes.protobuf"),
        ("a table", "application/json;as=Table;g=meta.k8s.io;v=v1"),
    ] {
        let (length, cost) = answer(&cluster, all, accept).await;
        println!(
            "{OBJECTS} objects of {} bytes as {kind}: {length} bytes, {cost} bytes while they are written",
            stored / OBJECTS
        );
        assert!(cost < stored * 4, "{kind}: {stored} bytes took {cost} bytes");
    }
    let watched = format!("{all}?watch=true&timeoutSeconds=1");
    let (length, cost) = answer(&cluster, &watched, "application/vnd.kubernetes.protobuf;stream=watch").await;
    println!("as a watch: {length} bytes, {cost} bytes");
    assert!(length > stored / 2 && cost < stored * 4, "{stored} bytes took {cost} bytes");
}
