//! Objects and requests of the documentation.

use super::*;

/// The configuration of the first example, as it would be applied: what the server writes of it is not in it.
const TEST_CM: &str = "\
apiVersion: v1
kind: ConfigMap
metadata:
  name: test-cm
  namespace: default
  labels:
    test-label: test
data:
  key: some value
";

/// The same with the entry that the server has made of it.
const WITH_MANAGED_FIELDS: &str = r#"---
apiVersion: v1
kind: ConfigMap
metadata:
  name: test-cm
  namespace: default
  labels:
    test-label: test
  managedFields:
  - manager: kubectl
    operation: Apply # note capitalization: "Apply" (or "Update")
    apiVersion: v1
    time: "2010-10-10T0:00:00Z"
    fieldsType: FieldsV1
    fieldsV1:
      f:metadata:
        f:labels:
          f:test-label: {}
      f:data:
        f:key: {}
data:
  key: some value
"#;

/// An object that was applied shows one entry: who, by which operation, through which version, when, and exactly the fields of
/// the configuration. Clauses: S01.create, S01.yaml, S02.apply-entry
#[tokio::test]
async fn the_first_example_has_the_documented_managed_fields() {
    let c = Cluster::start(1).await;
    let path = format!("{MAPS}/test-cm");
    let a = apply(&c, &path, "kubectl", TEST_CM).await;
    assert_eq!(a.code, 201, "{}", a.body);
    let want = json!([{"manager": "kubectl", "operation": "Apply", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {"f:test-label": {}}}, "f:data": {"f:key": {}}}}]);
    assert_eq!(a.body["metadata"]["managedFields"], want);
    assert_eq!(
        (&a.body["data"], &a.body["metadata"]["labels"]),
        (&json!({"key": "some value"}), &json!({"test-label": "test"}))
    );
    assert_eq!(read(&c, &path).await, a.body);
}

/// What the server keeps is not for clients to apply. Clauses: S01.managed-fields-refused
#[tokio::test]
async fn a_configuration_with_managed_fields_is_rejected() {
    let c = Cluster::start(1).await;
    let path = format!("{MAPS}/test-cm");
    let a = apply(&c, &path, "kubectl", WITH_MANAGED_FIELDS).await;
    assert_eq!((a.code, &a.body["message"]), (400, &json!("metadata.managedFields must be nil")), "{}", a.body);
    assert_eq!(c.call("GET", &path, Value::Null).await.code, 404, "nothing was written");
    applied(&c, &path, "kubectl", TEST_CM).await;
    let before = read(&c, &path).await;
    assert_eq!(apply(&c, &path, "kubectl", WITH_MANAGED_FIELDS).await.code, 400);
    assert_eq!(read(&c, &path).await, before);
}

/// The example of a body: JSON is YAML, and a configuration without fields changes nothing. Clauses: S01.json, S01.empty
#[tokio::test]
async fn the_smallest_body_changes_nothing() {
    let c = Cluster::start(1).await;
    let path = format!("{MAPS}/test-cm");
    let live = applied(&c, &path, "kubectl", TEST_CM).await;
    let body = "{\n  \"apiVersion\": \"v1\",\n  \"kind\": \"ConfigMap\"\n}\n";
    let a = apply(&c, &path, "somebody", body).await;
    assert_eq!((a.code, &a.body), (200, &live), "nobody owns nothing");
}

/// Applying needs to be told for whom. Other writes do not: they have the user agent. Clauses: S01.field-manager, S02.user-agent
#[tokio::test]
async fn apply_needs_a_field_manager() {
    let c = Cluster::start(1).await;
    let path = format!("{MAPS}/test-cm");
    let a = send(&c, "PATCH", &path, APPLY, TEST_CM).await;
    let cause = &a.body["details"]["causes"][0];
    assert_eq!(
        (a.code, &cause["field"], &cause["reason"]),
        (422, &json!("fieldManager"), &json!("FieldValueRequired"))
    );
    assert!(a.body["message"].as_str().unwrap().contains("is required for apply patch"), "{}", a.body);
    assert_eq!(c.call("GET", &path, Value::Null).await.code, 404);

    // The tests' user agent is `corpus/1`.
    let o = written(&c, "POST", MAPS, "application/json", &json!({"metadata": {"name": "posted"}, "data": {"a": "1"}}))
        .await;
    assert_eq!(managers(&o), ["corpus Update v1"]);
    let long = "m".repeat(129);
    assert_eq!(apply(&c, &path, &long, TEST_CM).await.code, 422);
    assert_eq!(apply(&c, &path, "a%0Ab", TEST_CM).await.code, 422, "only what can be printed");
}

/// A whole intent that makes no valid object fails, and leaves everything as it was. Clauses: S01.invalid
#[tokio::test]
async fn an_invalid_result_is_rejected() {
    let c = Cluster::start(1).await;
    let path = format!("{DEPLOYMENTS}/nginx-deployment");
    let partial = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: nginx-deployment}, spec: {replicas: 3}}";
    let a = apply(&c, &path, "kubectl", partial).await;
    assert_eq!((a.code, &a.body["reason"]), (422, &json!("Invalid")));
    let fields: Vec<&str> =
        a.body["details"]["causes"].as_array().unwrap().iter().filter_map(|c| c["field"].as_str()).collect();
    assert!(fields.contains(&"spec.selector") && fields.contains(&"spec.template.spec.containers"), "{fields:?}");
    assert_eq!(c.call("GET", &path, Value::Null).await.code, 404);
    let other = "{apiVersion: v1, kind: ConfigMap, metadata: {name: other}}";
    assert_eq!(apply(&c, &format!("{MAPS}/m"), "a", other).await.code, 400, "the name of the path");
    let unknown = "{apiVersion: v1, kind: ConfigMap, metadata: {name: m}, dat: {a: b}}";
    let a = apply(&c, &format!("{MAPS}/m"), "a", unknown).await;
    assert!(
        a.code == 400 && a.body["message"].as_str().unwrap().contains("field not declared in schema"),
        "{}",
        a.body
    );
}
