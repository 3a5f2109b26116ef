//! The examples of the documentation of topology spread constraints, and what they leave open.

use crate::cluster::NodeEntry;
use crate::decide::{decide, filter};
use crate::plugins::Handle;
use crate::pod::Pod;
use crate::workloads::{Kind, Selecting};
use crate::{Cluster, Configuration, Framework};
use client::informer::Key;
use serde_json::{Value, json};
use std::sync::Arc;

fn framework(configuration: &Configuration) -> Arc<Framework> {
    crate::frameworks(configuration, &Handle::default(), &[]).unwrap()["default-scheduler"].clone()
}

fn node(name: &str, zone: &str, tainted: bool) -> Arc<NodeEntry> {
    let mut labels = json!({"node": name, "kubernetes.io/hostname": name});
    if !zone.is_empty() {
        labels["zone"] = zone.into();
    }
    let taints = if tainted { json!([{"key": "k", "effect": "NoSchedule"}]) } else { json!([]) };
    let v = json!({"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints},
        "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "110"}}});
    Arc::new(NodeEntry::new(serde_json::to_vec(&v).unwrap().into()).unwrap())
}

fn pod(name: &str, namespace: &str, labels: &Value, spec: &Value) -> Arc<Pod> {
    let v = json!({"metadata": {"name": name, "namespace": namespace, "uid": name, "labels": labels}, "spec": spec});
    Arc::new(Pod::new(serde_json::to_vec(&v).unwrap().into()).unwrap())
}

/// Nodes with their zones, and the numbers of pods with the label `foo=bar` on them.
fn cluster(nodes: &[(&str, &str, usize)]) -> Cluster {
    let mut c = Cluster::default();
    for (name, zone, pods) in nodes {
        c.set_node(node(name, zone, false));
        for i in 0..*pods {
            c.add_pod(pod(&format!("{name}-{i}"), "d", &json!({"foo": "bar"}), &json!({})), name);
        }
    }
    c
}

fn four() -> Cluster {
    cluster(&[("node1", "A", 1), ("node2", "A", 1), ("node3", "B", 1), ("node4", "B", 0)])
}

fn constraint(key: &str) -> Value {
    json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"foo": "bar"}}})
}

fn with(mut constraint: Value, field: &str, value: impl Into<Value>) -> Value {
    constraint[field] = value.into();
    constraint
}

fn mypod(constraints: &[Value]) -> Arc<Pod> {
    pod("mypod", "d", &json!({"foo": "bar"}), &json!({"topologySpreadConstraints": constraints}))
}

/// The nodes that a pod fits.
fn fits(c: &Cluster, p: &Pod) -> Vec<String> {
    let framework = framework(&Configuration::default());
    let filtered = filter(&framework, p, c, 0);
    let mut names: Vec<String> = filtered.feasible.iter().map(|n| n.name.to_string()).collect();
    names.sort();
    names
}

fn choice(c: &Cluster, p: &Pod) -> String {
    decide(&framework(&Configuration::default()), p, c, 0).node.unwrap().to_string()
}

/// Clauses: P14.one-constraint
#[test]
fn one_constraint_balances_zones_or_nodes() {
    let c = four();
    assert_eq!(fits(&c, &mypod(&[constraint("zone")])), ["node3", "node4"]);
    let loose = with(constraint("zone"), "maxSkew", 2);
    assert_eq!(fits(&c, &mypod(&[loose])), ["node1", "node2", "node3", "node4"]);
    assert_eq!(fits(&c, &mypod(&[constraint("node")])), ["node4"]);
    let soft = mypod(&[with(constraint("zone"), "whenUnsatisfiable", "ScheduleAnyway")]);
    assert_eq!(fits(&c, &soft).len(), 4);
    assert!(["node3", "node4"].contains(&&*choice(&c, &soft)), "the zone with fewer pods is preferred");
}

/// Clauses: P14.two-constraints, P14.conflict
#[test]
fn several_constraints_must_all_hold() {
    let both = [constraint("zone"), constraint("node")];
    assert_eq!(fits(&four(), &mypod(&both)), ["node4"]);
    let c = cluster(&[("node1", "A", 2), ("node2", "A", 1), ("node3", "B", 2)]);
    let d = decide(&framework(&Configuration::default()), &mypod(&both), &c, 0);
    let message = "0/3 nodes are available: 3 node(s) didn't match pod topology spread constraints.";
    assert_eq!((d.node.as_deref(), &*d.message()), (None, message));
    let loose = [constraint("zone"), with(constraint("node"), "maxSkew", 2)];
    assert_eq!(fits(&c, &mypod(&loose)), ["node3"]);
    let soft = [constraint("zone"), with(constraint("node"), "whenUnsatisfiable", "ScheduleAnyway")];
    assert_eq!(fits(&c, &mypod(&soft)), ["node3"]);
}

