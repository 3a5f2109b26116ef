//! Bad input, each with the error that names it; and scenarios that do not come to an end.

use crate::support::*;
use serde_json::Value;
use simulation::rehearsal::{Error, Options};
use simulation::{Scenario, Verdict, rehearse};
use std::time::{Duration, Instant};

#[track_caller]
fn problems(copy: &simulation::Copy, scenario: &str) -> Vec<String> {
    match try_run(copy, scenario) {
        Err(Error::Input(problems)) => problems,
        other => panic!("{scenario}: {:?}", other.map(|r| r.to_text())),
    }
}

/// Clauses: G05.bad-input
#[test]
fn manifests_that_the_server_refuses_are_errors_with_their_document() {
    let manifests = "
{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {replicas: -1, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: ok}}
---
{apiVersion: v1, kind: Service, metadata: {name: s}, spec: {port: 80}}
---
{apiVersion: apps/v1, kind: Widget, metadata: {name: w}}
---
{apiVersion: v1, kind: Node, metadata: {name: n}}
---
{apiVersion: v1, kind: Service, metadata: {name: t}, spec: {ports: web}}
";
    let found = problems(&copy(manifests), "steps: []");
    let expected = [
        "a.yaml, document 3: ",
        "a.yaml, document 4: no matches for kind \"Widget\" in version \"apps/v1\"; ensure CRDs are installed first",
        "a.yaml, document 3: Service in version \"v1\" cannot be handled as a Service: strict decoding error: unknown field \"spec.port\"",
        "a.yaml, document 6: Service in version \"v1\" cannot be handled as a Service: json: cannot unmarshal string into Go struct field ServiceSpec.spec.ports of type []v1.ServicePort",
        "a.yaml, document 1: Deployment.apps \"a\" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0",
    ];
    for expected in expected {
        assert!(found.iter().any(|p| p.starts_with(expected)), "{expected}: {found:#?}");
    }
    assert!(!found.iter().any(|p| p.contains("document 2")), "{found:#?}");
}

