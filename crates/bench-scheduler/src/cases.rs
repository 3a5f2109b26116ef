//! The cases, with the numbers and pods of upstream's `performance-config.yaml`.

use serde_json::{Value, json};

/// The number of nodes for which the numbers of pods are written.
pub const NODES: u64 = 5_000;
/// The namespaces of pods that were there, and of those that are measured.
pub const BEFORE: &str = "sched-0";
pub const MEASURED: &str = "sched-1";
const ZONE: &str = "topology.kubernetes.io/zone";

/// What is created, and what of it is measured.
pub struct Case {
    pub name: &'static str,
    pub about: &'static str,
    /// The number of zones that nodes are spread over.
    pub zones: u64,
    /// Pods that are bound before.
    pub before: (u64, fn() -> Value),
    /// Pods that nothing but preemption makes room for, or nothing at all: how many wait before, and what one of them is.
    pub waiting: (u64, fn() -> Value),
    /// A pod that is created five times a second while others are measured.
    pub churn: Option<fn() -> Value>,
    pub measured: (u64, fn() -> Value),
}

const PLAIN: Case = Case {
    name: "basic",
    about: "Pods without constraints",
    zones: 1,
    before: (1_000, default_pod),
    waiting: (0, default_pod),
    churn: None,
    measured: (10_000, default_pod),
};

/// All cases.
pub const CASES: &[Case] = &[
    PLAIN,
    Case {
        name: "spread",
        about: "Pods with a required spread over three zones",
        zones: 3,
        before: (5_000, default_pod),
        measured: (5_000, || spread_pod("DoNotSchedule")),
        ..PLAIN
    },
    Case {
        name: "preferred-spread",
        about: "Pods with a preferred spread over three zones",
        zones: 3,
        before: (5_000, default_pod),
        measured: (5_000, || spread_pod("ScheduleAnyway")),
        ..PLAIN
    },
    Case {
        name: "anti-affinity",
        about: "Pods of which each node runs one",
        before: (1_000, anti_affinity_pod),
        measured: (2_000, anti_affinity_pod),
        ..PLAIN
    },
    Case {
        name: "affinity",
        about: "Pods that want the zone of others like them",
        before: (5_000, affinity_pod),
        measured: (5_000, affinity_pod),
        ..PLAIN
    },
    Case {
        name: "preemption",
        about: "Pods without constraints while others preempt, five times a second",
        before: (20_000, low_priority_pod),
        churn: Some(high_priority_pod),
        measured: (5_000, default_pod),
        ..PLAIN
    },
    Case {
        name: "preemption-basic",
        about: "Pods that all preempt others",
        before: (20_000, low_priority_pod),
        measured: (5_000, high_priority_pod),
        ..PLAIN
    },
    Case {
        name: "unschedulable",
        about: "Pods without constraints while 10,000 wait that fit nowhere",
        before: (100, default_pod),
        waiting: (10_000, huge_pod),
        churn: Some(huge_pod),
        ..PLAIN
    },
];

/// The name of a node.
pub fn node_name(number: u64) -> String {
    format!("node-{number:05}")
}

/// A node.
pub fn node(number: u64, zones: u64) -> Value {
    let name = node_name(number);
    let zone = format!("zone-{}", number % zones.max(1));
    let room = json!({"cpu": "4", "memory": "32Gi", "pods": "110"});
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, ZONE: zone}},
        "status": {
            "capacity": room, "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    })
}

fn pod(label: Option<&str>, cpu: &str, priority: i64, spec: Value) -> Value {
    let resources = json!({"cpu": cpu, "memory": "500Mi"});
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"generateName": "pod-"},
        "spec": {
            "priorityClassName": if priority > 0 { HIGH_PRIORITY } else { "" },
            "containers": [{
                "name": "pause", "image": "registry.example/pause:3.10", "ports": [{"containerPort": 80}],
                "resources": {"requests": resources, "limits": resources},
            }],
        },
    });
    if let Some(color) = label {
        pod["metadata"]["labels"] = json!({"color": color});
    }
    if let (Some(all), Value::Object(more)) = (pod["spec"].as_object_mut(), spec) {
        all.extend(more);
    }
    pod
}

/// The priority class of pods that preempt.
pub const HIGH_PRIORITY: &str = "high";

fn default_pod() -> Value {
    pod(None, "100m", 0, json!({}))
}

fn low_priority_pod() -> Value {
    pod(None, "900m", 0, json!({"terminationGracePeriodSeconds": 0}))
}

fn high_priority_pod() -> Value {
    pod(None, "3", 10, json!({}))
}

fn huge_pod() -> Value {
    pod(None, "9", 10, json!({}))
}

fn spread_pod(when_unsatisfiable: &str) -> Value {
    let constraint = json!({
        "maxSkew": 5, "topologyKey": ZONE, "whenUnsatisfiable": when_unsatisfiable,
        "labelSelector": {"matchLabels": {"color": "blue"}},
    });
    pod(Some("blue"), "100m", 0, json!({"topologySpreadConstraints": [constraint]}))
}

fn term(color: &str, key: &str) -> Value {
    json!([{
        "labelSelector": {"matchLabels": {"color": color}}, "topologyKey": key,
        "namespaces": [MEASURED, BEFORE],
    }])
}

fn anti_affinity_pod() -> Value {
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": term("green", "kubernetes.io/hostname")});
    pod(Some("green"), "100m", 0, json!({"affinity": {"podAntiAffinity": required}}))
}

fn affinity_pod() -> Value {
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": term("blue", ZONE)});
    pod(Some("blue"), "100m", 0, json!({"affinity": {"podAffinity": required}}))
}
