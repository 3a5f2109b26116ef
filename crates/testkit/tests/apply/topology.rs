//! Atomic and granular ownership according to the schema, and changes of the schema.

use super::*;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const FOO: &str = "/apis/example.com/v1/namespaces/default/foos/foo-sample";

fn definition(spec: &Value) -> Value {
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "foos.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "foos", "singular": "foo", "kind": "Foo"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}})
}

/// Waits until the published schema of the spec is so.
async fn published(c: &Cluster, what: impl Fn(&Value) -> bool) {
    for _ in 0..2000 {
        let a = c.call("GET", "/openapi/v3/apis/example.com/v1", Value::Null).await;
        if a.code == 200 && what(&a.body["components"]["schemas"]["com.example.v1.Foo"]["properties"]["spec"]) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    panic!("the schema was not published");
}

async fn with(spec: Value) -> Cluster {
    let c = Cluster::start(1).await;
    written(&c, "POST", DEFINITIONS, "application/json", &definition(&spec)).await;
    published(&c, Value::is_object).await;
    c
}

fn foo(spec: &str) -> String {
    format!("apiVersion: example.com/v1\nkind: Foo\nmetadata:\n  name: foo-sample\nspec: {spec}\n")
}

/// The kinds of Kubernetes: keyed lists, sets, atomic lists, maps and structs. Clauses: S06.built-in
#[tokio::test]
async fn built_in_kinds_have_atomic_and_granular_fields() {
    let c = Cluster::start(1).await;
    let path = format!("{DEPLOYMENTS}/d");
    let config = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, finalizers: [x.io/a]}, spec: {selector: {matchLabels: {a: b}}, \
        template: {metadata: {labels: {a: b}}, spec: {nodeSelector: {disk: ssd}, containers: [{name: c, image: i, args: [x, z], \
        env: [{name: E, value: v}], ports: [{containerPort: 80}]}]}}}}";
    let o = applied(&c, &path, "one", config).await;
    let fields = owned(&o, "one");
    assert_eq!(fields["f:metadata"]["f:finalizers"], json!({"v:\"x.io/a\"": {}}), "a set");
    assert_eq!(fields["f:spec"]["f:selector"], json!({}), "an atomic struct");
    let pod = &fields["f:spec"]["f:template"]["f:spec"];
    assert_eq!(pod["f:nodeSelector"], json!({}), "an atomic map");
    let container = &pod["f:containers"]["k:{\"name\":\"c\"}"];
    assert_eq!(container["f:args"], json!({}), "an atomic list");
    assert_eq!(
        container["f:env"],
        json!({"k:{\"name\":\"E\"}": {".": {}, "f:name": {}, "f:value": {}}}),
        "a list with a key"
    );
    let port = "k:{\"containerPort\":80,\"protocol\":\"TCP\"}";
    assert!(container["f:ports"].get(port).is_some(), "a key of two, one of them a default: {container}");
    assert_eq!(fields["f:spec"]["f:template"]["f:metadata"]["f:labels"], json!({"f:a": {}}), "a map");

    let other = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {template: {spec: {nodeSelector: {o: p}, \
        containers: [{name: c, args: [w], env: [{name: F, value: w}]}]}}}}";
    let a = apply(&c, &path, "two", other).await;
    let at = ".spec.template.spec";
    let args = format!("{at}.containers[name=\"c\"].args");
    assert_eq!(conflicts(&a), [conflict(&args, "\"one\""), conflict(&format!("{at}.nodeSelector"), "\"one\"")]);
    let o = forced(&c, &path, "two", other).await;
    let c = &o["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(c["args"], json!(["w"]), "replaced whole");
    assert_eq!(c["env"], json!([{"name": "E", "value": "v"}, {"name": "F", "value": "w"}]), "merged");
    assert_eq!(o["spec"]["template"]["spec"]["nodeSelector"], json!({"o": "p"}), "replaced whole");
}

