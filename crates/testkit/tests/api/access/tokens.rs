//! Service account tokens, bootstrap tokens, and authenticating proxies.

use super::{holder, open, who};
use apiserver::{FrontProxy, Peer};
use serde_json::{Value, json};
use std::time::Duration;
use testkit::{AUDIENCE, Access, Cluster};

const CORE: &str = "/api/v1/namespaces/default";

async fn token(c: &Cluster, spec: Value) -> Value {
    let a = c.call("POST", &format!("{CORE}/serviceaccounts/default/token"), json!({"spec": spec})).await;
    assert_eq!(a.code, 201, "{}", a.body);
    a.body
}

fn text(v: &Value) -> &str {
    v["status"]["token"].as_str().unwrap()
}

/// Clauses: K08.bound, C14.service-account-tokens
#[tokio::test(start_paused = true)]
async fn tokens_are_valid_while_their_bound_objects_exist() {
    let c = Cluster::start(1).await;
    open(&c).await;
    let made = c.call("POST", "/api/v1/nodes", json!({"metadata": {"name": "n"}})).await;
    assert_eq!(made.code, 201);
    let spec = json!({"nodeName": "n", "containers": [{"name": "c", "image": "i"}]});
    let pod = c.call("POST", &format!("{CORE}/pods"), json!({"metadata": {"name": "p"}, "spec": spec})).await.body;
    let t = token(&c, json!({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}})).await;
    assert_eq!(t["spec"]["audiences"], json!([AUDIENCE]));
    let (code, user) = holder(&c, text(&t)).await;
    assert_eq!((code, &user["username"]), (201, &json!("system:serviceaccount:default:default")));
    let groups = json!(["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"]);
    assert_eq!(user["groups"], groups);
    let extra = |key: &str| user["extra"][format!("authentication.kubernetes.io/{key}")][0].clone();
    assert_eq!((extra("pod-name"), extra("pod-uid")), (json!("p"), pod["metadata"]["uid"].clone()));
    assert_eq!((extra("node-name"), extra("node-uid")), (json!("n"), made.body["metadata"]["uid"].clone()));
    assert!(extra("credential-id").as_str().unwrap().starts_with("JTI="));
    // Of an hour, for the server itself, from a pod: good for longer, and says until when it should be another.
    let bound = json!({"expirationSeconds": 3607, "boundObjectRef": {"kind": "Pod", "name": "p"}});
    let long = token(&c, bound).await;
    let of_node = token(&c, json!({"boundObjectRef": {"kind": "Node", "name": "n"}})).await;
    let for_others = token(&c, json!({"audiences": ["vault"]})).await;
    assert_eq!(holder(&c, text(&of_node)).await.0, 201);
    assert_eq!(holder(&c, text(&for_others)).await.0, 401);
    let review = async |token: &str, audiences: Value| {
        let body = json!({"spec": {"token": token, "audiences": audiences}});
        c.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body).await.body["status"].clone()
    };
    let status = review(text(&for_others), json!(["vault", "x"])).await;
    assert_eq!((&status["authenticated"], &status["audiences"]), (&json!(true), &json!(["vault"])));
    let status = review(text(&for_others), json!([])).await;
    assert!(
        status["authenticated"].is_null() && status["error"].as_str().unwrap().contains("token audiences"),
        "{status}"
    );
    assert_eq!(review("nobody's", json!([])).await, json!({"user": {}, "error": "invalid bearer token"}));
    // A changed one is none.
    let other = format!("{}AAAA", &text(&t)[..text(&t).len() - 4]);
    assert_eq!(holder(&c, &other).await.0, 401);
    tokio::time::sleep(Duration::from_secs(3700)).await;
    assert_eq!(holder(&c, text(&t)).await.0, 401, "it has ended");
    assert_eq!(holder(&c, text(&long)).await.0, 201);
    assert_eq!(c.call("DELETE", &format!("{CORE}/pods/p?gracePeriodSeconds=0"), Value::Null).await.code, 200);
    assert_eq!(holder(&c, text(&long)).await.0, 401, "its pod is gone");
    let of_node = token(&c, json!({"boundObjectRef": {"kind": "Node", "name": "n"}})).await;
    let free = token(&c, json!({})).await;
    c.call("DELETE", "/api/v1/nodes/n", Value::Null).await;
    assert_eq!(holder(&c, text(&of_node)).await.0, 401, "its node is gone");
    assert_eq!(holder(&c, text(&free)).await.0, 201);
    c.call("DELETE", &format!("{CORE}/serviceaccounts/default"), Value::Null).await;
    c.call("POST", &format!("{CORE}/serviceaccounts"), json!({"metadata": {"name": "default"}})).await;
    assert_eq!(holder(&c, text(&free)).await.0, 401, "another account of the same name");
}

/// What a token may be bound to.
#[tokio::test]
async fn tokens_are_bound_to_audiences_and_objects() {
    let c = Cluster::start(1).await;
    let path = format!("{CORE}/serviceaccounts/default/token");
    let spec = json!({"serviceAccountName": "other", "containers": [{"name": "c", "image": "i"}]});
    c.call("POST", &format!("{CORE}/serviceaccounts"), json!({"metadata": {"name": "other"}})).await;
    assert_eq!(
        c.call("POST", &format!("{CORE}/pods"), json!({"metadata": {"name": "p"}, "spec": spec})).await.code,
        201
    );
    for (spec, code) in [
        (json!({"expirationSeconds": 599}), 422),
        (json!({"expirationSeconds": 4_294_967_297_i64}), 422),
        (json!({"boundObjectRef": {"kind": "Pod", "name": "none"}}), 404),
        (json!({"boundObjectRef": {"kind": "Pod", "name": "p"}}), 400),
        (json!({"boundObjectRef": {"kind": "ConfigMap", "name": "p"}}), 400),
        (json!({"boundObjectRef": {"kind": "Secret", "name": "none"}}), 404),
    ] {
        assert_eq!(c.call("POST", &path, json!({"spec": spec})).await.code, code, "{spec}");
    }
}

