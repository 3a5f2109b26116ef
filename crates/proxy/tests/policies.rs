//! The rules for network policies, against an evaluator that follows the text of the API.
#![allow(clippy::unwrap_used)] // helpers of tests

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use client::Meta;
use client::informer::Labels;
use network::policies::{Peer, Peers, PodPolicy, Ports};
use network::{Cidr, Protocol};
use proptest::prelude::*;
use proxy::policies::{Desired, Objects, Pod, Policy, desired};
use serde_json::{Value, json};

/// Objects of the API.
#[derive(Clone, Debug, Default)]
struct Cluster {
    /// Name and labels.
    namespaces: Vec<(String, Value)>,
    pods: Vec<Value>,
    policies: Vec<Value>,
}

/// A connection, as one end sees it.
#[derive(Clone, Copy, Debug)]
struct Connection {
    from: IpAddr,
    to: IpAddr,
    protocol: Protocol,
    port: u16,
}

fn meta(o: &Value) -> Meta {
    let text = |name: &str| o["metadata"][name].as_str().unwrap_or_default().into();
    let labels = serde_json::from_value::<Labels>(o["metadata"]["labels"].clone()).unwrap();
    let creation_timestamp = o["metadata"]["creationTimestamp"].as_str().and_then(|t| t.parse().ok());
    let (name, namespace, uid) = (text("name"), text("namespace"), text("uid"));
    Meta { name, namespace, uid, labels, creation_timestamp, ..Meta::default() }
}

impl Cluster {
    /// The desired rules of a node with these pods.
    fn desired(&self, local: &BTreeMap<String, Vec<IpAddr>>) -> Desired {
        let policies: Vec<(Meta, Policy)> =
            self.policies.iter().map(|p| (meta(p), serde_json::from_value(p.clone()).unwrap())).collect();
        let pods: Vec<(Meta, Pod)> =
            self.pods.iter().map(|p| (meta(p), serde_json::from_value(p.clone()).unwrap())).collect();
        let namespaces: Vec<Meta> =
            self.namespaces.iter().map(|(n, l)| meta(&json!({"metadata": {"name": n, "labels": l}}))).collect();
        let objects = Objects {
            policies: policies.iter().map(|(m, v)| (m, v)).collect(),
            namespaces: namespaces.iter().collect(),
            pods: pods.iter().map(|(m, v)| (m, v)).collect(),
        };
        desired(&objects, local)
    }

    /// The addresses of all pods, as if they were on one node.
    fn addresses(&self) -> BTreeMap<String, Vec<IpAddr>> {
        let address = |p: &Value| vec![p["status"]["podIP"].as_str().unwrap().parse().unwrap()];
        self.pods.iter().map(|p| (p["metadata"]["uid"].as_str().unwrap().to_owned(), address(p))).collect()
    }

    fn pod_at(&self, address: IpAddr) -> Option<&Value> {
        self.pods.iter().find(|p| p["status"]["podIP"] == address.to_string())
    }

    /// Whether the policies allow a connection to (`ingress`) or from (`egress`) a pod: the text of the API, sentence by sentence.
    fn allows(&self, direction: &str, pod: &Value, connection: Connection) -> bool {
        let namespace = &pod["metadata"]["namespace"];
        let isolating: Vec<&Value> = self
            .policies
            .iter()
            .filter(|p| p["metadata"]["namespace"] == *namespace)
            .filter(|p| selects(&p["spec"]["podSelector"], &pod["metadata"]["labels"]))
            .filter(|p| types(p).contains(&direction))
            .collect();
        // A pod that no policy isolates accepts all connections; else any rule of any policy may allow it.
        isolating.is_empty()
            || isolating.iter().any(|policy| {
                let rules = policy["spec"][direction].as_array();
                rules.into_iter().flatten().any(|r| self.rule_allows(direction, namespace, r, connection))
            })
    }

