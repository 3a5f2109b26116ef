//! Aggregated roles and bootstrap roles.

use super::harness::Plane;
use meta::Value;
use serde_json::json;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

fn verbs_of<'a>(role: &'a Value, resource: &str) -> Vec<&'a str> {
    let rules = role["rules"].as_array().into_iter().flatten();
    let of = rules.filter(|r| r["resources"].as_array().is_some_and(|l| l.iter().any(|x| x == resource)));
    of.flat_map(|r| r["verbs"].as_array().into_iter().flatten().filter_map(Value::as_str)).collect()
}

/// Clauses: C14.cluster-role-aggregation
#[tokio::test(start_paused = true)]
async fn roles_aggregate_the_rules_of_others() {
    let p = Plane::start().await;
    strategies::rbac::bootstrap(&p.cluster.server.registry).await.unwrap();
    let role = async |name: &str| p.cluster.call("GET", &format!("{RBAC}/clusterroles/{name}"), Value::Null).await.body;
    let gathered = async |name: &'static str, resource: &'static str, verb: &'static str| {
        p.until(&format!("{name} may {verb} {resource}"), async || {
            verbs_of(&role(name).await, resource).contains(&verb).then_some(())
        })
        .await;
    };
    gathered("view", "pods", "list").await;
    gathered("edit", "pods", "list").await;
    gathered("edit", "secrets", "create").await;
    gathered("admin", "pods", "list").await;
    gathered("admin", "rolebindings", "create").await;
    assert!(verbs_of(&role("view").await, "secrets").is_empty());
    // Whoever adds a marked role adds to all that gather it, also at second hand.
    let rules = json!([{"verbs": ["get"], "apiGroups": ["acme.com"], "resources": ["toys"]}]);
    let labels = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
    let toys = json!({"metadata": {"name": "toys", "labels": labels}, "rules": rules});
    assert_eq!(p.cluster.call("POST", &format!("{RBAC}/clusterroles"), toys).await.code, 201);
    for name in ["view", "edit", "admin"] {
        gathered(name, "toys", "get").await;
    }
    // Changes of users to such a role are undone.
    let mut view = role("view").await;
    view["rules"] = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]);
    assert_eq!(p.cluster.call("PUT", &format!("{RBAC}/clusterroles/view"), view).await.code, 200);
    p.until("the rules to be those gathered", async || {
        let view = role("view").await;
        (verbs_of(&view, "*").is_empty() && verbs_of(&view, "toys") == ["get"]).then_some(())
    })
    .await;
    assert_eq!(p.cluster.call("DELETE", &format!("{RBAC}/clusterroles/toys"), Value::Null).await.code, 200);
    p.until("the rules to go", async || verbs_of(&role("admin").await, "toys").is_empty().then_some(())).await;
}

/// Clauses: C14.rbac-bootstrap
#[tokio::test(start_paused = true)]
async fn bootstrap_roles_are_updated() {
    let p = Plane::start().await;
    let registry = &p.cluster.server.registry;
    strategies::rbac::bootstrap(registry).await.unwrap();
    let path = |kind: &str, name: &str| format!("{RBAC}/{kind}/{name}");
    let get = async |kind: &str, name: &str| p.cluster.call("GET", &path(kind, name), Value::Null).await.body;
    let put = async |kind: &str, name: &str, v: Value| p.cluster.call("PUT", &path(kind, name), v).await.code;
    let before = registry.store.revision();
    strategies::rbac::bootstrap(registry).await.unwrap();
    let added = json!([{"verbs": ["get"], "nonResourceURLs": ["/own"]}]);
    // Of what it ought to be, one has lost its rules, one is left alone, and one has another's beside.
    let mut emptied = get("clusterroles", "system:discovery").await;
    assert_eq!(emptied["metadata"]["annotations"]["rbac.authorization.kubernetes.io/autoupdate"], "true");
    emptied["rules"] = added.clone();
    assert_eq!(put("clusterroles", "system:discovery", emptied).await, 200);
    let mut kept = get("clusterroles", "system:monitoring").await;
    kept["metadata"]["annotations"]["rbac.authorization.kubernetes.io/autoupdate"] = "false".into();
    kept["rules"] = added.clone();
    assert_eq!(put("clusterroles", "system:monitoring", kept).await, 200);
    let mut binding = get("clusterrolebindings", "system:discovery").await;
    binding["subjects"] = json!([{"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}]);
    assert_eq!(put("clusterrolebindings", "system:discovery", binding).await, 200);
    strategies::rbac::bootstrap(registry).await.unwrap();
    let rules = get("clusterroles", "system:discovery").await["rules"].clone();
    assert!(rules[0] == added[0] && rules.as_array().unwrap().len() > 1, "{rules}");
    assert_eq!(get("clusterroles", "system:monitoring").await["rules"], added);
    let subjects = get("clusterrolebindings", "system:discovery").await["subjects"].clone();
    assert_eq!((&subjects[0]["name"], &subjects[1]["name"]), (&json!("jane"), &json!("system:authenticated")));
    assert!(registry.store.revision() > before);
}
