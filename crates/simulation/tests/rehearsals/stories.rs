//! What users rehearse, and what they see.

use crate::support::*;
use serde_json::{Value, json};
use simulation::timeline::Kind;
use simulation::{Rehearsal, Verdict};
use std::time::Duration;

fn has(r: &Rehearsal, kind: Kind, part: &str) -> bool {
    r.timeline.iter().any(|e| {
        let text = format!("{} {} {}", e.object, e.text, e.cause.clone().unwrap_or_default());
        e.kind == kind && text.contains(part)
    })
}

#[track_caller]
fn assert_has(r: &Rehearsal, kind: Kind, part: &str) {
    assert!(has(r, kind, part), "no {kind:?} with {part:?}:\n{}", r.to_text());
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Clauses: G05.drain
#[test]
fn a_drain_that_a_budget_blocks_ends_at_its_timeout() {
    let copy = web(3, Value::Null, json!({"maxUnavailable": 0}));
    let r = run(&copy, "{expect: [{drain: {within: 1m}}], steps: [{drain: {node: node-1, timeout: 2m}}]}");
    assert_eq!(r.verdict, Verdict::Broken);
    assert_has(&r, Kind::DrainBlocked, "The disruption budget web needs 3 healthy pods and has 3 currently");
    let [drain] = &r.drains[..] else { panic!("{:?}", r.drains) };
    assert_eq!((drain.ended, &*drain.outcome), (Some(secs(120)), "timed out, pods left: 1"));
    let (from, until) = drain.blocked_by["poddisruptionbudget default/web"];
    assert_eq!((from, until), (secs(0), secs(120)));
    let problems: Vec<&str> = r.violations.iter().map(|v| &*v.problem).collect();
    assert_eq!(problems, ["it took 2m00s", "drain of node-1 did not end within 2m: 1 pod is left"]);
    assert_eq!(r.workloads[0].minimum, 3, "nothing was evicted");
}

/// Clauses: G05.drain
#[test]
fn two_budgets_for_one_pod_forbid_its_eviction() {
    let mut copy = web(2, Value::Null, json!({"maxUnavailable": 1}));
    let mut second = copy.sources[2].clone();
    second.object.set_name("again");
    copy.sources.push(second);
    let r = run(&copy, "steps: [{drain: {node: node-1, timeout: 1m}}]");
    assert_has(&r, Kind::DrainBlocked, "This pod has more than one PodDisruptionBudget");
    assert_eq!(r.verdict, Verdict::Broken);
}

/// Clauses: G05.drain
#[test]
fn a_drain_within_its_budget_breaks_nothing() {
    let copy = web(6, Value::Null, json!({"maxUnavailable": 1}));
    let r = run(
        &copy,
        "{expect: [{available: {object: deployment/web, atLeast: 5}}, {endpoints: {object: service/web}}, {pending: {atMost: 1m}}],
          steps: [{drain: {node: node-1}}, {uncordon: node-1}]}",
    );
    assert_eq!(r.verdict, Verdict::Held, "{}", r.to_text());
    assert_has(&r, Kind::Evicted, "drain of node node-1");
    assert_has(&r, Kind::DrainBlocked, "needs 5 healthy pods and has 5 currently");
    let web = &r.workloads[0];
    assert_eq!((web.desired, web.minimum, web.none), (6, 5, Duration::ZERO));
    assert!(web.below > secs(10) && web.longest < secs(60), "{web:?}");
    assert_eq!(r.services[0].minimum, 5);
    assert_eq!(r.budgets[0].broken, Duration::ZERO);
}

/// Clauses: G05.drain
#[test]
fn pods_without_a_controller_forbid_a_drain_unless_it_is_forced() {
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: alone}, spec: {nodeName: node-1, containers: [{name: c, image: i}]}}";
    let r = run(&copy(pod), "steps: [{drain: {node: node-1}}]");
    assert_eq!(r.verdict, Verdict::Broken);
    assert_has(
        &r,
        Kind::DrainEnded,
        "cannot delete Pods that declare no controller (use force to override): default/alone",
    );
    let r = run(&copy(pod), "steps: [{drain: {node: node-1, force: true, gracePeriod: 1s}}]");
    assert_eq!(r.verdict, Verdict::Held, "{}", r.to_text());
    assert_has(&r, Kind::Evicted, "pod default/alone");
}

