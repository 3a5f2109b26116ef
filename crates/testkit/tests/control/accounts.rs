//! Service accounts and their token secrets, and budgets over pods whose owner has no scale.

use super::harness::Plane;
use meta::Value;
use serde_json::json;
use std::time::Duration;

/// An account loses its reference to a token secret that is deleted, and keeps others.
#[tokio::test(start_paused = true)]
async fn references_to_deleted_token_secrets_are_removed() {
    let p = Plane::start().await;
    let (secrets, accounts) = ("/api/v1/namespaces/default/secrets", "/api/v1/namespaces/default/serviceaccounts");
    let account = json!({"metadata": {"name": "a"}, "secrets": [{"name": "token"}, {"name": "other"}]});
    assert_eq!(p.cluster.call("POST", accounts, account).await.code, 201);
    let secret = json!({"metadata": {"name": "token", "annotations": {"kubernetes.io/service-account.name": "a"}},
        "type": "kubernetes.io/service-account-token"});
    assert_eq!(p.cluster.call("POST", secrets, secret).await.code, 201);
    p.until("the token", async || {
        let s = p.cluster.call("GET", &format!("{secrets}/token"), Value::Null).await;
        s.body["data"]["token"].is_string().then_some(())
    })
    .await;
    assert_eq!(p.cluster.call("DELETE", &format!("{secrets}/token"), Value::Null).await.code, 200);
    p.until("the reference to go", async || {
        let a = p.cluster.call("GET", &format!("{accounts}/a"), Value::Null).await;
        (a.body["secrets"] == json!([{"name": "other"}])).then_some(())
    })
    .await;
}

/// A budget with `maxUnavailable` over pods of a DaemonSet cannot be computed: that is said once, and not tried again until something
/// changes.
#[tokio::test(start_paused = true)]
async fn a_budget_without_a_scale_is_not_retried() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    p.create(
        "daemonsets",
        json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
            "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}}),
    )
    .await;
    p.status_counts("daemonsets", "d", &[("numberReady", 1)]).await;
    p.create(
        "poddisruptionbudgets",
        json!({"metadata": {"name": "b", "namespace": "default"},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"a": "b"}}}}),
    )
    .await;
    p.reported("CalculateExpectedPodCountFailed", "daemonsets.apps does not implement the scale subresource").await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let count = async || {
        let events = p.list("events").await;
        let all = events.iter().filter(|e| e.str_at(&["reason"]) == Some("CalculateExpectedPodCountFailed"));
        all.map(|e| e.int_at(&["count"]).unwrap_or(1)).sum::<i64>()
    };
    let before = count().await;
    let version = p.api("poddisruptionbudgets").get("b").await.unwrap().resource_version().to_owned();
    tokio::time::sleep(Duration::from_secs(1200)).await;
    assert_eq!(count().await, before);
    let budget = p.api("poddisruptionbudgets").get("b").await.unwrap();
    assert_eq!(budget.resource_version(), version);
    assert_eq!(budget.int_at(&["status", "disruptionsAllowed"]), Some(0));
}

/// Usage is counted once after a user's change, not after every charge of admission, and follows the objects.
#[tokio::test(start_paused = true)]
async fn quotas_are_counted_when_something_goes() {
    let p = Plane::start().await;
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let hard = json!({"pods": "9", "count/configmaps": "99", "count/gadgets.example.com": "1"});
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": hard}});
    assert_eq!(p.cluster.call("POST", quotas, quota).await.code, 201);
    let used = async |key: &str| {
        let q = p.cluster.call("GET", &format!("{quotas}/q"), Value::Null).await;
        q.body["status"]["used"][key].as_str().map(str::to_owned)
    };
    let first = p.until("the first count", async || used("count/configmaps").await).await;
    assert_eq!(used("count/gadgets.example.com").await, None, "nothing counts what the server does not serve");
    let path = "/api/v1/namespaces/default/configmaps";
    for i in 0..5 {
        assert_eq!(p.cluster.call("POST", path, json!({"metadata": {"name": format!("c{i}")}})).await.code, 201);
    }
    let now: usize = used("count/configmaps").await.unwrap().parse().unwrap();
    assert_eq!(now, first.parse::<usize>().unwrap() + 5);
    assert_eq!(p.cluster.call("DELETE", &format!("{path}/c0"), Value::Null).await.code, 200);
    p.until("the usage to go down", async || {
        (used("count/configmaps").await == Some((now - 1).to_string())).then_some(())
    })
    .await;
}
