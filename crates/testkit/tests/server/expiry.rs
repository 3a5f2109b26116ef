//! Events expire an hour after their last update.

use serde_json::{Value, json};
use std::time::Duration;
use store::Memory;
use testkit::Cluster;

const EVENTS: &str = "/api/v1/namespaces/default/events";

fn event(name: &str) -> Value {
    json!({"metadata": {"name": name}, "involvedObject": {"namespace": "default", "name": "p"}, "reason": "Tested"})
}

async fn names(c: &Cluster) -> Vec<String> {
    let list = c.call("GET", EVENTS, Value::Null).await.body;
    let items = list["items"].as_array().unwrap().iter();
    items.map(|o| o["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

/// Waits, and lets the server do what is due then.
async fn minutes(n: u64) {
    tokio::time::sleep(Duration::from_secs(n * 60 + 1)).await;
}

#[tokio::test(start_paused = true)]
async fn events_have_a_lifetime() {
    let c = Cluster::start(1).await;
    for name in ["a", "b"] {
        assert_eq!(c.call("POST", EVENTS, event(name)).await.code, 201);
    }
    c.call("POST", "/api/v1/namespaces/default/configmaps", json!({"metadata": {"name": "stays"}})).await;
    minutes(30).await;
    // What is written again begins to live again.
    let path = format!("{EVENTS}/b");
    let patch = json!({"metadata": {"labels": {"seen": "again"}}}).to_string();
    let media = Some("application/merge-patch+json");
    let patched = c.send("PATCH", &path, media, "application/json", patch.into()).await;
    assert_eq!(patched.code, 200, "{patched:?}");
    assert_eq!(names(&c).await, ["a", "b"]);
    let revision = c.call("GET", EVENTS, Value::Null).await.body["metadata"]["resourceVersion"].clone();
    minutes(30).await;
    assert_eq!(names(&c).await, ["b"]);
    let since = format!("{EVENTS}?watch=1&timeoutSeconds=1&resourceVersion={}", revision.as_str().unwrap());
    let seen = c.call("GET", &since, Value::Null).await.body;
    assert_eq!((&seen["type"], &seen["object"]["metadata"]["name"]), (&json!("DELETED"), &json!("a")), "{seen}");
    minutes(30).await;
    assert!(names(&c).await.is_empty());
    let stays = c.call("GET", "/api/v1/namespaces/default/configmaps/stays", Value::Null).await;
    assert_eq!(stays.code, 200, "other kinds live for ever");
}

#[tokio::test(start_paused = true)]
async fn a_restart_keeps_the_age_of_events() {
    let memory = Memory::new();
    let first = Cluster::start_on(1, memory.clone(), None).await;
    assert_eq!(first.call("POST", EVENTS, event("old")).await.code, 201);
    first.server.registry.store.clone().close().await;
    // The clock of a cluster begins at the same moment each time.
    let second = Cluster::start_on(2, memory, None).await;
    assert_eq!(names(&second).await, ["old"]);
    minutes(50).await;
    assert_eq!(second.call("POST", EVENTS, event("new")).await.code, 201);
    minutes(10).await;
    assert_eq!(names(&second).await, ["new"]);
}
