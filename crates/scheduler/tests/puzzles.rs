//! Small clusters with one pending pod, and what kube-scheduler v1.36 did with it: the node, or the nominated node and its victims, or the
//! message. They are decided here without a server.
//!
//! The floors are what is reached today; they only rise.

#![allow(clippy::unwrap_used, reason = "a test may")]

use meta::Rng;
use scheduler::cluster::NodeEntry;
use scheduler::decide::decide;
use scheduler::explain::{Change, explain};
use scheduler::framework::PostFilterContext;
use scheduler::plugins::Handle;
use scheduler::pod::Pod;
use scheduler::preemption::best;
use scheduler::{Cluster, Configuration, Framework};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

/// How many puzzles of each kind must have a recorded answer, whatever the random numbers are.
const FLOORS: [(&str, usize); 4] = [("bound", 270), ("preempts", 31), ("pending", 73), ("message", 104)];

/// A random number generator that always returns one number.
struct Fixed(u64);

impl Rng for Fixed {
    fn next_u64(&self) -> u64 {
        self.0
    }
}

fn puzzles() -> Vec<Value> {
    let mut text = String::new();
    flate2::read::GzDecoder::new(&include_bytes!("data/puzzles.json.gz")[..]).read_to_string(&mut text).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn pod(name: &str, labels: &Value, mut spec: Value, priority: &Value) -> Arc<Pod> {
    spec["priority"] = priority.as_i64().unwrap_or(0).into();
    let v = json!({"metadata": {"name": name, "namespace": "sched", "uid": name, "labels": labels}, "spec": spec});
    Arc::new(Pod::new(serde_json::to_vec(&v).unwrap().into()).unwrap())
}

fn cluster(puzzle: &Value) -> Cluster {
    let mut cluster = Cluster::default();
    for n in puzzle["nodes"].as_array().unwrap() {
        let allocatable =
            json!({"cpu": n["cpu"].to_string(), "memory": format!("{}Gi", n["mem"]), "pods": n["pods"].to_string()});
        let node = json!({
            "metadata": {"name": n["name"], "labels": n["labels"]},
            "spec": {"taints": n["taints"], "unschedulable": n["unschedulable"]},
            "status": {"allocatable": allocatable},
        });
        cluster.set_node(Arc::new(NodeEntry::new(serde_json::to_vec(&node).unwrap().into()).unwrap()));
    }
    for p in puzzle["running"].as_array().unwrap() {
        let mut container = json!({"name": "c", "image": "i", "resources": {"requests": p["res"]}});
        if p["port"] != 0 {
            container["ports"] = json!([{"containerPort": 80, "hostPort": 80}]);
        }
        let mut spec = json!({"nodeName": p["node"], "containers": [container]});
        if p["anti"] == true {
            let term = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "x"}}});
            spec["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
        }
        let running = pod(p["name"].as_str().unwrap(), &p["labels"], spec, &p["prio"]);
        cluster.add_pod(running, p["node"].as_str().unwrap());
    }
    cluster
}

/// The answer in the form of the recording.
fn answer(framework: &Framework, puzzle: &Value, rng: &dyn Rng) -> Value {
    let cluster = cluster(puzzle);
    let pending = pod("pending", &puzzle["labels"], puzzle["spec"].clone(), &puzzle["priority"]);
    let mut decision = decide(framework, &pending, &cluster, 0);
    if let Some(node) = &decision.node {
        return json!({"node": &**node});
    }
    let context = PostFilterContext { framework, pod: &pending, cluster: &cluster, decision: &decision, rng };
    let result = framework.post_filter(&context);
    decision.post_filter = result.message;
    let nomination = best(result.candidates, rng);
    let victims: BTreeSet<&str> = nomination.iter().flat_map(|n| &n.victims).map(|p| &*p.meta.name).collect();
    let node = nomination.as_ref().map(|n| &*n.node);
    json!({"message": decision.message(), "nominated": node, "victims": victims})
}

#[test]
fn decisions_are_those_of_kube_scheduler() {
    let frameworks = scheduler::frameworks(&Configuration::default(), &Handle::default(), &[]).unwrap();
    let framework = &frameworks["default-scheduler"];
    let (mut right, mut all) = ([0; FLOORS.len()], [0; FLOORS.len()]);
    let mut wrong = Vec::new();
    for puzzle in puzzles() {
        let recorded = puzzle["answers"].as_array().unwrap();
        let kind = match &recorded[0] {
            a if a["node"].is_string() => 0,
            a if a["nominated"].is_string() => 1,
            _ => 2,
        };
        // A message is part of an answer without a node.
        let answers: Vec<Value> = (0..7).map(|n| answer(framework, &puzzle, &Fixed(n))).collect();
        let decided = |a: &Value| [a["node"].clone(), a["nominated"].clone(), a["victims"].clone()];
        let same = answers.iter().all(|a| recorded.iter().any(|r| decided(r) == decided(a)));
        let mut count = |kind: usize, same: bool| {
            all[kind] += 1;
            right[kind] += usize::from(same);
        };
        count(kind, same);
        if kind > 0 {
            count(3, answers.iter().all(|a| recorded.iter().any(|r| r["message"] == a["message"])));
        }
        if answers.iter().any(|a| !recorded.contains(a)) {
            wrong.push(format!("{} {}: {:?} instead of {:?}", puzzle["seed"], puzzle["kind"], answers, recorded));
        }
    }
    wrong.iter().for_each(|w| println!("{w}"));
    for (i, (kind, floor)) in FLOORS.iter().enumerate() {
        println!("{kind}: {} of {}", right[i], all[i]);
        assert!(right[i] >= *floor, "{kind}: {} of {} are right, fewer than {floor}", right[i], all[i]);
    }
}