    fn rule_allows(&self, direction: &str, namespace: &Value, rule: &Value, c: Connection) -> bool {
        let (peers, address) = if direction == "ingress" { (&rule["from"], c.from) } else { (&rule["to"], c.to) };
        let empty = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
        let by_peer =
            empty(peers) || peers.as_array().unwrap().iter().any(|peer| self.peer_matches(namespace, peer, address));
        let by_port =
            empty(&rule["ports"]) || rule["ports"].as_array().unwrap().iter().any(|port| self.port_matches(port, c));
        by_peer && by_port
    }

    fn peer_matches(&self, namespace: &Value, peer: &Value, address: IpAddr) -> bool {
        if peer["ipBlock"].is_object() {
            let within = |cidr: &Value| cidr.as_str().unwrap().parse::<Cidr>().unwrap().contains(address);
            let excepted = peer["ipBlock"]["except"].as_array().into_iter().flatten().any(within);
            return within(&peer["ipBlock"]["cidr"]) && !excepted;
        }
        let Some(pod) = self.pod_at(address) else { return false };
        let own = &pod["metadata"]["namespace"];
        let in_namespace = if peer["namespaceSelector"].is_null() {
            own == namespace
        } else {
            let labels = self.namespaces.iter().find(|(n, _)| own == n).map(|(_, l)| l);
            labels.is_some_and(|labels| selects(&peer["namespaceSelector"], labels))
        };
        in_namespace && (peer["podSelector"].is_null() || selects(&peer["podSelector"], &pod["metadata"]["labels"]))
    }

    fn port_matches(&self, port: &Value, c: Connection) -> bool {
        if port["protocol"].as_str().unwrap_or("TCP") != name(c.protocol) {
            return false;
        }
        match &port["port"] {
            Value::Null => true,
            Value::String(named) => {
                // A port of the pod at the destination.
                let containers = self.pod_at(c.to).map(|p| &p["spec"]["containers"]).and_then(Value::as_array);
                let ports = containers.into_iter().flatten().flat_map(|c| c["ports"].as_array().into_iter().flatten());
                ports
                    .into_iter()
                    .any(|p| p["name"] == *named && p["protocol"] == name(c.protocol) && p["containerPort"] == c.port)
            }
            first => {
                let first = first.as_u64().unwrap();
                let last = port["endPort"].as_u64().unwrap_or(first);
                (first..=last).contains(&u64::from(c.port))
            }
        }
    }
}

fn name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    }
}

fn types(policy: &Value) -> Vec<&'static str> {
    let spec = &policy["spec"];
    match spec["policyTypes"].as_array().filter(|t| !t.is_empty()) {
        Some(types) => types.iter().map(|t| if t == "Ingress" { "ingress" } else { "egress" }).collect(),
        None if spec["egress"].as_array().is_some_and(|e| !e.is_empty()) => vec!["ingress", "egress"],
        None => vec!["ingress"],
    }
}

fn selects(selector: &Value, labels: &Value) -> bool {
    let equal = selector["matchLabels"].as_object().into_iter().flatten().all(|(k, v)| labels[k] == *v);
    let expressions = selector["matchExpressions"].as_array().into_iter().flatten();
    equal
        && expressions.into_iter().all(|e| {
            let value = &labels[e["key"].as_str().unwrap()];
            let listed = e["values"].as_array().is_some_and(|v| v.contains(value));
            match e["operator"].as_str().unwrap() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => !value.is_null(),
                _ => value.is_null(),
            }
        })
}

