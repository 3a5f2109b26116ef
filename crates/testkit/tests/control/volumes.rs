//! Pods and their persistent volumes.

use crate::harness::Plane;
use client::{Api, ApiResource, Patch, WriteOptions};
use meta::{Object, Value};
use serde_json::json;
use std::time::Duration;

const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

fn volumes_of(client: &client::Client) -> Api<Object> {
    client.dynamic(&ApiResource::named("", "v1", "persistentvolumes", "PersistentVolume", false))
}

/// Binds a claim to a volume of this name, as the volume controller does.
async fn bind(client: &client::Client, claims: &Api<Object>, claim: &Object, volume: &str) {
    let spec = json!({"volumeName": volume});
    let metadata = json!({"annotations": {"pv.kubernetes.io/bind-completed": "yes"}});
    let patch = Patch::Merge(json!({"metadata": metadata, "spec": spec}));
    claims.patch(claim.name(), &WriteOptions::default(), &patch).await.unwrap();
    let status = Patch::Merge(json!({"status": {"phase": "Bound"}}));
    claims.patch_status(claim.name(), &WriteOptions::default(), &status).await.unwrap();
    let _ = volumes_of(client).patch_status(volume, &WriteOptions::default(), &status).await;
}

fn volume(name: &str, claim: Value, nodes: Option<&str>) -> Object {
    let mut spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"},
        "storageClassName": "wait"});
    if !claim.is_null() {
        spec["claimRef"] = claim;
    }
    if let Some(node) = nodes {
        let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
        spec["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}});
    }
    let v = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec});
    Object::from_value(v).unwrap()
}