/// Clauses: C14.issuer-discovery
#[tokio::test]
async fn issuer_documents_verify_tokens() {
    let c = Cluster::start(1).await;
    let about = c.call("GET", "/.well-known/openid-configuration", Value::Null).await;
    assert_eq!((about.code, &about.body["issuer"]), (200, &json!(AUDIENCE)));
    assert_eq!(about.body["id_token_signing_alg_values_supported"], json!(["ES256"]));
    assert_eq!(c.call("GET", "/openid/v1/jwks", Value::Null).await.code, 406, "as upstream, there is one media type");
    let set = c.send("GET", "/openid/v1/jwks", None, "application/jwk-set+json", Default::default()).await.body;
    let keys: Vec<_> = set["keys"].as_array().unwrap().iter().filter_map(auth::jwt::PublicKey::from_jwk).collect();
    let t = token(&c, json!({"audiences": ["vault"]})).await;
    let read = auth::jwt::Token::parse(text(&t)).unwrap();
    assert!(read.is_signed_by(&keys) && read.header["kid"] == set["keys"][0]["kid"]);
    assert_eq!(read.claims["iss"], about.body["issuer"]);
}

/// Clauses: C14.bootstrap-tokens
#[tokio::test(start_paused = true)]
async fn bootstrap_tokens_authenticate() {
    let c = Cluster::start(1).await;
    open(&c).await;
    let secrets = "/api/v1/namespaces/kube-system/secrets";
    let good = |id: &str| {
        json!({"token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
            "auth-extra-groups": "system:bootstrappers:workers", "expiration": "2026-01-01T01:00:00Z"})
    };
    let make = async |id: &str, change: Value| {
        let mut data = good(id);
        for (k, v) in change.as_object().into_iter().flatten() {
            data[k] = v.clone();
        }
        let o = json!({"metadata": {"name": format!("bootstrap-token-{id}")}, "type": "bootstrap.kubernetes.io/token", "stringData": data});
        assert_eq!(c.call("POST", secrets, o).await.code, 201);
    };
    make("aaaaaa", Value::Null).await;
    make("bbbbbb", json!({"usage-bootstrap-authentication": "false"})).await;
    make("cccccc", json!({"expiration": "2025-12-31T00:00:00Z"})).await;
    make("dddddd", json!({"auth-extra-groups": "system:masters"})).await;
    make("eeeeee", json!({"token-id": "ffffff"})).await;
    make("hhhhhh", json!({"expiration": "soon"})).await;
    let (code, user) = holder(&c, "aaaaaa.0123456789abcdef").await;
    assert_eq!((code, &user["username"]), (201, &json!("system:bootstrap:aaaaaa")));
    let groups = json!(["system:bootstrappers", "system:bootstrappers:workers", "system:authenticated"]);
    assert_eq!(user["groups"], groups);
    for bad in [
        "aaaaaa.0123456789abcdeX",
        "aaaaaa.0123456789abcdee",
        "bbbbbb.0123456789abcdef",
        "cccccc.0123456789abcdef",
        "dddddd.0123456789abcdef",
        "eeeeee.0123456789abcdef",
        "gggggg.0123456789abcdef",
        "hhhhhh.0123456789abcdef",
    ] {
        assert_eq!(holder(&c, bad).await.0, 401, "{bad}");
    }
    tokio::time::sleep(Duration::from_secs(3700)).await;
    assert_eq!(holder(&c, "aaaaaa.0123456789abcdef").await.0, 401, "it has ended");
}

/// Clauses: C14.front-proxy
#[tokio::test]
async fn authenticating_proxies_set_users() {
    let list = |t: &str| vec![t.to_owned()];
    let front_proxy = Some(FrontProxy {
        allowed_names: list("front"),
        username_headers: list("X-Remote-User"),
        uid_headers: list("X-Remote-Uid"),
        group_headers: list("X-Remote-Group"),
        extra_headers_prefixes: list("X-Remote-Extra-"),
    });
    let c = Cluster::with_access(1, Access { front_proxy, ..Access::default() }).await;
    open(&c).await;
    let reply = [("x-remote-user", "jane"), ("x-remote-group", "team"), ("x-remote-extra-scope", "read")];
    let proxy = |name: &str| Peer { proxy: Some(name.to_owned()), ..Peer::default() };
    let (code, user) = who(&c, &reply, proxy("front")).await;
    assert_eq!((code, &user["username"], &user["extra"]), (201, &json!("jane"), &json!({"scope": ["read"]})));
    assert_eq!(user["groups"], json!(["team", "system:authenticated"]));
    assert_eq!(who(&c, &reply, proxy("other")).await.0, 401);
    assert_eq!(who(&c, &reply, Peer::default()).await.0, 401);
    let user = Some(auth::User::new("joe", &[]));
    let (code, user) = who(&c, &reply, Peer { user, ..Peer::default() }).await;
    assert_eq!((code, &user["username"]), (201, &json!("joe")), "who has a certificate speaks for himself");
}
