//! Liveness, readiness and startup probes.

use crate::runner::Case;
use crate::story::{Story, condition};
use serde_json::{Value, json};

pub const TESTS: &[Case] = &[
    ("probes::liveness_restarts", liveness_restarts),
    ("probes::readiness_comes_and_goes", readiness_comes_and_goes),
    ("probes::readiness_gates_hold_ready_back", readiness_gates_hold_ready_back),
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

/// Others write the conditions that gates name; the node keeps them, and the pod is ready when all of them are true.
/// Clauses: P09.gates P09.endpoints P09.column
fn readiness_gates_hold_ready_back(s: &Story) {
    s.create(
        "services",
        json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "p"}, "ports": [{"port": 80}]}}),
    );
    let gates = ["example.com/balanced", "example.com/warm"];
    s.shell_pod("p", FILE, json!({"readinessGates": gates.map(|g| json!({"conditionType": g}))}), json!({}));
    let find = |p: &Value, kind: &str| {
        let mut all = p["status"]["conditions"].as_array().into_iter().flatten();
        all.find(|c| c["type"] == kind).cloned().unwrap_or_default()
    };
    let says = |expect: &str| {
        let p = s.until("pods/p", |p| find(p, "Ready")["message"] == expect);
        assert_eq!((condition(&p, "Ready"), condition(&p, "ContainersReady")), ("False", "True"));
        assert_eq!(find(&p, "Ready")["reason"], "ReadinessGatesNotReady");
    };
    let write = |gate: usize, status: &str| {
        let patch = json!({"status": {"conditions": [{"type": gates[gate], "status": status}]}}).to_string();
        s.ok(&["patch", "pod", "p", "--subresource=status", "-p", &patch]);
    };
    let missing = |gate: &str| format!("corresponding condition of pod readiness gate {gate:?} does not exist.");
    let ready =
        |wanted: bool| s.until("endpointslices", |e| e["items"][0]["endpoints"][0]["conditions"]["ready"] == wanted);
    says(&format!("{}, {}", missing(gates[0]), missing(gates[1])));
    ready(false);
    write(0, "True");
    says(&missing(gates[1]));
    write(1, "False");
    says("the status of pod readiness gate \"example.com/warm\" is not \"True\", but False");
    let cells = |gates: &str| s.ok(&["get", "pod", "p", "-o", "wide", "--no-headers"]).trim_end().ends_with(gates);
    assert!(cells("1/2"));
    write(1, "True");
    s.ready("p");
    ready(true);
    assert!(cells("2/2"));
    write(0, "False");
    says("the status of pod readiness gate \"example.com/balanced\" is not \"True\", but False");
    ready(false);
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