/// What the rules of the packet filter do.
fn rules_allow(policy: &PodPolicy, direction: &str, c: Connection) -> bool {
    let (rules, peer) = if direction == "ingress" { (&policy.ingress, c.from) } else { (&policy.egress, c.to) };
    let Some(rules) = rules else { return true };
    rules.iter().any(|rule| {
        let by_peer = match &rule.peers {
            Peers::Any => true,
            Peers::These(peers) => peers.iter().any(|p| match p {
                Peer::Pods(set) => set.addresses.contains(&peer),
                Peer::Block(b) => b.cidr.contains(peer) && !b.except.iter().any(|e| e.contains(peer)),
            }),
        };
        let by_port = match &rule.ports {
            Ports::Any => true,
            Ports::These(ranges) => ranges.iter().any(|r| {
                r.protocol == c.protocol && r.ports.is_none_or(|(first, last)| (first..=last).contains(&c.port))
            }),
        };
        let named = rule.endpoints.as_ref().is_some_and(|e| e.endpoints.contains(&(c.to, c.protocol, c.port)));
        by_peer && by_port || named
    })
}

fn labels() -> impl Strategy<Value = Value> {
    let value = prop_oneof![Just(None), Just(Some("x")), Just(Some("y"))];
    (value.clone(), value).prop_map(|(a, b)| {
        let mut labels = json!({});
        for (key, value) in [("a", a), ("b", b)] {
            if let Some(value) = value {
                labels[key] = value.into();
            }
        }
        labels
    })
}

fn selector() -> impl Strategy<Value = Value> {
    let expression =
        (prop_oneof![Just("a"), Just("b")], 0..4usize, proptest::sample::subsequence(vec!["x", "y"], 1..=2)).prop_map(
            |(key, operator, values)| match operator {
                0 => json!({"key": key, "operator": "In", "values": values}),
                1 => json!({"key": key, "operator": "NotIn", "values": values}),
                2 => json!({"key": key, "operator": "Exists"}),
                _ => json!({"key": key, "operator": "DoesNotExist"}),
            },
        );
    prop_oneof![
        2 => Just(json!({})),
        3 => labels().prop_map(|l| json!({"matchLabels": l})),
        2 => expression.prop_map(|e| json!({"matchExpressions": [e]})),
    ]
}

fn peer() -> impl Strategy<Value = Value> {
    let blocks = ["0.0.0.0/0", "10.1.0.0/16", "10.1.0.2/31", "10.1.0.4/32", "192.0.2.0/24"];
    let block = (proptest::sample::select(blocks.to_vec()), proptest::sample::subsequence(blocks.to_vec(), 0..3))
        .prop_map(|(cidr, except)| json!({"ipBlock": {"cidr": cidr, "except": except}}));
    prop_oneof![
        selector().prop_map(|s| json!({"podSelector": s})),
        selector().prop_map(|s| json!({"namespaceSelector": s})),
        (selector(), selector()).prop_map(|(n, p)| json!({"namespaceSelector": n, "podSelector": p})),
        block,
    ]
}

fn port() -> impl Strategy<Value = Value> {
    let protocol = proptest::sample::select(vec![None, Some("TCP"), Some("UDP"), Some("SCTP")]);
    let port = proptest::sample::select(vec![json!(null), json!(80), json!(81), json!("web"), json!("dns")]);
    (protocol, port, proptest::option::of(80..83i64)).prop_map(|(protocol, port, end)| {
        let mut out = json!({});
        if let Some(protocol) = protocol {
            out["protocol"] = protocol.into();
        }
        if let Some(end) = end.filter(|end| port.as_i64().is_some_and(|p| p <= *end)) {
            out["endPort"] = end.into();
        }
        if !port.is_null() {
            out["port"] = port;
        }
        out
    })
}

fn policy() -> impl Strategy<Value = Value> {
    let rule = |peers: &'static str| {
        (proptest::collection::vec(peer(), 0..3), proptest::collection::vec(port(), 0..3))
            .prop_map(move |(from, ports)| json!({peers: from, "ports": ports}))
    };
    let types = proptest::sample::subsequence(vec!["Ingress", "Egress"], 0..=2);
    let (ingress, egress) =
        (proptest::collection::vec(rule("from"), 0..3), proptest::collection::vec(rule("to"), 0..3));
    (0..2usize, selector(), types, ingress, egress).prop_map(|(namespace, pods, types, ingress, egress)| {
        json!({"metadata": {"namespace": format!("n{namespace}"), "name": "p"},
            "spec": {"podSelector": pods, "policyTypes": types, "ingress": ingress, "egress": egress}})
    })
}

