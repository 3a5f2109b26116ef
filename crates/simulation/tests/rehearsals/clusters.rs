//! Copies of running clusters.

use crate::support::*;
use meta::Clock;
use serde_json::{Value, json};
use simulation::scenario::Step;
use simulation::timeline::Kind;
use simulation::{Copy, Run, Scenario, Verdict, in_virtual_time, snapshot};

/// A cluster with workloads of all kinds, after a rollout, and a copy of it.
fn cluster_copy() -> Copy {
    let set = |kind: &str, name: &str| {
        let mut spec = json!({"selector": {"matchLabels": {"app": name}}, "template": {"metadata": {"labels": {"app": name}},
            "spec": {"containers": [{"name": "c", "image": "x:1"}]}}});
        if kind == "StatefulSet" {
            spec["serviceName"] = name.into();
            spec["replicas"] = 2.into();
        }
        json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
    };
    let pod = |name: &str, owners: Value, annotation: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "ownerReferences": owners, "annotations": {annotation: "x"}},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "x:1"}]}})
    };
    let rollout = json!({"kind": "Rollout", "apiVersion": "argoproj.io/v1", "name": "foreign", "uid": "no-such-uid", "controller": true});
    let scenario = json!({
        "nodes": [
            {"name": "n1", "zones": ["a"], "taints": [{"key": "odd", "effect": "PreferNoSchedule"}]},
            {"name": "n2", "zones": ["b"]},
        ],
        "components": ["deployment-controller", "replicaset-controller", "statefulset-controller", "daemon-set-controller", "disruption-controller",
            "endpointslice-controller", "service-account-controller", "node-controller", "scheduler"],
        "steps": [],
    });
    let scenario = Scenario::parse(&scenario.to_string()).unwrap();
    let objects = web(3, Value::Null, json!({"maxUnavailable": 1}));
    let result = in_virtual_time(async {
        let mut run = Run::start(&scenario).await.unwrap();
        for source in objects.sources {
            run.execute(&Step::Create(source.object.into_value())).await.unwrap();
        }
        run.execute(&Step::Create(set("StatefulSet", "db"))).await.unwrap();
        run.execute(&Step::Create(set("DaemonSet", "agent"))).await.unwrap();
        run.execute(&Step::Create(pod("alone", json!([]), "note"))).await.unwrap();
        run.execute(&Step::Create(pod("custom", json!([rollout]), "note"))).await.unwrap();
        run.execute(&Step::Create(pod("static", json!([]), "kubernetes.io/config.mirror"))).await.unwrap();
        run.execute(&Step::Rollout(
            serde_json::from_value(json!({"object": "deployment/web", "image": "web:2"})).unwrap(),
        ))
        .await
        .unwrap();
        run.execute(&Step::Rollout(serde_json::from_value(json!({"object": "sts/db", "image": "x:2"})).unwrap()))
            .await
            .unwrap();
        run.execute(&serde_json::from_value(json!({"advance": "1m"})).unwrap()).await.unwrap();
        snapshot::read(&run.plane.client, "https://example", run.plane.cluster.clock.now()).await.unwrap()
    });
    result.unwrap()
}

/// Clauses: G05.from-cluster
#[test]
fn a_copy_of_a_running_cluster_runs_on_as_it_was() {
    let copy = cluster_copy();
    let r = run(&copy, "{expect: [{available: {atLeast: 100%}}, {endpoints: {}}], steps: [{advance: 10m}]}");
    assert_eq!(r.verdict, Verdict::Held, "{}", r.to_text());
    let events: Vec<Kind> = r.timeline.iter().map(|e| e.kind).collect();
    assert_eq!(events, [Kind::Step], "nothing happens by itself: {}", r.to_text());
    let rows: Vec<(String, u64)> = r.workloads.iter().map(|w| (w.workload.to_string(), w.minimum)).collect();
    let expected = [("daemonset default/agent", 2), ("deployment default/web", 3), ("statefulset default/db", 2)];
    assert_eq!(rows, expected.map(|(name, n)| (name.to_owned(), n)));
    assert!(
        r.basis
            .notes
            .contains(&"1 objects belong to a Rollout, which was not copied: nothing creates them again".to_owned()),
        "{:?}",
        r.basis.notes
    );
    assert!(
        r.basis.copied[0].starts_with("the cluster at https://example, read with lists alone: 4 namespaces, 2 nodes, "),
        "{:?}",
        r.basis.copied
    );
}

