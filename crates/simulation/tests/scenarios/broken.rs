//! Each invariant is found broken when something breaks it on purpose.

use crate::objects::*;
use client::{DeleteOptions, Patch, WriteOptions};
use meta::Object;
use serde_json::{Value, json};
use simulation::scenario::{Crash, Propagation, Scenario, Step};
use simulation::{Caches, CrashPoint, NodeSpec, Reason, Run, Span, in_virtual_time};
use std::time::Duration;

async fn start(components: &[&str], steps: Vec<Step>) -> Run {
    let nodes = ["n1", "n2"].map(|name| NodeSpec::new(name, "2")).to_vec();
    let components = components.iter().map(|c| (*c).to_owned()).collect();
    let mut run = Run::start(&Scenario { components, nodes, steps, ..Scenario::default() }).await.unwrap();
    run.steps().await.unwrap();
    run
}

fn api(run: &Run, kind: &str) -> client::Api<Object> {
    let name = named(kind, "");
    let (group, version) = name.api_version.rsplit_once('/').unwrap_or(("", &name.api_version));
    run.plane.api(&meta::Gvk::new(group, version, kind), "default").unwrap()
}

/// Kills a component for good.
fn crash(component: &str) -> Crash {
    let (component, point) = (component.to_owned(), CrashPoint::Now);
    Crash { component, point, restart_after: None, caches: Caches::Empty, times: 1 }
}

async fn patch_status(run: &Run, kind: &str, name: &str, status: Value) {
    let patch = Patch::Merge(json!({"status": status}));
    api(run, kind).patch_status(name, &WriteOptions::default(), &patch).await.unwrap();
}

/// The name of the invariant that is broken within the next seconds, or when the cluster has settled.
async fn broken(run: &mut Run) -> String {
    let mut failed = run.advance(Duration::from_secs(10)).await;
    if failed.is_ok() {
        let settle = Step::Settle { quiet: Span(Duration::from_secs(60)), within: Span(Duration::from_secs(600)) };
        failed = run.execute(&settle).await;
    }
    match failed.expect_err("an invariant is broken").reason {
        Reason::Invariant { invariant, .. } => invariant.to_owned(),
        other => panic!("{other}"),
    }
}

fn check(components: &[&str], steps: Vec<Step>, invariant: &str, break_it: impl AsyncFn(&mut Run)) {
    let found = in_virtual_time(async {
        let mut run = start(components, steps).await;
        break_it(&mut run).await;
        broken(&mut run).await
    });
    assert_eq!(found.unwrap(), invariant);
}

const SETS: &[&str] = &["deployment-controller", "replicaset-controller", "scheduler"];

fn settle() -> Step {
    Step::Settle { quiet: Span(Duration::from_secs(30)), within: Span(Duration::from_secs(600)) }
}

/// Clauses: G05.invariants
#[test]
fn a_binding_to_a_full_node_is_noticed() {
    let pod = |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container("app:1")]}});
    let steps = ["a", "b", "c", "d", "e"].map(|name| Step::Create(pod(name))).to_vec();
    check(&["replicaset-controller"], steps, "nodes are not over-committed", async |run| {
        for pod in api(run, "Pod").list(&client::ListOptions::default()).await.unwrap().items {
            api(run, "Pod").bind(pod.name(), pod.uid(), "n1").await.unwrap();
        }
    });
}

/// Clauses: G05.invariants
#[test]
fn a_rollout_beyond_its_surge_is_noticed() {
    let steps = vec![Step::Create(deployment("web", 2, json!({}))), settle()];
    check(SETS, steps, "rollouts stay within maxSurge and maxUnavailable", async |run| {
        let set = api(run, "ReplicaSet").list(&client::ListOptions::default()).await.unwrap().items.remove(0);
        let patch = Patch::Merge(json!({"spec": {"replicas": 4}}));
        api(run, "ReplicaSet").patch(set.name(), &WriteOptions::default(), &patch).await.unwrap();
    });
}

/// Clauses: G05.invariants
#[test]
fn a_rollout_beyond_its_unavailability_is_noticed() {
    let steps = vec![Step::Create(deployment("web", 2, json!({}))), settle()];
    check(SETS, steps, "rollouts stay within maxSurge and maxUnavailable", async |run| {
        let pod = api(run, "Pod").list(&client::ListOptions::default()).await.unwrap().items.remove(0);
        api(run, "Pod").delete(pod.name(), &DeleteOptions::uid(pod.uid())).await.unwrap();
    });
}

