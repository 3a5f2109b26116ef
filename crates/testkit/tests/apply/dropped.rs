//! Fields that are removed from a configuration.

use super::*;

/// It goes, unless somebody else owns it. Clauses: S04.removed, S04.owned-by-another
#[tokio::test]
async fn a_dropped_field_goes_unless_another_owns_it() {
    let c = Cluster::start(1).await;
    let path = format!("{MAPS}/m");
    let labelled = |labels: &str, data: &str| {
        format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: m, labels: {{{labels}}}}}, data: {{{data}}}}}")
    };
    applied(&c, &path, "one", &labelled("x: v, z: w", "a: '1', b: '1', c: '1'")).await;
    applied(&c, &path, "two", &map("b: '1'")).await;
    let o = applied(&c, &path, "one", &labelled("x: v", "c: '1'")).await;
    assert_eq!(o["data"], json!({"b": "1", "c": "1"}), "a went, b is two's");
    assert_eq!(o["metadata"]["labels"], json!({"x": "v"}));
    assert_eq!(owned(&o, "one"), json!({"f:metadata": {"f:labels": {"f:x": {}}}, "f:data": {"f:c": {}}}));
    let o = applied(&c, &path, "two", "{apiVersion: v1, kind: ConfigMap}").await;
    assert_eq!((&o["data"], managers(&o)), (&json!({"c": "1"}), vec!["one Apply v1".to_owned()]));
    // What was never applied is nobody's to drop.
    written(&c, "PATCH", &format!("{path}?fieldManager=three"), MERGE, &json!({"data": {"d": "1"}})).await;
    let o = applied(&c, &path, "one", "{apiVersion: v1, kind: ConfigMap}").await;
    assert_eq!((&o["data"], o["metadata"].get("labels")), (&json!({"d": "1"}), None));
}

/// A field with a default has it again. Clauses: S04.default
#[tokio::test]
async fn a_dropped_field_is_its_default_again() {
    let c = Cluster::start(1).await;
    let path = format!("{DEPLOYMENTS}/d");
    let with = |replicas: &str, more: &str| {
        format!(
            "{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: d}}, spec: {{{replicas} selector: {{matchLabels: {{a: b}}}}, \
            template: {{metadata: {{labels: {{a: b}}}}, spec: {{{more} containers: [{{name: c, image: i}}]}}}}}}}}"
        )
    };
    let o = applied(&c, &path, "user", &with("replicas: 3,", "restartPolicy: Always, dnsPolicy: Default,")).await;
    assert_eq!((&o["spec"]["replicas"], &o["spec"]["template"]["spec"]["dnsPolicy"]), (&json!(3), &json!("Default")));
    let o = applied(&c, &path, "user", &with("", "")).await;
    assert_eq!(
        (&o["spec"]["replicas"], &o["spec"]["template"]["spec"]["dnsPolicy"]),
        (&json!(1), &json!("ClusterFirst"))
    );
    assert!(owned(&o, "user")["f:spec"].get("f:replicas").is_none(), "a default is nobody's");
}

/// Items of associative lists and of sets, by their keys; keys with defaults too. Clauses: S04.list-items, S06.keys-with-defaults
#[tokio::test]
async fn dropped_items_go_and_those_of_others_stay() {
    let c = Cluster::start(1).await;
    let path = format!("{SERVICES}/s");
    let with = |ports: &str| {
        format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: s, finalizers: [x.io/a, x.io/b]}}, spec: {{ports: [{ports}]}}}}"
        )
    };
    let o = applied(&c, &path, "one", &with("{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}")).await;
    let ports = &owned(&o, "one")["f:spec"]["f:ports"];
    assert!(ports.get("k:{\"port\":80,\"protocol\":\"TCP\"}").is_some(), "the default is part of the key: {ports}");
    let tls = "{apiVersion: v1, kind: Service, metadata: {name: s, finalizers: [x.io/b, x.io/c]}, spec: {ports: [{name: tls, port: 443}]}}";
    applied(&c, &path, "two", tls).await;
    let o = applied(
        &c,
        &path,
        "one",
        "{apiVersion: v1, kind: Service, metadata: {name: s}, spec: {ports: [{name: http, port: 80}]}}",
    )
    .await;
    let names: Vec<&str> = o["spec"]["ports"].as_array().unwrap().iter().filter_map(|p| p["name"].as_str()).collect();
    assert_eq!(names, ["http", "tls"]);
    assert_eq!(o["metadata"]["finalizers"], json!(["x.io/b", "x.io/c"]), "a set: two's stay");
    let again = "{apiVersion: v1, kind: Service, metadata: {name: s}, spec: {ports: [{name: other, port: 443, protocol: TCP}]}}";
    let a = apply(&c, &path, "three", again).await;
    assert_eq!(conflicts(&a), [conflict(".spec.ports[port=443,protocol=\"TCP\"].name", "\"two\"")]);
}