/// Keys and members of sets are there once. Clauses: S06.duplicates
#[tokio::test]
async fn duplicates_are_refused() {
    let c = Cluster::start(1).await;
    let path = format!("{SERVICES}/s");
    let ports = "{apiVersion: v1, kind: Service, metadata: {name: s}, spec: {ports: [{name: a, port: 80}, {name: b, port: 80, protocol: TCP}]}}";
    let finalizers = "{apiVersion: v1, kind: Service, metadata: {name: s, finalizers: [x.io/a, x.io/a]}, spec: {ports: [{port: 80}]}}";
    for (config, what) in [(ports, "[port=80,protocol=\"TCP\"]"), (finalizers, "[=\"x.io/a\"]")] {
        let a = apply(&c, &path, "one", config).await;
        let message = a.body["message"].as_str().unwrap();
        assert!(a.code == 400 && message.contains(&format!("duplicate entries for key {what}")), "{}", a.body);
    }
    assert_eq!(c.call("GET", &path, Value::Null).await.code, 404);
}

/// Without markers every key is a field of its own, and every list is one. Clauses: S07.unmarked
#[tokio::test]
async fn a_custom_resource_without_markers_has_atomic_lists() {
    let c = with(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})).await;
    let o = applied(&c, FOO, "one", &foo("{data: {a: {b: 1}}, list: [{name: x, v: 1}], set: [a]}")).await;
    let want = json!({"f:spec": {"f:data": {".": {}, "f:a": {".": {}, "f:b": {}}}, "f:list": {}, "f:set": {}}});
    assert_eq!(owned(&o, "one"), want);
    let o = applied(&c, FOO, "two", &foo("{data: {a: {c: 1}}}")).await;
    assert_eq!(o["spec"]["data"], json!({"a": {"b": 1, "c": 1}}));
    let a = apply(&c, FOO, "two", &foo("{list: [{name: z, v: 1}], set: [b]}")).await;
    assert_eq!(conflicts(&a), [conflict(".spec.list", "\"one\""), conflict(".spec.set", "\"one\"")]);
    assert_eq!(forced(&c, FOO, "two", &foo("{list: [{name: z}]}")).await["spec"]["list"], json!([{"name": "z"}]));
}

/// With markers it is merged by them. Clauses: S06.list-type, S06.map-type, S07.marked
#[tokio::test]
async fn a_custom_resource_with_markers_is_merged_by_them() {
    let item = json!({"type": "object", "required": ["name"], "properties": {
        "name": {"type": "string"}, "proto": {"type": "string", "default": "TCP"}, "v": {"type": "integer"}}});
    let text = json!({"type": "string"});
    let c = with(json!({"type": "object", "properties": {
        "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name", "proto"], "items": item},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": text},
        "one": {"type": "array", "x-kubernetes-list-type": "atomic", "items": text},
        "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": text},
        "struct": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": text, "b": text}},
        "parts": {"type": "object", "x-kubernetes-map-type": "granular", "additionalProperties": text}}}))
    .await;
    let o = applied(
        &c,
        FOO,
        "one",
        &foo("{map: [{name: x, v: 1}], set: [a], one: [a], whole: {a: b}, struct: {a: b}, parts: {a: b}}"),
    )
    .await;
    let of_x = json!({".": {}, "f:name": {}, "f:v": {}});
    let want = json!({"f:map": {"k:{\"name\":\"x\",\"proto\":\"TCP\"}": of_x}, "f:set": {"v:\"a\"": {}}, "f:one": {}, "f:whole": {},
        "f:struct": {}, "f:parts": {"f:a": {}}});
    assert_eq!(owned(&o, "one")["f:spec"], want);
    let a = apply(
        &c,
        FOO,
        "two",
        &foo("{map: [{name: z}, {name: x, v: 2}], set: [b], one: [b], whole: {c: d}, struct: {b: d}, parts: {c: d}}"),
    )
    .await;
    let item = ".spec.map[name=\"x\",proto=\"TCP\"].v";
    let want = [item, ".spec.one", ".spec.struct", ".spec.whole"].map(|f| conflict(f, "\"one\""));
    assert_eq!(conflicts(&a), want);
    let o = applied(&c, FOO, "two", &foo("{map: [{name: z}, {name: x, proto: UDP}], set: [b], parts: {c: d}}")).await;
    let names: Vec<(&str, &str)> = o["spec"]["map"]
        .as_array()
        .unwrap()
        .iter()
        .map(|i| (i["name"].as_str().unwrap(), i["proto"].as_str().unwrap()))
        .collect();
    assert_eq!(names, [("x", "TCP"), ("z", "TCP"), ("x", "UDP")]);
    assert_eq!((&o["spec"]["set"], &o["spec"]["parts"]), (&json!(["a", "b"]), &json!({"a": "b", "c": "d"})));
    let o = applied(&c, FOO, "one", &foo("{set: [c]}")).await;
    assert_eq!(
        o["spec"],
        json!({"map": [{"name": "z", "proto": "TCP"}, {"name": "x", "proto": "UDP"}], "set": ["b", "c"], "parts": {"c": "d"}})
    );
    let twice = apply(&c, FOO, "one", &foo("{set: [c, c]}")).await;
    assert!(
        twice.code == 400 && twice.body["message"].as_str().unwrap().contains("duplicate entries"),
        "{}",
        twice.body
    );
}