/// Clauses: G05.rollout
#[test]
fn a_rollout_that_takes_too_many_pods_breaks_the_expectation() {
    let strategy = json!({"rollingUpdate": {"maxUnavailable": "50%", "maxSurge": 0}});
    let copy = web(4, strategy, Value::Null);
    let scenario = "
expect:
- available: {object: deployment/web, atLeast: 75%}
- rollout: {object: deployment/web, within: 10s}
steps: [{rollout: {object: deployment/web, image: 'web:2'}}]";
    let r = run(&copy, scenario);
    assert_eq!(r.verdict, Verdict::Broken);
    let first = &r.violations[0];
    assert_eq!((&*first.object, &*first.problem), ("deployment default/web", "2 available instead of 3"));
    assert!(
        first.cause.as_ref().is_some_and(|c| c.ends_with("deleted: rollout of deployment default/web")),
        "{first:?}"
    );
    assert!(first.until.is_some_and(|u| u > first.from));
    assert!(r.violations.iter().any(|v| v.expectation == "rollouts of deployment default/web end within 10s"));
    assert_has(&r, Kind::RolloutEnded, "deployment default/web");
    // The same rollout, one pod at a time and one more before it goes.
    let copy = web(4, json!({"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}), Value::Null);
    let r = run(&copy, &scenario.replace("10s", "5m"));
    assert_eq!((r.verdict, r.workloads[0].minimum), (Verdict::Held, 4), "{}", r.to_text());
}

/// Clauses: G05.rollout
#[test]
fn a_rollout_of_an_image_that_never_becomes_ready_does_not_end() {
    let copy = web(3, Value::Null, Value::Null);
    let r = run(
        &copy,
        "{assume: {pods: [{image: 'web:2', neverReady: true}]}, expect: [{available: {atLeast: 3}}, {rollout: {within: 10m}}],
          steps: [{rollout: {object: deployment/web, image: 'web:2', timeout: 15m}}]}",
    );
    let problems: Vec<&str> = r.violations.iter().map(|v| &*v.problem).collect();
    assert!(
        problems[0]
            .starts_with("rollout of deployment default/web did not end within 15m: 1 of 3 pods updated, 3 available"),
        "{problems:?}"
    );
    assert_eq!(r.workloads[0].minimum, 3, "the old pods stay");
    assert_has(&r, Kind::RolloutStuck, "the progress deadline passed");
}

/// Clauses: G05.failure
#[test]
fn a_zone_that_fails_takes_its_pods_at_once_and_they_come_back_after_their_toleration() {
    let copy = web(6, Value::Null, json!({"minAvailable": 5}));
    let r = run(&copy, "{expect: [{available: {object: deployment/web, atLeast: 5}}], steps: [{failZone: zone-1}]}");
    assert_eq!(r.verdict, Verdict::Broken);
    assert_has(&r, Kind::Lost, "the machine of node node-1 is down");
    assert_has(&r, Kind::NodeNotReady, "node node-1");
    assert_has(&r, Kind::BudgetBroken, "4 healthy pods, 5 required");
    let broken = r.violations.iter().find(|v| v.expectation.contains("has its healthy pods")).unwrap();
    assert!(broken.from < secs(1), "from the failure on, before the controllers notice it: {broken:?}");
    assert!(broken.until.is_some_and(|until| until > secs(320)), "without a gap meanwhile: {broken:?}");
    let web = &r.workloads[0];
    assert_eq!((web.desired, web.minimum), (6, 4));
    // 40 or 50 seconds until the node counts as lost, five minutes of toleration, and the start.
    assert!(web.longest > secs(320) && web.longest < secs(420), "{web:?}");
    assert_has(&r, Kind::Unavailable, "4 of 6 available");
    let ignored = run(&copy, "{ignoreBudgets: true, steps: [{failZone: zone-1}, {advance: 10m}, {healZone: zone-1}]}");
    assert_eq!(ignored.verdict, Verdict::Held, "{}", ignored.to_text());
    assert!(ignored.budgets[0].broken > secs(60));
}

/// Clauses: G05.upgrade
#[test]
fn six_nodes_are_upgraded_two_at_a_time() {
    let copy = web(6, Value::Null, json!({"maxUnavailable": 2}));
    let scenario = "
nodes: [{name: worker, count: 6, zones: [a, b, c], labels: {role: worker}, version: v1.35.0}]
expect: [{available: {object: deployment/web, atLeast: 4}}, {endpoints: {}}]
steps:
- upgradeNodes: {selector: role=worker, maxUnavailable: 2, down: 3m, version: v1.36.2}
- waitFor: {object: node/worker-6, fields: {status.nodeInfo.kubeletVersion: v1.36.2}, within: 1s}
";
    let r = run(&copy, scenario);
    assert_eq!(r.verdict, Verdict::Held, "{}", r.to_text());
    assert_eq!(r.drains.len(), 6);
    assert!(r.drains.iter().all(|d| d.outcome == "done"));
    assert_has(&r, Kind::Remark, "6 of 6 nodes are upgraded");
    let mut down = 0i32;
    for e in &r.timeline {
        down += i32::from(e.kind == Kind::NodeDown) - i32::from(e.kind == Kind::NodeUp);
        assert!(down <= 2, "{}", r.to_text());
    }
    assert!(r.elapsed > secs(3 * 180), "three rounds of three minutes: {:?}", r.elapsed);
    // A budget that allows nothing stops it at the first node.
    let copy = web(6, Value::Null, json!({"maxUnavailable": 0}));
    let r = run(
        &copy,
        "{nodes: [{name: worker, count: 6}], steps: [{upgradeNodes: {selector: kubernetes.io/os=linux, timeout: 1m}}]}",
    );
    assert_eq!(r.verdict, Verdict::Broken);
    assert_has(&r, Kind::Failed, "the upgrade stops: drain of worker-1 did not end within 1m");
    assert_has(&r, Kind::Remark, "0 of 6 nodes are upgraded");
}

/// Clauses: G05.scale
#[test]
fn a_scale_up_without_room_shows_the_message_of_the_scheduler() {
    let copy = web(2, Value::Null, Value::Null);
    let r = run(
        &copy,
        "{nodes: [{name: small, count: 2, cpu: '2'}], expect: [{pending: {atMost: 2m}}],
          steps: [{scale: {object: deployment/web, replicas: 5}}]}",
    );
    assert_has(&r, Kind::Pending, "0/2 nodes are available: 2 Insufficient cpu");
    let [violation] = &r.violations[..] else { panic!("{}", r.to_text()) };
    assert!(violation.problem.contains("was pending for 6m"), "{violation:?}");
    assert!(violation.cause.as_ref().is_some_and(|c| c.contains("Insufficient cpu")));
    // A larger desire is no loss.
    assert_eq!((r.workloads[0].desired, r.workloads[0].below), (5, Duration::ZERO));
}

/// Clauses: G05.manifests
#[test]
fn the_order_of_manifests_does_not_matter() {
    let widget = "{apiVersion: example.com/v1, kind: Widget, metadata: {name: w, namespace: shop}, spec: {size: 3}}";
    let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}";
    let definition = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, kind: Widget}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}}
