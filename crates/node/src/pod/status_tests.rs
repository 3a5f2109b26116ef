use super::*;
use serde_json::{Value, json};

fn container(name: &str, state: &str) -> Container {
    let code = state.split_once(':').map(|(_, c)| c).and_then(|c| c.parse::<i32>().ok());
    Container {
        id: format!("id-{name}"),
        pod: "u-0".into(),
        name: name.into(),
        attempt: 0,
        image: String::new(),
        image_id: "sha256:1".into(),
        user: None,
        mounted_images: Vec::new(),
        stop_signal: None,
        state: if code.is_some() { ContainerState::Exited } else { ContainerState::Running },
        pid: None,
        created_at: runtime::Timestamp { secs: 100, nanos: 0 },
        started_at: Some(runtime::Timestamp { secs: 101, nanos: 0 }),
        finished_at: code.map(|_| runtime::Timestamp { secs: 200, nanos: 0 }),
        exit_code: code,
        signal: None,
        reason: (code == Some(137)).then(|| "OOMKilled".to_owned()),
        message: None,
        termination_message_file: None,
        log_path: "".into(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    }
}

fn make(pod: Value, there: &[(&str, &str)], waiting: &[(&str, &str)], has_ended: bool) -> PodStatus {
    let pod: Pod = serde_json::from_value(pod).unwrap();
    let newest = there.iter().map(|(n, s)| ((*n).to_owned(), container(n, s.trim_end_matches('?')))).collect();
    let health = there
        .iter()
        .map(|(n, s)| ((*n).to_owned(), Health { started: true, ready: !s.ends_with('?'), failed: None }))
        .collect();
    let waiting = waiting
        .iter()
        .map(|(n, r)| {
            let message = if *r == "Long" { "x".repeat(1 << 20) } else { "m".into() };
            ((*n).to_owned(), Waiting { reason: (*r).to_owned(), message })
        })
        .collect();
    let killed = there.iter().filter(|(_, s)| s.starts_with("killed")).map(|(n, _)| format!("id-{n}")).collect();
    status(&Facts {
        pod: &pod,
        actuated: &BTreeMap::new(),
        of_pod: &Allocation::of_spec(&pod),
        resizing: &[],
        newest: &newest,
        previous: &BTreeMap::new(),
        waiting: &waiting,
        health: &health,
        killed: &killed,
        messages: &BTreeMap::new(),
        sandbox_ready: true,
        pod_ips: &["10.0.0.1".to_owned(), "fd00::1".to_owned()],
        host_ips: &["192.0.2.1".to_owned()],
        now: Timestamp::from_second(300).unwrap(),
        failed: None,
        rejected: false,
        disruption: None,
        devices: &BTreeMap::new(),
        has_ended,
        details: Details::All,
        runtime: &RuntimeFacts { name: "kemudi".into(), mounts_recursively: true, shows_signals: true },
    })
}

fn pod(policy: &str, init: &[&str], app: &[&str]) -> Value {
    let list = |l: &[&str]| l.iter().map(|n| json!({"name": n, "image": "i"})).collect::<Vec<_>>();
    json!({"metadata": {"name": "p", "uid": "u"},
        "spec": {"restartPolicy": policy, "initContainers": list(init), "containers": list(app)}})
}

/// Clauses: P06
#[test]
fn phases_follow_upstreams_table() {
    let check = |policy: &str, init: &[&str], there: &[(&str, &str)], waiting: &[(&str, &str)], expected: &str| {
        let s = make(pod(policy, init, &["a", "b"]), there, waiting, false);
        assert_eq!(s.phase.as_deref(), Some(expected), "{policy} {init:?} {there:?} {waiting:?}");
    };
    let none: &[(&str, &str)] = &[];
    check("Always", &[], none, none, "Pending");
    check("Always", &[], &[("a", "running")], none, "Pending");
    check("Always", &[], &[("a", "running"), ("b", "running")], none, "Running");
    check("Always", &[], &[("a", "running"), ("b", "exit:1")], none, "Running");
    check("Always", &[], &[("a", "exit:0"), ("b", "exit:0")], none, "Running");
    check("Always", &[], &[("a", "running"), ("b", "exit:1")], &[("b", "CrashLoopBackOff")], "Running");
    check("OnFailure", &[], &[("a", "exit:0"), ("b", "exit:1")], none, "Running");
    check("OnFailure", &[], &[("a", "exit:0"), ("b", "exit:0")], none, "Succeeded");
    check("OnFailure", &[], &[("a", "exit:0"), ("b", "killed:0")], none, "Running");
    check("Never", &[], &[("a", "exit:0"), ("b", "exit:1")], none, "Failed");
    check("Never", &[], &[("a", "exit:0"), ("b", "exit:0")], none, "Succeeded");
    check("Never", &[], &[("a", "exit:1"), ("b", "running")], none, "Running");
    check("Always", &["i"], &[("i", "running")], none, "Pending");
    check("Always", &["i"], &[("i", "exit:1")], none, "Pending");
    check("Never", &["i"], &[("i", "exit:1")], none, "Failed");
    check("Always", &["i"], &[("i", "exit:0"), ("a", "running"), ("b", "running")], none, "Running");
}

fn condition(s: &PodStatus, kind: &str) -> String {
    let c = s.conditions.iter().flatten().find(|c| c.type_ == kind).unwrap();
    let more = [&c.reason, &c.message].into_iter().flatten().cloned().collect::<Vec<_>>().join(": ");
    format!("{} {more}", c.status).trim().to_owned()
}

#[test]
fn conditions_say_what_is_missing() {
    let s = make(pod("Always", &[], &["a", "b"]), &[("a", "running"), ("b", "running?")], &[], false);
    let unready = "False ContainersNotReady: containers with unready status: [b]";
    assert_eq!((condition(&s, "ContainersReady"), condition(&s, "Ready")), (unready.into(), unready.into()));
    assert_eq!(condition(&s, "Initialized"), "True");
    let s = make(pod("Always", &["i"], &["a"]), &[("i", "running")], &[], false);
    assert_eq!(condition(&s, "Initialized"), "False ContainersNotInitialized: containers with incomplete status: [i]");
    let s = make(pod("Never", &[], &["a"]), &[("a", "exit:0")], &[], true);
    assert_eq!(condition(&s, "Ready"), "False PodCompleted");
    assert_eq!(condition(&s, "Initialized"), "True PodCompleted");
    let mut gated = pod("Always", &[], &["a"]);
    gated["spec"]["readinessGates"] = json!([{"conditionType": "x/y"}]);
    let s = make(gated.clone(), &[("a", "running")], &[], false);
    assert_eq!(
        condition(&s, "Ready"),
        "False ReadinessGatesNotReady: corresponding condition of pod readiness gate \"x/y\" does not exist."
    );
    for (status, expect) in [
        ("True", "True"),
        ("False", "False ReadinessGatesNotReady: the status of pod readiness gate \"x/y\" is not \"True\", but False"),
    ] {
        gated["status"] = json!({"conditions": [{"type": "x/y", "status": status}]});
        assert_eq!(condition(&make(gated.clone(), &[("a", "running")], &[], false), "Ready"), expect);
    }
}

/// Clauses: P08
#[test]
fn containers_say_why_they_do_not_run() {
    let state = |s: &PodStatus| {
        let c = &s.container_statuses.as_ref().unwrap()[0];
        let v = serde_json::to_value(c.state.as_ref().unwrap()).unwrap();
        let (kind, inner) = v.as_object().unwrap().iter().next().unwrap();
        format!("{kind} {}", inner["reason"].as_str().unwrap_or_default()).trim().to_owned()
    };
    let one =
        |there: &[(&str, &str)], waiting: &[(&str, &str)]| make(pod("Always", &[], &["a"]), there, waiting, false);
    assert_eq!(state(&one(&[], &[])), "waiting ContainerCreating");
    assert_eq!(state(&one(&[], &[("a", "ErrImagePull")])), "waiting ErrImagePull");
    assert_eq!(state(&one(&[("a", "running")], &[])), "running");
    assert_eq!(state(&one(&[("a", "exit:0")], &[])), "terminated Completed");
    assert_eq!(state(&one(&[("a", "exit:3")], &[])), "terminated Error");
    assert_eq!(state(&one(&[("a", "exit:137")], &[])), "terminated OOMKilled");
    let looping = one(&[("a", "exit:3")], &[("a", "CrashLoopBackOff")]);
    assert_eq!(state(&looping), "waiting CrashLoopBackOff");
    let last = looping.container_statuses.unwrap()[0].last_state.clone().unwrap().terminated.unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (3, Some("Error")));
    let init = make(pod("Always", &["i"], &["a"]), &[("i", "running")], &[], false);
    assert_eq!(state(&init), "waiting PodInitializing");
}