impl Plane {
    /// Makes a volume for each claim that has none, like a provisioner.
    pub fn bind_claims(&self) {
        let (client, claims) = (self.client.clone(), self.api("persistentvolumeclaims"));
        tokio::spawn(async move {
            loop {
                let all = claims.list(&client::ListOptions::default()).await.map(|l| l.items).unwrap_or_default();
                for claim in all.iter().filter(|c| c.str_at(&["spec", "volumeName"]).is_none() && !c.is_deleting()) {
                    let name = format!("pv-{}", claim.uid());
                    let reference = json!({"kind": "PersistentVolumeClaim", "namespace": "default", "name": claim.name(), "uid": claim.uid()});
                    let made = volume(&name, reference, None);
                    if volumes_of(&client).create(&WriteOptions::default(), &made).await.is_ok() {
                        bind(&client, &claims, claim, &name).await;
                    }
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
    }

    async fn storage_class(&self, name: &str, provisioner: &str, mode: &str) {
        let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
            "provisioner": provisioner, "volumeBindingMode": mode});
        let a = self.cluster.call("POST", "/apis/storage.k8s.io/v1/storageclasses", class).await;
        assert_eq!(a.code, 201, "{}", a.body);
    }

    async fn claim(&self, name: &str, class: &str) {
        let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": {"requests": {"storage": "1Gi"}}});
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "default"}, "spec": spec});
        self.create("persistentvolumeclaims", claim).await;
    }

    async fn claiming(&self, name: &str, claim: &str) {
        let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]);
        let spec = json!({"volumes": volumes, "containers": [{"name": "c", "image": "i"}]});
        self.create("pods", json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})).await;
    }

    /// Waits until the condition `PodScheduled` of a pod has a message with this text.
    pub async fn waits_because(&self, pod: &str, text: &str) {
        self.until(text, async || {
            let o = self.api("pods").get(pod).await.unwrap();
            let conditions = o.at(&["status", "conditions"])?.as_array()?;
            let c = conditions.iter().find(|c| c["type"] == "PodScheduled")?;
            c["message"].as_str().is_some_and(|m| m.contains(text)).then_some(())
        })
        .await;
    }

    pub async fn node_of(&self, pod: &str) -> String {
        self.until(&format!("{pod} to be bound"), async || {
            let o = self.api("pods").get(pod).await.unwrap();
            o.str_at(&["spec", "nodeName"]).map(str::to_owned)
        })
        .await
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_until_its_claims_are_bound() {
    let p = Plane::start().await;
    p.node("a", "1").await;
    p.claiming("web", "data").await;
    p.waits_because("web", "persistentvolumeclaim \"data\" not found").await;
    p.storage_class("now", "example.com/x", "Immediate").await;
    p.claim("data", "now").await;
    p.waits_because("web", "pod has unbound immediate PersistentVolumeClaims").await;
    p.bind_claims();
    assert_eq!(p.node_of("web").await, "a");
}

/// A node is selected for a volume that has yet to be made, and the pod is bound once the claim is.
#[tokio::test(start_paused = true)]
async fn volumes_are_provisioned_for_the_node_of_the_first_consumer() {
    let p = Plane::start().await;
    p.node("a", "1").await;
    p.storage_class("wait", "example.com/x", "WaitForFirstConsumer").await;
    p.claim("data", "wait").await;
    p.claiming("web", "data").await;
    let claims = p.api("persistentvolumeclaims");
    let claim = p
        .until("the selected node", async || {
            let claim = claims.get("data").await.unwrap();
            claim.annotation(SELECTED_NODE).is_some().then_some(claim)
        })
        .await;
    assert_eq!(claim.annotation(SELECTED_NODE), Some("a"));
    let pod = p.api("pods").get("web").await.unwrap();
    assert_eq!(pod.str_at(&["spec", "nodeName"]), None, "the volume is missing");
    p.bind_claims();
    assert_eq!(p.node_of("web").await, "a");
}

#[tokio::test(start_paused = true)]
async fn a_pod_follows_the_volumes_that_exist() {
    let p = Plane::start().await;
    for name in ["a", "b"] {
        p.node(name, "1").await;
        p.patch("nodes", name, json!({"metadata": {"labels": {"kubernetes.io/hostname": name}}})).await;
    }
    p.storage_class("wait", "kubernetes.io/no-provisioner", "WaitForFirstConsumer").await;
    p.claim("data", "wait").await;
    p.claiming("web", "data").await;
    p.waits_because("web", "2 node(s) didn't find available persistent volumes to bind").await;
    let volumes = volumes_of(&p.client);
    volumes.create(&WriteOptions::default(), &volume("disk", Value::Null, Some("b"))).await.unwrap();
    let available = Patch::Merge(json!({"status": {"phase": "Available"}}));
    volumes.patch_status("disk", &WriteOptions::default(), &available).await.unwrap();
    p.until("the volume to be taken", async || {
        let v = volumes.get("disk").await.unwrap();
        v.str_at(&["spec", "claimRef", "name"]).map(str::to_owned)
    })
    .await;
    let claims = p.api("persistentvolumeclaims");
    bind(&p.client, &claims, &claims.get("data").await.unwrap(), "disk").await;
    assert_eq!(p.node_of("web").await, "b");
}

/// One claim of a pod is not bound yet when the pod goes: the volumes of the others are for other pods at once, not when the time for
/// binding is up.
#[tokio::test(start_paused = true)]
async fn the_volume_of_a_pod_that_goes_is_free() {
    let p = Plane::start().await;
    p.node("a", "1").await;
    p.storage_class("wait", "kubernetes.io/no-provisioner", "WaitForFirstConsumer").await;
    p.storage_class("slow", "example.com/x", "WaitForFirstConsumer").await;
    let volumes = volumes_of(&p.client);
    volumes.create(&WriteOptions::default(), &volume("disk", Value::Null, None)).await.unwrap();
    let available = Patch::Merge(json!({"status": {"phase": "Available"}}));
    volumes.patch_status("disk", &WriteOptions::default(), &available).await.unwrap();
    let taken_for = async |claim: &str| {
        p.until("the volume to be taken", async || {
            let v = volumes.get("disk").await.unwrap();
            (v.str_at(&["spec", "claimRef", "name"]) == Some(claim)).then_some(())
        })
        .await;
    };
    p.claim("first", "wait").await;
    p.claim("never", "slow").await;
    let claims = ["first", "never"].map(|c| json!({"name": c, "persistentVolumeClaim": {"claimName": c}}));
    let spec = json!({"volumes": claims, "containers": [{"name": "c", "image": "i"}]});
    p.create("pods", json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gone"}, "spec": spec})).await;
    taken_for("first").await;
    let begun = tokio::time::Instant::now();
    p.api("pods").delete("gone", &client::DeleteOptions::default().with_grace(0)).await.unwrap();
    let claims = p.api("persistentvolumeclaims");
    claims.delete("first", &client::DeleteOptions::default()).await.unwrap();
    p.until("the claim to go", async || claims.get_opt("first").await.unwrap().is_none().then_some(())).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let free = Patch::Merge(json!({"spec": {"claimRef": null}}));
    volumes.patch("disk", &WriteOptions::default(), &free).await.unwrap();
    volumes.patch_status("disk", &WriteOptions::default(), &available).await.unwrap();
    p.claim("second", "wait").await;
    p.claiming("next", "second").await;
    taken_for("second").await;
    assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", begun.elapsed());
}
