//! Bad input, and the state that it ends in.

use crate::objects::*;
use client::{ListOptions, Patch, WriteOptions};
use meta::Object;
use serde_json::{Value, json};
use simulation::operations::Drain;
use simulation::scenario::{Propagation, Scenario, Step};
use simulation::{NodeSpec, Offset, Run, Span, in_virtual_time};
use std::time::Duration;

const WEB: &[&str] = &[
    "deployment-controller",
    "replicaset-controller",
    "replication-controller",
    "disruption-controller",
    "generic-garbage-collector",
    "scheduler",
];

fn seconds(n: u64) -> Step {
    Step::Advance(Span(Duration::from_secs(n)))
}

/// Runs steps on two nodes, settles, and returns what `look` finds.
fn after<T>(components: &[&str], mut steps: Vec<Step>, look: impl AsyncFn(&Run) -> T) -> T {
    steps.push(Step::settle());
    let nodes = ["n1", "n2"].map(|name| NodeSpec::new(name, "4")).to_vec();
    let components = components.iter().map(|c| (*c).to_owned()).collect();
    let scenario = Scenario { seed: 5, components, nodes, steps, ..Scenario::default() };
    in_virtual_time(async {
        let mut run = Run::start(&scenario).await.unwrap();
        run.steps().await.unwrap_or_else(|failure| panic!("{failure}"));
        look(&run).await
    })
    .unwrap()
}

fn api(run: &Run, kind: &str) -> client::Api<Object> {
    let name = named(kind, "");
    let (group, version) = name.api_version.rsplit_once('/').unwrap_or(("", &name.api_version));
    run.plane.api(&meta::Gvk::new(group, version, kind), "default").unwrap()
}

async fn list(run: &Run, kind: &str) -> Vec<Object> {
    api(run, kind).list(&ListOptions::default()).await.unwrap().items
}

/// Sets the owner of a config map to another one.
fn own(name: &str, uid: &str, owner: &str) -> (String, Value) {
    let reference =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid, "blockOwnerDeletion": true});
    (name.to_owned(), json!({"metadata": {"ownerReferences": [reference]}}))
}

/// Owners that own each other go together, however one of them is deleted.
///
/// Clauses: G05.bad-input, C10.cycles
#[test]
fn owners_in_a_cycle_are_deleted() {
    for propagation in [Propagation::Background, Propagation::Foreground] {
        let names = in_virtual_time(async {
            let scenario = Scenario { components: vec!["generic-garbage-collector".into()], ..Scenario::default() };
            let mut run = Run::start(&scenario).await.unwrap();
            for name in ["a", "b", "c", "self"] {
                run.execute(&Step::Create(config_map(name, json!([])))).await.unwrap();
            }
            for (name, owner) in [("b", "a"), ("c", "b"), ("a", "c"), ("self", "self")] {
                let uid = api(&run, "ConfigMap").get(owner).await.unwrap().uid().to_owned();
                let (name, patch) = own(name, &uid, owner);
                api(&run, "ConfigMap").patch(&name, &WriteOptions::default(), &Patch::Merge(patch)).await.unwrap();
            }
            run.advance(Duration::from_secs(60)).await.unwrap();
            assert_eq!(list(&run, "ConfigMap").await.len(), 4, "a cycle alone is no reason to delete");
            for name in ["a", "self"] {
                run.execute(&Step::Delete { object: named("ConfigMap", name), propagation }).await.unwrap();
            }
            run.execute(&Step::settle()).await.unwrap();
            let left = list(&run, "ConfigMap").await;
            left.iter().map(|o| o.name().to_owned()).collect::<Vec<_>>()
        });
        assert_eq!(names.unwrap(), Vec::<String>::new(), "{propagation:?}");
    }
}

/// Clauses: G05.bad-input
#[test]
fn selectors_that_match_everything_are_refused_or_harmless() {
    let everything = json!({"selector": {}});
    let steps = vec![
        Step::Create(deployment("web", 3, json!({}))),
        Step::Create(budget("all", json!({"selector": {}, "maxUnavailable": 1}))),
        seconds(20),
        Step::Drain(Drain::in_background("n1")),
        seconds(60),
        Step::Uncordon("n1".into()),
    ];
    after(WEB, steps, async |run| {
        assert_eq!(list(run, "Pod").await.len(), 3);
        for kind in ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"] {
            let mut object = workload("apps/v1", kind, "greedy", 1, everything.clone());
            object["spec"]["serviceName"] = "greedy".into();
            let object = Object::from_value(object).unwrap();
            let error = run.plane.create(&object).await.expect_err(kind).to_string();
            assert!(error.contains("empty selector is invalid"), "{kind}: {error}");
        }
    });
}

/// Clauses: G05.bad-input
#[test]
fn negative_counts_are_refused_and_change_nothing() {
    let steps = vec![Step::Create(deployment("web", 2, json!({})))];
    after(WEB, steps, async |run| {
        let minus = Patch::Merge(json!({"spec": {"replicas": -1}}));
        let error =
            api(run, "Deployment").patch("web", &WriteOptions::default(), &minus).await.expect_err("-1").to_string();
        assert!(error.contains("spec.replicas: Invalid value: -1: must be greater than or equal to 0"), "{error}");
        let scale: Result<Object, _> =
            api(run, "Deployment").patch_subresource("web", "scale", &WriteOptions::default(), &minus).await;
        assert!(scale.expect_err("-1").to_string().contains("must be greater than or equal to 0"));
        for (kind, spec) in [
            ("ReplicaSet", json!({"replicas": -1})),
            ("Deployment", json!({"minReadySeconds": -1})),
            ("Deployment", json!({"revisionHistoryLimit": -1})),
            ("Deployment", json!({"strategy": {"rollingUpdate": {"maxSurge": -1}}})),
        ] {
            let object = Object::from_value(workload("apps/v1", kind, "negative", 1, spec)).unwrap();
            assert!(run.plane.create(&object).await.is_err(), "{kind}");
        }
        for more in [json!({"parallelism": -1}), json!({"completions": -1}), json!({"backoffLimit": -1})] {
            assert!(run.plane.create(&Object::from_value(job("j", "exit:0", more)).unwrap()).await.is_err());
        }
        assert_eq!(list(run, "Pod").await.len(), 2);
        assert_eq!((list(run, "Job").await.len(), list(run, "ReplicaSet").await.len()), (0, 1));
    });
}