#[test]
fn containers_say_what_they_got() {
    let mut p = pod("Always", &[], &["a", "b"]);
    p["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}});
    p["spec"]["containers"][0]["volumeMounts"] = json!([
        {"name": "v", "mountPath": "/v"},
        {"name": "r", "mountPath": "/r", "readOnly": true},
        {"name": "d", "mountPath": "/d", "readOnly": true, "recursiveReadOnly": "IfPossible"},
    ]);
    p["spec"]["ephemeralContainers"] =
        json!([{"name": "e", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]);
    let s = serde_json::to_value(make(p, &[("a", "running"), ("b", "running")], &[], false)).unwrap();
    let (a, b) = (&s["containerStatuses"][0], &s["containerStatuses"][1]);
    assert_eq!(a["resources"], json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}));
    assert_eq!(a["allocatedResources"], json!({"cpu": "1"}));
    assert_eq!(
        a["volumeMounts"],
        json!([
            {"name": "v", "mountPath": "/v"},
            {"name": "r", "mountPath": "/r", "readOnly": true, "recursiveReadOnly": "Disabled"},
            {"name": "d", "mountPath": "/d", "readOnly": true, "recursiveReadOnly": "Enabled"},
        ])
    );
    assert_eq!(b["resources"], json!({}));
    assert!(b.get("volumeMounts").is_none() && b.get("allocatedResources").is_none());
    assert_eq!(s["ephemeralContainerStatuses"][0]["volumeMounts"], json!([{"name": "v", "mountPath": "/v"}]));
}

