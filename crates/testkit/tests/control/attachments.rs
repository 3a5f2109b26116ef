//! Attaching and detaching volumes of CSI drivers in virtual time. The test is the attacher of the driver, and reports what nodes use.

use crate::harness::Plane;
use client::{Api, ApiResource, DeleteOptions, Patch, WriteOptions};
use meta::{Object, Value};
use serde_json::json;
use std::time::Duration;

const DRIVER: &str = "disk.csi.example.com";
const UNIQUE: &str = "kubernetes.io/csi/disk.csi.example.com^h";

impl Plane {
    fn attachments(&self) -> Api<Object> {
        self.client.dynamic(&ApiResource::named("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", false))
    }

    /// A node whose volumes the controller attaches.
    async fn attaching_node(&self, name: &str) {
        self.node(name, "4").await;
        let managed = json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
        self.patch("nodes", name, json!({"metadata": {"annotations": managed}})).await;
    }

    /// A claim that is bound to a volume of the driver.
    async fn disk(&self, mode: &str) {
        let claim = json!({"metadata": {"name": "data", "namespace": "default"}, "spec": {"accessModes": [mode],
            "storageClassName": "", "volumeName": "pv", "resources": {"requests": {"storage": "1Gi"}}}});
        self.create("persistentvolumeclaims", claim).await;
        let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": [mode], "csi": {"driver": DRIVER, "volumeHandle": "h"},
            "claimRef": {"namespace": "default", "name": "data"}}});
        let volumes =
            self.client.dynamic(&ApiResource::named("", "v1", "persistentvolumes", "PersistentVolume", false));
        volumes.create(&WriteOptions::default(), &Object::from_value(volume).unwrap()).await.unwrap();
    }

    async fn using(&self, name: &str, node: &str) {
        let spec = json!({"nodeName": node, "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]});
        self.create("pods", json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec})).await;
    }

    /// The attachments, as `node` or `node attached`.
    async fn attached(&self) -> Vec<String> {
        let all = self.attachments().list(&client::ListOptions::default()).await.unwrap().items;
        let text = |a: &Object| {
            let node = a.str_at(&["spec", "nodeName"]).unwrap_or_default();
            let state = if a.at(&["status", "attached"]) == Some(&json!(true)) { " attached" } else { "" };
            format!("{node}{state}")
        };
        all.iter().map(text).collect()
    }

    async fn until_attached(&self, expected: &[&str]) {
        self.until(&format!("attachments {expected:?}"), async || {
            let mut now = self.attached().await;
            now.sort();
            (now == expected).then_some(())
        })
        .await;
    }

    /// Reports the attachment to a node as the attacher of the driver does.
    async fn attach(&self, node: &str, status: Value) {
        let all = self.attachments().list(&client::ListOptions::default()).await.unwrap().items;
        let found = all.iter().find(|a| a.str_at(&["spec", "nodeName"]) == Some(node)).unwrap();
        let patch = Patch::Merge(json!({"status": status}));
        self.attachments().patch_status(found.name(), &WriteOptions::default(), &patch).await.unwrap();
    }

    async fn in_use(&self, node: &str, volumes: &[&str]) {
        let patch = Patch::Merge(json!({"status": {"volumesInUse": volumes}}));
        self.api("nodes").patch_status(node, &WriteOptions::default(), &patch).await.unwrap();
    }

    async fn listed(&self, node: &str) -> Vec<String> {
        let node = self.api("nodes").get(node).await.unwrap();
        let all = node.at(&["status", "volumesAttached"]).and_then(Value::as_array).cloned().unwrap_or_default();
        all.iter().map(|v| v["name"].as_str().unwrap().to_owned()).collect()
    }

    async fn end(&self, pod: &str) {
        self.api("pods")
            .delete(pod, &DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() })
            .await
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_attached_listed_and_detached_once_it_is_not_in_use() {
    let p = Plane::start().await;
    p.attaching_node("a").await;
    p.disk("ReadWriteOnce").await;
    p.using("web", "a").await;
    p.until_attached(&["a"]).await;
    assert!(p.listed("a").await.is_empty(), "not before it is attached");
    p.attach("a", json!({"attached": false, "attachError": {"message": "no path", "time": "2026-01-01T00:00:00Z"}}))
        .await;
    p.reported("FailedAttachVolume", "AttachVolume.Attach failed for volume \"pv\" : no path").await;
    p.attach("a", json!({"attached": true, "attachError": null})).await;
    p.reported("SuccessfulAttachVolume", "AttachVolume.Attach succeeded for volume \"pv\" ").await;
    p.until("the node to list it", async || (p.listed("a").await == [UNIQUE]).then_some(())).await;
    p.in_use("a", &[UNIQUE]).await;
    p.end("web").await;
    tokio::time::sleep(Duration::from_secs(900)).await;
    assert_eq!(p.attached().await, ["a attached"], "a node that is ready keeps what it uses");
    p.in_use("a", &[]).await;
    p.until_attached(&[]).await;
    assert!(p.listed("a").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_volume_for_one_node_moves_only_when_it_is_free() {
    let p = Plane::start().await;
    p.attaching_node("a").await;
    p.attaching_node("b").await;
    p.disk("ReadWriteOnce").await;
    p.using("first", "a").await;
    p.until_attached(&["a"]).await;
    p.attach("a", json!({"attached": true})).await;
    p.in_use("a", &[UNIQUE]).await;
    p.using("second", "b").await;
    p.reported("FailedAttachVolume", "Multi-Attach error for volume \"pv\" Volume is already used by pod(s) first")
        .await;
    assert_eq!(p.attached().await, ["a attached"]);
    // The node is lost, and may still write: six minutes.
    p.kill_node("a");
    p.end("first").await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(p.attached().await, ["a attached"]);
    p.until_attached(&["b"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_out_of_service_loses_its_volumes_at_once() {
    let p = Plane::start().await;
    p.attaching_node("a").await;
    p.disk("ReadWriteOnce").await;
    p.using("web", "a").await;
    p.until_attached(&["a"]).await;
    p.attach("a", json!({"attached": true})).await;
    p.in_use("a", &[UNIQUE]).await;
    p.kill_node("a");
    let taint = json!([{"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}]);
    p.patch("nodes", "a", json!({"spec": {"taints": taint}})).await;
    p.end("web").await;
    p.until_attached(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn volumes_for_many_nodes_and_drivers_without_attachments() {
    let p = Plane::start().await;
    p.attaching_node("a").await;
    p.attaching_node("b").await;
    p.node("unmanaged", "4").await;
    p.disk("ReadWriteMany").await;
    for (pod, node) in [("one", "a"), ("two", "b"), ("three", "unmanaged")] {
        p.using(pod, node).await;
    }
    p.until_attached(&["a", "b"]).await;
    // The driver says that it needs no attachments.
    let driver = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
        "spec": {"attachRequired": false}});
    let answer = p.cluster.call("POST", "/apis/storage.k8s.io/v1/csidrivers", driver).await;
    assert_eq!(answer.code, 201, "{}", answer.body);
    p.until_attached(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_requests_more_waits_for_its_driver() {
    let p = Plane::start().await;
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "grows"},
        "provisioner": DRIVER, "allowVolumeExpansion": true});
    assert_eq!(p.cluster.call("POST", "/apis/storage.k8s.io/v1/storageclasses", class).await.code, 201);
    let claim = json!({"metadata": {"name": "data", "namespace": "default"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "storageClassName": "grows", "resources": {"requests": {"storage": "1Gi"}}}});
    let claim = p.create("persistentvolumeclaims", claim).await;
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "grows",
        "csi": {"driver": DRIVER, "volumeHandle": "h"},
        "claimRef": {"namespace": "default", "name": "data", "uid": claim.uid()}}});
    let answer = p.cluster.call("POST", "/api/v1/persistentvolumes", volume).await;
    assert_eq!(answer.code, 201, "{}", answer.body);
    p.until("the claim to be bound", async || {
        let claim = p.api("persistentvolumeclaims").get("data").await.unwrap();
        (claim.str_at(&["status", "phase"]) == Some("Bound")).then_some(())
    })
    .await;
    p.patch("persistentvolumeclaims", "data", json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})).await;
    p.reported("ExternalExpanding", "waiting for an external controller to expand this PVC").await;
}

/// Attachments that others made (by hand, or for volumes that are not there) were deleted as soon as they were seen.
#[tokio::test(start_paused = true)]
async fn attachments_of_others_are_left_alone() {
    let c = Plane::start().await;
    c.attaching_node("a").await;
    c.disk("ReadWriteOnce").await;
    for (name, volume) in [("by-hand", "pv"), ("csi-by-hand", "absent")] {
        let spec = json!({"attacher": DRIVER, "nodeName": "a", "source": {"persistentVolumeName": volume}});
        let object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": name}, "spec": spec});
        c.attachments().create(&WriteOptions::default(), &Object::from_value(object).unwrap()).await.unwrap();
        let status = Patch::Merge(json!({"status": {"attached": true}}));
        c.attachments().patch_status(name, &WriteOptions::default(), &status).await.unwrap();
    }
    // The controller works for its own pod meanwhile.
    c.using("p", "a").await;
    c.until_attached(&["a", "a attached", "a attached"]).await;
    c.end("p").await;
    c.until_attached(&["a attached", "a attached"]).await;
    assert!(c.listed("a").await.is_empty());
}