/// Clauses: G05.bad-input, G05.scenario
#[test]
fn mistakes_in_scenarios_are_named_with_their_path() {
    let copy = web(1, Value::Null, Value::Null);
    for (scenario, expected) in [
        ("steps: [{drain: {node: n9}}]", "steps[0].drain.node: there is no node \"n9\""),
        ("steps: [{failZone: mars}]", "steps[0]: no node is in the zone \"mars\""),
        (
            "steps: [{create: {apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, metadata: {name: w}}}]",
            "steps[0]: MutatingWebhookConfiguration: nothing outside the simulation is called",
        ),
        ("steps: [{upgradeNodes: {}}]", "steps[0].upgradeNodes: must have either nodes or selector"),
        ("steps: [{upgradeNodes: {selector: '!!'}}]", "steps[0].upgradeNodes.selector: "),
        (
            "steps: [{upgradeNodes: {nodes: [node-1], maxUnavailable: 0}}]",
            "steps[0].upgradeNodes.maxUnavailable: must be at least 1",
        ),
        ("steps: [{rollout: {object: service/web}}]", "steps[0].rollout: Service has no rollouts"),
        ("{assume: {spread: 101}, steps: []}", "assume.spread: must be at most 100"),
        ("{assume: {pods: [{ready: 1s}]}, steps: []}", "assume.pods[0]: must have image, labels or workload"),
        ("{nodes: [{name: a, count: 20000}], steps: []}", "nodes[0].count: must be at most 10000"),
        (
            "{nodes: [{name: a, taints: [{key: a, effect: Never}]}], steps: []}",
            "nodes[0].taints[0].effect: must be one of",
        ),
        ("{nodes: [{name: a, count: 3}, {name: a-2}], steps: []}", "nodes[1].name: there are two nodes \"a-2\""),
        (
            "{expect: [{available: {object: service/web, atLeast: 1}}], steps: []}",
            "expect[0].available.object: Service has no available pods",
        ),
        (
            "{expect: [{available: {object: deployment/db, atLeast: 1}}], steps: []}",
            "expect[0].available.object: there is no deployment default/db",
        ),
        (
            "steps: [{scale: {object: deployment/db, replicas: 1}}]",
            "steps[0]: scale: deployments.apps \"db\" not found",
        ),
        ("steps: [{scale: {object: deployment/web, replicas: -1}}]", "steps[0]: scale: "),
        (
            "steps: [{rollout: {object: deployment/wbe, image: x}}]",
            "steps[0].rollout.object: there is no deployment default/wbe",
        ),
        (
            "steps: [{rollout: {object: deployment/web, image: x, container: d}}]",
            "steps[0].rollout.container: deployment default/web has no container \"d\"",
        ),
        ("steps: [{breakImage: 'wbe:1'}]", "steps[0].breakImage: no container has the image \"wbe:1\""),
        ("steps: [{load: {app: wbe, milliCores: 5}}]", "steps[0].load.app: no pod has the label app=wbe"),
        (
            "steps: [{waitFor: {object: deployment/wbe, within: 1s}}]",
            "steps[0].waitFor.object: there is no deployment default/wbe",
        ),
        ("steps: [{upgradeNodes: {selector: ''}}]", "steps[0].upgradeNodes.selector: must not be empty"),
        (
            "steps: [{upgradeNodes: {selector: role=gpu}}]",
            "steps[0].upgradeNodes.selector: no node has the labels role=gpu",
        ),
        (
            "{assume: {pods: [{image: 'wbe:*', ready: 1s}]}, steps: []}",
            "assume.pods[0].image: no container has an image that matches \"wbe:*\"",
        ),
        (
            "{assume: {pods: [{labels: {app: wbe}, ready: 1s}]}, steps: []}",
            "assume.pods[0].labels: no pod has the label app=wbe",
        ),
        (
            "{assume: {pods: [{workload: deployment/wbe, ready: 1s}]}, steps: []}",
            "assume.pods[0].workload: there is no deployment default/wbe",
        ),
        (
            "steps: [{scale: {object: deployment/web, replicas: 2147483647}}]",
            "steps[0]: 2147483647 pods are too many: a rehearsal has at most 50000",
        ),
        (
            "{nodes: [{name: a, count: 9000}, {name: b, count: 9000}], steps: []}",
            "nodes: 18000 nodes are too many: a scenario has at most 10000",
        ),
        (
            "steps: [{patch: {object: deployment/web, patch: {spec: {replica: 3}}}}]",
            "steps[0]: patch: strict decoding error: unknown field \"spec.replica\"",
        ),
        (
            "steps: [{apply: {apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replica: 3}}}]",
            "steps[0]: apply: Deployment in version \"v1\" cannot be handled as a Deployment: strict decoding error: unknown field \"spec.replica\"",
        ),
        (
            "steps: [{create: {apiVersion: batch/v2, kind: Job, metadata: {name: web}}}]",
            "steps[0]: create: invalid request: the server has no resource for kind \"Job\"",
        ),
        ("{start: '9999-12-30T00:00:00Z', steps: [{advance: 1h}]}", "start: must be between the years 1970 and 3000"),
    ] {
        let found = problems(&copy, scenario);
        assert!(found.len() == 1 && found[0].starts_with(expected), "{scenario}: {found:?}");
    }
    for (scenario, expected) in [
        ("steps: [{drain: n1}]", "steps[0].drain: invalid type: string \"n1\", expected a map"),
        (
            "steps: [{drain: {node: a, timeout: -5m}}]",
            "steps[0].drain.timeout: \"-5m\" is not a duration such as 90s, 1h30m or 7d",
        ),
        ("steps: [{drain: {node: a, ignoreDaemonSets: true}}]", "unknown field `ignoreDaemonSets`"),
        ("{assume: {redy: 1s}, steps: []}", "assume.redy: unknown field `redy`"),
        (
            "{expect: [{available: {object: deployment/web, atLeast: 200%}}], steps: []}",
            "is neither a number of pods nor a percentage such as 90%",
        ),
        (
            "{expect: [{available: {object: rollout/web, atLeast: 1}}], steps: []}",
            "there is no built-in kind \"rollout\"",
        ),
        ("{expect: [{alive: {}}], steps: []}", "expect[0]: unknown name `alive`"),
        (
            "{nodes: [{name: a, count: -1}], steps: []}",
            "nodes[0].count: invalid value: integer `-1`, expected a whole number that is not negative",
        ),
        ("", "the file is empty: a scenario has at least `steps`"),
        ("[]", "scenario: must be a map with `steps`, not a list"),
        ("steps: {}", "steps: must be a list of steps, not a map"),
        ("steps: [drain]", "steps[0]: must be a map such as `{drain: …}`, not a string"),
        ("steps: [5m]", "steps[0]: must be a map such as"),
        ("steps: [{drian: {node: a}}]", "steps[0]: unknown name `drian`, expected one of `create`, "),
        (
            "steps: [{uncordon: a, advance: 5m}]",
            "steps[0]: must have one key, the name of the step, not 2 (advance, uncordon)",
        ),
        ("steps: [{}]", "steps[0]: must have one key, the name of the step, not 0 ()"),
        ("steps: [{advance: -5m}]", "steps[0].advance: \"-5m\" is not a duration such as"),
        ("{start: yesterday, steps: []}", "start: \"yesterday\" is not a time such as 2026-01-01T00:00:00Z"),
        ("{seed: -1, steps: []}", "seed: invalid value: integer `-1`, expected a whole number that is not negative"),
        ("{nodes: {name: a}, steps: []}", "nodes: invalid type: map, expected a list"),
    ] {
        let error = Scenario::decode(scenario).expect_err(scenario).to_string();
        assert!(error.contains(expected), "{scenario}: {error}");
    }
}

