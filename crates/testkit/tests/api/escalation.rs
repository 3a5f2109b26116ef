//! Escalation checks: users cannot grant permissions that they do not have.

use crate::authorization::{as_user, made};
use auth::User;
use http::Method;
use serde_json::{Value, json};
use testkit::Cluster;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const GROUP: &str = "rbac.authorization.k8s.io";

pub async fn grant(c: &Cluster, user: &str, rules: Value) {
    made(c, &format!("{RBAC}/clusterroles"), json!({"metadata": {"name": format!("of-{user}")}, "rules": rules})).await;
    let binding = json!({"metadata": {"name": format!("of-{user}")},
        "roleRef": {"kind": "ClusterRole", "name": format!("of-{user}"), "apiGroup": GROUP},
        "subjects": [{"kind": "User", "name": user, "apiGroup": GROUP}]});
    made(c, &format!("{RBAC}/clusterrolebindings"), binding).await;
    c.rbac.load(&c.server.registry.store);
}

fn rule(verbs: &[&str], group: &str, resources: &[&str]) -> Value {
    json!({"verbs": verbs, "apiGroups": [group], "resources": resources})
}

fn role(name: &str, rules: Value) -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name, "namespace": "default"}, "rules": rules})
}

fn binding(name: &str, kind: &str, role: &str) -> Value {
    json!({"metadata": {"name": name}, "roleRef": {"kind": kind, "name": role, "apiGroup": GROUP}, "subjects": []})
}

/// Clauses: C14.rbac-escalation
#[tokio::test]
async fn roles_give_no_more_than_their_author_holds() {
    let c = Cluster::start(1).await;
    let all = ["create", "get", "update", "patch", "delete"];
    let own = json!([rule(&all, GROUP, &["roles", "clusterroles"]), rule(&["get", "list"], "", &["pods"])]);
    grant(&c, "jane", own).await;
    let jane = User::new("jane", &["team"]);
    let roles = format!("{RBAC}/namespaces/default/roles");
    let send = async |method: Method, path: &str, body: Value| as_user(&c, &jane, method, path, &[], body).await;

    let (code, body) = send(Method::POST, &roles, role("ok", json!([rule(&["get"], "", &["pods"])]))).await;
    assert_eq!(code, 201, "{body}");
    let more = json!([rule(&["get", "delete"], "", &["pods", "secrets"])]);
    let (code, body) = send(Method::POST, &roles, role("more", more.clone())).await;
    assert_eq!((code, &body["reason"]), (403, &json!("Forbidden")));
    let message = "roles.rbac.authorization.k8s.io \"more\" is forbidden: user \"jane\" (groups=[\"team\" \"system:authenticated\"]) \
        is attempting to grant RBAC permissions not currently held:\n\
        {APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\"]}\n\
        {APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"delete\"]}";
    assert_eq!(body["message"], message);
    assert_eq!(c.call("GET", &format!("{roles}/more"), Value::Null).await.code, 404, "nothing was written");

    // Lists multiply: a few kilobytes stand for millions of combinations.
    let many = |what: &str| (0..200).map(|n| format!("{what}{n}")).collect::<Vec<_>>();
    let product = json!([{"verbs": many("v"), "apiGroups": many("g"), "resources": many("r")}]);
    let (code, body) = send(Method::POST, &roles, role("product", product)).await;
    let message = body["message"].as_str().unwrap();
    assert!(
        code == 403
            && message.ends_with("the rules stand for too many combinations of verbs, groups, resources and names"),
        "{message}"
    );

    // By no other verb either.
    let put = send(Method::PUT, &format!("{roles}/ok"), role("ok", more.clone())).await;
    assert_eq!(put.0, 403, "{}", put.1);
    let merge = [("content-type", "application/merge-patch+json")];
    let patch = async |path: &str, headers: &[(&str, &str)], body: Value| {
        let mut r = http::Request::builder().method(Method::PATCH).uri(path);
        for (k, v) in headers {
            r = r.header(*k, *v);
        }
        let r = r.body(bytes::Bytes::from(body.to_string())).unwrap();
        c.server.handle(apiserver::as_identity(r, jane.clone())).await.status().as_u16()
    };
    assert_eq!(patch(&format!("{roles}/ok"), &merge, json!({"rules": more})).await, 403);
    let apply = [("content-type", "application/apply-patch+yaml")];
    let path = format!("{roles}/ok?fieldManager=me&force=true");
    assert_eq!(patch(&path, &apply, role("ok", more.clone())).await, 403);
    assert_eq!(patch(&format!("{roles}/new?fieldManager=me"), &apply, role("new", more.clone())).await, 403);

    // What somebody else has granted may stay, and may be let go.
    made(&c, &roles, role("wide", more.clone())).await;
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(patch(&format!("{roles}/wide"), &merge, label).await, 403);
    let finalizers = json!({"metadata": {"finalizers": ["a.b/c"]}});
    assert_eq!(patch(&format!("{roles}/wide"), &merge, finalizers).await, 200, "only what garbage collection changes");

    // Aggregation may gather anything.
    let gather =
        json!({"metadata": {"name": "g"}, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}});
    let (code, body) = send(Method::POST, &format!("{RBAC}/clusterroles"), gather.clone()).await;
    assert_eq!(code, 403);
    assert!(
        body["message"].as_str().unwrap().ends_with("must have cluster-admin privileges to use an aggregationRule")
    );

    // Who may escalate may.
    let escalate = json!([rule(&all, GROUP, &["roles", "clusterroles"]), rule(&["escalate"], GROUP, &["roles"])]);
    grant(&c, "joe", escalate).await;
    let joe = User::new("joe", &[]);
    assert_eq!(as_user(&c, &joe, Method::POST, &roles, &[], role("more", more)).await.0, 201);
    let (code, _) = as_user(&c, &joe, Method::POST, &format!("{RBAC}/clusterroles"), &[], gather).await;
    assert_eq!(code, 403, "not cluster roles");
}

