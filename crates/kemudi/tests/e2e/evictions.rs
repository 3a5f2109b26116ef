//! Eviction under node pressure. The test has the cluster to itself.

use crate::cluster::EVICTION;
use crate::runner::Case;
use crate::story::{Story, condition};
use serde_json::{Value, json};
use std::fs;

pub const ALONE: &[Case] = &[("evictions::a_pod_that_takes_all_processes_is_evicted", processes)];

/// Processes of the pod, and how many the node may lose before it is under pressure. Other programs of the machine come and go meanwhile.
const PROCESSES: u32 = 2000;
const MARGIN: u64 = 1000;

fn number(path: &str) -> u64 {
    fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

fn has_taint(node: &Value) -> bool {
    let taints = node["spec"]["taints"].as_array();
    taints.is_some_and(|all| {
        all.iter().any(|t| t["key"] == "node.kubernetes.io/pid-pressure" && t["effect"] == "NoSchedule")
    })
}

/// Clauses: R05.pid-pressure R05.taints
fn processes(s: &Story) {
    let most = number("/proc/sys/kernel/pid_max").min(number("/proc/sys/kernel/threads-max"));
    let load = fs::read_to_string("/proc/loadavg").unwrap();
    let now: u64 = load.split(['/', ' ']).nth(4).unwrap().parse().unwrap();
    let threshold = most - now - MARGIN;
    s.cluster.stop();
    fs::write(s.cluster.directory.join(EVICTION), format!(", pid.available: {threshold}")).unwrap();
    s.cluster.start_again();
    let quiet = "trap 'exit 0' TERM; while :; do sleep 0.1; done";
    s.shell_pod("quiet", quiet, json!({}), json!({}));
    s.ready("quiet");
    let many = format!("i=0; while [ $i -lt {PROCESSES} ]; do sleep 1000 & i=$((i+1)); done; wait");
    s.shell_pod("many", &many, json!({}), json!({}));
    let pod = s.phase("many", "Failed");
    let message = pod["status"]["message"].as_str().unwrap();
    assert_eq!(pod["status"]["reason"], "Evicted");
    assert!(message.starts_with("The node was low on resource: pids. Threshold quantity: "), "{message}");
    assert_eq!(condition(&pod, "DisruptionTarget"), "True");
    assert_eq!(s.event("many", "Evicted"), message);
    s.until_at("/api/v1/nodes/e2e", |n| condition(n, "PIDPressure") == "True" && has_taint(n));
    // Its processes are gone, and so is the pressure after a while.
    s.until_at("/api/v1/nodes/e2e", |n| condition(n, "PIDPressure") == "False" && !has_taint(n));
    s.ready("quiet");
    s.cluster.stop();
    fs::remove_file(s.cluster.directory.join(EVICTION)).unwrap();
    s.cluster.start_again();
}
