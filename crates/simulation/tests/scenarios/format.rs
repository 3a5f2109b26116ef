//! Scenarios as text: every mistake is an error with the path of its field.

use simulation::Scenario;

/// Clauses: G05.scenario
#[test]
fn scenarios_are_read_from_yaml_and_json_and_written_back() {
    let yaml = "
seed: 3
nodes:
- {name: n1, cpu: '4'}
steps:
- create: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}
- crash: {component: job-controller, point: {afterWrites: 3}, restartAfter: 1m30s, caches: kept, times: 2}
- crash: {component: scheduler, point: {before: {method: POST, resource: pods, number: 2}}}
- jumpClock: {of: server, by: -1h}
- failNode: n1
- advance: 2d
- stopServer: 20s
- waitFor: {object: {apiVersion: v1, kind: ConfigMap, name: a}, fields: {metadata.name: a}, within: 5s}
- settle: {}
";
    let scenario = Scenario::parse(yaml).unwrap();
    assert_eq!(Scenario::parse(&scenario.to_yaml()).unwrap(), scenario);
    let json = serde_json::to_string(&scenario).unwrap();
    assert_eq!(Scenario::parse(&json).unwrap(), scenario);
}

/// Clauses: G05.scenario
#[test]
fn mistakes_are_errors_with_the_path_of_the_field() {
    let cases = [
        ("steps: [{advance: 5}]", "steps[0].advance: invalid type: integer `5`, expected a string"),
        ("steps: [{advance: soon}]", "steps[0].advance: \"soon\" is not a duration such as 90s, 1h30m or 7d"),
        ("steps: [{advance: 5s}, {fly: away}]", "steps[1]: unknown name `fly`"),
        (
            "steps: [{scale: {object: {apiVersion: apps/v1, kind: Deployment, name: a}}}]",
            "steps[0].scale: missing field `replicas`",
        ),
        ("steps: [{failNode: n1}]", "steps[0].failNode: there is no node \"n1\""),
        ("steps: [{crash: {component: job}}]", "steps[0].crash.component: there is no component \"job\""),
        (
            "{components: [scheduler], steps: [{cut: job-controller}]}",
            "steps[0].cut: component \"job-controller\" is not among components",
        ),
        ("{components: [jobs], steps: []}", "components[0]: there is no component \"jobs\""),
        ("steps: [{crash: {component: scheduler, point: {after: {methods: PUT}}}}]", "steps[0].crash.point.after"),
        ("steps: [{crash: {component: scheduler, times: 0}}]", "steps[0].crash.times: must be at least 1"),
        ("steps: [{create: {kind: Pod}}]", "steps[0].create: must be an object with apiVersion and kind"),
        ("{nodes: [{name: a, cpu: lots}], steps: []}", "nodes[0].cpu: \"lots\" is not a quantity"),
        ("{nodes: [{name: a}, {name: a}], steps: []}", "nodes[1].name: there are two nodes \"a\""),
        ("{latency: {minimum: 5ms, maximum: 1ms}, steps: []}", "latency.maximum: must not be less than minimum"),
        ("{seed: -1, steps: []}", "seed: invalid value: integer `-1`, expected a whole number that is not negative"),
        ("{start: yesterday, steps: []}", "start: "),
        ("seeds: 1", "unknown field `seeds`"),
        ("{}", "missing field `steps`"),
        ("[]", "scenario: "),
        ("a: b: c", "the scenario is not valid YAML"),
        ("{steps: [], steps: []}", "already set in map"),
        ("steps: []\n---\nsteps: []", "the file has 2 documents instead of one scenario"),
        ("", "the file is empty: a scenario has at least `steps`"),
    ];
    for (text, expected) in cases {
        let error = Scenario::parse(text).expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}
