//! Tokens in secrets and bootstrap tokens.

use super::harness::Plane;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::Request;
use meta::Value;
use serde_json::json;
use std::time::Duration;

const SECRETS: &str = "/api/v1/namespaces/default/secrets";

async fn get(p: &Plane, path: &str) -> (u16, Value) {
    let a = p.cluster.call("GET", path, Value::Null).await;
    (a.code, a.body)
}

fn data(o: &Value, key: &str) -> Option<String> {
    String::from_utf8(STANDARD.decode(o["data"][key].as_str()?).ok()?).ok()
}

/// What the holder of a token is told, who may do nothing: 403 for somebody who is known.
async fn knock(p: &Plane, token: &str) -> u16 {
    let r = Request::get("/api/v1/nodes").header("authorization", format!("Bearer {token}"));
    p.cluster.server.handle(r.body(Bytes::new()).unwrap()).await.status().as_u16()
}

/// Clauses: C14.token-secrets
#[tokio::test(start_paused = true)]
async fn token_secrets_are_filled_and_deleted_with_their_account() {
    let p = Plane::start().await;
    let secret = |name: &str, account: &str| {
        let annotations = json!({"kubernetes.io/service-account.name": account});
        json!({"metadata": {"name": name, "annotations": annotations}, "type": "kubernetes.io/service-account-token"})
    };
    assert_eq!(p.cluster.call("POST", SECRETS, secret("s", "default")).await.code, 201);
    let path = format!("{SECRETS}/s");
    let filled = p
        .until("the token", async || {
            let (_, o) = get(&p, &path).await;
            data(&o, "token").map(|_| o)
        })
        .await;
    assert_eq!(
        (data(&filled, "namespace").as_deref(), data(&filled, "ca.crt").as_deref()),
        (Some("default"), Some("PEM"))
    );
    let (_, account) = get(&p, "/api/v1/namespaces/default/serviceaccounts/default").await;
    assert_eq!(filled["metadata"]["annotations"]["kubernetes.io/service-account.uid"], account["metadata"]["uid"]);
    let token = data(&filled, "token").unwrap();
    assert_eq!(knock(&p, &token).await, 403, "somebody who is known");
    p.until("the day it was used", async || {
        let (_, o) = get(&p, &path).await;
        (o["metadata"]["labels"]["kubernetes.io/legacy-token-last-used"] == "2026-01-01").then_some(())
    })
    .await;
    // One that is marked is no good, nor is one whose secret is another.
    let mark = json!({"metadata": {"labels": {"kubernetes.io/legacy-token-invalid-since": "2026-01-01"}}});
    let body = Bytes::from(mark.to_string());
    let merge = Some("application/merge-patch+json");
    assert_eq!(p.cluster.send("PATCH", &path, merge, "application/json", body).await.code, 200);
    assert_eq!(knock(&p, &token).await, 401);
    assert_eq!(p.cluster.call("DELETE", &path, Value::Null).await.code, 200);
    assert_eq!(knock(&p, &token).await, 401);
    // It goes with its account; one of no account does not stay.
    assert_eq!(p.cluster.call("POST", SECRETS, secret("s", "other")).await.code, 201);
    p.until("the secret of nobody to go", async || (get(&p, &path).await.0 == 404).then_some(())).await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    assert_eq!(p.cluster.call("POST", accounts, json!({"metadata": {"name": "other"}})).await.code, 201);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(p.cluster.call("POST", SECRETS, secret("s", "other")).await.code, 201);
    p.until("the token", async || data(&get(&p, &path).await.1, "token")).await;
    assert_eq!(p.cluster.call("DELETE", &format!("{accounts}/other"), Value::Null).await.code, 200);
    p.until("the secret to go", async || (get(&p, &path).await.0 == 404).then_some(())).await;
}

/// Clauses: C14.bootstrap-signer
#[tokio::test(start_paused = true)]
async fn bootstrap_tokens_sign_and_expire() {
    let p = Plane::start().await;
    p.cluster.call("POST", "/api/v1/namespaces", json!({"metadata": {"name": "kube-public"}})).await;
    let maps = "/api/v1/namespaces/kube-public/configmaps";
    let info = json!({"metadata": {"name": "cluster-info"}, "data": {"kubeconfig": "k"}});
    assert_eq!(p.cluster.call("POST", maps, info).await.code, 201);
    let secrets = "/api/v1/namespaces/kube-system/secrets";
    let secret = |id: &str, signs: &str, ends: &str| {
        let data = json!({"token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-signing": signs, "expiration": ends});
        json!({"metadata": {"name": format!("bootstrap-token-{id}")}, "type": "bootstrap.kubernetes.io/token", "stringData": data})
    };
    for (id, signs, ends) in [("aaaaaa", "true", "2026-01-01T00:30:00Z"), ("bbbbbb", "false", "2027-01-01T00:00:00Z")] {
        assert_eq!(p.cluster.call("POST", secrets, secret(id, signs, ends)).await.code, 201);
    }
    let path = format!("{maps}/cluster-info");
    let signatures = async || {
        let (_, o) = get(&p, &path).await;
        let keys = o["data"].as_object().unwrap().keys().filter_map(|k| k.strip_prefix("jws-kubeconfig-"));
        keys.map(str::to_owned).collect::<Vec<_>>()
    };
    p.until("the signature", async || (signatures().await == ["aaaaaa"]).then_some(())).await;
    // What was signed has changed: the signature does as well.
    let before = get(&p, &path).await.1["data"]["jws-kubeconfig-aaaaaa"].clone();
    let merge = Some("application/merge-patch+json");
    let body = Bytes::from(json!({"data": {"kubeconfig": "other"}}).to_string());
    assert_eq!(p.cluster.send("PATCH", &path, merge, "application/json", body).await.code, 200);
    p.until("another signature", async || {
        (get(&p, &path).await.1["data"]["jws-kubeconfig-aaaaaa"] != before).then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_secs(1800)).await;
    p.until("the token to go, and its signature", async || {
        let gone = get(&p, &format!("{secrets}/bootstrap-token-aaaaaa")).await.0 == 404;
        (gone && signatures().await.is_empty()).then_some(())
    })
    .await;
    assert_eq!(get(&p, &format!("{secrets}/bootstrap-token-bbbbbb")).await.0, 200);
}
