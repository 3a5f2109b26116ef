//! Decisions of components about objects: `/kemudi/v1/…/decision`.

use crate::authorization::{as_user, made};
use apiserver::{DecisionReport, DecisionSource, decision};
use async_trait::async_trait;
use auth::User;
use http::Method;
use meta::GroupResource;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use testkit::Cluster;

/// Has a decision about every pod but those of one UID.
struct Source {
    without: String,
}

struct Report;

#[async_trait]
impl DecisionSource for Source {
    fn resource(&self) -> GroupResource {
        GroupResource { group: String::new(), resource: "pods".into() }
    }

    fn shows(&self) -> GroupResource {
        GroupResource { group: String::new(), resource: "nodes".into() }
    }

    async fn decision(&self, uid: &str) -> Option<Box<dyn DecisionReport>> {
        (uid != self.without).then(|| Box::new(Report) as Box<dyn DecisionReport>)
    }
}

impl DecisionReport for Report {
    fn namespaces(&self) -> BTreeSet<String> {
        ["default", "hidden"].map(str::to_owned).into()
    }

    fn render(self: Box<Self>, readable: &BTreeSet<String>) -> String {
        json!({"kind": decision::KIND, "apiVersion": decision::API_VERSION, "readable": readable}).to_string()
    }
}

/// Clauses: G01.pending
#[tokio::test]
async fn decisions_are_shown_to_readers_of_the_object() {
    let c = Cluster::start(1).await;
    let ns = "/api/v1/namespaces/default";
    let container = json!({"name": "c", "image": "i"});
    for name in ["a", "b"] {
        made(&c, &format!("{ns}/pods"), json!({"metadata": {"name": name}, "spec": {"containers": [container]}})).await;
    }
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"], "resourceNames": ["a"]}]);
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    made(&c, &format!("{rbac}/roles"), json!({"metadata": {"name": "one"}, "rules": rules})).await;
    let binding = json!({"metadata": {"name": "one"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "one"},
        "subjects": [{"kind": "User", "name": "reader", "apiGroup": "rbac.authorization.k8s.io"}]});
    made(&c, &format!("{rbac}/rolebindings"), binding).await;
    c.rbac.load(&c.server.registry.store);
    let path = |pod: &str| format!("/kemudi/v1/namespaces/default/pods/{pod}/decision");
    let admin = User::new("admin", &[auth::user::GROUP_MASTERS]);
    let reader = User::new("reader", &[auth::user::GROUP_AUTHENTICATED]);
    let get = async |user: &User, path: &str| as_user(&c, user, Method::GET, path, &[], Value::Null).await;
    assert_eq!(get(&admin, &path("a")).await.0, 404, "no component decides here");
    let b = c.call("GET", &format!("{ns}/pods/b"), Value::Null).await.body;
    let without = b["metadata"]["uid"].as_str().unwrap().to_owned();
    *c.server.decisions.write() = Some(Arc::new(Source { without }));

    let (code, body) = get(&admin, &path("a")).await;
    let expect = json!({"kind": "Decision", "apiVersion": "kemudi/v1", "readable": ["default", "hidden"]});
    assert_eq!((code, &body), (200, &expect));
    // A decision names nodes.
    let (code, body) = get(&reader, &path("a")).await;
    assert_eq!(
        (code, body["message"].as_str().unwrap().contains("cannot list resource \"nodes\"")),
        (403, true),
        "{body}"
    );
    let rules = json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]);
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    made(&c, &format!("{rbac}/clusterroles"), json!({"metadata": {"name": "nodes"}, "rules": rules})).await;
    let binding = json!({"metadata": {"name": "nodes"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "nodes"},
        "subjects": [{"kind": "User", "name": "reader", "apiGroup": "rbac.authorization.k8s.io"}]});
    made(&c, &format!("{rbac}/clusterrolebindings"), binding).await;
    c.rbac.load(&c.server.registry.store);
    let (code, body) = get(&reader, &path("a")).await;
    assert_eq!((code, &body["readable"]), (200, &json!([])), "the reader may not list pods");
    let (code, body) = get(&reader, &path("b")).await;
    assert_eq!((code, &body["reason"]), (403, &json!("Forbidden")));
    let message = body["message"].as_str().unwrap();
    assert!(message.starts_with("pods \"b\" is forbidden: User \"reader\" cannot get resource \"pods\""), "{message}");
    let (code, body) = get(&admin, &path("b")).await;
    assert_eq!((code, &body["details"]["group"]), (404, &json!("kemudi")), "nothing was decided about it");
    let (code, body) = get(&admin, &path("gone")).await;
    assert_eq!((code, &body["message"]), (404, &json!("pods \"gone\" not found")));
    let config = "/kemudi/v1/namespaces/default/configmaps/kube-root-ca.crt/decision";
    assert_eq!(get(&admin, config).await.0, 404, "of another resource");
    let nobody = User::new("nobody", &[auth::user::GROUP_AUTHENTICATED]);
    assert_eq!(get(&nobody, "/kemudi/v1/namespaces/default/pods").await.0, 403, "any other path is no resource");
    let posted = as_user(&c, &admin, Method::POST, &path("a"), &[], json!({})).await;
    assert_eq!(posted.0, 404);

    // Clients see upstream's resources alone.
    let resources = c.call("GET", "/api/v1", Value::Null).await.body.to_string();
    assert!(resources.contains("pods/eviction") && !resources.contains("decision"));
    assert!(!c.call("GET", "/", Value::Null).await.body.to_string().contains("kemudi"));
}
