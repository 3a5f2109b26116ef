//! Whether a node is alive, and its conditions and taints (upstream `node_lifecycle_controller.go`). Pure: data to data.

use super::zones::Leave;
use jiff::Timestamp;
use meta::Value;
use serde_json::json;
use std::time::Duration;

/// Grace period for heartbeats, and for the first heartbeat of a new node.
pub const GRACE: Duration = Duration::from_secs(50);
pub const STARTUP_GRACE: Duration = Duration::from_secs(60);

pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
pub const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Conditions that the agent reports, which become *unknown* without heartbeats.
const REPORTED: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// Conditions that keep further pods away while they are true, and their taints.
const PRESSURE: [(&str, &str); 4] = [
    ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "node.kubernetes.io/network-unavailable"),
];

/// The state of the Ready condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    True,
    False,
    Unknown,
}

pub fn ready(conditions: &[Value]) -> Option<Ready> {
    let c = conditions.iter().find(|c| c["type"] == "Ready")?;
    Some(match c["status"].as_str() {
        Some("True") => Ready::True,
        Some("False") => Ready::False,
        _ => Ready::Unknown,
    })
}

/// The conditions of a node without heartbeats; none if it is known already not to be ready.
pub fn silenced(conditions: &[Value], created: &str, now: Timestamp) -> Option<Vec<Value>> {
    let mut all = conditions.to_vec();
    let time = meta::time::format(now);
    for kind in REPORTED {
        match all.iter_mut().find(|c| c["type"] == kind) {
            None => all.push(json!({
                "type": kind, "status": "Unknown", "reason": "NodeStatusNeverUpdated",
                "message": "Kubelet never posted node status.",
                "lastHeartbeatTime": created, "lastTransitionTime": time,
            })),
            Some(c) if c["status"] != "Unknown" => {
                c["status"] = "Unknown".into();
                c["reason"] = "NodeStatusUnknown".into();
                c["message"] = "Kubelet stopped posting node status.".into();
                c["lastTransitionTime"] = time.as_str().into();
            }
            Some(_) => {}
        }
    }
    (find(&all, "Ready") != find(conditions, "Ready")).then_some(all)
}

fn find<'a>(conditions: &'a [Value], kind: &str) -> Option<&'a Value> {
    conditions.iter().find(|c| c["type"] == kind)
}

/// The labels of a node to set: older names for those that have newer ones.
pub fn labels<'a>(label: impl Fn(&str) -> Option<&'a str>) -> Vec<(&'static str, &'a str)> {
    [("kubernetes.io/os", "beta.kubernetes.io/os"), ("kubernetes.io/arch", "beta.kubernetes.io/arch")]
        .into_iter()
        .filter_map(|(name, older)| Some((older, label(name)?)))
        .filter(|(older, value)| label(older) != Some(value))
        .collect()
}

/// The taints for a node's conditions, as key and effect.
fn desired_taints(conditions: &[Value], unschedulable: bool) -> Vec<(&'static str, &'static str)> {
    let mut taints = Vec::new();
    for c in conditions {
        let key = match (c["type"].as_str().unwrap_or_default(), c["status"].as_str().unwrap_or_default()) {
            ("Ready", "False") => NOT_READY,
            ("Ready", "Unknown") => UNREACHABLE,
            (kind, "True") => match PRESSURE.iter().find(|(k, _)| *k == kind) {
                Some((_, key)) => key,
                None => continue,
            },
            _ => continue,
        };
        taints.push((key, "NoSchedule"));
    }
    if unschedulable {
        taints.push((UNSCHEDULABLE, "NoSchedule"));
    }
    match ready(conditions) {
        Some(Ready::False) => taints.push((NOT_READY, "NoExecute")),
        Some(Ready::Unknown) => taints.push((UNREACHABLE, "NoExecute")),
        Some(Ready::True) | None => {}
    }
    taints
}

/// Whether pods have to leave a node with these taints of the controller.
pub fn evicts(taints: &[Value]) -> bool {
    taints.iter().any(|t| t["effect"] == "NoExecute" && (t["key"] == NOT_READY || t["key"] == UNREACHABLE))
}

/// Whether this controller manages the taint.
fn ours(taint: &Value) -> bool {
    let key = taint["key"].as_str().unwrap_or_default();
    match taint["effect"].as_str() {
        Some("NoSchedule") => {
            [NOT_READY, UNREACHABLE, UNSCHEDULABLE].contains(&key) || PRESSURE.iter().any(|(_, k)| *k == key)
        }
        Some("NoExecute") => [NOT_READY, UNREACHABLE].contains(&key),
        _ => false,
    }
}

