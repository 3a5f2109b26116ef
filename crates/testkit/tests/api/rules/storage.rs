//! Storage: drivers, classes, capacities and inline volumes of attachments.

use crate::devices::{Case, check};
use serde_json::{Value, json};
use testkit::Cluster;

const STORAGE: &str = "/apis/storage.k8s.io/v1";

#[tokio::test]
async fn drivers_and_classes_of_storage() {
    let c = Cluster::start(1).await;
    let driver = json!({"metadata": {"name": "d.example.com"}, "spec": {"tokenRequests": [{"audience": "a"}]}});
    let requests = |seconds: i64| json!([{"audience": "a", "expirationSeconds": seconds}]);
    let cases: Vec<Case> = vec![
        ("/spec/tokenRequests", requests(600), &[]),
        ("/spec/tokenRequests", requests(599), &["spec.tokenRequests[0].expirationSeconds"]),
        ("/spec/tokenRequests", requests((1 << 32) + 1), &["spec.tokenRequests[0].expirationSeconds"]),
        ("/spec/tokenRequests", json!([{"audience": "a"}, {"audience": "a"}]), &["spec.tokenRequests[1].audience"]),
        ("/spec/nodeAllocatableUpdatePeriodSeconds", json!(9), &["spec.nodeAllocatableUpdatePeriodSeconds"]),
    ];
    check(&c, "POST", &format!("{STORAGE}/csidrivers"), &driver, cases).await;
    let class = json!({"metadata": {"name": "c"}, "provisioner": "example.com/p", "parameters": {"a": "b"}});
    let many: serde_json::Map<String, Value> = (0..513).map(|i| (i.to_string(), "v".into())).collect();
    let cases: Vec<Case> = vec![
        ("/parameters", json!({"": "v"}), &["parameters"]),
        ("/parameters", many.into(), &["parameters"]),
        ("/parameters", json!({"a": "v".repeat(256 * 1024)}), &["parameters"]),
    ];
    check(&c, "POST", &format!("{STORAGE}/storageclasses"), &class, cases).await;
    let capacity = json!({"metadata": {"name": "c"}, "storageClassName": "s", "capacity": "1Gi"});
    let cases: Vec<Case> = vec![("/capacity", json!("-1"), &["capacity"]), ("/maximumVolumeSize", json!("-1Gi"), &[])];
    check(&c, "POST", &format!("{STORAGE}/namespaces/golden/csistoragecapacities"), &capacity, cases).await;
}

/// A volume that is said where it is attached is a CSI driver's, and nobody claims it.
#[tokio::test]
async fn inline_volumes_of_attachments_are_validated() {
    let c = Cluster::start(1).await;
    let volume = json!({"accessModes": ["ReadWriteOnce"], "csi": {"driver": "d.example.com", "volumeHandle": "h"}});
    let attachment = json!({"metadata": {"name": "a"}, "spec": {"attacher": "d.example.com", "nodeName": "n",
        "source": {"inlineVolumeSpec": volume}}});
    let with = |k: &str, v: Value| {
        let mut all = volume.clone();
        all[k] = v;
        all
    };
    let at = "/spec/source/inlineVolumeSpec";
    let affinity =
        json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}});
    let cases: Vec<Case> = vec![
        (at, with("claimRef", json!({"name": "c"})), &["spec.source.inlineVolumeSpec.claimRef"]),
        (at, with("capacity", json!({"storage": "1Gi"})), &["spec.source.inlineVolumeSpec.capacity"]),
        (
            at,
            with("persistentVolumeReclaimPolicy", json!("Delete")),
            &["spec.source.inlineVolumeSpec.persistentVolumeReclaimPolicy"],
        ),
        (at, with("nodeAffinity", affinity), &["spec.source.inlineVolumeSpec.nodeAffinity"]),
        (at, with("storageClassName", json!("fast")), &["spec.source.inlineVolumeSpec.storageClassName"]),
        (at, with("volumeMode", json!("Block")), &["spec.source.inlineVolumeSpec.volumeMode"]),
        (at, with("nfs", json!({"server": "s", "path": "/"})), &["spec.source.inlineVolumeSpec.csi"]),
        (at, with("csi", Value::Null), &["spec.source.inlineVolumeSpec", "spec.source.inlineVolumeSpec.csi"]),
        (
            at,
            with("accessModes", json!(["ReadWriteOncePod", "ReadWriteOnce"])),
            &["spec.source.inlineVolumeSpec.accessModes"],
        ),
        (at, with("csi", json!({"driver": "d.example.com"})), &["spec.source.inlineVolumeSpec.csi.volumeHandle"]),
    ];
    check(&c, "POST", &format!("{STORAGE}/volumeattachments"), &attachment, cases).await;
}
