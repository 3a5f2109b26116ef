//! Content negotiation: requested representations, and what is not acceptable.

use crate::stream::Watch;
use bytes::Bytes;
use serde_json::json;
use testkit::{Answer, Cluster};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const ONE: &str = "/api/v1/namespaces/default/configmaps/m";

async fn get(c: &Cluster, path: &str, accept: &str) -> Answer {
    c.send("GET", path, None, accept, Bytes::new()).await
}

fn metadata(shape: &str, version: &str) -> String {
    format!("application/json;as={shape};v={version};g=meta.k8s.io")
}

async fn cluster() -> Cluster {
    let c = Cluster::start(1).await;
    assert_eq!(c.call("POST", MAPS, json!({"metadata": {"name": "m"}})).await.code, 201);
    c
}

async fn refused(c: &Cluster, path: &str, accept: &str, why: &str) {
    let a = get(c, path, accept).await;
    let message = a.body["message"].as_str().unwrap_or_default();
    assert!(a.code == 406 && a.body["reason"] == "NotAcceptable" && message == why, "{path} {accept}: {:?}", a.body);
}

#[tokio::test]
async fn one_object_is_no_list_of_metadata_and_a_list_no_object() {
    let c = cluster().await;
    let (one, list) = (metadata("PartialObjectMetadata", "v1"), metadata("PartialObjectMetadataList", "v1"));
    let asked =
        |what: &str, is: &str, name: &str| format!("you requested {what}, but the requested object is {is} ({name})");
    for (path, name) in [
        (MAPS, "*core.ConfigMapList"),
        ("/apis/rbac.authorization.k8s.io/v1/clusterroles", "*rbac.ClusterRoleList"),
        ("/apis/events.k8s.io/v1/events", "*core.EventList"),
        ("/apis/apps/v1/deployments", "*apps.DeploymentList"),
    ] {
        refused(&c, path, &one, &asked("PartialObjectMetadata", "a list", name)).await;
        assert_eq!(get(&c, path, &list).await.body["kind"], "PartialObjectMetadataList");
    }
    refused(&c, ONE, &list, &asked("PartialObjectMetadataList", "not a list", "*core.ConfigMap")).await;
    assert_eq!(get(&c, ONE, &one).await.body["kind"], "PartialObjectMetadata");
    // What is written is written, whether it can be shown or not.
    let body = json!({"metadata": {"name": "n"}}).to_string();
    let a = c.send("POST", MAPS, Some("application/json"), &list, body.into()).await;
    assert_eq!((a.code, &a.body["reason"]), (406, &json!("NotAcceptable")));
    assert_eq!(get(&c, &format!("{MAPS}/n"), "application/json").await.code, 200);
    // A status is one whatever was asked for.
    let a = c.send("DELETE", &format!("{MAPS}/n"), None, &list, Bytes::new()).await;
    assert_eq!((a.code, &a.body["kind"]), (200, &json!("Status")));
}

#[tokio::test]
async fn shapes_have_two_versions_and_a_group() {
    let c = cluster().await;
    let none = "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf";
    for accept in [
        "application/json;as=Table;v=v2;g=meta.k8s.io",
        "application/json;as=Table;v=v1",
        "application/json;as=Table;v=v1;g=apps",
        "application/json;as=Widget;v=v1;g=meta.k8s.io",
        "application/json;v=v1;g=meta.k8s.io",
        "application/json;g=meta.k8s.io",
        "application/json;stream=lines",
        "application/json;sv=v2",
        "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io",
    ] {
        refused(&c, MAPS, accept, none).await;
        refused(&c, ONE, accept, none).await;
        assert_eq!(get(&c, MAPS, &format!("{accept}, application/json")).await.body["kind"], "ConfigMapList");
    }
    // Routes of built-in resources know media types only by name.
    let routed = "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, application/vnd.kubernetes.protobuf";
    let streams = "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";
    for accept in ["text/html", "application/*"] {
        refused(&c, ONE, accept, routed).await;
        refused(&c, MAPS, accept, &format!("{routed}, {streams}")).await;
        refused(&c, "/api/v1", accept, routed).await;
    }
    refused(&c, "/apis/apps", "text/html", none).await;
    refused(&c, "/apis", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList", none).await;
    let a = get(&c, &format!("{MAPS}?watch=1"), "application/yaml").await;
    let text = a.body.as_str().unwrap_or_default();
    assert!(a.code == 406 && text.contains("media types are accepted: application/json;stream=watch"), "{text}");
    assert_eq!(c.call("HEAD", ONE, serde_json::Value::Null).await.code, 405);
    for (version, api_version) in [("v1", "meta.k8s.io/v1"), ("v1beta1", "meta.k8s.io/v1beta1")] {
        let table = get(&c, MAPS, &metadata("Table", version)).await.body;
        let row = &table["rows"][0]["object"];
        assert_eq!([&table["kind"], &table["apiVersion"], &row["apiVersion"]], ["Table", api_version, api_version]);
        let list = get(&c, MAPS, &metadata("PartialObjectMetadataList", version)).await.body;
        assert_eq!([&list["apiVersion"], &list["items"][0]["apiVersion"]], [api_version, api_version]);
        assert_eq!(get(&c, ONE, &metadata("PartialObjectMetadata", version)).await.body["apiVersion"], api_version);
        let accept = metadata("PartialObjectMetadata", version);
        let mut watch = Watch::start(&c, &format!("{MAPS}?watch=1"), &accept).await.unwrap();
        assert_eq!(watch.event().await.1["apiVersion"], api_version);
    }
    // What weighs more is taken, and of two that weigh the same what says more.
    for (accept, kind) in [
        ("application/json;q=0.5,application/json;as=Table;v=v1;g=meta.k8s.io;q=0.9", "Table"),
        ("*/*,application/json;as=Table;v=v1;g=meta.k8s.io", "Table"),
    ] {
        assert_eq!(get(&c, MAPS, accept).await.body["kind"], kind);
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_of_lists_ends_at_the_first_object() {
    let c = cluster().await;
    let accept = metadata("PartialObjectMetadataList", "v1");
    let mut watch = Watch::start(&c, &format!("{MAPS}?watch=1"), &accept).await.unwrap();
    assert_eq!(watch.next().await, None);
}