/// The puzzle after a suggested change, which is made to the objects here as a user would make it.
fn changed(puzzle: &Value, change: &Change, node: &str) -> Value {
    let mut p = puzzle.clone();
    let at = p["nodes"].as_array().unwrap().iter().position(|n| n["name"] == node).unwrap();
    let affinity = |p: &mut Value, kind: &str, key: &str| {
        let terms =
            p["spec"]["affinity"][kind]["requiredDuringSchedulingIgnoredDuringExecution"].as_array_mut().unwrap();
        let before = terms.len();
        terms.retain(|t| t["topologyKey"] != key);
        assert!(terms.len() < before);
    };
    match change {
        Change::Uncordon => {
            p["nodes"][at]["unschedulable"] = false.into();
            if let Some(taints) = p["nodes"][at]["taints"].as_array_mut() {
                taints.retain(|t| t["key"] != "node.kubernetes.io/unschedulable");
            }
        }
        Change::LowerRequest { resource, by, .. } => {
            let request = &mut p["spec"]["containers"][0]["resources"]["requests"][resource.as_str()];
            let quantity = |text: &str| text.parse::<meta::Quantity>().unwrap();
            *request = (quantity(request.as_str().unwrap()) - quantity(by)).to_string().into();
        }
        Change::Tolerate { key, value, effect } => {
            let toleration = json!({"key": key, "value": value, "effect": effect, "operator": "Equal"});
            match p["spec"]["tolerations"].as_array_mut() {
                Some(all) => all.push(toleration),
                None => p["spec"]["tolerations"] = json!([toleration]),
            }
        }
        Change::RemoveHostPort { .. } => p["spec"]["containers"][0]["ports"] = json!([]),
        Change::SetLabel { key, value } => p["nodes"][at]["labels"][key.as_str()] = value.as_str().into(),
        Change::RemoveLabel { key } => drop(p["nodes"][at]["labels"].as_object_mut().unwrap().remove(key)),
        Change::RaiseMaxSkew { topology_key, to, .. } => {
            let constraints = p["spec"]["topologySpreadConstraints"].as_array_mut().unwrap();
            let hard = constraints.iter_mut().filter(|c| c["whenUnsatisfiable"] != "ScheduleAnyway");
            hard.filter(|c| c["topologyKey"] == topology_key.as_str()).for_each(|c| c["maxSkew"] = (*to).into());
        }
        Change::RemoveAffinity { topology_key, .. } => affinity(&mut p, "podAffinity", topology_key),
        Change::RemoveAntiAffinity { topology_key, .. } => affinity(&mut p, "podAntiAffinity", topology_key),
        Change::PodsGone { pods, .. } => {
            let running = p["running"].as_array_mut().unwrap();
            running.retain(|r| !pods.iter().any(|pod| r["name"] == pod.name.as_str()));
        }
        Change::Recover { .. } => panic!("no puzzle has such a taint"),
    }
    p
}

/// Clauses: G01.pending
#[test]
fn every_suggested_change_makes_the_pod_fit() {
    let frameworks = scheduler::frameworks(&Configuration::default(), &Handle::default(), &[]).unwrap();
    let framework = &frameworks["default-scheduler"];
    let pending = |p: &Value| pod("pending", &p["labels"], p["spec"].clone(), &p["priority"]);
    let (mut explained, mut suggested, mut kinds) = (0, 0, BTreeSet::new());
    for puzzle in puzzles() {
        let e = explain(framework, &pending(&puzzle), &cluster(&puzzle), Duration::from_secs(60));
        let node = puzzle["answers"][0]["node"].as_str();
        assert_eq!(e.fitting_count > 0, node.is_some(), "{}", puzzle["seed"]);
        if node.is_some() {
            assert!(e.suggestions.is_empty() && e.nearest.is_empty());
            continue;
        }
        explained += 1;
        assert_eq!(e.nodes.len(), e.node_count, "{}: every node is explained", puzzle["seed"]);
        assert!(e.nodes.iter().all(|n| n.shortfalls.iter().all(|s| !s.rule.is_empty() && !s.message.is_empty())));
        assert!(!e.suggestions.is_empty() || !e.nearest.is_empty(), "{}", puzzle["seed"]);
        for s in &e.suggestions {
            suggested += 1;
            kinds.insert(serde_json::to_value(&s.change).unwrap()["type"].as_str().unwrap().to_owned());
            let after = changed(&puzzle, &s.change, &s.nodes[0]);
            let chosen = decide(framework, &pending(&after), &cluster(&after), 0).node.map(|n| n.to_string());
            let known = chosen.as_ref().is_some_and(|n| s.nodes.contains(n) || s.node_count > s.nodes.len());
            assert!(known, "{} {}: {chosen:?}, suggested: {}", puzzle["seed"], puzzle["kind"], s.message);
        }
        let preempts = e.suggestions.iter().any(|s| matches!(s.change, Change::PodsGone { .. }));
        let recorded = puzzle["answers"][0]["nominated"].is_string();
        assert!(preempts || !recorded, "{}: the victims are suggested", puzzle["seed"]);
    }
    println!("{explained} pods explained, {suggested} changes suggested: {kinds:?}");
    assert!(explained >= 104 && suggested >= 100, "{explained} explained, {suggested} suggested");
}
