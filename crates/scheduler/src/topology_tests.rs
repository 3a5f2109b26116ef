use crate::cluster::{Cluster, NodeEntry};
use crate::pod::Pod;
use crate::topology::{ByDomain, Included, MOST, Matcher, Queries, Query};
use meta::LabelSelector;
use placement::NodeAffinity;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

fn node(name: &str, labels: Value, tainted: bool) -> Arc<NodeEntry> {
    let taints = if tainted { json!([{"key": "t", "effect": "NoSchedule"}]) } else { json!([]) };
    let v = json!({"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}});
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

/// Queries of every form: by zone, by node, by a selector without a label of its own, with affinity, with tolerations.
fn queries() -> Vec<Query> {
    let equal = json!({"matchLabels": {"app": "a"}});
    let any = json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "b"]}]});
    let query = |selector: &Value, key: &str, included: Included| {
        let selector = LabelSelector::from_value(Some(selector)).unwrap();
        Query { matcher: Matcher::Spread { namespace: "ns0".into(), selector }, key: key.into(), included }
    };
    let labels = vec!["host".into()];
    let affinity = NodeAffinity::read(&json!({"zone": "z1"}), &Value::Null);
    vec![
        query(&equal, "zone", Included { labels, ..Included::default() }),
        query(&equal, "", Included::default()),
        query(&any, "zone", Included { affinity: Some(affinity), ..Included::default() }),
        query(&any, "zone", Included { tolerations: Some(Vec::new()), ..Included::default() }),
    ]
}

/// What a cluster without history counts.
fn recount(cluster: &Cluster) -> (Vec<Counts>, Vec<i64>) {
    let mut fresh = Cluster::default();
    for node in cluster.nodes() {
        if let Some(entry) = &node.entry {
            fresh.set_node(entry.clone());
        }
        node.pods.iter().for_each(|p| fresh.add_pod(p.clone(), &node.name));
    }
    counts(&fresh)
}

/// Pods by domain; by node without those that have none.
type Counts = BTreeMap<Box<str>, i64>;

fn counts(cluster: &Cluster) -> (Vec<Counts>, Vec<i64>) {
    let terms = cluster.with_terms(|topology, nodes| {
        let sum = |domains: &ByDomain| domains.values().sum::<i64>();
        let mut sums: Vec<i64> = topology.anti_required(nodes).values().map(sum).collect();
        sums.sort_unstable();
        sums
    });
    let domains = |query: Query| {
        let by_node = query.key.is_empty();
        let counts = cluster.count(query);
        counts.iter().filter(|(_, n)| !by_node || **n != 0).map(|(d, n)| (d.clone(), *n)).collect()
    };
    (queries().into_iter().map(domains).collect(), terms)
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
                cluster.set_node(node(&name, labels, next(3) == 0));
            }
            1 => cluster.remove_node(&name),
            2..=6 => cluster.add_pod(pod(next(60)), &name),
            _ => drop(cluster.remove_pod(&next(60).to_string())),
        }
        assert_eq!(counts(&cluster), recount(&cluster), "step {step}");
    }
}

/// The least recently used counts give way to new ones, and leave nothing behind.
#[test]
fn the_oldest_counts_give_way() {
    let mut kept = Queries::default();
    let third = (1..MOST / 3).map(|n| (n.to_string().into(), 0)).collect::<HashMap<Box<str>, i64>>();
    let third: ByDomain = Arc::new(third);
    let all = queries();
    for (now, query) in all.iter().take(3).enumerate() {
        kept.insert(query.clone(), third.clone(), now as u64);
    }
    assert!(kept.get(&all[0], 10).is_some());
    kept.insert(all[3].clone(), third.clone(), 11);
    assert!(kept.get(&all[1], 12).is_none(), "the least recently used");
    assert!([0, 2, 3].iter().all(|n| kept.get(&all[*n], 12).is_some()));
    let numbers: Vec<u64> = kept.counted.keys().copied().collect();
    numbers.into_iter().for_each(|n| kept.remove(n));
    assert!(kept.by_namespace.is_empty() && kept.numbers.is_empty() && kept.domains == 0);
}
