//! The objects that benchmarks create: the same as those of the `wrk` scripts, so that results can be compared.

use serde_json::{Value, json};

pub const LABEL: &str = "app=bench";

/// 1 KB of data.
pub fn config_map(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"app": "bench"}},
        "data": {"k": "v".repeat(1000)},
    })
}

/// A pod that no scheduler binds, with `padding`.
pub fn pod(name: &str, number: u64, padding: usize) -> Value {
    let mut p = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "bench", "tier": format!("t{}", number % 10)}},
        "spec": {
            "schedulerName": "nobody",
            "containers": [container()],
        },
    });
    if padding > 0 {
        p["metadata"]["annotations"] = json!({"bench/padding": "p".repeat(padding)});
    }
    p
}

fn container() -> Value {
    json!({
        "name": "c", "image": "nginx:1.25", "ports": [{"containerPort": 80}],
        "env": [{"name": "A", "value": "b"}],
        "resources": {
            "requests": {"cpu": "100m", "memory": "64Mi"},
            "limits": {"cpu": "200m", "memory": "128Mi"},
        },
    })
}

/// A deployment without pods, as a manager applies it; `turn` makes it differ from the last time.
pub fn deployment(name: &str, turn: u64) -> Value {
    let mut c = container();
    c["env"] = json!([{"name": "A", "value": "b"}, {"name": "C", "value": "d"}]);
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "labels": {"app": "x"}},
        "spec": {
            "replicas": 0, "minReadySeconds": turn % 7,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [c]}},
        },
    })
}

/// A node without an agent. Only pods of the same `run` are scheduled to it.
pub fn node(name: &str, run: &str) -> Value {
    let room = json!({"cpu": "1000", "memory": "1000Gi", "pods": "1000", "ephemeral-storage": "1000Gi"});
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"bench/run": run, "kubernetes.io/hostname": name}},
        "status": {"capacity": room, "allocatable": room},
    })
}

/// A pod for such a node.
pub fn bound_pod(name: &str, run: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "bench"}},
        "spec": {
            "nodeSelector": {"bench/run": run},
            "tolerations": [{"operator": "Exists"}],
            "containers": [container()],
        },
    })
}

/// A deployment of such pods without replicas.
pub fn scaled_deployment(name: &str, run: &str) -> Value {
    let pod = bound_pod(name, run);
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": 0, "selector": {"matchLabels": {"app": "bench"}},
            "template": {"metadata": {"labels": {"app": "bench"}}, "spec": pod["spec"]},
        },
    })
}

/// A pod that runs on a real node.
pub fn running_pod(name: &str, image: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "bench"}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "c", "image": image, "imagePullPolicy": "IfNotPresent"}],
        },
    })
}
