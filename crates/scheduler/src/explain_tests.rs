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

/// Labels that describe what a node is, or where, are not changed by a suggestion.
#[test]
fn never_suggests_to_change_what_a_node_is() {
    let labels = |zone: Value| {
        let mut labels = json!({"kubernetes.io/os": "linux", "disk": "hdd"});
        if zone.is_string() {
            labels["topology.kubernetes.io/zone"] = zone;
        }
        labels
    };
    let mut cluster = Cluster::default();
    cluster.set_node(node("n", "4", json!({}), labels(json!("a"))));
    let selecting = |selector: Value| pod("w", json!({"containers": container("1"), "nodeSelector": selector}));
    for selector in [json!({"kubernetes.io/os": "windows"}), json!({"topology.kubernetes.io/zone": "b"})] {
        let e = explained(&selecting(selector.clone()), &cluster);
        assert!(e.suggestions.is_empty(), "{selector}: {:?}", messages(&e));
        assert!(!e.nearest.is_empty() && !e.needs_several_changes, "a change of the pod may be enough: {selector}");
    }
    assert_eq!(
        messages(&explained(&selecting(json!({"disk": "ssd"})), &cluster)),
        ["fits n if it had the label disk=ssd"]
    );
    cluster.set_node(node("n", "4", json!({}), labels(Value::Null)));
    let spread = json!([{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "x"}}}]);
    let spreading = pod("w", json!({"containers": container("1"), "topologySpreadConstraints": spread}));
    assert_eq!(
        messages(&explained(&spreading, &cluster)),
        ["fits n if it had the label topology.kubernetes.io/zone"],
        "the label is missing"
    );
}

#[test]
fn shows_required_terms_as_alternatives() {
    let mut cluster = Cluster::default();
    cluster.set_node(node("n", "4", json!({}), json!({"disk": "hdd"})));
    let requires = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
    let terms = json!([
        {"matchExpressions": [requires("gpu", "a100"), requires("zone", "z")]},
        {"matchExpressions": [requires("disk", "ssd")]},
    ]);
    let affinity =
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
    let e = explained(&pod("w", json!({"containers": container("1"), "affinity": affinity})), &cluster);
    let expect =
        "the pod requires disk=ssd, or gpu=a100 and zone=z; the node has disk=hdd, no label gpu, no label zone";
    assert_eq!(shortfalls(&e), [("n", expect)]);
    assert_eq!(messages(&e), ["fits n if it had the label disk=ssd"]);
}

#[test]
fn distinguishes_the_reasons_of_spread_constraints() {
    let mut cluster = Cluster::default();
    for (name, zone) in [("a", "z1"), ("b", "z2")] {
        cluster.set_node(node(name, "4", json!({}), json!({"zone": zone, "rack": zone})));
        cluster.add_pod(pod(&format!("p-{name}"), json!({"containers": container("100m")})), name);
    }
    let spread = json!([{"maxSkew": 1, "topologyKey": "zone", "minDomains": 3, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "x"}}}]);
    let e = explained(&pod("w", json!({"containers": container("1"), "topologySpreadConstraints": spread})), &cluster);
    let s = &e.nodes[0].shortfalls[0];
    assert_eq!(s.what, "zone minDomains", "not the same reason as an uneven spread");
    assert!(s.message.contains("(2 domains, minDomains is 3)"), "{}", s.message);
}

#[test]
fn lowers_requests_by_readable_amounts() {
    let text =
        |resource: &str, missing: i64, requested: i64| Change::lower_request(resource, missing, requested).to_string();
    assert_eq!(text("memory", (1 << 30) + 1, 8 << 30), "with 1025Mi less memory");
    assert_eq!(text("memory", (20 << 30) + 1, 64 << 30), "with 21Gi less memory");
    assert_eq!(text("memory", 1_400_000, 1_500_000), "with 1368Ki less memory");
    assert_eq!(text("cpu", 1500, 4000), "with 1.5 less cpu");
    assert_eq!(text("cpu", 300, 4000), "with 300m less cpu");
    assert_eq!(text("memory", i64::MAX - 1, i64::MAX), format!("with {} less memory", i64::MAX - 1), "no overflow");
}

#[test]
fn says_that_a_pod_never_preempts() {
    let mut cluster = Cluster::default();
    cluster.set_node(node("n", "2", json!({}), json!({})));
    cluster.add_pod(pod("low", json!({"nodeName": "n", "containers": container("2"), "priority": 1})), "n");
    let waiting = pod("w", json!({"containers": container("1"), "priority": 5, "preemptionPolicy": "Never"}));
    let expect =
        "fits n after d/low of lower priority is gone; the pod does not preempt, because its preemptionPolicy is Never";
    assert_eq!(messages(&explained(&waiting, &cluster)), [expect]);
}