/// Clauses: G05.bad-input
#[test]
fn without_nodes_every_pod_is_pending() {
    let r = run(
        &web(2, Value::Null, Value::Null),
        "{nodes: [{name: a, count: 0}], expect: [{pending: {atMost: 5m}}], steps: [{advance: 10m}]}",
    );
    assert_eq!((r.verdict, r.violations.len()), (Verdict::Broken, 2), "{}", r.to_text());
    assert!(r.violations[0].cause.as_ref().is_some_and(|c| c.starts_with("no nodes available to schedule pods")));
    assert!(r.basis.notes.contains(&"there are no nodes: no pod can run".to_owned()));
}

/// Clauses: G05.bad-input
#[test]
fn a_scenario_that_never_settles_ends_at_the_timeout() {
    let job = "{apiVersion: batch/v1, kind: Job, metadata: {name: again}, spec: {backoffLimit: 100000, completions: 100000, parallelism: 2, template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}";
    let scenario = Scenario::decode("steps: [{rest: {within: 400d}}]").unwrap();
    let options = Options { timeout: Duration::from_secs(3600), ..Options::default() };
    #[allow(clippy::disallowed_methods, reason = "the time of the machine is what counts here")]
    let begun = Instant::now();
    let r = rehearse(scenario, &copy(job), &options).unwrap();
    assert_eq!(r.verdict, Verdict::Unfinished);
    let problem = r.problem.clone().unwrap();
    assert!(
        problem.starts_with("After 1h00m00s, the timeout, the rehearsal had not come to rest; it was at steps[0]"),
        "{problem}"
    );
    assert!(problem.contains("The last writes: ") && problem.contains("pods/default/again-"), "{problem}");
    assert!(r.to_text().contains(&problem));
    assert!(begun.elapsed() < Duration::from_secs(300));
    // The jobs of CronJobs do not count.
    let cron = format!(
        "{{apiVersion: batch/v1, kind: CronJob, metadata: {{name: tick}}, spec: {{schedule: '* * * * *', jobTemplate: {{spec: {}}}}}}}",
        "{template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}"
    );
    let r = run(&copy(&cron), "steps: [{rest: {}}]");
    assert_eq!(r.verdict, Verdict::Held, "{}", r.to_text());
}

