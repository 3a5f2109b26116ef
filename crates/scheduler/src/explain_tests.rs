use super::*;
use crate::cluster::NodeEntry;
use crate::configuration::Configuration;
use crate::plugins::Handle;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

fn node(name: &str, cpu: &str, spec: Value, labels: Value) -> Arc<NodeEntry> {
    let v = json!({
        "metadata": {"name": name, "labels": labels}, "spec": spec,
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"}},
    });
    Arc::new(NodeEntry::new(serde_json::to_vec(&v).unwrap().into()).unwrap())
}

fn pod(name: &str, spec: Value) -> Arc<Pod> {
    let v = json!({
        "metadata": {"name": name, "namespace": "d", "uid": name, "labels": {"app": "x"}}, "spec": spec,
    });
    Arc::new(Pod::new(serde_json::to_vec(&v).unwrap().into()).unwrap())
}

fn container(cpu: &str) -> Value {
    json!([{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}])
}

fn explained(pod: &Pod, cluster: &Cluster) -> Explanation {
    let frameworks = crate::frameworks(&Configuration::default(), &Handle::default(), &[]).unwrap();
    explain(&frameworks["default-scheduler"], pod, cluster, Duration::from_secs(60))
}

fn messages(e: &Explanation) -> Vec<&str> {
    e.suggestions.iter().map(|s| s.message.as_str()).collect()
}

fn shortfalls(e: &Explanation) -> Vec<(&str, &str)> {
    let all = e.nodes.iter().flat_map(|n| n.shortfalls.iter().map(|s| (n.node.as_str(), s.message.as_str())));
    all.collect()
}

/// Clauses: G01.pending
#[test]
fn suggests_the_change_that_each_node_needs() {
    let mut cluster = Cluster::default();
    let gpu = json!({"taints": [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]});
    let cordoned = json!({"unschedulable": true, "taints": [
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]});
    let silent = json!({"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]});
    let disk = |value: &str| json!({"disk": value});
    cluster.set_node(node("a", "1700m", json!({}), disk("ssd")));
    cluster.set_node(node("b", "4", gpu, disk("ssd")));
    cluster.set_node(node("c", "4", cordoned, disk("ssd")));
    cluster.set_node(node("d", "4", json!({}), disk("hdd")));
    cluster.set_node(node("e", "4", silent, disk("ssd")));
    let waiting = pod("w", json!({"containers": container("2"), "nodeSelector": {"disk": "ssd"}}));
    let e = explained(&waiting, &cluster);
    assert_eq!(
        messages(&e),
        [
            "fits c if it were uncordoned",
            "fits e if it were reachable",
            "fits a with 300m less cpu",
            "fits b with a toleration for dedicated=gpu:NoSchedule",
        ]
    );
    assert_eq!(
        shortfalls(&e),
        [
            ("a", "the pod requests 2 cpu, 1700m of 1700m are free"),
            ("b", "the pod does not tolerate the taint dedicated=gpu:NoSchedule"),
            ("c", "the node is cordoned"),
            ("c", "the pod does not tolerate the taint node.kubernetes.io/unschedulable:NoSchedule"),
            ("d", "the pod requires disk=ssd, the node has disk=hdd"),
            ("e", "the pod does not tolerate the taint node.kubernetes.io/unreachable:NoExecute"),
        ]
    );
    let amounts = e.nodes[0].shortfalls[0].amounts.as_ref().unwrap();
    assert_eq!((&*amounts.requested, &*amounts.free, &*amounts.allocatable), ("2", "1700m", "1700m"));
}

#[test]
fn names_the_nearest_nodes_if_no_single_change_suffices() {
    let mut cluster = Cluster::default();
    let gpu = json!({"taints": [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]});
    cluster.set_node(node("far", "1", gpu.clone(), json!({})));
    cluster.set_node(node("near", "1900m", gpu, json!({})));
    let e = explained(&pod("w", json!({"containers": container("2")})), &cluster);
    assert!(e.suggestions.is_empty());
    let nearest: Vec<(&str, usize)> = e.nearest.iter().map(|n| (n.node.as_str(), n.shortfalls.len())).collect();
    assert_eq!(nearest, [("near", 2)], "one node for each set of what is missing");
}

#[test]
fn hides_the_names_of_pods() {
    let mut cluster = Cluster::default();
    cluster.set_node(node("n", "2", json!({}), json!({})));
    let ports = json!([{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}},
        "ports": [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}]}]);
    cluster.add_pod(pod("secret", json!({"nodeName": "n", "containers": ports, "priority": 1})), "n");
    let mut e = explained(&pod("w", json!({"containers": ports, "priority": 5})), &cluster);
    let expect = ["fits n without its host port 80/TCP", "fits n after d/secret of lower priority is gone"];
    assert_eq!(messages(&e), expect);
    assert_eq!(e.nodes[0].shortfalls[0].pods[0].name, "secret");
    assert!(e.namespaces().contains("d"));
    e.hide_pods(|namespace| namespace != "d");
    assert_eq!(messages(&e)[1], "fits n after 1 pod of lower priority is gone");
    let text = serde_json::to_string(&e).unwrap();
    assert!(!text.contains("secret") && text.contains("\"hiddenPods\":1"), "{text}");
    let read: Explanation = serde_json::from_str(&text).unwrap();
    assert_eq!(read.suggestions[1].message, e.suggestions[1].message);
}

