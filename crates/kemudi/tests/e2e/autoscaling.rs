//! HorizontalPodAutoscalers with real usage.

use crate::runner::Case;
use crate::story::Story;
use crate::top::BUSY;
use serde_json::{Value, json};

pub const TESTS: &[Case] = &[("autoscaling::replicas_follow_real_usage", replicas_follow_real_usage)];

fn deployment(s: &Story, name: &str, replicas: i64, script: &str) {
    let container = json!({
        "name": "c", "image": crate::story::IMAGE, "command": ["sh", "-c", script],
        "resources": {"requests": {"cpu": "20m", "memory": "16Mi"}, "limits": {"cpu": "60m", "memory": "32Mi"}},
        "volumeMounts": [{"name": "tools", "mountPath": "/bin", "readOnly": true}],
    });
    s.create(
        "deployments",
        json!({"metadata": {"name": name}, "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {
                "terminationGracePeriodSeconds": 1, "containers": [container], "volumes": [s.tools()]}},
        }}),
    );
}

/// C03.scale-up, C03.scale-down: one deployment works and grows, the other idles and shrinks.
fn replicas_follow_real_usage(s: &Story) {
    deployment(s, "busy", 1, BUSY);
    deployment(s, "idle", 2, "trap 'exit 0' TERM; while :; do sleep 0.5; done");
    s.ok(&["autoscale", "deployment/busy", "--min=1", "--max=2", "--cpu=50%"]);
    let target = |name: &str| json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": name});
    let cpu = json!({"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 90}});
    s.create(
        "horizontalpodautoscalers",
        json!({"metadata": {"name": "idle"}, "spec": {
            "scaleTargetRef": target("idle"), "minReplicas": 1, "maxReplicas": 2, "metrics": [{"type": "Resource", "resource": cpu}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}}}),
    );
    let replicas = |n: i64| move |d: &Value| d["spec"]["replicas"] == n;
    s.until("deployments/busy", replicas(2));
    s.until("deployments/idle", replicas(1));
    let reason = "reason: cpu resource utilization (percentage of request) above target";
    assert_eq!(s.event("busy", "SuccessfulRescale"), format!("New size: 2; {reason}"));
    assert_eq!(s.event("idle", "SuccessfulRescale"), "New size: 1; reason: All metrics below target");
    s.until("horizontalpodautoscalers/busy", |o| o["status"]["desiredReplicas"] == 2);
    let shown = s.ok(&["get", "hpa", "busy", "--no-headers"]);
    assert!(shown.contains("/50%") && !shown.contains("<unknown>"), "{shown}");
    let text = s.ok(&["describe", "hpa", "busy"]);
    // Its reason depends on whether another round has passed.
    let able = text.lines().find(|l| l.contains("AbleToScale")).unwrap_or_default();
    assert!(able.split_whitespace().nth(1) == Some("True"), "{text}");
    assert!(text.contains("able to successfully calculate a replica count from cpu resource utilization"), "{text}");
}
