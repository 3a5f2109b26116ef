use super::*;
use serde_json::{Value, json};

const SANDBOX: &str = "u-0";

fn container(name: &str, state: &str) -> Container {
    let (kind, code) = match state.split_once(':') {
        Some(("exit" | "killed", code)) => (ContainerState::Exited, code.parse().ok()),
        _ => (ContainerState::Running, None),
    };
    Container {
        id: format!("id-{name}"),
        pod: SANDBOX.into(),
        name: name.into(),
        attempt: 0,
        image: String::new(),
        image_id: String::new(),
        user: None,
        mounted_images: Vec::new(),
        stop_signal: None,
        state: if state == "created" { ContainerState::Created } else { kind },
        pid: None,
        created_at: runtime::Timestamp { secs: 100, nanos: 0 },
        started_at: None,
        finished_at: code.map(|_: i32| runtime::Timestamp { secs: 200, nanos: 0 }),
        exit_code: code,
        signal: None,
        reason: None,
        message: None,
        termination_message_file: None,
        log_path: "".into(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    }
}

/// The plan in short: `+a` starts, `-a` kills, `~a` backs off, `sandbox`, `finished`.
fn check(spec: Value, sandbox: Sandbox, there: &[(&str, &str)], expected: &str) {
    let mut backoffs = Backoffs::default();
    let now = Timestamp::from_second(201).unwrap();
    for (name, state) in there.iter().filter(|(_, s)| s.ends_with('~')) {
        let ended = Timestamp::from_second(150).unwrap();
        backoffs.started(&key_of(name, Some(&container(name, state.trim_end_matches('~')).image)), ended, ended);
    }
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
    let newest: BTreeMap<String, Container> =
        there.iter().map(|(n, s)| ((*n).to_owned(), container(n, s.trim_end_matches(['~', '!', '?'])))).collect();
    let health = there
        .iter()
        .map(|(n, s)| {
            let failed = s.ends_with('!').then_some(crate::pod::probes::Kind::Liveness);
            ((*n).to_owned(), Health { started: !s.ends_with('?'), ready: true, failed })
        })
        .collect();
    let killed = there.iter().filter(|(_, s)| s.starts_with("killed")).map(|(n, _)| format!("id-{n}")).collect();
    let seen = Seen {
        sandbox,
        sandbox_id: SANDBOX,
        newest: &newest,
        previous: &BTreeMap::new(),
        health: &health,
        backoffs: &backoffs,
        killed: &killed,
        now,
    };
    let plan = plan(&pod, &seen);
    let mut got: Vec<String> = plan.kill.iter().map(|k| format!("-{}", k.name)).collect();
    got.extend(plan.new_sandbox.then(|| "sandbox".to_owned()));
    got.extend(plan.start.iter().map(|s| format!("+{}", s.name)));
    got.extend(plan.backing_off.iter().map(|(n, _)| format!("~{n}")));
    got.extend(plan.finished.then(|| "finished".to_owned()));
    assert_eq!(got.join(" "), expected, "{spec} {sandbox:?} {there:?}");
}

fn spec(policy: &str, init: &[&str], app: &[&str]) -> Value {
    let one = |n: &&str| match n.strip_prefix("side") {
        Some(_) => json!({"name": n, "restartPolicy": "Always"}),
        None => json!({"name": n}),
    };
    json!({"restartPolicy": policy, "initContainers": init.iter().map(one).collect::<Vec<_>>(),
        "containers": app.iter().map(one).collect::<Vec<_>>()})
}

/// Clauses: P10 P12
#[test]
fn plans_follow_upstreams_actions() {
    use Sandbox::{Absent, Dead, Ready};
    let always = || spec("Always", &[], &["a", "b"]);
    check(always(), Absent, &[], "sandbox +a +b");
    check(always(), Ready, &[], "+a +b");
    check(always(), Ready, &[("a", "running")], "+b");
    check(always(), Ready, &[("a", "created"), ("b", "running")], "+a");
    let mut debugged = always();
    debugged["ephemeralContainers"] = json!([{"name": "e", "image": "i"}]);
    for (state, expected) in [("running", ""), ("exit:137", ""), ("created", "+e")] {
        check(debugged.clone(), Ready, &[("a", "running"), ("b", "running"), ("e", state)], expected);
    }
    check(debugged.clone(), Ready, &[("a", "running"), ("b", "running")], "+e");
    check(debugged.clone(), Absent, &[], "sandbox +a +b");
    // They do not wait for init containers.
    debugged["initContainers"] = json!([{"name": "init"}]);
    check(debugged, Ready, &[("init", "running")], "+e");
    check(always(), Ready, &[("a", "running"), ("b", "running")], "");
    check(always(), Ready, &[("a", "exit:0"), ("b", "running")], "+a");
    check(always(), Ready, &[("a", "exit:1~"), ("b", "running")], "~a");
    check(always(), Ready, &[("a", "running!"), ("b", "running")], "-a");
    check(always(), Dead, &[("a", "exit:137"), ("b", "exit:137")], "sandbox +a +b");

    let on_failure = || spec("OnFailure", &[], &["a", "b"]);
    check(on_failure(), Ready, &[("a", "exit:0"), ("b", "running")], "");
    check(on_failure(), Ready, &[("a", "exit:0"), ("b", "exit:1")], "+b");
    check(on_failure(), Ready, &[("a", "exit:0"), ("b", "exit:0")], "finished");

    // Killed by the agent, for a probe or a resize: it has not succeeded, whatever its exit code.
    check(on_failure(), Ready, &[("a", "killed:0"), ("b", "exit:0")], "+a");
    check(spec("Never", &[], &["a"]), Ready, &[("a", "killed:0")], "finished");

    let never = || spec("Never", &[], &["a", "b"]);
    check(never(), Ready, &[("a", "exit:1"), ("b", "running")], "");
    check(never(), Ready, &[("a", "exit:1"), ("b", "exit:0")], "finished");
    check(never(), Dead, &[("a", "exit:137")], "finished");

    let init = || spec("Always", &["i", "j"], &["a"]);
    check(init(), Ready, &[], "+i");
    check(init(), Ready, &[("i", "running")], "");
    check(init(), Ready, &[("i", "exit:1")], "+i");
    check(init(), Ready, &[("i", "exit:1~")], "~i");
    check(init(), Ready, &[("i", "exit:0")], "+j");
    check(init(), Ready, &[("i", "exit:0"), ("j", "exit:0")], "+a");
    check(init(), Ready, &[("i", "exit:0"), ("j", "exit:0"), ("a", "exit:1")], "+a");
    check(init(), Dead, &[("i", "exit:0"), ("j", "exit:0"), ("a", "exit:137")], "sandbox +i");
    check(spec("Never", &["i"], &["a"]), Ready, &[("i", "exit:1")], "finished");

    let sidecar = || spec("Never", &["side", "i"], &["a"]);
    check(sidecar(), Ready, &[], "+side");
    check(sidecar(), Ready, &[("side", "running?")], "");
    check(sidecar(), Ready, &[("side", "running")], "+i");
    check(sidecar(), Ready, &[("side", "running"), ("i", "exit:0")], "+a");
    check(sidecar(), Ready, &[("side", "exit:1"), ("i", "exit:0"), ("a", "running")], "+side");
    check(sidecar(), Ready, &[("side", "running"), ("i", "exit:0"), ("a", "exit:0")], "finished");
}

#[test]
fn rules_of_a_container_win_over_the_pods_policy() {
    let pod: Pod = serde_json::from_value(json!({"spec": {"restartPolicy": "Never", "containers": []}})).unwrap();
    let c: Spec = serde_json::from_value(json!({"name": "a", "restartPolicy": "Never",
        "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]}))
    .unwrap();
    assert!(restarts(&pod, &c, 42) && !restarts(&pod, &c, 1));
}

/// A change of the image restarts a container, whatever the policy.
#[test]
fn changed_images_restart_containers() {
    let with_image = |policy: &str| {
        let mut spec = spec(policy, &[], &["a", "b"]);
        spec["containers"][0]["image"] = "new".into();
        spec
    };
    check(with_image("Always"), Sandbox::Ready, &[("a", "running"), ("b", "running")], "-a");
    check(with_image("Never"), Sandbox::Ready, &[("a", "running"), ("b", "running")], "-a");
    check(with_image("Never"), Sandbox::Ready, &[("a", "killed:0"), ("b", "running")], "+a");
    // A container with another image has not failed yet.
    check(spec("Always", &[], &["a", "b"]), Sandbox::Ready, &[("a", "exit:1~"), ("b", "running")], "~a");
    check(with_image("Always"), Sandbox::Ready, &[("a", "exit:1~"), ("b", "running")], "+a");
    // It had ended by itself.
    check(with_image("Never"), Sandbox::Ready, &[("a", "exit:0"), ("b", "running")], "");
}

/// Clauses: P10.restart-all
#[test]
fn a_rule_restarts_all_containers() {
    let mut spec = spec("Never", &["i", "side"], &["a", "b"]);
    spec["containers"][0]["restartPolicy"] = "Never".into();
    spec["containers"][0]["restartPolicyRules"] =
        json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
    let all = |a: &'static str| [("i", "exit:0"), ("side", "running"), ("a", a), ("b", "running")];
    check(spec.clone(), Sandbox::Ready, &all("exit:1"), "");
    check(spec.clone(), Sandbox::Ready, &all("exit:42"), "-b -side");
    // Then the pod starts like a new one.
    let stopped = [("i", "exit:0"), ("side", "killed:0"), ("a", "exit:42"), ("b", "killed:0")];
    check(spec.clone(), Sandbox::Ready, &stopped, "+i");
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
    let trigger = container("a", "exit:42");
    let fresh = |name: &str, state: &str| Container {
        id: format!("fresh-{name}"),
        created_at: runtime::Timestamp { secs: 250, nanos: 0 },
        ..container(name, state)
    };
    let plan_of = |newest: Vec<Container>| {
        let newest: BTreeMap<String, Container> = newest.into_iter().map(|c| (c.name.clone(), c)).collect();
        let previous = BTreeMap::from([("a".to_owned(), trigger.clone())]);
        let health = newest.keys().map(|n| (n.clone(), Health { started: true, ready: true, failed: None })).collect();
        let (backoffs, killed) = (Backoffs::default(), BTreeSet::new());
        let now = Timestamp::from_second(300).unwrap();
        let (sandbox, sandbox_id) = (Sandbox::Ready, SANDBOX);
        let plan = plan(
            &pod,
            &Seen {
                sandbox,
                sandbox_id,
                newest: &newest,
                previous: &previous,
                health: &health,
                backoffs: &backoffs,
                killed: &killed,
                now,
            },
        );
        plan.start.into_iter().map(|s| s.name).collect::<Vec<_>>().join(" ")
    };
    let init = || vec![fresh("i", "exit:0"), fresh("side", "running")];
    assert_eq!(plan_of([init(), vec![trigger.clone(), container("b", "exit:137")]].concat()), "a b");
    // The trigger runs again, and the other one still has to be replaced, although its policy is Never.
    assert_eq!(plan_of([init(), vec![fresh("a", "running"), container("b", "exit:137")]].concat()), "b");
    assert_eq!(plan_of([init(), vec![fresh("a", "running"), fresh("b", "exit:0")]].concat()), "");
}
