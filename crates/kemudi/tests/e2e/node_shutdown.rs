//! Graceful shutdown of the node. The test has the cluster to itself.

use crate::cluster::{KEMUDI, data_dir};
use crate::runner::Case;
use crate::story::{Story, condition};
use serde_json::{Value, json};
use std::process::Command;

pub const ALONE: &[Case] = &[("node_shutdown::pods_end_by_priority", by_priority)];

/// Clauses: P04.node-shutdown
fn by_priority(s: &Story) {
    let out = s.cluster.directory.join(format!("{}-out", s.ns));
    std::fs::create_dir_all(&out).unwrap();
    let script =
        |name: &str| format!("trap 'echo {name} >> /out/order; exit 0' TERM; echo ready; while :; do sleep 0.1; done");
    let spec = |more: Value| {
        let mut spec = json!({"volumes": [{"name": "out", "hostPath": {"path": out}}]});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let mounts = json!({"volumeMounts": [{"name": "out", "mountPath": "/out"}]});
    s.shell_pod("plain", &script("plain"), spec(json!({})), mounts.clone());
    let critical = json!({"priorityClassName": "system-node-critical"});
    s.create(
        "resourcequotas",
        json!({"metadata": {"name": "critical"}, "spec": {"hard": {"pods": "10"},
        "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In",
            "values": ["system-node-critical"]}]}}}),
    );
    s.eventually("a quota for critical pods", || {
        s.get("resourcequotas/critical")["status"]["hard"]["pods"].is_string().then_some(())
    });
    s.shell_pod("critical", &script("critical"), spec(critical), mounts.clone());
    // It ignores the signal, and its own grace period is longer than that of the shutdown.
    let deaf = "trap '' TERM; echo ready; while :; do sleep 0.1; done";
    s.shell_pod("deaf", deaf, spec(json!({"terminationGracePeriodSeconds": 600})), mounts);
    s.shell_pod("done", "exit 0", json!({"restartPolicy": "Never"}), json!({}));
    s.phase("done", "Succeeded");
    for name in ["plain", "critical", "deaf"] {
        s.ready(name);
    }

    let began = tokio::time::Instant::now();
    let command =
        Command::new(KEMUDI).args(["node", "shutdown", "--data-dir", &data_dir(&s.cluster.directory)]).spawn().unwrap();
    let node = s.until_at("/api/v1/nodes/e2e", |n| condition(n, "Ready") == "False");
    let ready = node["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Ready").unwrap();
    assert_eq!((&ready["reason"], &ready["message"]), (&json!("KubeletNotReady"), &json!("node is shutting down")));
    s.pod("late", json!({"nodeName": "e2e"}), vec![json!({"name": "c"})]);
    let late = s.phase("late", "Failed");
    assert_eq!(late["status"]["reason"], "NodeShutdown");
    assert_eq!(late["status"]["message"], "Pod was rejected: Pod was rejected as the node is shutting down.");
    assert!(s.cluster.wait_for_end(), "the server ends well");
    let status = { command }.wait().unwrap();
    assert!(status.success());
    // Pods without a priority have ten seconds.
    assert!((10..60).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert_eq!(std::fs::read_to_string(out.join("order")).unwrap(), "plain\ncritical\n");

    s.cluster.start_again();
    for name in ["plain", "critical", "deaf"] {
        let status = s.get(&format!("pods/{name}"))["status"].clone();
        assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("Terminated")), "{name}");
        assert_eq!(status["message"], "Pod was terminated in response to imminent node shutdown.");
        let conditions = status["conditions"].as_array().unwrap();
        let disruption = conditions.iter().find(|c| c["type"] == "DisruptionTarget").unwrap();
        assert_eq!(disruption["reason"], "TerminationByKubelet");
    }
    assert_eq!(s.get("pods/done")["status"]["phase"], "Succeeded");
    s.shell_pod("new", &script("new"), json!({}), json!({}));
    s.ready("new");
}