/// Clauses: G05.invariants
#[test]
fn a_step_that_leaves_too_few_available_pods_is_noticed() {
    let steps = vec![Step::Create(deployment("web", 4, json!({}))), settle()];
    check(SETS, steps, "rollouts stay within maxSurge and maxUnavailable", async |run| {
        run.execute(&Step::Crash(crash("deployment-controller"))).await.unwrap();
        run.execute(&Step::Crash(crash("replicaset-controller"))).await.unwrap();
        let set = api(run, "ReplicaSet").list(&client::ListOptions::default()).await.unwrap().items.remove(0);
        let patch = Patch::Merge(json!({"spec": {"replicas": 2}}));
        api(run, "ReplicaSet").patch(set.name(), &WriteOptions::default(), &patch).await.unwrap();
    });
}

/// Clauses: G05.invariants
#[test]
fn an_eviction_beyond_its_budget_is_noticed() {
    let steps = vec![
        Step::Create(deployment("web", 2, json!({}))),
        Step::Create(budget("web", json!({"minAvailable": 2}))),
        settle(),
    ];
    let components = [SETS, &["disruption-controller"]].concat();
    check(&components, steps, "evictions stay within disruption budgets", async |run| {
        patch_status(run, "PodDisruptionBudget", "web", json!({"disruptionsAllowed": 1})).await;
        let pod = api(run, "Pod").list(&client::ListOptions::default()).await.unwrap().items.remove(0);
        api(run, "Pod").evict(pod.name(), &DeleteOptions::uid(pod.uid())).await.unwrap();
    });
}

/// Clauses: G05.invariants
#[test]
fn a_claim_with_the_volume_of_another_one_is_noticed() {
    let claim = |name: &str| {
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}})
    };
    let disk = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/disk"}}});
    let steps = vec![Step::Create(disk), Step::Create(claim("a")), settle(), Step::Create(claim("b"))];
    check(&["persistent-volume-binder"], steps, "claims and volumes are bound one to one", async |run| {
        run.execute(&Step::Crash(crash("persistent-volume-binder"))).await.unwrap();
        let patch = json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {"volumeName": "disk"}});
        let claims = api(run, "PersistentVolumeClaim");
        claims.patch("b", &WriteOptions::default(), &Patch::Merge(patch)).await.unwrap();
    });
}

/// Clauses: G05.invariants
#[test]
fn a_pod_that_is_counted_twice_is_noticed() {
    let steps =
        vec![Step::Create(job("j", "exit:0", json!({"completions": 3}))), Step::Advance(Span(Duration::from_secs(4)))];
    check(&["job-controller", "scheduler"], steps, "jobs count every pod once", async |run| {
        patch_status(run, "Job", "j", json!({"succeeded": 2})).await;
    });
}

/// Clauses: G05.invariants
#[test]
fn two_jobs_for_one_time_are_noticed() {
    let steps = vec![Step::Create(cron_job("c", "* * * * *", json!({}))), Step::Advance(Span(Duration::from_secs(90)))];
    check(
        &["cronjob-controller", "job-controller", "scheduler"],
        steps,
        "cron jobs have one job per time",
        async |run| {
            let mut twin = api(run, "Job").list(&client::ListOptions::default()).await.unwrap().items.remove(0);
            let annotations = json!({"batch.kubernetes.io/cronjob-scheduled-timestamp": twin.annotation("batch.kubernetes.io/cronjob-scheduled-timestamp")});
            let metadata = json!({"name": "twin", "annotations": annotations, "ownerReferences": twin.at(&["metadata", "ownerReferences"])});
            twin = Object::from_value(json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job_spec("exit:0", json!({}))})).unwrap();
            run.plane.create(&twin).await.unwrap();
        },
    );
}

/// Clauses: G05.invariants
#[test]
fn a_pod_name_that_runs_twice_is_noticed() {
    let mut set = workload("apps/v1", "StatefulSet", "db", 1, json!({}));
    set["spec"]["serviceName"] = "db".into();
    let steps = vec![Step::Create(set), settle()];
    check(&["statefulset-controller", "scheduler"], steps, "one container per pod name", async |run| {
        let pod = api(run, "Pod").get("db-0").await.unwrap();
        let node = pod.str_at(&["spec", "nodeName"]).unwrap().to_owned();
        run.execute(&Step::CutNode(node.clone())).await.unwrap();
        let cordon = Step::Patch { object: named("Node", &node), patch: json!({"spec": {"unschedulable": true}}) };
        run.execute(&cordon).await.unwrap();
        // Forced, so that the node is not asked.
        api(run, "Pod").delete("db-0", &DeleteOptions::uid(pod.uid()).with_grace(0)).await.unwrap();
    });
}

/// Clauses: G05.invariants
#[test]
fn a_second_pod_of_a_daemon_set_on_a_node_is_noticed() {
    let mut set = workload("apps/v1", "DaemonSet", "agent", 0, json!({}));
    set["spec"].as_object_mut().unwrap().remove("replicas");
    check(
        &["daemon-set-controller", "scheduler"],
        vec![Step::Create(set), settle()],
        "daemon sets have one pod per node",
        async |run| {
            let pod = api(run, "Pod").list(&client::ListOptions::default()).await.unwrap().items.remove(0);
            let metadata = json!({"name": "twin", "labels": {"app": "agent"}, "ownerReferences": pod.at(&["metadata", "ownerReferences"])});
            let spec = json!({"containers": [container("app:1")], "affinity": pod.at(&["spec", "affinity"])});
            let twin = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
            run.plane.create(&Object::from_value(twin).unwrap()).await.unwrap();
        },
    );
}