/// Clauses: G05.from-cluster, G05.drain
#[test]
fn a_node_of_a_copy_is_drained() {
    let copy = cluster_copy();
    let r = run(&copy, "{expect: [{available: {object: deployment/web, atLeast: 2}}], steps: [{drain: {node: n1}}]}");
    assert_eq!(r.verdict, Verdict::Broken, "a pod without a controller forbids it: {}", r.to_text());
    assert!(r.violations[0].problem.ends_with("(use force to override): default/alone"), "{:?}", r.violations);
    let r = run(
        &copy,
        "{expect: [{available: {object: deployment/web, atLeast: 2}}], steps: [{drain: {node: n1, force: true}}]}",
    );
    assert_eq!(r.verdict, Verdict::Held, "{}", r.to_text());
    let evicted: Vec<String> =
        r.timeline.iter().filter(|e| e.kind == Kind::Evicted).flat_map(|e| e.names.clone()).collect();
    for name in ["alone", "custom"] {
        assert!(evicted.iter().any(|n| n == name), "{evicted:?}");
    }
    assert!(!evicted.iter().any(|n| n.starts_with("agent") || n == "static"), "{evicted:?}");
}

/// Clauses: G05.from-cluster
#[test]
fn nodes_that_the_cluster_has_already_are_refused() {
    let copy = cluster_copy();
    let error = try_run(&copy, "{nodes: [{name: n1}], steps: []}").unwrap_err().to_string();
    assert_eq!(error, "nodes: the cluster has a node \"n1\" already");
    let r = run(&copy, "{nodes: [{name: extra}], steps: [{scale: {object: deployment/web, replicas: 20}}]}");
    assert!(r.workloads.iter().any(|w| w.desired == 20), "{}", r.to_text());
}

/// Clauses: G05.from-cluster
#[test]
fn lists_of_a_hostile_cluster_are_errors() {
    let check = |answer: &'static str, expected: Result<usize, &str>| {
        let server = move |_: http::Request<bytes::Bytes>| async move { http::Response::new(answer.to_owned()) };
        let client = client::Client::new(client::InProcess(server), "test");
        let read = in_virtual_time(snapshot::read(&client, "https://example", jiff::Timestamp::UNIX_EPOCH)).unwrap();
        let read = read.map(|copy| copy.sources.len()).map_err(|e| e.to_string());
        match expected {
            Ok(n) => assert_eq!(read, Ok(n), "{answer}"),
            Err(part) => assert!(read.as_ref().is_err_and(|e| e.contains(part)), "{answer}: {read:?}"),
        }
    };
    check(r#"{"kind": "List", "items": []}"#, Ok(0));
    check(
        r#"{"items": [{"kind": "Secret", "metadata": {"name": "s"}}]}"#,
        Err("the list of namespaces has an object of the kind \"Secret\""),
    );
    check(r#"{"metadata": {"continue": "x"}, "items": []}"#, Err("a page continues with itself"));
    check(
        r#"{"kind": "Pod", "metadata": {"name": "p"}}"#,
        Err("the server sent a Pod in place of a list of namespaces"),
    );
    check("<html>", Err("decoding list of"));
    check(r#"{"items": {}}"#, Err("decoding list of"));
}

/// A cluster at noon of a day in November, in which pods of all kinds run on `n1`, and how they tolerate that it fails.
fn failing_copy(node_fails_before: bool) -> Copy {
    let anything =
        |seconds: Value| json!([{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}]);
    let set = |kind: &str, name: &str, tolerations: Value, more: Value| {
        let mut spec = json!({"selector": {"matchLabels": {"app": name}}, "template": {"metadata": {"labels": {"app": name}},
            "spec": {"tolerations": tolerations, "containers": [{"name": "c", "image": "x:1"}],
                "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100,
                    "preference": {"matchExpressions": [{"key": "first", "operator": "Exists"}]}}]}}}}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
    };
    let mut steps = vec![
        json!({"create": set("ReplicaSet", "short", anything(json!(10)), json!({"replicas": 1, "minReadySeconds": 20}))}),
        json!({"create": set("ReplicaSet", "usual", json!([]), json!({"replicas": 1}))}),
        json!({"create": set("ReplicaSet", "stays", anything(Value::Null), json!({"replicas": 1}))}),
        json!({"create": set("StatefulSet", "db", json!([]), json!({"replicas": 1, "serviceName": "db"}))}),
        json!({"create": set("DaemonSet", "agent", json!([]), json!({}))}),
        json!({"advance": "30m"}),
    ];
    if node_fails_before {
        // Silence counts after 50 s at most; by now 120 of the 300 s that pods tolerate have passed.
        steps.extend([json!({"failNode": "n1"}), json!({"advance": "2m45s"})]);
    }
    let scenario = json!({
        "start": "2026-11-20T12:00:00Z",
        "nodes": [{"name": "n1", "labels": {"first": ""}}, {"name": "n2"}, {"name": "n3"}],
        "components": ["replicaset-controller", "statefulset-controller", "daemon-set-controller", "service-account-controller",
            "node-controller", "scheduler"],
        "steps": steps,
    });
    let scenario = Scenario::parse(&scenario.to_string()).unwrap();
    let result = in_virtual_time(async {
        let mut run = Run::start(&scenario).await.unwrap();
        for step in &scenario.steps {
            run.execute(step).await.unwrap();
        }
        snapshot::read(&run.plane.client, "https://example", run.plane.cluster.clock.now()).await.unwrap()
    });
    result.unwrap()
}

