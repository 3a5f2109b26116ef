//! Controllers that use discovery also handle custom resources.

use super::harness::Plane;
use meta::Value;
use serde_json::json;
use testkit::Cluster;

const TOYS: &str = "/apis/play.example.com/v1/namespaces";

/// A resource that cannot be listed keeps the collector from nothing. The path of this one is that of a watch.
#[tokio::test(start_paused = true)]
async fn unlistable_resources_block_no_deletion() {
    let cluster = Cluster::start(7).await;
    let definition = json!({"metadata": {"name": "watch.play.example.com"}, "spec": {"group": "play.example.com",
        "scope": "Namespaced", "names": {"plural": "watch", "kind": "Watch"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    let place = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(cluster.call("POST", place, definition).await.code, 201);
    while cluster.call("GET", "/apis/play.example.com/v1", Value::Null).await.code != 200 {
        tokio::task::yield_now().await;
    }
    let p = Plane::over(cluster).await;
    let map = |name: &str, owners: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": owners}});
    let owner = p.create("configmaps", map("owner", json!([]))).await;
    let reference = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.uid()}]);
    p.create("configmaps", map("owned", reference)).await;
    let all = "/api/v1/namespaces/default/configmaps";
    p.cluster.call("DELETE", &format!("{all}/owner"), Value::Null).await;
    let owned = format!("{all}/owned");
    p.until("the owned object to go", async || {
        (p.cluster.call("GET", &owned, Value::Null).await.code == 404).then_some(())
    })
    .await;
}

/// A custom resource goes with its owner, and with its namespace. Issue 3, item 4.
#[tokio::test(start_paused = true)]
async fn custom_resources_are_garbage_collected_and_deleted_with_their_namespace() {
    let p = Plane::start().await;
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({"metadata": {"name": "toys.play.example.com"}, "spec": {"group": "play.example.com",
        "scope": "Namespaced", "names": {"plural": "toys", "kind": "Toy"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    let place = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(p.cluster.call("POST", place, definition).await.code, 201);
    let code = async |path: &str| p.cluster.call("GET", path, Value::Null).await.code;
    let toys = |ns: &str| format!("{TOYS}/{ns}/toys");
    p.until("the resource", async || (code(&toys("default")).await == 200).then_some(())).await;
    p.cluster.call("POST", "/api/v1/namespaces", json!({"metadata": {"name": "team"}})).await;
    let owner =
        p.create("configmaps", json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}})).await;
    let toy = |owners: Value| json!({"apiVersion": "play.example.com/v1", "kind": "Toy", "metadata": {"name": "t", "ownerReferences": owners}});
    let reference = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.uid()}]);
    assert_eq!(p.cluster.call("POST", &toys("default"), toy(reference)).await.code, 201);
    assert_eq!(p.cluster.call("POST", &toys("team"), toy(json!([]))).await.code, 201);
    p.cluster.call("DELETE", "/api/v1/namespaces/default/configmaps/owner", Value::Null).await;
    let owned = format!("{}/t", toys("default"));
    p.until("the owned object to go", async || (code(&owned).await == 404).then_some(())).await;
    assert_eq!(code(&format!("{}/t", toys("team"))).await, 200, "what nobody owns stays");
    p.cluster.call("DELETE", "/api/v1/namespaces/team", Value::Null).await;
    p.until("the namespace to go", async || (code("/api/v1/namespaces/team").await == 404).then_some(())).await;
    assert_eq!(p.cluster.call("GET", &toys("team"), Value::Null).await.body["items"], json!([]));
}
