//! Permissions for apply.

use super::*;
use apiserver::as_identity;
use auth::User;
use http::Request;

async fn may(c: &Cluster, user: &str, verbs: &[&str]) {
    const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
    let rules = json!([{"verbs": verbs, "apiGroups": [""], "resources": ["configmaps"]}]);
    let role = json!({"metadata": {"name": user}, "rules": rules});
    written(c, "POST", &format!("{RBAC}/clusterroles"), "application/json", &role).await;
    let binding = json!({"metadata": {"name": user}, "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"kind": "ClusterRole", "name": user, "apiGroup": "rbac.authorization.k8s.io"}});
    written(c, "POST", &format!("{RBAC}/clusterrolebindings"), "application/json", &binding).await;
    c.rbac.load(&c.server.registry.store);
}

async fn applies(c: &Cluster, user: &str, name: &str) -> (u16, Value) {
    let body = format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}, data: {{of: {user}}}}}");
    let path = format!("{MAPS}/{name}?fieldManager={user}&force=true");
    let request = Request::builder().method("PATCH").uri(path).header("content-type", APPLY).body(body.into()).unwrap();
    let response = c.server.handle(as_identity(request, User::new(user, &[]))).await;
    (
        response.status().as_u16(),
        serde_json::from_slice(&response.into_body().collect().await.unwrap()).unwrap_or_default(),
    )
}

/// What is there needs `patch`; what is not there, `create` as well. Clauses: S11.patch, S11.create
#[tokio::test]
async fn applying_needs_patch_and_for_new_objects_create() {
    let c = Cluster::start(1).await;
    written(&c, "POST", MAPS, "application/json", &json!({"metadata": {"name": "there"}})).await;
    may(&c, "patcher", &["patch"]).await;
    may(&c, "creator", &["create"]).await;
    may(&c, "both", &["patch", "create"]).await;
    let (code, body) = applies(&c, "creator", "there").await;
    assert_eq!((code, &body["reason"]), (403, &json!("Forbidden")), "{body}");
    assert_eq!(applies(&c, "creator", "new").await.0, 403);
    assert_eq!(applies(&c, "patcher", "there").await.0, 200);
    let (code, body) = applies(&c, "patcher", "new").await;
    let message = "configmaps \"new\" is forbidden: User \"patcher\" cannot create resource \"configmaps\" in API group \"\" in the namespace \"default\"";
    assert_eq!((code, &body["message"]), (403, &json!(message)));
    assert_eq!(c.call("GET", &format!("{MAPS}/new"), Value::Null).await.code, 404);
    assert_eq!(applies(&c, "both", "new").await.0, 201);
    assert_eq!(applies(&c, "patcher", "new").await.0, 200, "now it is there");
    assert_eq!(applies(&c, "nobody", "there").await.0, 403);
}