fn data(kind: &str) -> Value {
    json!({"type": "object", "properties": {"data": {"type": "object", "x-kubernetes-map-type": kind,
        "additionalProperties": {"type": "string"}}}})
}

async fn change(c: &Cluster, kind: &str) {
    let path = format!("{DEFINITIONS}/foos.example.com");
    let op = json!([{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec", "value": data(kind)}]);
    written(c, "PATCH", &path, JSON_PATCH, &op).await;
    published(c, |s| s["properties"]["data"]["x-kubernetes-map-type"] == *kind).await;
}

const SAMPLE: &str = "{data: {key1: val1, key2: val2}}";

/// From one to many: who owned the whole owns the field, but no key in it, so that another may change or remove one without a
/// conflict. Clauses: S07.atomic-to-granular
#[tokio::test]
async fn an_atomic_map_that_becomes_granular() {
    let c = with(data("atomic")).await;
    let o = applied(&c, FOO, "manager-one", &foo(SAMPLE)).await;
    assert_eq!(owned(&o, "manager-one"), json!({"f:spec": {"f:data": {}}}));
    let a = apply(&c, FOO, "two", &foo("{data: {key1: other, key2: val2}}")).await;
    assert_eq!(conflicts(&a), [conflict(".spec.data", "\"manager-one\"")]);
    change(&c, "granular").await;
    let o = applied(&c, FOO, "two", &foo("{data: {key1: other}}")).await;
    assert_eq!(o["spec"]["data"], json!({"key1": "other", "key2": "val2"}), "no conflict any more");
    assert_eq!(owned(&o, "manager-one"), json!({"f:spec": {"f:data": {}}}), "still the field as such");
    assert_eq!(owned(&o, "two"), json!({"f:spec": {"f:data": {"f:key1": {}}}}));
    let o =
        written(&c, "PATCH", &format!("{FOO}?fieldManager=three"), MERGE, &json!({"spec": {"data": {"key2": null}}}))
            .await;
    assert_eq!(o["spec"]["data"], json!({"key1": "other"}));
}

/// From many to one: who owned a part owns the whole, and any change is a conflict with all of them.
/// Clauses: S07.granular-to-atomic
#[tokio::test]
async fn a_granular_map_that_becomes_atomic() {
    let c = with(data("granular")).await;
    applied(&c, FOO, "one", &foo("{data: {key1: val1}}")).await;
    let o = applied(&c, FOO, "two", &foo("{data: {key2: val2}}")).await;
    assert_eq!(owned(&o, "one"), json!({"f:spec": {"f:data": {"f:key1": {}}}}));
    change(&c, "atomic").await;
    let a = apply(&c, FOO, "three", &foo("{data: {key3: val3}}")).await;
    assert_eq!(conflicts(&a), [conflict(".spec.data", "\"one\""), conflict(".spec.data", "\"two\"")]);
    let a = apply(&c, FOO, "two", &foo("{data: {key2: changed}}")).await;
    assert_eq!(conflicts(&a), [conflict(".spec.data", "\"one\"")]);
    let o = forced(&c, FOO, "three", &foo("{data: {key3: val3}}")).await;
    assert_eq!(
        (&o["spec"]["data"], managers(&o)),
        (&json!({"key3": "val3"}), vec!["three Apply example.com/v1".to_owned()])
    );
}
