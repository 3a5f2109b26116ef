//! Liveness, readiness and startup probes.

use crate::runner::Case;
use crate::story::{Story, condition};
use serde_json::{Value, json};

pub const TESTS: &[Case] = &[
    ("probes::liveness_restarts", liveness_restarts),
    ("probes::readiness_comes_and_goes", readiness_comes_and_goes),
    ("probes::startup_holds_the_others_back", startup_holds_the_others_back),
    ("probes::reach_ports_by_number_and_name", reach_ports_by_number_and_name),
];

/// Lives while the file is there.
const FILE: &str = "touch /tmp/fine; trap 'exit 0' TERM; while :; do sleep 0.1; done";

fn exec(more: Value) -> Value {
    let mut probe = json!({"exec": {"command": ["cat", "/tmp/fine"]}, "periodSeconds": 1});
    probe.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    probe
}

/// Clauses: P07.liveness P07.exec P07.failure-threshold
fn liveness_restarts(s: &Story) {
    s.shell_pod(
        "p",
        FILE,
        json!({}),
        json!({"livenessProbe": exec(json!({"initialDelaySeconds": 1, "failureThreshold": 2}))}),
    );
    s.ready("p");
    s.sh("p", "rm /tmp/fine");
    let message = s.event("p", "Unhealthy");
    assert!(message.starts_with("Liveness probe failed: "), "{message}");
    assert_eq!(s.event("p", "Killing"), "Container c failed liveness probe, will be restarted");
    let c = s.container("p", |c| c["restartCount"].as_i64() >= Some(1) && !c["state"]["running"].is_null());
    assert!(!c["lastState"]["terminated"].is_null(), "{c}");
}

/// Clauses: P07.readiness P07.success-threshold
fn readiness_comes_and_goes(s: &Story) {
    s.create(
        "services",
        json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "p"}, "ports": [{"port": 80}]}}),
    );
    s.shell_pod(
        "p",
        FILE,
        json!({}),
        json!({"readinessProbe": exec(json!({"failureThreshold": 1, "successThreshold": 2}))}),
    );
    s.ready("p");
    let ready = |e: &Value| e["items"][0]["endpoints"][0]["conditions"]["ready"].clone();
    s.until("endpointslices", |e| ready(e) == true);
    s.sh("p", "rm /tmp/fine");
    let p = s.until("pods/p", |p| condition(p, "Ready") == "False");
    let all = p["status"]["conditions"].as_array().unwrap();
    let why = all.iter().find(|c| c["type"] == "Ready").unwrap();
    assert_eq!(
        (&why["reason"], &why["message"]),
        (&json!("ContainersNotReady"), &json!("containers with unready status: [c]"))
    );
    s.until("endpointslices", |e| ready(e) == false);
    s.sh("p", "touch /tmp/fine");
    let p = s.ready("p");
    assert_eq!(p["status"]["containerStatuses"][0]["restartCount"], 0, "an unready container is left alone");
}

/// Clauses: P07.startup
fn startup_holds_the_others_back(s: &Story) {
    let slow =
        "trap 'exit 0' TERM; until test -e /tmp/go; do sleep 0.1; done; touch /tmp/fine; while :; do sleep 0.1; done";
    let probes = json!({
        "startupProbe": exec(json!({"failureThreshold": 60})),
        "livenessProbe": exec(json!({"failureThreshold": 1})),
        "readinessProbe": exec(json!({})),
    });
    s.shell_pod("p", slow, json!({}), probes);
    s.event("p", "Unhealthy");
    let c = s.container("p", |c| !c["state"]["running"].is_null());
    assert_eq!((&c["started"], &c["ready"], &c["restartCount"]), (&json!(false), &json!(false), &json!(0)));
    s.sh("p", "touch /tmp/go");
    let p = s.ready("p");
    let c = &p["status"]["containerStatuses"][0];
    assert_eq!((&c["started"], &c["restartCount"]), (&json!(true), &json!(0)));
    // One that never gets there is started again.
    s.shell_pod(
        "never",
        "trap 'exit 0' TERM; while :; do sleep 0.1; done",
        json!({}),
        json!({"startupProbe": exec(json!({"failureThreshold": 2}))}),
    );
    s.container("never", |c| c["restartCount"].as_i64() >= Some(1));
    assert_eq!(s.event("never", "Killing"), "Container c failed startup probe, will be restarted");
}

/// Clauses: P07.http P07.tcp P07.named-port
fn reach_ports_by_number_and_name(s: &Story) {
    let demo = |probe: Value| {
        vec![json!({"name": "c", "ports": [{"name": "web", "containerPort": 8080}], "readinessProbe": probe})]
    };
    s.pod("http", json!({}), demo(json!({"httpGet": {"path": "/healthz", "port": "web"}, "periodSeconds": 1})));
    s.pod("tcp", json!({}), demo(json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1})));
    s.pod("deaf", json!({}), demo(json!({"tcpSocket": {"port": 8081}, "periodSeconds": 1})));
    s.ready("http");
    s.ready("tcp");
    let message = s.event("deaf", "Unhealthy");
    assert!(
        message.starts_with("Readiness probe failed: dial tcp ") && message.ends_with("connection refused"),
        "{message}"
    );
    assert_eq!(condition(&s.get("pods/deaf"), "Ready"), "False");
}
