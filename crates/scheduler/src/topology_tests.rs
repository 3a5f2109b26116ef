use crate::cluster::{Cluster, NodeEntry};
use crate::pod::Pod;
use crate::topology::{ByDomain, Matcher, Query};
use meta::LabelSelector;
use serde_json::{Value, json};
use std::sync::Arc;

fn node(name: &str, labels: Value) -> Arc<NodeEntry> {
    let v = json!({"metadata": {"name": name, "labels": labels}});
    Arc::new(NodeEntry::new(serde_json::to_vec(&v).unwrap().into()).unwrap())
}

fn pod(n: u64) -> Arc<Pod> {
    let term = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}}});
    let anti = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    let mut metadata = json!({"name": n.to_string(), "namespace": format!("ns{}", n % 2), "uid": n.to_string(),
        "labels": {"app": if n.is_multiple_of(3) { "a" } else { "b" }}});
    if n.is_multiple_of(7) {
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }
    let affinity = if n.is_multiple_of(4) { anti } else { json!({}) };
    let v = json!({"metadata": metadata, "spec": {"affinity": affinity}});
    Arc::new(Pod::new(serde_json::to_vec(&v).unwrap().into()).unwrap())
}

fn query() -> Query {
    let selector = LabelSelector::from_value(Some(&json!({"matchLabels": {"app": "a"}}))).unwrap();
    let matcher = Matcher::Spread { namespace: "ns0".into(), selector };
    Query { matcher, key: "zone".into(), required: vec!["host".into()] }
}

/// What a cluster without history counts.
fn recount(cluster: &Cluster) -> (ByDomain, Vec<i64>) {
    let mut fresh = Cluster::default();
    for node in cluster.nodes() {
        if let Some(entry) = &node.entry {
            fresh.set_node(entry.clone());
        }
        node.pods.iter().for_each(|p| fresh.add_pod(p.clone(), &node.name));
    }
    counts(&fresh)
}

fn counts(cluster: &Cluster) -> (ByDomain, Vec<i64>) {
    let terms = cluster.with_terms(|topology, nodes| {
        let sum = |domains: &ByDomain| domains.values().sum::<i64>();
        let mut sums: Vec<i64> = topology.anti_required(nodes).values().map(sum).collect();
        sums.sort_unstable();
        sums
    });
    (cluster.count(query()), terms)
}

/// Counts that are kept up to date are those of counting everything again, whatever happens to nodes and pods.
#[test]
fn counts_are_kept_up_to_date() {
    let mut cluster = Cluster::default();
    let mut random: u64 = 1;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for step in 0..2_000 {
        let name = format!("n{}", next(8));
        match next(10) {
            0 => {
                let mut labels = json!({"zone": format!("z{}", next(3))});
                if next(4) > 0 {
                    labels["host"] = name.as_str().into();
                }
                cluster.set_node(node(&name, labels));
            }
            1 => cluster.remove_node(&name),
            2..=6 => cluster.add_pod(pod(next(60)), &name),
            _ => drop(cluster.remove_pod(&next(60).to_string())),
        }
        assert_eq!(counts(&cluster), recount(&cluster), "step {step}");
    }
}