#[test]
fn only_changes_are_sent() {
    let running = make(pod("Always", &[], &["a"]), &[("a", "running")], &[], false);
    assert_eq!(patch("u", Some(&running), &running), None);
    let mut with = pod("Always", &[], &["a"]);
    with["status"] = serde_json::to_value(&running).unwrap();
    let later = make(with, &[("a", "running?")], &[], false);
    let sent = patch("u", Some(&running), &later).unwrap();
    assert_eq!(sent["metadata"]["uid"], "u");
    let kinds: Vec<&str> =
        sent["status"]["conditions"].as_array().unwrap().iter().map(|c| c["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["Ready", "ContainersReady"]);
    assert!(sent["status"].get("phase").is_none() && sent["status"].get("podIPs").is_none());
    let back = patch("u", Some(&later), &running).unwrap();
    assert!(back["status"]["conditions"][0]["reason"].is_null(), "a reason that is gone is taken away");
}

/// A message of a runtime or a driver that was too large for the API kept the status from being written.
#[test]
fn messages_are_bounded() {
    let s = make(pod("Always", &[], &["a", "b"]), &[], &[("a", "Long")], false);
    let state = s.container_statuses.unwrap()[0].state.clone().unwrap().waiting.unwrap();
    let message = state.message.unwrap();
    assert!(message.len() == MAX_MESSAGE && message.ends_with("x..."), "{}", message.len());
}
