//! A simulated hour of a cluster, repeated exactly: control plane and nodes in virtual time, on one thread, from one seed.

use crate::harness::Plane;
use meta::Clock;
use serde_json::json;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;
use store::{Change, Retention, Scope, Store};
use testkit::Cluster;

const HOUR: Duration = Duration::from_secs(3600);

/// Every write: its revision, its key, and the bytes.
type Writes = BTreeMap<(u64, String), Vec<u8>>;

fn hash(writes: &Writes) -> u64 {
    let mut h = DefaultHasher::new();
    writes.hash(&mut h);
    h.finish()
}

/// The whole history of a store that forgets nothing.
async fn history(cluster: &Cluster) -> Writes {
    let store: &Store = &cluster.server.registry.store;
    let mut writes = Writes::new();
    let rows = cluster.server.registry.rows();
    for (resource, _) in rows.iter().filter_map(|r| r.stored()) {
        // Before the first write the revision is 1.
        let mut watch = store.watch(Scope::resource(resource), 1).unwrap();
        while watch.revision() < store.revision() {
            for e in watch.next().await.unwrap().events {
                let bytes = if e.change == Change::Put { e.entry.value.to_vec() } else { Vec::new() };
                writes.insert((e.revision, e.entry.key.to_string()), bytes);
            }
        }
    }
    writes
}

/// Many rollouts with a heartbeat of the nodes in between, a node lost and back, and a service that follows it all.
async fn hour(seed: u64) -> Writes {
    let keep = Retention { age_ms: u64::MAX, bytes: u64::MAX, ..Retention::default() };
    let p = Plane::over(Cluster::start_keeping(seed, keep).await).await;
    let start = p.cluster.clock.now();
    for n in ["n1", "n2", "n3"] {
        p.node(n, "8").await;
    }
    p.create(
        "services",
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]},
        }),
    )
    .await;
    p.deployment("web", 6, "web:0").await;
    p.rolled_out("web").await;
    for round in 1..=11 {
        tokio::time::sleep(Duration::from_secs(240)).await;
        match round {
            4 => p.kill_node("n2"),
            7 => p.revive_node("n2").await,
            _ => {}
        }
        let image = json!([{"name": "c", "image": format!("web:{round}")}]);
        let replicas = 4 + round % 5;
        let change = json!({"spec": {"replicas": replicas, "template": {"spec": {"containers": image}}}});
        p.patch("deployments", "web", change).await;
        // In the middle of a rollout another one begins.
        if round % 3 == 0 {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            let image = json!([{"name": "c", "image": format!("web:{round}b")}]);
            p.patch("deployments", "web", json!({"spec": {"template": {"spec": {"containers": image}}}})).await;
        }
        p.rolled_out("web").await;
    }
    let passed = Duration::try_from(p.cluster.clock.now().duration_since(start)).unwrap();
    tokio::time::sleep(HOUR.saturating_sub(passed)).await;
    let d = p.rolled_out("web").await;
    assert_eq!(d.annotation("deployment.kubernetes.io/revision"), Some("15"), "a revision per change of the template");
    let lost = p.list("events").await;
    assert!(lost.iter().any(|e| e.str_at(&["reason"]) == Some("NodeNotReady")), "the loss of a node was noticed");
    let writes = history(&p.cluster).await;
    assert_eq!(writes.keys().map(|(r, _)| *r).max(), Some(p.cluster.server.registry.store.revision()));
    writes
}

fn run(seed: u64) -> Writes {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(hour(seed))
}

/// Clauses: G05.deterministic
#[test]
fn an_hour_of_rollouts_is_deterministic() {
    // Each has its own thread and its own time; what they share can only be what must not matter.
    let (first, second, other) = std::thread::scope(|s| {
        let more = s.spawn(|| (run(1), run(2)));
        let first = run(1);
        let (second, other) = more.join().unwrap();
        (first, second, other)
    });
    assert!(first.len() > 3000, "{} writes", first.len());
    if let Some((a, b)) = first.iter().zip(&second).find(|(a, b)| a != b) {
        let text = |v: &[u8]| String::from_utf8_lossy(v).into_owned();
        panic!("the first write that differs:\n{:?} {}\n{:?} {}", a.0, text(a.1), b.0, text(b.1));
    }
    assert_eq!(hash(&first), hash(&second));
    assert_ne!(hash(&first), hash(&other), "another seed is another hour");
}
