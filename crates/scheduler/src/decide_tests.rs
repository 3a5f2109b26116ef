use super::*;
use crate::cluster::NodeEntry;
use crate::configuration::Configuration;
use crate::plugins::Handle;
use serde_json::{Value, json};
use std::sync::Arc;

fn node(name: &str, cpu: &str, labels: Value, taints: Value) -> Arc<NodeEntry> {
    let v = json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints},
        "status": {"allocatable": {"cpu": cpu, "memory": "4Gi", "pods": "3"}},
    });
    Arc::new(NodeEntry::new(serde_json::to_vec(&v).unwrap().into()).unwrap())
}

fn pod(name: &str, labels: Value, spec: Value) -> Arc<Pod> {
    let v = json!({"metadata": {"name": name, "namespace": "d", "uid": name, "labels": labels}, "spec": spec});
    Arc::new(Pod::new(serde_json::to_vec(&v).unwrap().into()).unwrap())
}

fn cpu(amount: &str) -> Value {
    json!({"containers": [{"resources": {"requests": {"cpu": amount}}}]})
}

fn run(c: &Cluster, p: &Pod) -> Decision {
    let frameworks = crate::frameworks(&Configuration::default(), &Handle::default(), &[]).unwrap();
    decide(&frameworks["default-scheduler"], p, c, 0)
}

/// Clauses: R02.reasons
#[test]
fn reasons_are_counted_over_nodes() {
    let mut c = Cluster::default();
    let p = pod("p", json!({}), cpu("2"));
    assert_eq!(run(&c, &p).message(), "no nodes available to schedule pods");
    c.set_node(node("a", "1", json!({}), json!([])));
    c.set_node(node("b", "1", json!({}), json!([])));
    c.set_node(node("c", "8", json!({}), json!([{"key": "k", "effect": "NoSchedule"}])));
    let d = run(&c, &p);
    assert_eq!(d.node, None);
    assert_eq!(d.message(), "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu.");
    assert_eq!(d.refused_by(), ["NodeResourcesFit", "TaintToleration"].into());
    c.set_node(node("d", "2", json!({}), json!([])));
    assert_eq!(run(&c, &p).node.as_deref(), Some("d"));
}

/// Clauses: R02.overcommit
#[test]
fn placed_pods_count_until_they_go() {
    let mut c = Cluster::default();
    c.set_node(node("a", "1", json!({}), json!([])));
    c.add_pod(pod("x", json!({}), cpu("600m")), "a");
    let p = pod("p", json!({}), cpu("500m"));
    assert_eq!(run(&c, &p).message(), "0/1 nodes are available: 1 Insufficient cpu.");
    c.add_pod(pod("x", json!({}), cpu("500m")), "a");
    assert_eq!(run(&c, &p).node.as_deref(), Some("a"), "placed again is placed once");
    c.add_pod(pod("y", json!({}), json!({})), "a");
    c.add_pod(pod("z", json!({}), json!({})), "a");
    assert_eq!(run(&c, &p).message(), "0/1 nodes are available: 1 Too many pods.");
    c.remove_pod("z");
    assert!(run(&c, &p).node.is_some());
    c.remove_node("a");
    assert_eq!(c.live(), 0);
    c.set_node(node("a", "1", json!({}), json!([])));
    assert_eq!(c.node("a").unwrap().pods.len(), 2, "its pods were remembered");
}

#[test]
fn emptier_and_preferred_nodes_score_higher() {
    let mut c = Cluster::default();
    c.set_node(node("a", "4", json!({"disk": "ssd"}), json!([])));
    c.set_node(node("b", "4", json!({}), json!([])));
    c.add_pod(pod("x", json!({}), cpu("1")), "a");
    let d = run(&c, &pod("p", json!({}), cpu("1")));
    assert_eq!((d.node.as_deref(), d.feasible), (Some("b"), 2));
    assert!(d.scores.iter().any(|(n, s)| *n == "NodeResourcesFit" && *s > 0));
    let mut spec = cpu("1");
    spec["affinity"] = json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 10, "preference": {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}}]}});
    assert_eq!(run(&c, &pod("p", json!({}), spec)).node.as_deref(), Some("a"));
}

