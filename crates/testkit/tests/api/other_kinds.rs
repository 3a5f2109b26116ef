//! Rules of kinds other than pods, as tables.

use crate::field_errors::{FieldCase, check_errors};
use serde_json::json;
use testkit::Cluster;

#[tokio::test]
async fn disruption_budgets() {
    let c = Cluster::start(1).await;
    let body = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}});
    let path = "/apis/policy/v1/namespaces/golden/poddisruptionbudgets";
    let cases: Vec<FieldCase> = vec![
        ("/spec/maxUnavailable", json!(1), &["spec: Invalid value: {\"M"]),
        (
            "/spec/minAvailable",
            json!("101%"),
            &["spec.minAvailable: Invalid value: \"101%\": must not be greater than 100%"],
        ),
        ("/spec/minAvailable", json!("100%"), &[]),
    ];
    check_errors(&c, "POST", path, &body, &cases).await;
    let made = c.call("POST", path, body).await.body;
    let cases: Vec<FieldCase> = vec![(
        "/status/expectedPods",
        json!(-1),
        &["status.expectedPods: Invalid value: -1: must be greater than or equal to 0"],
    )];
    check_errors(&c, "PUT", &format!("{path}/b/status"), &made, &cases).await;
}

#[tokio::test]
async fn endpoint_slices() {
    let c = Cluster::start(1).await;
    let path = "/apis/discovery.k8s.io/v1/namespaces/golden/endpointslices";
    let body = json!({"metadata": {"name": "e"}, "addressType": "IPv4", "ports": [{"name": "a", "port": 1}],
        "endpoints": [{"addresses": ["10.0.0.1"]}]});
    const A: &str = "/endpoints/0/addresses/0";
    let cases: Vec<FieldCase> = vec![
        (A, json!("::2"), &["endpoints[0].addresses: Invalid value: \"::2\": must be an IPv4 address"]),
        (
            A,
            json!("127.0.0.1"),
            &[
                "endpoints[0].addresses[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
            ],
        ),
        (
            "/endpoints/0/addresses",
            json!([]),
            &["endpoints[0].addresses: Required value: must contain at least 1 address"],
        ),
        (
            "/endpoints/0/hostname",
            json!("A"),
            &["endpoints[0].hostname: Invalid value: \"A\": a lowercase RFC 1123 label"],
        ),
        (
            "/endpoints/0/hints",
            json!({"forZones": [{"name": "z"}, {"name": "z"}]}),
            &["endpoints[0].hints.forZones[1].name: Duplicate value: \"z\""],
        ),
        ("/ports/0/appProtocol", json!("a b"), &["ports[0].appProtocol: Invalid value: \"a b\": name part"]),
    ];
    check_errors(&c, "POST", path, &body, &cases).await;
    let body = json!({"metadata": {"name": "e"}, "addressType": "FQDN", "endpoints": [{"addresses": ["a.example"]}]});
    let cases: Vec<FieldCase> = vec![
        (A, json!("a"), &["endpoints[0].addresses[0]: Invalid value: \"a\": should be a domain with at least two"]),
        (A, json!("a.B"), &["endpoints[0].addresses[0]: Invalid value: \"a.B\": a lowercase RFC 1123 subdomain"]),
        (A, json!(""), &["endpoints[0].addresses[0]: Required value"]),
    ];
    check_errors(&c, "POST", path, &body, &cases).await;
    let warned = c.call("POST", path, body).await;
    assert_eq!(warned.code, 201);
}

