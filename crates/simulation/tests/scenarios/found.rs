//! What random schedules found, as short scenarios.

use crate::objects::*;
use serde_json::json;
use simulation::scenario::{Condition, Crash, Propagation, Scenario, Step};
use simulation::{Caches, CrashPoint, NodeSpec, Offset, Span, WriteMatch};
use std::time::Duration;

const WEB: &[&str] = &["deployment-controller", "replicaset-controller", "generic-garbage-collector", "scheduler"];

fn milliseconds(n: u64) -> Span {
    Span(Duration::from_millis(n))
}

fn advance(ms: u64) -> Step {
    Step::Advance(milliseconds(ms))
}

fn delay(component: &str, ms: u64) -> Step {
    Step::DelayWatches { component: component.into(), by: milliseconds(ms) }
}

fn crash(component: &str, point: CrashPoint, restart_after: u64, caches: Caches, times: u32) -> Step {
    let restart_after = Some(milliseconds(restart_after));
    Step::Crash(Crash { component: component.into(), point, restart_after, caches, times })
}

fn check(seed: u64, components: &[&str], mut steps: Vec<Step>) {
    steps.push(Step::settle());
    let nodes = ["n1", "n2", "n3"].map(|name| NodeSpec::new(name, "4")).to_vec();
    let components = components.iter().map(|c| (*c).to_owned()).collect();
    if let Err(failure) = simulation::run(&Scenario { seed, components, nodes, steps, ..Scenario::default() }) {
        panic!("{failure}");
    }
}

/// A deployment forgot a replica set that it had created a moment ago, and exceeded `maxSurge`. (Schedule 177 of the deployment controller.)
///
/// Clauses: G05.crashes
#[test]
fn a_deployment_remembers_sets_that_its_cache_does_not_show() {
    let image = |image: &str| set_image("Deployment", "web", image);
    let steps = vec![
        delay("deployment-controller", 16),
        Step::Create(deployment("web", 6, json!({}))),
        advance(18_000),
        image("app:4"),
        advance(77),
        image("app:3"),
        advance(92),
        image("app:4"),
    ];
    check(177, WEB, steps);
}

/// A budget whose pod was seen before its replica set was never counted again. (Schedule 101 of the disruption controller.)
///
/// Clauses: G05.crashes
#[test]
fn a_budget_is_counted_when_owners_are_seen_later_than_pods() {
    let set = |name: &str, replicas| Step::Create(workload("apps/v1", "ReplicaSet", name, replicas, json!({})));
    let mut steps = vec![delay("disruption-controller", 500)];
    // Each event is delayed after the one before.
    steps.extend((0..20).flat_map(|i| [set(&format!("earlier-{i}"), 0), advance(1)]));
    steps.push(set("web", 2));
    steps.push(Step::Create(budget("web", json!({"maxUnavailable": "30%"}))));
    steps.push(advance(60_000));
    check(101, &["replicaset-controller", "disruption-controller", "scheduler"], steps);
}

/// The clock of a job controller was an hour behind: a job that an earlier one knew looked new, and a pod was forgotten. (Schedule 452 of the
/// job controller.)
///
/// Clauses: G05.crashes
#[test]
fn a_job_is_compared_with_the_server_whatever_the_clock_shows() {
    let component = "job-controller";
    let point = CrashPoint::After(WriteMatch { number: 1, ..WriteMatch::default() });
    let steps = vec![
        delay(component, 82),
        Step::JumpClock { of: component.into(), by: Offset(-3_600_000) },
        Step::Create(job("d", "exit:1", json!({"backoffLimit": 3, "completions": 1, "parallelism": 2}))),
        advance(17),
        crash(component, point, 3, Caches::Kept, 4),
        advance(3500),
    ];
    check(452, &[component, "scheduler"], steps);
}

/// A replica set was deleted while its controller had no connection. The pods of the cache were current earlier than the sets, so that the
/// controller created pods of the deleted set, which the garbage collector deleted, about a hundred times a second. (Schedule 295 of the
/// replica set controller.)
///
/// Clauses: G05.crashes
#[test]
fn a_deleted_set_gets_no_pods_from_a_controller_that_was_cut_off() {
    for seed in 7..10 {
        let steps = vec![
            Step::Create(workload("apps/v1", "ReplicaSet", "web", 7, json!({}))),
            advance(5000),
            Step::Cut("replicaset-controller".into()),
            advance(57_000),
            Step::Delete { object: named("ReplicaSet", "web"), propagation: Propagation::Background },
            advance(500),
            Step::Heal("replicaset-controller".into()),
            advance(90_000),
        ];
        check(seed, &["replicaset-controller", "generic-garbage-collector", "scheduler"], steps);
    }
}

/// Controllers that were started again with an old cache created the pods of their predecessors once more. (Schedule 6 of the replica set
/// controller; 15, 112 and 294 of the daemon set controller.)
///
/// Clauses: G05.crashes
#[test]
fn pods_of_a_predecessor_are_not_created_again() {
    let mut daemons = workload("apps/v1", "DaemonSet", "web", 0, json!({}));
    daemons["spec"].as_object_mut().unwrap().remove("replicas");
    let replicas = workload("apps/v1", "ReplicaSet", "web", 5, json!({}));
    for (component, set) in [("replicaset-controller", replicas), ("daemon-set-controller", daemons)] {
        let steps = vec![
            delay(component, 1500),
            crash(component, CrashPoint::AfterWrites(2), 5, Caches::Kept, 1),
            Step::Create(set),
            advance(10_000),
        ];
        check(6, &[component, "scheduler"], steps);
    }
}

/// A crash that is planned replaces one that was planned before, which killed the controller for ever. (Schedule 178 of the garbage
/// collector.)
///
/// Clauses: G05.scenario
#[test]
fn a_crash_replaces_a_planned_one() {
    let component = "generic-garbage-collector";
    let mut gone = Condition::field(named("ConfigMap", "dependent"), "metadata.name", "");
    gone.fields.clear();
    gone.absent = true;
    gone.within = Span(Duration::from_secs(60));
    let steps = vec![
        crash(component, CrashPoint::AfterWrites(1), 2, Caches::Kept, 2),
        crash(component, CrashPoint::Now, 335, Caches::Empty, 1),
        advance(1000),
        Step::Create(config_map(
            "first",
            json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "no"}]),
        )),
        advance(60_000),
        Step::Create(config_map(
            "dependent",
            json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "no"}]),
        )),
        Step::WaitFor(gone),
    ];
    check(178, &[component], steps);
}

/// Everything goes on where it was when the API server is back.
///
/// Clauses: G05.scenario
#[test]
fn a_rollout_goes_on_after_the_server_was_down() {
    let steps = vec![
        Step::Create(deployment("web", 6, json!({}))),
        advance(10_000),
        set_image("Deployment", "web", "app:2"),
        advance(500),
        Step::StopServer(milliseconds(120_000)),
        Step::WaitFor(Condition::field(named("Deployment", "web"), "status.updatedReplicas", 6)),
        Step::StopServer(milliseconds(10)),
        Step::Scale { object: named("Deployment", "web"), replicas: 2 },
        Step::WaitFor(Condition::field(named("Deployment", "web"), "status.readyReplicas", 2)),
    ];
    check(1, WEB, steps);
}