#[test]
fn selectors_names_ports_and_cordons() {
    let mut c = Cluster::default();
    c.set_node(node("a", "4", json!({"zone": "1"}), json!([])));
    c.set_node(node("b", "4", json!({"zone": "2"}), json!([])));
    let named = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]}}}});
    let d = run(&c, &pod("p", json!({}), named.clone()));
    assert_eq!((d.node.as_deref(), d.evaluated), (Some("b"), 1));
    assert_eq!(run(&c, &pod("p", json!({}), json!({"nodeSelector": {"zone": "1"}}))).node.as_deref(), Some("a"));
    let d = run(&c, &pod("p", json!({}), json!({"nodeSelector": {"zone": "3"}})));
    assert_eq!(d.message(), "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.");
    let port = json!({"containers": [{"ports": [{"hostPort": 80}]}]});
    c.add_pod(pod("x", json!({}), port.clone()), "a");
    assert_eq!(run(&c, &pod("p", json!({}), port.clone())).node.as_deref(), Some("b"));
    c.add_pod(pod("y", json!({}), port.clone()), "b");
    let d = run(&c, &pod("p", json!({}), port));
    assert_eq!(d.message(), "0/2 nodes are available: 2 node(s) didn't have free ports for the requested pod ports.");
}

#[test]
fn pod_affinity_and_anti_affinity() {
    let mut c = Cluster::default();
    c.set_node(node("a", "4", json!({"host": "a", "zone": "1"}), json!([])));
    c.set_node(node("b", "4", json!({"host": "b", "zone": "1"}), json!([])));
    c.set_node(node("c", "4", json!({"host": "c", "zone": "2"}), json!([])));
    let term = |key: &str| json!([{"topologyKey": key, "labelSelector": {"matchLabels": {"app": "web"}}}]);
    let spec = |kind: &str, key: &str| json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": term(key)}}});
    let web = json!({"app": "web"});
    let first = pod("w0", web.clone(), spec("podAffinity", "zone"));
    assert!(run(&c, &first).node.is_some(), "the first of a group");
    assert!(run(&c, &pod("x", json!({}), spec("podAffinity", "zone"))).node.is_none(), "not one of the group");
    c.add_pod(first, "c");
    assert_eq!(run(&c, &pod("x", json!({}), spec("podAffinity", "zone"))).node.as_deref(), Some("c"));
    for (i, n) in ["a", "b"].iter().enumerate() {
        let p = pod(&format!("w{}", i + 1), web.clone(), spec("podAntiAffinity", "host"));
        let got = run(&c, &p).node.unwrap();
        assert_ne!(&*got, "c");
        c.add_pod(p, n);
        c.remove_pod("none");
    }
    let d = run(&c, &pod("w3", web.clone(), spec("podAntiAffinity", "host")));
    assert_eq!(d.message(), "0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules.");
    let d = run(&c, &pod("w4", web, json!({"nodeSelector": {"host": "a"}})));
    assert_eq!(
        d.message(),
        "0/3 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules, \
         2 node(s) didn't match Pod's node affinity/selector."
    );
}

#[test]
fn pods_are_spread_over_zones() {
    let mut c = Cluster::default();
    c.set_node(node("a", "4", json!({"zone": "1"}), json!([])));
    c.set_node(node("b", "4", json!({"zone": "2"}), json!([])));
    c.set_node(node("c", "4", json!({}), json!([])));
    let web = json!({"app": "web"});
    let spec = |when: &str| {
        json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": when,
        "labelSelector": {"matchLabels": {"app": "web"}}}]})
    };
    c.add_pod(pod("w0", web.clone(), json!({})), "a");
    assert_eq!(run(&c, &pod("w1", web.clone(), spec("DoNotSchedule"))).node.as_deref(), Some("b"));
    assert_eq!(run(&c, &pod("w1", web.clone(), spec("ScheduleAnyway"))).node.as_deref(), Some("b"));
    c.remove_node("b");
    c.set_node(node("b", "4", json!({"zone": "2"}), json!([{"key": "k", "effect": "NoSchedule"}])));
    let d = run(&c, &pod("w1", web, spec("DoNotSchedule")));
    assert_eq!(
        d.message(),
        "0/3 nodes are available: 1 node(s) didn't match pod topology spread constraints, \
         1 node(s) didn't match pod topology spread constraints (missing required label), 1 node(s) had untolerated taint(s)."
    );
}