fn cluster() -> impl Strategy<Value = Cluster> {
    let pod = (
        0..2usize,
        labels(),
        proptest::sample::subsequence(vec![("web", "TCP", 80), ("web", "UDP", 81), ("dns", "UDP", 80)], 0..3),
    );
    let pods = proptest::collection::vec(pod, 1..6);
    (pods, proptest::collection::vec(policy(), 0..5), labels(), labels()).prop_map(|(pods, policies, n0, n1)| {
        let pod = |(i, (namespace, labels, ports)): (usize, (usize, Value, Vec<(&str, &str, u16)>))| {
            let ports: Vec<Value> =
                ports.iter().map(|(n, p, c)| json!({"name": n, "protocol": p, "containerPort": c})).collect();
            json!({"metadata": {"namespace": format!("n{namespace}"), "name": format!("p{i}"), "uid": format!("u{i}"), "labels": labels},
                "spec": {"containers": [{"ports": ports}]},
                "status": {"phase": "Running", "podIP": format!("10.1.0.{}", i + 2)}})
        };
        Cluster {
            namespaces: vec![("n0".into(), n0), ("n1".into(), n1)],
            pods: pods.into_iter().enumerate().map(pod).collect(),
            policies,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rules_allow_what_the_policies_allow(cluster in cluster()) {
        let addresses = cluster.addresses();
        let desired = cluster.desired(&addresses);
        prop_assert_eq!(desired.pods.len(), cluster.pods.len());
        let elsewhere = ["192.0.2.1", "10.1.0.200", "198.51.100.1"].map(|a| vec![a.parse::<IpAddr>().unwrap()]);
        for (uid, own) in &addresses {
            let pod = cluster.pod_at(own[0]).unwrap();
            for other in addresses.values().chain(&elsewhere) {
                for (protocol, port) in [(Protocol::Tcp, 80), (Protocol::Tcp, 82), (Protocol::Udp, 80), (Protocol::Udp, 81), (Protocol::Sctp, 80)] {
                    for (direction, from, to) in [("ingress", other[0], own[0]), ("egress", own[0], other[0])] {
                        let c = Connection { from, to, protocol, port };
                        prop_assert_eq!(
                            rules_allow(&desired.pods[uid], direction, c), cluster.allows(direction, pod, c),
                            "{} {:?}", direction, c
                        );
                    }
                }
            }
        }
    }
}

fn pod(uid: &str, namespace: &str, labels: &Value, address: &str) -> Value {
    json!({"metadata": {"name": uid, "namespace": namespace, "uid": uid, "labels": labels},
        "spec": {"containers": []}, "status": {"phase": "Running", "podIP": address}})
}

/// A policy of namespace `n` that allows connections to all pods from pods with the label `a: x`.
fn from_x() -> Value {
    json!({"metadata": {"name": "p", "namespace": "n"},
        "spec": {"podSelector": {}, "ingress": [{"from": [{"podSelector": {"matchLabels": {"a": "x"}}}]}]}})
}

fn allowed(cluster: &Cluster, local: &[(&str, &str)]) -> Vec<String> {
    let local = local.iter().map(|(uid, address)| ((*uid).to_owned(), vec![address.parse().unwrap()])).collect();
    let desired = cluster.desired(&local);
    let rules = desired.pods["server"].ingress.clone().unwrap();
    let Peers::These(peers) = &rules[0].peers else { panic!("{rules:?}") };
    let Peer::Pods(set) = &peers[0] else { panic!("{peers:?}") };
    set.addresses.iter().map(IpAddr::to_string).collect()
}

#[test]
fn an_address_belongs_to_one_pod() {
    let x = json!({"a": "x"});
    let mut cluster = Cluster {
        namespaces: vec![("n".into(), json!({}))],
        pods: vec![
            pod("server", "n", &json!({}), "10.1.0.2"),
            pod("old", "n", &x, "10.1.0.3"),
            pod("far", "n", &x, "10.1.9.9"),
        ],
        policies: vec![from_x()],
    };
    assert_eq!(allowed(&cluster, &[("server", "10.1.0.2")]), ["10.1.0.3", "10.1.9.9"]);
    // A pod of this node has the address of one that another node, or the past, reports.
    assert_eq!(allowed(&cluster, &[("server", "10.1.0.2"), ("new", "10.1.0.3")]), ["10.1.9.9"]);
    cluster.pods.push(pod("new", "n", &json!({"a": "y"}), ""));
    assert_eq!(allowed(&cluster, &[("server", "10.1.0.2"), ("new", "10.1.0.3")]), ["10.1.9.9"]);
    cluster.pods.push(pod("unreported", "n", &x, ""));
    assert_eq!(
        allowed(&cluster, &[("server", "10.1.0.2"), ("unreported", "10.1.0.4")]),
        ["10.1.0.3", "10.1.0.4", "10.1.9.9"]
    );
    // Pods that have ended, and those of the node's network, are no peers.
    cluster.pods[1]["status"]["phase"] = "Succeeded".into();
    cluster.pods[2]["spec"]["hostNetwork"] = true.into();
    assert!(allowed(&cluster, &[("server", "10.1.0.2")]).is_empty());
}

#[test]
fn names_of_sets_stay_while_pods_change() {
    let x = json!({"a": "x"});
    let mut cluster = Cluster {
        namespaces: vec![("n".into(), json!({}))],
        pods: vec![pod("server", "n", &json!({}), "10.1.0.2")],
        policies: vec![from_x()],
    };
    let local = BTreeMap::from([("server".to_owned(), vec![[10, 1, 0, 2].into()])]);
    let set = |cluster: &Cluster| {
        let rules = cluster.desired(&local).pods["server"].ingress.clone().unwrap();
        let Peers::These(peers) = &rules[0].peers else { panic!() };
        let Peer::Pods(set) = &peers[0] else { panic!() };
        (set.name.clone(), set.addresses.len())
    };
    let (before, count) = set(&cluster);
    assert_eq!(count, 0);
    cluster.pods.push(pod("x", "n", &x, "10.1.0.3"));
    assert_eq!(set(&cluster), (before, 1));
}

#[test]
fn rules_beyond_the_limit_allow_nothing() {
    let blocks: Vec<Value> =
        (0..20_000u32).map(|n| json!({"from": [{"ipBlock": {"cidr": format!("{}/32", Ipv4Addr::from(n))}}]})).collect();
    let cluster = Cluster {
        namespaces: vec![],
        pods: vec![pod("server", "n", &json!({}), "10.1.0.2")],
        policies: vec![
            json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"podSelector": {}, "ingress": blocks}}),
        ],
    };
    let desired = cluster.desired(&cluster.addresses());
    assert_eq!(desired.pods["server"].ingress.as_ref().unwrap().len(), 10_000);
    assert_eq!(desired.excess, [("n".to_owned(), 10_000)].into());
}

