//! HorizontalPodAutoscalers through both of their versions.

use super::made;
use serde_json::json;
use testkit::Cluster;

const V1: &str = "/apis/autoscaling/v1/namespaces/golden/horizontalpodautoscalers";
const V2: &str = "/apis/autoscaling/v2/namespaces/golden/horizontalpodautoscalers";

/// Who writes through the older version loses nothing that it has no field for.
#[tokio::test]
async fn the_older_version_keeps_what_it_does_not_know() {
    let c = Cluster::start(1).await;
    let metric = json!({"type": "Pods", "pods": {"metric": {"name": "q"}, "target": {"type": "AverageValue", "averageValue": "10"}}});
    let spec = json!({"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}, "metrics": [metric],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 7}}});
    made(&c, V2, json!({"metadata": {"name": "h"}, "spec": spec})).await;
    let shown = c.call("GET", &format!("{V1}/h"), serde_json::Value::Null).await.body;
    assert!(shown["spec"].get("targetCPUUtilizationPercentage").is_none(), "{shown}");
    assert!(shown["metadata"]["annotations"]["autoscaling.alpha.kubernetes.io/metrics"].is_string(), "{shown}");
    let patch = json!({"spec": {"targetCPUUtilizationPercentage": 70}});
    let media = Some(crate::matrix::MERGE_PATCH);
    let patched = c.send("PATCH", &format!("{V1}/h"), media, "application/json", patch.to_string().into()).await;
    assert_eq!(
        (patched.code, &patched.body["spec"]["targetCPUUtilizationPercentage"]),
        (200, &json!(70)),
        "{}",
        patched.body
    );
    let after = c.call("GET", &format!("{V2}/h"), serde_json::Value::Null).await.body;
    let cpu = json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}});
    assert_eq!(after["spec"]["metrics"], json!([metric, cpu]), "{after}");
    assert_eq!(after["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"], 7);
    assert!(after["metadata"].get("annotations").is_none(), "{after}");
    // Nothing said is the usual share of CPU, in both.
    let spec =
        json!({"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}});
    let plain = made(&c, V1, json!({"metadata": {"name": "plain"}, "spec": spec})).await;
    assert_eq!(plain["spec"]["targetCPUUtilizationPercentage"], 80);
    let plain = c.call("GET", &format!("{V2}/plain"), serde_json::Value::Null).await.body;
    assert_eq!(plain["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 80);
}