";
    let set = "
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: shop}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c, image: db}]}}
  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]
";
    let hook =
        "{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: policy}}";
    let all = [widget, set, hook, definition, namespace].join("\n---\n");
    let r = run(
        &copy(&all),
        "steps: [{waitFor: {object: {apiVersion: example.com/v1, kind: Widget, name: w, namespace: shop}, within: 1s}}, {rollout: {object: shop/sts/db}}]",
    );
    assert_eq!(r.verdict, Verdict::Held, "{}", r.to_text());
    let db = &r.workloads[0];
    assert_eq!((db.workload.to_string(), db.desired, db.minimum), ("statefulset shop/db".into(), 2, 1));
    assert!(
        r.basis.notes.iter().any(|n| n.starts_with("ValidatingWebhookConfiguration policy is left out")),
        "{:?}",
        r.basis.notes
    );
}

/// Clauses: G05.deterministic
#[test]
fn the_same_seed_gives_the_same_bytes() {
    let copy = web(5, Value::Null, json!({"maxUnavailable": 1}));
    let scenario = |seed: u64| {
        format!(
            "{{seed: {seed}, assume: {{spread: 30}}, steps: [{{drain: {{node: node-1}}}}, {{failNode: node-2}}, {{advance: 8m}}, {{settle: {{}}}}]}}"
        )
    };
    let all = |seed| {
        let r = run(&copy, &scenario(seed));
        [r.to_text(), r.to_html(), r.to_json().to_string()]
    };
    assert_eq!(all(1), all(1));
    assert_ne!(all(1)[0], all(2)[0]);
}