#[test]
fn a_policy_without_fields_isolates_all_pods() {
    let cluster = Cluster {
        namespaces: vec![],
        pods: vec![pod("server", "n", &json!({}), "10.1.0.2"), pod("other", "m", &json!({}), "10.1.0.3")],
        policies: vec![json!({"metadata": {"name": "p", "namespace": "n"}})],
    };
    let desired = cluster.desired(&cluster.addresses());
    assert_eq!(desired.pods["server"].ingress, Some(vec![]));
    assert_eq!(desired.pods["server"].egress, None);
    assert_eq!(desired.pods["other"].ingress, None);
}

/// Prints how long the rules of a node with 100 pods take in a large cluster.
#[test]
fn many_policies_and_pods_take_no_seconds() {
    let pods = (0..10_000u32).map(|i| {
        let labels = json!({"app": format!("a{}", i % 1000), "tier": format!("t{}", i % 5)});
        pod(&format!("u{i}"), &format!("n{}", i % 10), &labels, &Ipv4Addr::from(0x0a01_0000 + i).to_string())
    });
    let policies = (0..1000u32).map(|i| {
        let app = |n: u32| json!({"matchLabels": {"app": format!("a{}", n % 1000)}});
        json!({"metadata": {"name": format!("p{i}"), "namespace": format!("n{}", i % 10)}, "spec": {"podSelector": {"matchLabels": {"tier": format!("t{}", i % 5)}},
            "ingress": [{"from": [{"podSelector": app(i)}, {"namespaceSelector": {}, "podSelector": app(i + 1)}], "ports": [{"port": 80}]}],
            "egress": [{"to": [{"podSelector": app(i + 2)}]}]}})
    });
    let namespaces = (0..10).map(|n| (format!("n{n}"), json!({}))).collect();
    let cluster = Cluster { namespaces, pods: pods.collect(), policies: policies.collect() };
    let all = cluster.addresses();
    let local = all.into_iter().filter(|(_, a)| a.octets()[3] < 2).collect();
    let begin = tokio::time::Instant::now();
    let desired = cluster.desired(&local);
    println!("{} pods of 10,000 with 1,000 policies: {:?}, with decoding", desired.pods.len(), begin.elapsed());
    assert!(desired.pods.values().all(|p| p.ingress.as_ref().is_some_and(|r| r.len() == 100)));
}

