//! Unusual watches and lists: expired revisions, bookmarks, initial events.
//!
//! A store that keeps little history is compacted by hand.

use crate::stream::Watch;
use bytes::Bytes;
use kinds::columns::{Cell, Columns};
use serde_json::{Value, json};
use std::time::Duration;
use testkit::Cluster;

const MAPS: &str = "/api/v1/namespaces/golden/configmaps";

async fn write(c: &Cluster, n: usize) -> u64 {
    for i in 0..n {
        let a = c.call("POST", MAPS, json!({"metadata": {"generateName": format!("m{i}-")}})).await;
        assert_eq!(a.code, 201, "{}", a.body);
    }
    c.server.registry.store.revision()
}

/// Forgets everything before now.
async fn forget(c: &Cluster) {
    let store = &c.server.registry.store;
    store.compact_now(store.revision()).await.unwrap();
}

fn expired(v: &Value) -> bool {
    v["kind"] == "Status" && v["code"] == 410 && v["reason"] == "Expired"
}

async fn watch(c: &Cluster, query: &str) -> Watch {
    let path = format!("{MAPS}?watch=1&{query}");
    Watch::start(c, &path, "application/json").await.unwrap_or_else(|e| panic!("{path}: {e}"))
}

#[tokio::test(start_paused = true)]
async fn expired_continue_tokens_are_gone() {
    let c = Cluster::start(1).await;
    let old = write(&c, 5).await;
    let page = c.call("GET", &format!("{MAPS}?limit=2"), Value::Null).await.body;
    let token = page["metadata"]["continue"].as_str().unwrap().to_owned();
    write(&c, 30).await;
    forget(&c).await;
    // Recent states may still be at hand; what is said must then be the truth.
    let next = c.call("GET", &format!("{MAPS}?limit=2&continue={token}"), Value::Null).await;
    assert!(expired(&next.body), "{}", next.body);
    assert!(next.body["message"].as_str().unwrap().contains("continue parameter is too old"), "{}", next.body);
    // From here a client may go on, though not consistently.
    let anyhow = next.body["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
    assert!(!anyhow.is_empty(), "an expired list says how to go on: {}", next.body);
    let rest = c.call("GET", &format!("{MAPS}?limit=100&continue={anyhow}"), Value::Null).await;
    let whole = c.call("GET", MAPS, Value::Null).await.body;
    let last = page["items"][1]["metadata"]["name"].as_str().unwrap();
    let after = whole["items"].as_array().unwrap().iter().filter(|o| o["metadata"]["name"].as_str().unwrap() > last);
    assert_eq!((rest.code, &rest.body["items"]), (200, &after.cloned().collect()));
    let exact = c.call("GET", &format!("{MAPS}?resourceVersion={old}&resourceVersionMatch=Exact"), Value::Null).await;
    assert!(expired(&exact.body), "{}", exact.body);
    let any = c.call("GET", &format!("{MAPS}?resourceVersion={old}"), Value::Null).await;
    assert_eq!(any.code, 200, "not older than an old revision is now");
}

/// A list that is read again and again expires all the same, though its state is at hand.
#[tokio::test(start_paused = true)]
async fn a_list_that_is_kept_in_memory_expires_too() {
    let c = Cluster::start(1).await;
    write(&c, 10).await;
    let page = c.call("GET", &format!("{MAPS}?limit=4"), Value::Null).await.body;
    let token = page["metadata"]["continue"].as_str().unwrap().to_owned();
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let last = page["items"][3]["metadata"]["name"].as_str().unwrap().to_owned();
    let media = Some("application/merge-patch+json");
    c.send("PATCH", &format!("{MAPS}/{last}"), media, "application/json", label.to_string().into()).await;
    let next = format!("{MAPS}?limit=4&continue=");
    for _ in 0..3 {
        let a = c.call("GET", &format!("{next}{token}"), Value::Null).await;
        assert_eq!((a.code, &a.body["metadata"]["remainingItemCount"]), (200, &json!(2)));
    }
    forget(&c).await;
    let a = c.call("GET", &format!("{next}{token}"), Value::Null).await;
    assert!(expired(&a.body), "{}", a.body);
    // The rest, each once, in pages that are of one revision again.
    let (mut names, mut token) = (Vec::new(), a.body["metadata"]["continue"].as_str().unwrap().to_owned());
    let (mut counts, mut revisions) = (Vec::new(), Vec::new());
    while !token.is_empty() {
        let a = c.call("GET", &format!("{next}{token}"), Value::Null).await;
        assert_eq!(a.code, 200, "{}", a.body);
        counts.push(a.body["metadata"]["remainingItemCount"].clone());
        revisions.push(a.body["metadata"]["resourceVersion"].clone());
        let items = a.body["items"].as_array().unwrap();
        names.extend(items.iter().map(|o| o["metadata"]["name"].clone()));
        token = a.body["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
    }
    assert_eq!((counts, names.len()), (vec![json!(2), Value::Null], 6));
    assert!(revisions[0] == revisions[1] && revisions[0] != page["metadata"]["resourceVersion"], "{revisions:?}");
    let whole = c.call("GET", MAPS, Value::Null).await.body;
    let all: Vec<Value> = whole["items"].as_array().unwrap().iter().map(|o| o["metadata"]["name"].clone()).collect();
    assert_eq!(names, all[4..]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_an_expired_revision_is_gone() {
    let c = Cluster::start(1).await;
    let old = write(&c, 1).await;
    let kept = write(&c, 3).await;
    forget(&c).await;
    let mut w = watch(&c, &format!("resourceVersion={old}")).await;
    let (kind, status) = w.event().await;
    assert!(kind == "ERROR" && expired(&status), "{kind} {status}");
    assert!(status["message"].as_str().unwrap().starts_with("too old resource version"), "{status}");
    assert_eq!(w.next().await, None, "nothing follows");
    let mut w = watch(&c, &format!("resourceVersion={kept}")).await;
    let new = write(&c, 1).await;
    let (kind, o) = w.event().await;
    assert_eq!((&*kind, &o["metadata"]["resourceVersion"]), ("ADDED", &json!(new.to_string())));
}

#[tokio::test(start_paused = true)]
async fn bookmarks_are_sent_on_request() {
    let c = Cluster::start(1).await;
    let from = write(&c, 1).await;
    let mut asked = watch(&c, &format!("resourceVersion={from}&allowWatchBookmarks=true")).await;
    let mut other = watch(&c, &format!("resourceVersion={from}")).await;
    // Somebody else's writes move the bookmark on.
    let secret = json!({"metadata": {"name": "s"}});
    assert_eq!(c.call("POST", "/api/v1/namespaces/golden/secrets", secret).await.code, 201);
    let now = c.server.registry.store.revision();
    let (kind, o) = asked.event().await;
    let want = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"resourceVersion": now.to_string()}});
    assert_eq!((&*kind, &o), ("BOOKMARK", &want));
    assert_eq!(other.next().await, None, "who does not ask gets none");
    // The revision of a bookmark is a good one to begin with.
    let mut on = watch(&c, &format!("resourceVersion={now}")).await;
    write(&c, 1).await;
    assert_eq!(on.event().await.0, "ADDED");
}

#[tokio::test(start_paused = true)]
async fn a_watch_can_begin_with_the_state() {
    let c = Cluster::start(1).await;
    let from = write(&c, 3).await;
    let mut w = watch(&c, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true").await;
    for _ in 0..3 {
        assert_eq!(w.event().await.0, "ADDED");
    }
    let (kind, o) = w.event().await;
    assert_eq!((&*kind, &o["metadata"]["annotations"]["k8s.io/initial-events-end"]), ("BOOKMARK", &json!("true")));
    assert_eq!(o["metadata"]["resourceVersion"], from.to_string());
    let new = write(&c, 1).await;
    let (kind, o) = w.event().await;
    assert_eq!((&*kind, &o["metadata"]["resourceVersion"]), ("ADDED", &json!(new.to_string())));
    // Without bookmarks the end of the state is not said.
    let mut w = watch(&c, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan").await;
    for _ in 0..4 {
        assert_eq!(w.event().await.0, "ADDED");
    }
    assert_eq!(w.next().await, None);
    // A watch without a revision begins with the state as well, one that says no to it does not.
    assert_eq!(watch(&c, "").await.event().await.0, "ADDED");
    let mut w = watch(&c, "sendInitialEvents=false&resourceVersionMatch=NotOlderThan").await;
    assert_eq!(w.next().await, None);
    let mut w = watch(
        &c,
        "labelSelector=a%3Db&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
    )
    .await;
    assert_eq!(w.event().await.0, "BOOKMARK", "nothing is selected");
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_at_its_timeout() {
    let c = Cluster::start(1).await;
    let start = tokio::time::Instant::now();
    let mut w = watch(&c, "resourceVersion=1&timeoutSeconds=7&labelSelector=a%3Db").await;
    assert_eq!(w.next().await, None);
    assert_eq!(start.elapsed().as_secs(), 7);
    // One that is told something all the time ends as well.
    let mut w = watch(&c, "timeoutSeconds=5&allowWatchBookmarks=true").await;
    let writer = async {
        loop {
            write(&c, 1).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let reader = async { while w.next().await.is_some() {} };
    let start = tokio::time::Instant::now();
    tokio::select! {
        () = reader => {}
        () = writer => {}
    }
    assert_eq!(start.elapsed().as_secs(), 5);
}

/// What a client reads of a stream it leaves is not written any more.
#[tokio::test(start_paused = true)]
async fn a_watch_ends_with_its_client() {
    let c = Cluster::start(1).await;
    let from = write(&c, 1).await;
    let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let path = format!("{MAPS}?watch=1&resourceVersion={from}");
    let left = c.request("GET", &path, &[], Bytes::new()).await;
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), before + 1);
    drop(left);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), before);
}

/// The description of a kind names functions for its table cells; each is a general one or one of its strategy.
#[tokio::test(start_paused = true)]
async fn every_function_of_a_table_cell_exists() {
    let c = Cluster::start(1).await;
    let rows = c.server.registry.rows();
    let mut functions = 0;
    for row in rows.iter() {
        let own = |cell: &Cell<'_>| row.strategy.cell(cell);
        let cells = Columns::new(&row.kind.columns, "2026-01-01T00:00:00Z", &own).cells(row.empty());
        for (column, value) in row.kind.columns.iter().zip(cells) {
            if column.value[0].starts_with('@') {
                assert!(!value.is_null(), "{}: {:?}", row.kind.gvk(), column.value);
                functions += 1;
            }
        }
    }
    assert!(functions > 150, "{functions}");
}