#[tokio::test]
async fn autoscalers() {
    let c = Cluster::start(1).await;
    let path = "/apis/autoscaling/v2/namespaces/golden/horizontalpodautoscalers";
    let target = json!({"type": "Value", "value": "1"});
    let body = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 2,
        "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"},
        "metrics": [{"type": "External", "external": {"metric": {"name": "m"}, "target": target}}]}});
    const M: &str = "/spec/metrics/0";
    let object = |version: &str| {
        json!({"type": "Object", "object": {"metric": {"name": "m"}, "target": target,
            "describedObject": {"kind": "Service", "name": "s", "apiVersion": version}}})
    };
    let cases: Vec<FieldCase> = vec![
        (
            "/spec/metrics/0/external/target/averageValue",
            json!("1"),
            &[
                "spec.metrics[0].external.target.value: Forbidden: may not set both a target value for metric and a per-pod target",
            ],
        ),
        (
            "/spec/metrics/0/external/target/value",
            json!(null),
            &[
                "spec.metrics[0].external.target.averageValue: Required value: must set either a target value for metric or a per-pod target",
            ],
        ),
        (
            "/spec/metrics/0/external/metric/name",
            json!("a/b"),
            &["spec.metrics[0].external.metric.name: Invalid value: \"a/b\": may not contain '/'"],
        ),
        (
            "/spec/metrics/0/pods",
            json!({"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "1"}}),
            &["spec.metrics[0].pods: Forbidden: must populate the given metric source only"],
        ),
        (
            "/spec/metrics/0/type",
            json!("Pods"),
            &["spec.metrics[0].pods: Required value: must populate information for the given metric source"],
        ),
        (
            M,
            json!({"type": "ContainerResource", "containerResource": {"name": "cpus", "container": "C",
                "target": {"type": "Utilization", "averageUtilization": 1}}}),
            &[
                "spec.metrics[0].containerResource.container: Invalid value: \"C\": a lowercase RFC 1123 label",
                "spec.metrics[0].containerResource.name: Invalid value: \"cpus\": must be a standard resource for containers",
                "spec.metrics[0].containerResource.name: Invalid value: \"cpus\": must be a standard resource type or fully qualified",
            ],
        ),
        (M, object("v1"), &[]),
        (
            M,
            object("a/b/c"),
            &[
                "spec.metrics[0].object.describedObject.apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c",
            ],
        ),
        (
            "/spec/scaleTargetRef/apiVersion",
            json!("v1"),
            &["spec.scaleTargetRef.apiVersion: Invalid value: \"v1\": apiVersion must specify API group"],
        ),
    ];
    check_errors(&c, "POST", path, &body, &cases).await;
}

#[tokio::test]
async fn volumes_and_claims() {
    let c = Cluster::start(1).await;
    let body = json!({"metadata": {"name": "v"}, "spec": {"capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/v"}}});
    let cases: Vec<FieldCase> = vec![
        (
            "/spec/capacity",
            json!({"storage": "0"}),
            &["spec.capacity[storage]: Invalid value: \"0\": must be greater than zero"],
        ),
        (
            "/spec/accessModes",
            json!(["ReadWriteOnce", "ReadWriteOncePod"]),
            &["spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes"],
        ),
        (
            "/spec/nfs",
            json!({"server": "s", "path": "/"}),
            &["spec.nfs: Forbidden: may not specify more than 1 volume type"],
        ),
        (
            "/spec/hostPath/path",
            json!("/a/.."),
            &["spec.hostPath.path: Invalid value: \"/a/..\": must not contain '..'"],
        ),
    ];
    check_errors(&c, "POST", "/api/v1/persistentvolumes", &body, &cases).await;
    let body = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    let cases: Vec<FieldCase> = vec![
        ("/spec/accessModes", json!([]), &["spec.accessModes: Required value: at least 1 access mode is required"]),
        ("/spec/resources/requests", json!({}), &["spec.resources[storage]: Required value"]),
        (
            "/spec/storageClassName",
            json!("A"),
            &["spec.storageClassName: Invalid value: \"A\": a lowercase RFC 1123 subdomain"],
        ),
    ];
    check_errors(&c, "POST", "/api/v1/namespaces/golden/persistentvolumeclaims", &body, &cases).await;
}

#[tokio::test]
async fn services() {
    let c = Cluster::start(1).await;
    let path = "/api/v1/namespaces/golden/services";
    let body = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    let cases: Vec<FieldCase> = vec![
        ("/spec/ports", json!([]), &["spec.ports: Required value"]),
        (
            "/spec/ports/0/nodePort",
            json!(30000),
            &["spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"],
        ),
        (
            "/spec/externalIPs",
            json!(["127.0.0.1"]),
            &["spec.externalIPs[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range"],
        ),
        (
            "/spec/loadBalancerClass",
            json!("a"),
            &["spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'"],
        ),
        (
            "/spec/externalTrafficPolicy",
            json!("Local"),
            &[
                "spec.externalTrafficPolicy: Invalid value: \"Local\": may only be set for externally-accessible services",
            ],
        ),
    ];
    check_errors(&c, "POST", path, &body, &cases).await;
}

#[tokio::test]
async fn statuses_of_controllers() {
    let c = Cluster::start(1).await;
    let path = "/apis/apps/v1/namespaces/golden/replicasets";
    let labels = json!({"a": "b"});
    let body = json!({"metadata": {"name": "r"}, "spec": {"replicas": 0, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let made = c.call("POST", path, body).await.body;
    let cases: Vec<FieldCase> = vec![
        (
            "/status/readyReplicas",
            json!(-1),
            &[
                "status.availableReplicas: Invalid value: 0: cannot be greater than readyReplicas",
                "status.readyReplicas: Invalid value: -1: must be greater than or equal to 0",
            ],
        ),
        (
            "/status/availableReplicas",
            json!(1),
            &[
                "status.availableReplicas: Invalid value: 1: cannot be greater than readyReplicas",
                "status.availableReplicas: Invalid value: 1: cannot be greater than status.replicas",
            ],
        ),
    ];
    check_errors(&c, "PUT", &format!("{path}/r/status"), &made, &cases).await;
}