/// Controllers with one selector count their own pods only, and do not fight for orphans.
///
/// Clauses: G05.bad-input, C04.overlap
#[test]
fn controllers_with_one_selector_share_nothing() {
    let same = |kind: &str, name: &str, replicas| {
        let mut object = workload("apps/v1", kind, name, replicas, json!({"selector": {"matchLabels": {"app": "x"}}}));
        object["spec"]["template"]["metadata"]["labels"]["app"] = "x".into();
        Step::Create(object)
    };
    let orphan = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "orphan", "labels": {"app": "x"}}, "spec": {"containers": [container("app:1")]}});
    let controller = json!({"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "rc"}, "spec": {
        "replicas": 2, "selector": {"app": "x"}, "template": template("x", "app:1")}});
    let steps = vec![
        same("ReplicaSet", "one", 2),
        same("ReplicaSet", "two", 3),
        same("Deployment", "three", 1),
        Step::Create(controller),
        seconds(30),
        Step::Create(orphan),
    ];
    after(WEB, steps, async |run| {
        let pods = list(run, "Pod").await;
        assert_eq!(pods.len(), 2 + 3 + 1 + 2, "the orphan is one too many for whoever adopts it");
        assert!(pods.iter().all(|p| p.controller_of().is_some()));
    });
}

/// Clauses: G05.bad-input, G05.clocks
#[test]
fn clocks_that_jump_change_no_pods() {
    for by in [86_400_000, -86_400_000] {
        for of in [
            "server",
            "deployment-controller",
            "replicaset-controller",
            "disruption-controller",
            "scheduler",
            "n1",
            "node-controller",
        ] {
            let steps = vec![
                Step::Create(deployment("web", 3, json!({}))),
                Step::Create(budget("web", json!({"maxUnavailable": 1}))),
                seconds(60),
                Step::JumpClock { of: of.into(), by: Offset(by) },
                seconds(60),
                set_image("Deployment", "web", "app:2"),
                seconds(60),
                Step::Drain(Drain::in_background("n1")),
                seconds(60),
                Step::Uncordon("n1".into()),
            ];
            let components = [WEB, &["node-controller"]].concat();
            after(&components, steps, async |run| {
                let pods = list(run, "Pod").await;
                assert_eq!(pods.len(), 3, "{of} {by}");
                let events = api(run, "Event").list(&ListOptions::default()).await.unwrap().items;
                let lost = events.iter().find(|e| e.str_at(&["reason"]) == Some("NodeNotReady"));
                assert!(lost.is_none(), "{of} {by}: heartbeats count when they are seen");
            });
        }
    }
}

/// Clauses: G05.bad-input
#[test]
fn pods_survive_nodes_that_flap_and_leave_those_that_stay_away() {
    let components = [WEB, &["node-controller"]].concat();
    let span = |n| Span(Duration::from_secs(n));
    for (down, moved) in [(30, false), (600, true)] {
        let steps = vec![
            Step::Create(deployment("web", 4, json!({}))),
            seconds(30),
            Step::FlapNode { node: "n1".into(), times: 3, down: span(down), up: span(60) },
            seconds(3 * (down + 60)),
        ];
        after(&components, steps, async |run| {
            let pods = list(run, "Pod").await;
            assert_eq!(pods.len(), 4);
            let on_n2 = pods.iter().filter(|p| p.str_at(&["spec", "nodeName"]) == Some("n2")).count();
            assert_eq!(on_n2 == 4, moved, "{on_n2} on n2 after {down} s");
        });
    }
}

/// Whatever a controller has read, and then is gone, leaves nothing behind.
///
/// Clauses: G05.bad-input
#[test]
fn objects_deleted_between_read_and_write_leave_nothing() {
    for delay in (0..400).step_by(40) {
        let components = [WEB, &["job-controller", "statefulset-controller", "node-controller"]].concat();
        let mut set = workload("apps/v1", "StatefulSet", "db", 2, json!({}));
        set["spec"]["serviceName"] = "db".into();
        let mut steps = vec![
            Step::Create(deployment("web", 3, json!({}))),
            Step::Create(set),
            Step::Create(job("j", "exit:0", json!({"completions": 3}))),
            Step::Advance(Span(Duration::from_millis(delay))),
            delete("Deployment", "web"),
            delete("StatefulSet", "db"),
            delete("Job", "j"),
        ];
        if delay == 200 {
            steps.insert(
                0,
                Step::DelayWatches { component: "replicaset-controller".into(), by: Span(Duration::from_secs(2)) },
            );
        }
        after(&components, steps, async |run| {
            for kind in ["Pod", "ReplicaSet", "Deployment", "StatefulSet", "Job"] {
                assert_eq!(list(run, kind).await.len(), 0, "{kind} after {delay} ms");
            }
        });
    }
}
