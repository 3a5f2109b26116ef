//! Manifests in another version of the same kind.

use super::*;

const V1: &str = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers/h";
const V2: &str = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers/h";
const TARGET: &str = "scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: d}";

fn v1(spec: &str) -> String {
    format!(
        "{{apiVersion: autoscaling/v1, kind: HorizontalPodAutoscaler, metadata: {{name: h}}, spec: {{{TARGET}, {spec}}}}}"
    )
}

fn v2(spec: &str) -> String {
    format!(
        "{{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {{name: h}}, spec: {{{TARGET}, {spec}}}}}"
    )
}

/// One manager goes from one version to the other: it meets no conflict with itself, what it drops goes, and its entry is of the
/// version it came by last. Clauses: S12.same-manager, S12.dropped
#[tokio::test]
async fn a_manager_changes_the_version() {
    let c = Cluster::start(1).await;
    let o = applied(&c, V1, "one", &v1("minReplicas: 2, maxReplicas: 5, targetCPUUtilizationPercentage: 50")).await;
    assert_eq!(managers(&o), ["one Apply autoscaling/v1"]);
    let cpu = |n: u32| {
        format!(
            "metrics: [{{type: Resource, resource: {{name: cpu, target: {{type: Utilization, averageUtilization: {n}}}}}}}]"
        )
    };
    let o = applied(&c, V2, "one", &v2(&format!("maxReplicas: 6, {}", cpu(60)))).await;
    assert_eq!(managers(&o), ["one Apply autoscaling/v2"]);
    assert_eq!(
        (&o["spec"]["maxReplicas"], &o["spec"]["minReplicas"]),
        (&json!(6), &json!(1)),
        "dropped, and its default again"
    );
    assert_eq!(o["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 60);
    let o = read(&c, V1).await;
    assert_eq!(o["spec"]["targetCPUUtilizationPercentage"], 60);
    let o = applied(&c, V1, "one", &v1("maxReplicas: 6, targetCPUUtilizationPercentage: 60")).await;
    assert_eq!(managers(&o), ["one Apply autoscaling/v1"]);
}

/// Managers of different versions share, keep and contest fields as if there were one. Clauses: S12.other-manager, S12.conflict
#[tokio::test]
async fn managers_of_different_versions_meet() {
    let c = Cluster::start(1).await;
    applied(&c, V1, "one", &v1("maxReplicas: 5")).await;
    let o = applied(&c, V2, "two", &v2("maxReplicas: 5, minReplicas: 3")).await;
    assert_eq!(managers(&o), ["one Apply autoscaling/v1", "two Apply autoscaling/v2"]);
    let a = apply(&c, V2, "two", &v2("maxReplicas: 7, minReplicas: 3")).await;
    assert_eq!(conflicts(&a), [conflict(".spec.maxReplicas", "\"one\"")]);
    let a = apply(&c, V1, "one", &v1("maxReplicas: 5, minReplicas: 4")).await;
    assert_eq!(conflicts(&a), [conflict(".spec.minReplicas", "\"two\"")]);
    let o = applied(&c, V2, "two", &v2("minReplicas: 3")).await;
    assert_eq!(o["spec"]["maxReplicas"], 5, "one still owns it");
    let o = forced(&c, V2, "three", &v2("maxReplicas: 8")).await;
    assert_eq!(o["spec"]["maxReplicas"], 8);
    assert!(owned(&o, "one")["f:spec"].get("f:maxReplicas").is_none(), "{}", o["metadata"]["managedFields"]);
}

/// The version of the configuration is that of the path. Clauses: S12.version-of-the-path
#[tokio::test]
async fn a_configuration_of_another_version_than_the_path_is_refused() {
    let c = Cluster::start(1).await;
    let a = apply(&c, V1, "one", &v2("maxReplicas: 5")).await;
    let message = "invalid object type: autoscaling/v2, Kind=HorizontalPodAutoscaler";
    assert_eq!((a.code, &a.body["message"]), (400, &json!(message)), "{}", a.body);
}

/// A version of a custom resource that is served no more is one by which nobody owns anything, as upstream has it; the others
/// go on. Clauses: S12.version-gone
#[tokio::test]
async fn a_removed_version_owns_nothing() {
    let c = Cluster::start(1).await;
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object",
        "additionalProperties": {"type": "string"}}}}});
    let version =
        |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage, "schema": schema});
    let definition = json!({"metadata": {"name": "foos.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "foos", "singular": "foo", "kind": "Foo"}, "versions": [version("v1", true), version("v1alpha1", false)]}});
    const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    written(&c, "POST", DEFINITIONS, "application/json", &definition).await;
    let path = |v: &str| format!("/apis/example.com/{v}/namespaces/default/foos/f");
    let foo = |v: &str, spec: &str| {
        format!("{{apiVersion: example.com/{v}, kind: Foo, metadata: {{name: f}}, spec: {{{spec}}}}}")
    };
    let until = async |v: &str, code: u16| {
        for _ in 0..2000 {
            let a = c.call("GET", &format!("/apis/example.com/{v}/namespaces/default/foos"), Value::Null).await;
            if a.code == code {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        panic!("{v} never answered {code}");
    };
    until("v1", 200).await;
    applied(&c, &path("v1alpha1"), "old", &foo("v1alpha1", "a: '1'")).await;
    let o = applied(&c, &path("v1"), "new", &foo("v1", "b: '1'")).await;
    assert_eq!(managers(&o), ["new Apply example.com/v1", "old Apply example.com/v1alpha1"]);
    let op = json!([{"op": "replace", "path": "/spec/versions/1/served", "value": false}]);
    written(&c, "PATCH", &format!("{DEFINITIONS}/foos.example.com"), JSON_PATCH, &op).await;
    until("v1alpha1", 404).await;
    let o = applied(&c, &path("v1"), "new", &foo("v1", "a: '2', b: '1'")).await;
    assert_eq!((&o["spec"], managers(&o)), (&json!({"a": "2", "b": "1"}), vec!["new Apply example.com/v1".to_owned()]));
}