/// Clauses: P14.conventions
#[test]
fn other_namespaces_nodes_without_the_key_and_foreign_labels() {
    let mut c = four();
    // Pods of another namespace do not count.
    for i in 0..3 {
        c.add_pod(pod(&format!("other-{i}"), "e", &json!({"foo": "bar"}), &json!({})), "node4");
    }
    assert_eq!(fits(&c, &mypod(&[constraint("zone")])), ["node3", "node4"]);
    // Without the label, the two pods of node1 do not count.
    let c = cluster(&[("node1", "", 2), ("node2", "A", 1), ("node3", "B", 2)]);
    assert_eq!(fits(&c, &mypod(&[constraint("zone"), constraint("node")])), ["node2"]);
    // A node with a misspelt label gets no pods.
    let mut c = four();
    c.set_node(node("node5", "", false));
    assert_eq!(fits(&c, &mypod(&[constraint("zone")])), ["node3", "node4"]);
    // A pod that its own constraint does not select fits, and changes nothing.
    let unlabelled = pod("mypod", "d", &json!({}), &json!({"topologySpreadConstraints": [constraint("zone")]}));
    assert_eq!(fits(&four(), &unlabelled).len(), 4);
    let uneven = cluster(&[("node1", "A", 2), ("node2", "A", 1), ("node3", "B", 1)]);
    assert_eq!(fits(&uneven, &unlabelled), ["node3"]);
}

fn five() -> Cluster {
    cluster(&[("node1", "A", 1), ("node2", "A", 1), ("node3", "B", 1), ("node4", "B", 0), ("node5", "C", 0)])
}

fn not_in_c(constraint: Value) -> Arc<Pod> {
    let term = json!({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["C"]}]});
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}});
    let spec = json!({"topologySpreadConstraints": [constraint], "affinity": {"nodeAffinity": required}});
    pod("mypod", "d", &json!({"foo": "bar"}), &spec)
}

/// Clauses: P14.node-affinity, P14.inclusion-policies
#[test]
fn nodes_that_the_pod_does_not_fit_are_left_out_by_policy() {
    let c = five();
    assert_eq!(fits(&c, &mypod(&[constraint("zone")])), ["node5"]);
    assert_eq!(fits(&c, &not_in_c(constraint("zone"))), ["node3", "node4"]);
    let ignored = with(constraint("zone"), "nodeAffinityPolicy", "Ignore");
    assert_eq!(fits(&c, &not_in_c(ignored)), [""; 0], "the empty zone C counts");
    let selector = json!({"topologySpreadConstraints": [constraint("zone")], "nodeSelector": {"zone": "B"}});
    assert_eq!(fits(&c, &pod("mypod", "d", &json!({"foo": "bar"}), &selector)), ["node3", "node4"]);
    // Taints count only with the policy Honor.
    let mut c = five();
    c.set_node(node("node5", "C", true));
    assert_eq!(fits(&c, &mypod(&[constraint("zone")])), [""; 0]);
    let honored = with(constraint("zone"), "nodeTaintsPolicy", "Honor");
    assert_eq!(fits(&c, &mypod(std::slice::from_ref(&honored))), ["node3", "node4"]);
    c.set_node(node("node5", "C", false));
    assert_eq!(fits(&c, &mypod(&[honored])), ["node5"], "without its taint, its zone counts");
}

/// Clauses: P14.minDomains
#[test]
fn fewer_domains_than_wanted_count_as_an_empty_one() {
    let c = four();
    let few = |n: i64| mypod(&[with(constraint("zone"), "minDomains", n)]);
    assert_eq!(fits(&c, &few(2)), ["node3", "node4"]);
    assert_eq!(fits(&c, &few(3)), [""; 0]);
    assert_eq!(fits(&five(), &few(3)), ["node5"]);
}

/// Clauses: P14.matchLabelKeys
#[test]
fn values_of_label_keys_select_the_own_revision() {
    let mut c = cluster(&[("node1", "A", 0), ("node2", "B", 0)]);
    for (i, (node, revision)) in [("node1", "1"), ("node1", "1"), ("node2", "2")].into_iter().enumerate() {
        c.add_pod(pod(&i.to_string(), "d", &json!({"foo": "bar", "rev": revision}), &json!({})), node);
    }
    let new = |constraint: Value| {
        let spec = json!({"topologySpreadConstraints": [constraint]});
        pod("mypod", "d", &json!({"foo": "bar", "rev": "2"}), &spec)
    };
    assert_eq!(fits(&c, &new(constraint("zone"))), ["node2"], "all revisions");
    let keys = with(constraint("zone"), "matchLabelKeys", json!(["rev"]));
    assert_eq!(fits(&c, &new(keys)), ["node1"], "its own revision");
}

/// Clauses: P14.cluster-defaults
#[test]
fn default_constraints_are_for_pods_of_services_without_their_own() {
    let text = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n- pluginConfig:\n  - name: PodTopologySpread\n    args:\n      defaultingType: List\n      defaultConstraints:\n      - {maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}\n";
    let framework = framework(&Configuration::parse(text).unwrap());
    let nodes = |c: &Cluster, p: &Pod| {
        let mut names: Vec<String> = filter(&framework, p, c, 0).feasible.iter().map(|n| n.name.to_string()).collect();
        names.sort();
        names
    };
    let mut c = four();
    let plain = pod("mypod", "d", &json!({"foo": "bar"}), &json!({}));
    assert_eq!(nodes(&c, &plain).len(), 4, "it belongs to no service");
    let service: Selecting = serde_json::from_value(json!({"spec": {"selector": {"foo": "bar"}}})).unwrap();
    c.workloads_mut().set(Kind::Service, &Key::new("d", "s"), Some(&service));
    assert_eq!(nodes(&c, &plain), ["node3", "node4"]);
    assert_eq!(nodes(&c, &mypod(&[constraint("node")])), ["node4"], "its own constraints replace the defaults");
}
