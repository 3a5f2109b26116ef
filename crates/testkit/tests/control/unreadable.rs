//! A namespace with an unreadable object reports it, and is deleted after the object is deleted without being decoded.

use super::harness::Plane;
use client::DeleteOptions;
use meta::Value;
use meta::depth::READ;
use serde_json::json;
use store::{Action, Expect, Key, Op};

#[tokio::test(start_paused = true)]
async fn a_namespace_reports_the_objects_that_block_its_deletion() {
    let p = Plane::start().await;
    p.create("namespaces", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})).await;
    let maps = p.client.dynamic(p.api("configmaps").resource()).namespace("team");
    p.until("the root CA", async || maps.get_opt("kube-root-ca.crt").await.unwrap()).await;
    // Deeper than anything that is written.
    let data = format!("{}{}", "[".repeat(READ), "]".repeat(READ));
    let metadata = r#"{"name":"broken","namespace":"team","uid":"u"}"#;
    let text = format!(r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{metadata},"data":{data}}}"#);
    let key = Key::new("configmaps", "team", "broken");
    let op = Op { key, expect: Expect::Absent, action: Action::Put(text.into()) };
    p.cluster.server.registry.store.commit(vec![op]).await.unwrap();
    p.api("namespaces").delete("team", &DeleteOptions::default()).await.unwrap();
    let message = p
        .until("the condition", async || {
            let ns = p.api("namespaces").get("team").await.unwrap();
            let all = ns.at(&["status", "conditions"])?.as_array()?.clone();
            let c =
                all.into_iter().find(|c| c["type"] == "NamespaceDeletionContentFailure" && c["status"] == "True")?;
            Some(c["message"].as_str()?.to_owned())
        })
        .await;
    assert!(message.contains("unable to read configmaps/team/broken: "), "{message}");
    let option = "ignoreStoreReadErrorWithClusterBreakingPotential=true";
    assert!(message.contains(option), "{message}");
    let others = maps.get_opt("kube-root-ca.crt").await.unwrap();
    assert!(others.is_none_or(|o| o.is_deleting()), "what can be read is deleted");
    let path = format!("/api/v1/namespaces/team/configmaps/broken?{option}");
    assert_eq!(p.cluster.call("DELETE", &path, Value::Null).await.code, 200);
    p.until("the namespace to go", async || p.api("namespaces").get_opt("team").await.unwrap().is_none().then_some(()))
        .await;
}
