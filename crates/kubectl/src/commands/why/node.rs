//! Why a node is not ready, or takes no pods.

use super::fields::{condition, is_true, list, text};
use super::finding::{Explanation, Finding, ObjectName, State};
use super::pod_running::ago;
use super::reader::{Read, Reader};
use crate::error::Result;
use jiff::Timestamp;
use meta::Value;

/// What is wrong with the node of a pod.
pub async fn of_pod(r: &mut Reader<'_>, pod: &Value) -> Result<Option<Finding>> {
    let node = text(pod, "/spec/nodeName");
    let about = ObjectName::new("v1", "Node", "", node);
    let now = r.k.now();
    Ok(match r.get("v1", "", "nodes", node).await? {
        Read::Missing => Some(Finding::new("NodeGone", format!("its node {node} does not exist")).about(about)),
        Read::Found(found) => not_ready(&found, now)
            .map(|f| Finding { message: format!("its node {node}: {}", f.message), ..f }.about(about)),
        Read::Unreadable => None,
    })
}

/// Why a node is not ready. Pure.
fn not_ready(node: &Value, now: Timestamp) -> Option<Finding> {
    let Some(ready) = condition(node, "Ready") else {
        return Some(Finding::new("NodeNotReady", "the node agent has not reported the node as ready yet"));
    };
    if ready["status"] == "True" {
        return None;
    }
    let since = ago(text(ready, "/lastTransitionTime"), now);
    let message = match text(ready, "/status") {
        "Unknown" => {
            format!("the node agent has been silent; last heard of {} ago", ago(text(ready, "/lastHeartbeatTime"), now))
        }
        _ => format!("not ready for {since}: {}", text(ready, "/message")),
    };
    Some(Finding::new("NodeNotReady", message))
}

/// Why a node takes no pods, or only some.
pub fn explain(node: &Value, now: Timestamp) -> Explanation {
    let mut findings: Vec<Finding> = not_ready(node, now).into_iter().collect();
    let is_ready = findings.is_empty();
    for kind in ["MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"] {
        if let Some(c) = condition(node, kind).filter(|c| c["status"] == "True") {
            let message = format!("{kind} for {}: {}", ago(text(c, "/lastTransitionTime"), now), text(c, "/message"));
            findings.push(Finding::new("NodePressure", message));
        }
    }
    let cordoned = is_true(node, "/spec/unschedulable");
    if cordoned {
        let name = super::fields::name(node);
        findings.push(
            Finding::new("Cordoned", "it is cordoned: no new pods are scheduled to it")
                .suggest(format!("kubectl uncordon {name}")),
        );
    }
    for taint in list(node, "/spec/taints") {
        let (key, value, effect) = (text(taint, "/key"), text(taint, "/value"), text(taint, "/effect"));
        let value = if value.is_empty() { String::new() } else { format!("={value}") };
        let effect_text = match effect {
            "NoExecute" => "runs only pods that tolerate it",
            "NoSchedule" => "takes only new pods that tolerate it",
            _ => "is avoided by pods that do not tolerate it",
        };
        findings.push(Finding::new("Tainted", format!("taint {key}{value}:{effect}: the node {effect_text}")));
    }
    let pressed = findings.iter().any(|f| f.reason == "NodePressure");
    match (is_ready, cordoned, pressed) {
        (false, ..) => Explanation::new(State::NotReady, "is not ready"),
        (true, _, true) => Explanation::new(State::NotReady, "is ready and short of resources"),
        (true, true, false) => Explanation::new(State::Paused, "is ready and cordoned"),
        (true, false, false) => Explanation::new(State::Healthy, "is healthy"),
    }
    .because(findings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn explains_nodes() {
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        let check = |node: Value, expect: &str| assert_eq!(explain(&node, now).text("node/n", now), expect);
        let ready = |status: &str| {
            json!([{"type": "Ready", "status": status, "message": "why",
            "lastHeartbeatTime": "2026-11-21T11:50:00Z", "lastTransitionTime": "2026-11-21T11:51:00Z"}])
        };
        check(json!({"status": {"conditions": ready("True")}}), "node/n is healthy\n");
        check(
            json!({"metadata": {"name": "n"}, "spec": {"unschedulable": true}, "status": {"conditions": ready("True")}}),
            "node/n is ready and cordoned\n  it is cordoned: no new pods are scheduled to it\n    => kubectl uncordon n\n",
        );
        check(
            json!({"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoExecute"}]}, "status": {"conditions": ready("Unknown")}}),
            "node/n is not ready\n  the node agent has been silent; last heard of 10m ago\n  taint k=v:NoExecute: the node runs only pods that tolerate it\n",
        );
        check(json!({"status": {"conditions": ready("False")}}), "node/n is not ready\n  not ready for 9m: why\n");
        check(json!({}), "node/n is not ready\n  the node agent has not reported the node as ready yet\n");
    }
}