/// When the pods of each workload on `n1` were evicted, in seconds since the first step.
fn evictions(r: &simulation::Rehearsal) -> Vec<(String, u64)> {
    let evicted = |e: &&simulation::timeline::Entry| matches!(e.kind, Kind::Evicted | Kind::Deleted);
    let of = |name: &String| name.split('-').next().unwrap_or_default().to_owned();
    let mut all: Vec<(String, u64)> = r
        .timeline
        .iter()
        .filter(evicted)
        .flat_map(|e| e.names.iter().map(move |name| (of(name), e.at.as_secs())))
        .collect();
    all.sort();
    all
}

/// Pods of a copy once stayed on a node that failed: the time of their binding was that of the machine, in the future of virtual time.
/// Clauses: G05.from-cluster, G05.failure
#[test]
fn pods_of_a_copy_leave_a_node_that_fails() {
    let copy = failing_copy(false);
    let r = run(&copy, "{ignoreBudgets: true, steps: [{failNode: n1}, {advance: 10m}]}");
    let found = evictions(&r);
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["db", "short", "usual"], "{}", r.to_text());
    for (name, at) in found {
        let (from, until) = if name == "short" { (45, 75) } else { (335, 365) };
        assert!((from..until).contains(&at), "{name} after {at} s: {}", r.to_text());
    }
    // What started long ago has been available for long: minReadySeconds of the past count.
    let short = r.workloads.iter().find(|w| w.workload.to_string().ends_with("short")).unwrap();
    assert_eq!((short.desired, short.minimum), (1, 0));
    // Another start moves all times of the copy.
    let other =
        run(&copy, "{start: '2026-02-01T00:00:00Z', ignoreBudgets: true, steps: [{failNode: n1}, {advance: 10m}]}");
    assert_eq!(evictions(&r), evictions(&other));
}

/// Clauses: G05.from-cluster, G05.failure
#[test]
fn pods_leave_a_node_that_was_not_ready_when_it_was_copied() {
    let copy = failing_copy(true);
    let r = run(&copy, "{ignoreBudgets: true, steps: [{advance: 10m}]}");
    let found = evictions(&r);
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["db", "usual"], "{}", r.to_text());
    for (name, at) in found {
        assert!((100..200).contains(&at), "{name} after {at} s, not after another 300: {}", r.to_text());
    }
    // It can be started again before they leave.
    let r = run(&copy, "{ignoreBudgets: true, steps: [{healNode: n1}, {advance: 10m}]}");
    assert_eq!(evictions(&r), [], "{}", r.to_text());
}