#[test]
fn large_clusters_are_searched_in_part() {
    assert_eq!([50, 100, 1000, 5000, 10_000].map(|n| enough(n, None)), [50, 100, 420, 500, 500]);
    assert_eq!([50, 1000, 5000].map(|n| enough(n, Some(70))), [50, 700, 3500]);
}

/// The message of a pod that no node fits, as in its status.
fn refused(c: &Cluster, p: &Pod) -> String {
    struct Zero;
    impl meta::Rng for Zero {
        fn next_u64(&self) -> u64 {
            0
        }
    }
    let frameworks = crate::frameworks(&Configuration::default(), &Handle::default(), &[]).unwrap();
    let framework = &frameworks["default-scheduler"];
    let mut decision = decide(framework, p, c, 0);
    let context =
        crate::framework::PostFilterContext { framework, pod: p, cluster: c, decision: &decision, rng: &Zero };
    decision.post_filter = framework.post_filter(&context).message;
    decision.message()
}

/// After a refusal by PreFilter, upstream's plugin for devices finds no state of the pod, or no claims in it.
#[test]
fn messages_of_refused_pods_end_as_upstreams() {
    use crate::devices::DeviceObject;
    let mut c = Cluster::default();
    c.set_node(node("a", "1", json!({}), json!([])));
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "missing"}}]);
    let missing = refused(&c, &pod("p", json!({}), json!({"volumes": volumes})));
    assert_eq!(missing, "0/1 nodes are available: persistentvolumeclaim \"missing\" not found. not found");
    let terms = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["zz"]},
        {"key": "metadata.name", "operator": "In", "values": ["a"]}]}]);
    let affinity =
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
    let elsewhere = refused(&c, &pod("p", json!({}), json!({"affinity": affinity})));
    assert_eq!(elsewhere, "0/1 nodes are available: pod affinity terms conflict. not found");
    let request = json!({"name": "r", "firstAvailable": [{"name": "s", "deviceClassName": "nosuch"}]});
    let claim =
        json!({"metadata": {"name": "c", "namespace": "d", "uid": "c"}, "spec": {"devices": {"requests": [request]}}});
    let claim = client::Entry::new(serde_json::to_vec(&claim).unwrap().into()).unwrap();
    c.devices_mut().set(DeviceObject::Claim(Arc::new(claim)));
    let claims = json!([{"name": "k", "resourceClaimName": "c"}]);
    let classless = refused(&c, &pod("p", json!({}), json!({"resourceClaims": claims})));
    let expected = "0/1 nodes are available: request r/s: device class nosuch does not exist. no new claims to deallocate, preemption: ";
    assert!(classless.starts_with(expected), "{classless}");
}

/// Clauses: R02.reasons
#[test]
fn invalid_preferences_fail_where_nodes_are_scored() {
    let mut c = Cluster::default();
    let term = |values: Value| json!({"weight": 1, "preference": {"matchExpressions": [{"key": "rank", "operator": "Gt", "values": values}]}});
    let preferring = |terms: Value| json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}});
    let bad = pod("p", json!({}), preferring(json!([term(json!(["4"])), term(json!(["-5"]))])));
    c.set_node(node("a", "1", json!({"rank": "3"}), json!([])));
    assert_eq!(run(&c, &bad).node.as_deref(), Some("a"), "a single node is not scored");
    c.set_node(node("b", "1", json!({"rank": "7"}), json!([])));
    let d = run(&c, &bad);
    let error = d.error.unwrap_or_default();
    let start = "running PreScore plugin \"NodeAffinity\": [1].matchExpressions[0].values[0][rank]: Invalid value: \"-5\": a valid label must be";
    assert!(error.starts_with(start), "{error}");
    assert_eq!(d.node, None);
    let several = pod("p", json!({}), preferring(json!([term(json!(["x"])), term(json!(["y"]))])));
    let error = run(&c, &several).error.unwrap_or_default();
    assert!(error.contains("NodeAffinity\": [[0].matchExpressions[0].values[0]: Invalid value: \"x\": for"), "{error}");
    let good = pod("p", json!({}), preferring(json!([term(json!(["5"]))])));
    assert_eq!(run(&c, &good).node.as_deref(), Some("b"));
}