/// A static pod has the policies of its mirror pod. Nobody takes the rules of a pod that is in the API itself by writing the annotation.
#[test]
fn static_pods_have_the_policies_of_their_mirrors() {
    let mirror = |uid: &str, of: &str, created: &str| {
        let mut pod = pod(uid, "n", &json!({}), "10.0.0.1");
        pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": of});
        pod["metadata"]["creationTimestamp"] = created.into();
        pod["spec"]["nodeName"] = "a".into();
        pod
    };
    let isolate = json!({"metadata": {"namespace": "n", "name": "p"}, "spec": {"podSelector": {}}});
    let mut thief = mirror("thief", "normal", "2026-01-01T00:00:00Z");
    thief["metadata"]["namespace"] = "open".into();
    let mut late = mirror("late", "static", "2026-01-02T00:00:00Z");
    late["metadata"]["namespace"] = "open".into();
    let mut unscheduled = mirror("unscheduled", "static", "2025-01-01T00:00:00Z");
    unscheduled["metadata"]["namespace"] = "open".into();
    unscheduled["spec"]["nodeName"] = "".into();
    let cluster = Cluster {
        policies: vec![isolate],
        namespaces: vec![("n".into(), json!({})), ("open".into(), json!({}))],
        pods: vec![
            unscheduled,
            late,
            mirror("mirror", "static", "2026-01-01T00:00:00Z"),
            pod("normal", "n", &json!({}), "10.0.0.2"),
            thief,
        ],
    };
    let local = [("static", "10.0.0.1"), ("normal", "10.0.0.2"), ("unknown", "10.0.0.3")];
    let local = local.into_iter().map(|(uid, address)| (uid.to_owned(), vec![address.parse().unwrap()])).collect();
    let desired = cluster.desired(&local);
    assert_eq!(desired.pods.keys().collect::<Vec<_>>(), ["normal", "static"]);
    for (uid, policy) in &desired.pods {
        assert_eq!(policy.ingress, Some(Vec::new()), "{uid}");
    }
}