/// Clauses: C14.rbac-bind
#[tokio::test]
async fn bindings_give_no_more_than_their_author_holds() {
    let c = Cluster::start(1).await;
    let write = rule(&["create", "update"], GROUP, &["rolebindings", "clusterrolebindings"]);
    grant(&c, "jane", json!([write, rule(&["get"], "", &["pods"])])).await;
    let jane = User::new("jane", &[]);
    for (name, verb) in [("small", "get"), ("big", "delete")] {
        let rules = json!([rule(&[verb], "", &["pods"])]);
        made(&c, &format!("{RBAC}/clusterroles"), json!({"metadata": {"name": name}, "rules": rules})).await;
        made(&c, &format!("{RBAC}/namespaces/default/roles"), role(name, rules)).await;
    }
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    let post = async |user: &User, path: &str, body: Value| as_user(&c, user, Method::POST, path, &[], body).await;
    assert_eq!(post(&jane, &bindings, binding("a", "Role", "small")).await.0, 201);
    assert_eq!(post(&jane, &bindings, binding("b", "ClusterRole", "small")).await.0, 201);
    for kind in ["Role", "ClusterRole"] {
        let (code, body) = post(&jane, &bindings, binding("c", kind, "big")).await;
        assert_eq!(code, 403, "{kind}");
        let lacks = r#"{APIGroups:[""], Resources:["pods"], Verbs:["delete"]}"#;
        assert!(body["message"].as_str().unwrap().ends_with(lacks), "{body}");
    }
    let cluster = format!("{RBAC}/clusterrolebindings");
    assert_eq!(post(&jane, &cluster, binding("c", "ClusterRole", "big")).await.0, 403);
    let (code, body) = post(&jane, &bindings, binding("d", "ClusterRole", "none")).await;
    let message = "rolebindings.rbac.authorization.k8s.io \"none\" not found";
    assert_eq!((code, body["message"].as_str().unwrap()), (404, message));

    // Who may bind one role may bind that one.
    let bind =
        json!({"verbs": ["bind"], "apiGroups": [GROUP], "resources": ["clusterroles"], "resourceNames": ["big"]});
    grant(&c, "joe", json!([rule(&["create"], GROUP, &["rolebindings", "clusterrolebindings"]), bind])).await;
    let joe = User::new("joe", &[]);
    assert_eq!(post(&joe, &bindings, binding("e", "ClusterRole", "big")).await.0, 201);
    assert_eq!(post(&joe, &cluster, binding("e", "ClusterRole", "big")).await.0, 201);
    assert_eq!(post(&joe, &bindings, binding("f", "Role", "big")).await.0, 403);
    assert_eq!(post(&joe, &bindings, binding("f", "ClusterRole", "small")).await.0, 403);
}