#[test]
fn reports_a_refusal_of_all_nodes_and_an_empty_cluster() {
    let claim = json!({"containers": container("1"), "volumes": [
        {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]});
    let mut cluster = Cluster::default();
    assert_eq!(explained(&pod("w", claim.clone()), &cluster).node_count, 0);
    cluster.set_node(node("n", "2", json!({}), json!({})));
    let e = explained(&pod("w", claim), &cluster);
    let refused = e.refused.unwrap();
    assert_eq!((&*refused.rule, &*refused.message), ("VolumeRestrictions", "persistentvolumeclaim \"data\" not found"));
}

/// 5,000 nodes with 10 pods each are explained in less than a second, also with a change of each node to try.
#[test]
fn explains_thousands_of_nodes_fast() {
    let mut cluster = Cluster::default();
    for i in 0..5_000 {
        let tenant = json!({"taints": [{"key": "tenant", "value": format!("t{i}"), "effect": "NoSchedule"}]});
        let spec = if i % 2 == 0 { tenant } else { json!({}) };
        let labels = json!({"zone": format!("z{}", i % 10), "kubernetes.io/hostname": format!("n{i}")});
        cluster.set_node(node(&format!("n{i}"), if i % 2 == 0 { "16" } else { "1500m" }, spec, labels));
        for j in 0..10 {
            cluster.add_pod(pod(&format!("p{i}-{j}"), json!({"containers": container("100m")})), &format!("n{i}"));
        }
    }
    let copying = tokio::time::Instant::now();
    let cluster = cluster.clone();
    println!("the state is copied in {:?}", copying.elapsed());
    let begun = tokio::time::Instant::now();
    let spread = json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "y"}}}]);
    let waiting = pod("w", json!({"containers": container("1"), "topologySpreadConstraints": spread}));
    let e = explained(&waiting, &cluster);
    let took = begun.elapsed();
    assert_eq!((e.nodes.len(), e.fitting_count), (5_000, 0));
    assert_eq!(messages(&e)[0], "fits n1 and 2499 other nodes with 500m less cpu");
    let limit = if cfg!(debug_assertions) { 5 } else { 1 };
    assert!(took.as_secs() < limit, "{took:?}");
    println!("5,000 nodes explained in {took:?}");
}

/// Clauses: G01.pending
#[test]
fn what_takes_too_long_is_left_out() {
    let mut cluster = Cluster::default();
    for n in 0..10 {
        cluster.set_node(node(&format!("n{n}"), "1", json!({}), json!({})));
    }
    let frameworks = crate::frameworks(&Configuration::default(), &Handle::default(), &[]).unwrap();
    let p = pod("p", json!({"containers": container("2")}));
    let e = explain(&frameworks["default-scheduler"], &p, &cluster, Duration::ZERO);
    assert_eq!((e.node_count, e.unexplained_count, e.nodes.len(), e.suggestions.len()), (10, 10, 0, 0));
}