/// Clauses: G05.bad-input
#[test]
fn too_many_replicas_are_refused_before_anything_runs() {
    let found = problems(&web(2_147_483_647, Value::Null, Value::Null), "steps: []");
    assert_eq!(found, ["web: Deployment web: 2147483647 pods are too many: a rehearsal has at most 50000"]);
}

/// Clauses: G05.scenario
#[test]
fn names_of_later_objects_and_images_are_known() {
    let copy = web(1, Value::Null, Value::Null);
    let scenario = "{assume: {pods: [{image: 'web:2', ready: 1s}, {labels: {app: web}, ready: 2s}]}, nodes: [{name: node, cpu: 8, memory: 8589934592, resources: {example.com/x: 4}}], steps: [
        {rollout: {object: deployment/web, image: 'web:2', container: c}}, {breakImage: 'web:2'}, {load: {app: web, milliCores: 5}},
        {patch: {object: deployment/web, patch: {spec: {template: {spec: {containers: [{name: c, image: 'web:3'}]}}}}}}, {breakImage: 'web:3'}]}";
    let r = run(&copy, scenario);
    let steps: Vec<&str> =
        r.timeline.iter().filter(|e| e.kind == simulation::timeline::Kind::Step).map(|e| e.text.as_str()).collect();
    assert_eq!(steps[1..3], ["breakImage web:2", "load app web milliCores 5"], "no marks of JSON");
}

/// Clauses: G05.bad-input
#[test]
fn a_rehearsal_that_is_stopped_says_how_far_it_came() {
    let options = Options::default();
    options.progress.stop();
    let scenario = Scenario::decode("steps: []").unwrap();
    let stopped = rehearse(scenario, &web(1, Value::Null, Value::Null), &options);
    assert!(matches!(&stopped, Err(Error::Stopped(phase)) if phase == "loading object 1 of 2"), "{stopped:?}");
}

/// Clauses: G05.bad-input, G05.manifests
#[test]
fn custom_resources_without_a_definition_are_left_out() {
    let widget = "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: NAME}\nspec: {a: 1}\n";
    let web = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: 1, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}";
    let manifests = [&*widget.replace("NAME", "x"), web, &*widget.replace("NAME", "w"), web]
        .join("---\n")
        .replace("}---", "}\n---");
    let gadget = "{apiVersion: example.org/v1, kind: Gadget, metadata: {name: g}}";
    let scenario =
        format!("{{expect: [{{available: {{atLeast: 1}}}}], steps: [{{create: {gadget}}}, {{apply: {gadget}}}]}}");
    let r = run(&copy(&manifests), &scenario);
    assert_eq!(r.verdict, Verdict::Held, "{}", r.to_text());
    for expected in [
        "Widget of example.com/v1 is left out (x, w): its CustomResourceDefinition is not among the objects, and its controller would not run",
        "Gadget of example.org/v1 is left out (g, g): its CustomResourceDefinition is not among the objects, and its controller would not run",
        "a.yaml, document 4: Deployment web is in a.yaml, document 2, too, and is applied over it",
    ] {
        assert!(r.basis.notes.iter().any(|n| n == expected), "{expected}: {:#?}", r.basis.notes);
    }
    // With its definition it is created, and its fields are checked.
    let definition = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: widgets.example.com}, spec: {group: example.com, scope: Namespaced, names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {b: {type: integer}}}}}}}]}}";
    let defined = format!("{definition}\n---\n{}", widget.replace("NAME", "x"));
    let found = problems(&copy(&defined), "steps: []");
    assert!(found[0].starts_with("a.yaml, document 2: ") && found[0].contains("unknown field \"spec.a\""), "{found:?}");
    let r = run(&copy(&defined.replace("a: 1", "b: 1")), "steps: []");
    assert_eq!(r.verdict, Verdict::Held, "{}", r.to_text());
}