/// The taints that a node should have; none if it has them. `leave` is called if the node is not ready.
pub fn taints(
    now: &[Value],
    conditions: &[Value],
    unschedulable: bool,
    time: Timestamp,
    leave: impl FnOnce() -> Leave,
) -> Option<Vec<Value>> {
    let mut desired_taints = desired_taints(conditions, unschedulable);
    if desired_taints.iter().any(|(_, effect)| *effect == "NoExecute") {
        let evicting = evicts(now);
        let stays = match leave() {
            Leave::Now => true,
            Leave::Later => evicting,
            Leave::Never => false,
        };
        desired_taints.retain(|(_, effect)| stays || *effect != "NoExecute");
    }
    let is = |t: &Value, w: &(&str, &str)| t["key"] == w.0 && t["effect"] == w.1;
    let mut next: Vec<Value> =
        now.iter().filter(|t| !ours(t) || desired_taints.iter().any(|w| is(t, w))).cloned().collect();
    for w in &desired_taints {
        if !next.iter().any(|t| is(t, w)) {
            next.push(json!({"key": w.0, "effect": w.1, "timeAdded": meta::time::format(time)}));
        }
    }
    (next != now).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clauses: C14.node-taints
    #[test]
    fn a_silent_node_becomes_unknown_and_unreachable() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let heard = vec![json!({"type": "Ready", "status": "True", "reason": "KubeletReady"})];
        assert_eq!(ready(&heard), Some(Ready::True));
        let leave = || Leave::Now;
        assert_eq!(taints(&[], &heard, false, now, leave), None);
        let silent = silenced(&heard, "2026-01-01T00:00:00Z", now).unwrap();
        assert_eq!(silent.len(), 4);
        assert_eq!(silent[0]["message"], "Kubelet stopped posting node status.");
        assert_eq!(silent[1]["reason"], "NodeStatusNeverUpdated");
        assert_eq!(silenced(&silent, "2026-01-01T00:00:00Z", now), None, "no change after the first");
        let keys = |t: Vec<Value>| -> Vec<String> {
            t.iter().map(|t| format!("{}:{}", t["key"].as_str().unwrap(), t["effect"].as_str().unwrap())).collect()
        };
        let mine = json!({"key": "mine", "effect": "NoExecute"});
        let t = taints(std::slice::from_ref(&mine), &silent, false, now, leave).unwrap();
        let expect =
            ["mine:NoExecute", "node.kubernetes.io/unreachable:NoSchedule", "node.kubernetes.io/unreachable:NoExecute"];
        assert_eq!(keys(t.clone()), expect);
        assert_eq!(taints(&t, &silent, false, now, || Leave::Later), None, "evictions that began continue");
        let kept = taints(&t, &silent, false, now, || Leave::Never).unwrap();
        assert_eq!(keys(kept), expect[..2]);
        let later = taints(&[], &silent, false, now, || Leave::Later).unwrap();
        assert_eq!(keys(later), expect[1..2]);
        let back = taints(&t, &heard, true, now, leave).unwrap();
        assert_eq!(keys(back), ["mine:NoExecute", "node.kubernetes.io/unschedulable:NoSchedule"]);
    }

    #[test]
    fn taints_follow_the_conditions() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let c = |kind: &str, status: &str| json!({"type": kind, "status": status});
        let t = |key: &str, effect: &str| json!({"key": format!("node.kubernetes.io/{key}"), "effect": effect});
        let cases = [
            (vec![t("not-ready", "NoSchedule")], vec![], Some("")),
            (vec![], vec![c("Ready", "True")], None),
            (
                vec![],
                vec![c("DiskPressure", "True"), c("Ready", "False")],
                Some("disk-pressure:NoSchedule not-ready:NoSchedule not-ready:NoExecute"),
            ),
            (
                vec![],
                vec![c("NetworkUnavailable", "True"), c("PIDPressure", "Unknown"), c("MemoryPressure", "False")],
                Some("network-unavailable:NoSchedule"),
            ),
            // Only these two effects are the controller's.
            (vec![t("disk-pressure", "NoExecute"), t("not-ready", "PreferNoSchedule")], vec![c("Ready", "True")], None),
            (
                vec![t("not-ready", "NoExecute"), t("not-ready", "NoSchedule")],
                vec![c("Ready", "Unknown")],
                Some("unreachable:NoSchedule unreachable:NoExecute"),
            ),
        ];
        for (i, (held, conditions, expect)) in cases.into_iter().enumerate() {
            let next = taints(&held, &conditions, false, now, || Leave::Now).map(|all| {
                let text = |t: &Value| format!("{}:{}", t["key"].as_str().unwrap(), t["effect"].as_str().unwrap());
                all.iter().map(text).collect::<Vec<_>>().join(" ").replace("node.kubernetes.io/", "")
            });
            assert_eq!(next.as_deref(), expect, "{i}");
        }
    }

    #[test]
    fn older_labels_follow_the_newer() {
        let (os, old_os, arch) = ("kubernetes.io/os", "beta.kubernetes.io/os", "kubernetes.io/arch");
        let cases: [(&[(&str, &'static str)], &[(&str, &str)]); 4] = [
            (&[], &[]),
            (&[(os, "linux"), (old_os, "linux")], &[]),
            (
                &[(os, "linux"), (old_os, "windows"), (arch, "arm64")],
                &[(old_os, "linux"), ("beta.kubernetes.io/arch", "arm64")],
            ),
            (&[(old_os, "linux")], &[]),
        ];
        for (held, expect) in cases {
            let label = |k: &str| held.iter().find(|(name, _)| *name == k).map(|(_, value)| *value);
            assert_eq!(labels(label), expect);
        }
    }
}
