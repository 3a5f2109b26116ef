//! Values and differences as Go's types print them, and decoding errors of wrong types.

use super::made;
use crate::field_errors::{FieldCase, check_errors};
use serde_json::{Value, json};
use testkit::Cluster;

const PODS: &str = "/api/v1/namespaces/default/pods";

#[tokio::test]
async fn immutable_pod_errors_show_a_diff() {
    let c = Cluster::start(1).await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pod = made(&c, PODS, pod).await;
    let a = c.call("PUT", &format!("{PODS}/p"), crate::field_errors::put(&pod, "/spec/hostname", &json!("h"))).await;
    let message = a.body["message"].as_str().unwrap();
    let (head, hunk) = message.split_once("\n@@ ").unwrap();
    assert!(head.ends_with("(allow it to be set to 1 if it was previously negative)"), "{head}");
    let (_, lines) = hunk.split_once("@@\n").unwrap();
    let want = "   \"SELinuxChangePolicy\": null\n  },\n  \"ImagePullSecrets\": null,\n- \"Hostname\": \"\",\n+ \"Hostname\": \"h\",\n  \"Subdomain\": \"\",\n  \"SetHostnameAsFQDN\": null,\n  \"Affinity\": null,\n";
    assert_eq!(lines, want, "{message}");
    let a = c.call("PUT", &format!("{PODS}/p"), crate::field_errors::put(&pod, "/spec/hostPID", &json!(true))).await;
    let message = a.body["message"].as_str().unwrap();
    let shared = "  \"SecurityContext\": {\n   \"HostNetwork\": false,\n-  \"HostPID\": false,\n+  \"HostPID\": true,\n   \"HostIPC\": false,\n";
    assert!(message.contains(shared), "what is shared with the node lies in the security context: {message}");
}

#[tokio::test]
async fn immutable_claim_errors_show_a_diff() {
    let c = Cluster::start(1).await;
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    let claim = made(&c, claims, claim).await;
    let why = "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n@@ -1,6 +1,6 @@\n {\n  \"AccessModes\": [\n-  \"ReadWriteOnce\"\n+  \"ReadWriteMany\"\n  ],\n";
    let cases: Vec<FieldCase> = vec![("/spec/accessModes", json!(["ReadWriteMany"]), Box::leak(Box::new([why])))];
    check_errors(&c, "PUT", &format!("{claims}/c"), &claim, &cases).await;
}

#[tokio::test]
async fn wrong_types_are_reported_by_name() {
    let c = Cluster::start(1).await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i",
        "readinessProbe": {"tcpSocket": {"port": 1}}, "securityContext": {"capabilities": {"add": ["A"]}}}],
        "volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]}});
    let cases: Vec<(&str, Value, &str)> = vec![
        ("/metadata", json!([]), "array into Go struct field Pod.metadata of type v1.ObjectMeta"),
        ("/metadata/name", json!(1), "number into Go struct field ObjectMeta.metadata.name of type string"),
        ("/metadata/labels", json!({"a": 1}), "number into Go struct field ObjectMeta.metadata.labels of type string"),
        ("/spec/containers", json!("x"), "string into Go struct field PodSpec.spec.containers of type []v1.Container"),
        ("/spec/containers/0", json!([]), "array into Go struct field PodSpec.spec.containers of type v1.Container"),
        (
            "/spec/priority",
            json!(2_147_483_648_u32),
            "number 2147483648 into Go struct field PodSpec.spec.priority of type int32",
        ),
        (
            "/spec/volumes/0/emptyDir/medium",
            json!(1),
            "number into Go struct field EmptyDirVolumeSource.spec.volumes.VolumeSource.emptyDir.medium of type v1.StorageMedium",
        ),
        (
            "/spec/containers/0/readinessProbe/tcpSocket",
            json!([]),
            "array into Go struct field Probe.spec.containers.readinessProbe.ProbeHandler.tcpSocket of type v1.TCPSocketAction",
        ),
        (
            "/spec/containers/0/readinessProbe/tcpSocket/port",
            json!(1.5),
            "number 1.5 into Go struct field TCPSocketAction.spec.containers.readinessProbe.ProbeHandler.tcpSocket.port of type int32",
        ),
        (
            "/spec/containers/0/securityContext/capabilities/add",
            json!([1]),
            "number into Go struct field Capabilities.spec.containers.securityContext.capabilities.add of type v1.Capability",
        ),
        (
            "/spec/containers/0/resources",
            json!({"limits": []}),
            "array into Go struct field ResourceRequirements.spec.containers.resources.limits of type v1.ResourceList",
        ),
    ];
    for (at, v, want) in cases {
        let a = c.call("POST", PODS, crate::field_errors::put(&pod, at, &v)).await;
        let want = format!("Pod in version \"v1\" cannot be handled as a Pod: json: cannot unmarshal {want}");
        assert_eq!((a.code, a.body["message"].as_str().unwrap()), (400, &*want), "{at}");
    }
    let event = json!({"metadata": {"name": "e"}, "eventTime": "-x"});
    let a = c.call("POST", "/apis/events.k8s.io/v1/namespaces/default/events", event).await;
    let message = a.body["message"].as_str().unwrap();
    assert!(
        message
            .ends_with("parsing time \"-x\" as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse \"-x\" as \"2006\""),
        "{message}"
    );
}

/// What Go reads, it writes in its own form: bits that the last character has too many are nobody's.
#[tokio::test]
async fn bytes_are_read_as_go_reads_them() {
    let c = Cluster::start(1).await;
    let secret = |v: &str| json!({"metadata": {"name": "s"}, "data": {"k": v}});
    let path = "/api/v1/namespaces/default/secrets?dryRun=All";
    let a = c.call("POST", path, secret("eB==")).await;
    assert_eq!((a.code, &a.body["data"]["k"]), (201, &json!("eA==")), "{}", a.body);
    let a = c.call("POST", path, secret("e-==")).await;
    assert!(a.body["message"].as_str().unwrap().ends_with("illegal base64 data at input byte 1"), "{}", a.body);
}