/// Clauses: G05.invariants
#[test]
fn a_pod_more_than_a_set_has_replicas_is_noticed() {
    let sets = [
        workload("apps/v1", "ReplicaSet", "set", 2, json!({})),
        json!({"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "set"}, "spec": {
            "replicas": 2, "selector": {"app": "set"}, "template": template("set", "app:1")}}),
    ];
    for (set, controller) in sets.into_iter().zip(["replicaset-controller", "replication-controller"]) {
        let steps = vec![Step::Create(set), settle()];
        check(&[controller, "scheduler"], steps, "sets have no more pods than replicas", async |run| {
            let pod = api(run, "Pod").list(&client::ListOptions::default()).await.unwrap().items.remove(0);
            let owners = pod.at(&["metadata", "ownerReferences"]);
            let metadata = json!({"name": "third", "labels": {"app": "set"}, "ownerReferences": owners});
            let spec = json!({"containers": [container("app:1")]});
            let third = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
            run.plane.create(&Object::from_value(third).unwrap()).await.unwrap();
        });
    }
}

/// Clauses: G05.invariants
#[test]
fn an_ordinal_beyond_the_replicas_is_noticed() {
    let mut set = workload("apps/v1", "StatefulSet", "db", 2, json!({}));
    set["spec"]["serviceName"] = "db".into();
    let steps = vec![Step::Create(set), settle()];
    check(&["statefulset-controller", "scheduler"], steps, "sets have no more pods than replicas", async |run| {
        let pod = api(run, "Pod").get("db-0").await.unwrap();
        let owners = pod.at(&["metadata", "ownerReferences"]);
        let metadata = json!({"name": "db-2", "labels": {"app": "db"}, "ownerReferences": owners});
        let spec = json!({"containers": [container("app:1")]});
        let beyond = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
        run.plane.create(&Object::from_value(beyond).unwrap()).await.unwrap();
    });
}

/// Clauses: G05.invariants
#[test]
fn a_hot_loop_is_noticed() {
    let steps = vec![Step::Create(config_map("busy", json!([])))];
    check(&["scheduler"], steps, "no hot loops", async |run| {
        for i in 0..400 {
            let patch = Patch::Merge(json!({"data": {"n": i.to_string()}}));
            api(run, "ConfigMap").patch("busy", &WriteOptions::default(), &patch).await.unwrap();
        }
    });
}

/// Clauses: G05.invariants
#[test]
fn what_is_left_of_a_deleted_owner_is_noticed() {
    // Nobody collects garbage here.
    let steps = vec![Step::Create(deployment("web", 2, json!({}))), settle()];
    check(SETS, steps, "nothing is left of deleted owners", async |run| {
        let web = Step::Delete { object: named("Deployment", "web"), propagation: Propagation::Background };
        run.execute(&web).await.unwrap();
    });
}

/// Clauses: G05.invariants
#[test]
fn a_status_that_is_wrong_is_noticed() {
    let steps = vec![Step::Create(deployment("web", 2, json!({}))), settle()];
    check(SETS, steps, "status shows what there is", async |run| {
        let crash = |component: &str| {
            run.plane.component(component).unwrap().crash(simulation::CrashPoint::Now, None, 1);
        };
        crash("deployment-controller");
        run.plane.component("deployment-controller").unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        // A daemon set has no controller here.
        let mut set = workload("apps/v1", "DaemonSet", "agent", 0, json!({}));
        set["spec"].as_object_mut().unwrap().remove("replicas");
        run.plane.create(&Object::from_value(set).unwrap()).await.unwrap();
        patch_status(
            run,
            "DaemonSet",
            "agent",
            json!({"currentNumberScheduled": 1, "numberMisscheduled": 0,
            "desiredNumberScheduled": 1, "numberReady": 1}),
        )
        .await;
    });
}

/// Clauses: G05.invariants
#[test]
fn a_cluster_that_never_rests_is_noticed() {
    let steps = vec![Step::Create(cron_job("c", "* * * * *", json!({})))];
    let failed = in_virtual_time(async {
        let mut run = start(&["cronjob-controller", "job-controller", "scheduler"], steps).await;
        let settle = Step::Settle { quiet: Span(Duration::from_secs(120)), within: Span(Duration::from_secs(600)) };
        run.execute(&settle).await.expect_err("jobs are created every minute").reason
    });
    assert!(matches!(failed.unwrap(), Reason::Restless { .. }));
}
