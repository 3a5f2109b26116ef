//! Why a HorizontalPodAutoscaler does not scale. Pure.

use super::fields::{condition, number, text};
use super::finding::{Explanation, Finding, State};
use meta::Value;

pub fn explain(hpa: &Value) -> Explanation {
    let (current, desired) = (number(hpa, "/status/currentReplicas"), number(hpa, "/status/desiredReplicas"));
    let (min, max) =
        (hpa.pointer("/spec/minReplicas").and_then(Value::as_i64).unwrap_or(1), number(hpa, "/spec/maxReplicas"));
    let target = format!("{}/{}", text(hpa, "/spec/scaleTargetRef/kind"), text(hpa, "/spec/scaleTargetRef/name"));
    let of = |kind: &str, status: &str| condition(hpa, kind).filter(|c| c["status"] == status);
    let finding = |c: &Value| {
        Finding::new("Condition", format!("{}: {}: {}", text(c, "/type"), text(c, "/reason"), text(c, "/message")))
    };
    let failing: Vec<Finding> =
        [of("AbleToScale", "False"), of("ScalingActive", "False")].into_iter().flatten().map(finding).collect();
    if condition(hpa, "AbleToScale").is_none() {
        let waiting = Finding::new("NotEvaluated", "the autoscaler controller has not evaluated it yet");
        return Explanation::new(State::Pending, format!("has not scaled {target} yet")).because([waiting]);
    }
    if !failing.is_empty() {
        return Explanation::new(State::Failed, format!("cannot scale {target}")).because(failing);
    }
    let limited = of("ScalingLimited", "True").map(finding);
    let summary =
        format!("is healthy: {target} has {current} replicas, {desired} are desired (between {min} and {max})");
    Explanation::new(State::Healthy, summary).because(limited)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn explains_conditions() {
        let now = "2026-11-21T12:00:00Z".parse().unwrap();
        let hpa = |conditions: Value| {
            json!({"spec": {"maxReplicas": 5, "scaleTargetRef": {"kind": "Deployment", "name": "web"}},
            "status": {"currentReplicas": 2, "desiredReplicas": 2, "conditions": conditions}})
        };
        let check = |conditions: Value, expect: &str| assert_eq!(explain(&hpa(conditions)).text("hpa/h", now), expect);
        let able = json!({"type": "AbleToScale", "status": "True"});
        check(json!([able]), "hpa/h is healthy: Deployment/web has 2 replicas, 2 are desired (between 1 and 5)\n");
        check(
            json!([able, {"type": "ScalingActive", "status": "False", "reason": "FailedGetResourceMetric", "message": "no metrics"}]),
            "hpa/h cannot scale Deployment/web\n  ScalingActive: FailedGetResourceMetric: no metrics\n",
        );
        check(
            json!([]),
            "hpa/h has not scaled Deployment/web yet\n  the autoscaler controller has not evaluated it yet\n",
        );
    }
}
