//! Authentication: tokens of every kind, proxies, and external authenticators.

mod expressions;
mod external;
mod remote;
mod tokens;

use bytes::Bytes;
use http::Request;
use serde_json::{Value, json};
use testkit::Cluster;

/// Asks who one is, as nobody but what the request says.
pub async fn who(c: &Cluster, headers: &[(&str, &str)], peer: apiserver::Peer) -> (u16, Value) {
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let mut r = Request::post(path).header("content-type", "application/json");
    for (k, v) in headers {
        r = r.header(*k, *v);
    }
    let mut r = r.body(Bytes::from(json!({}).to_string())).unwrap();
    r.extensions_mut().insert(peer);
    let answer = c.server.handle(r).await;
    let code = answer.status().as_u16();
    let body: Value = serde_json::from_slice(&answer.into_body().collect().await.unwrap()).unwrap();
    (code, body["status"]["userInfo"].clone())
}

pub async fn holder(c: &Cluster, token: &str) -> (u16, Value) {
    who(c, &[("authorization", &format!("Bearer {token}"))], apiserver::Peer::default()).await
}

/// Lets everybody who is known ask who they are.
pub async fn open(c: &Cluster) {
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let rules =
        json!([{"verbs": ["create"], "apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"]}]);
    let role = json!({"metadata": {"name": "who"}, "rules": rules});
    assert_eq!(c.call("POST", &format!("{rbac}/clusterroles"), role).await.code, 201);
    let group = "rbac.authorization.k8s.io";
    let subjects = json!([{"kind": "Group", "name": "system:authenticated", "apiGroup": group}]);
    let to = json!({"kind": "ClusterRole", "name": "who", "apiGroup": group});
    let binding = json!({"metadata": {"name": "who"}, "roleRef": to, "subjects": subjects});
    assert_eq!(c.call("POST", &format!("{rbac}/clusterrolebindings"), binding).await.code, 201);
    c.rbac.load(&c.server.registry.store);
}
