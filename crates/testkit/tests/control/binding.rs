//! Claims are bound to volumes, provisioned for, released and lost.

use crate::harness::Plane;
use client::{Api, ApiResource, DeleteOptions, Patch, WriteOptions};
use meta::{Object, Value};
use serde_json::json;
use std::time::Duration;

fn volumes(client: &client::Client) -> Api<Object> {
    client.dynamic(&ApiResource::named("", "v1", "persistentvolumes", "PersistentVolume", false))
}

fn volume(name: &str, size: &str, more: Value) -> Object {
    let mut spec = json!({"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Object::from_value(
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}),
    )
    .unwrap()
}

fn phase(o: &Object) -> &str {
    o.str_at(&["status", "phase"]).unwrap_or_default()
}

impl Plane {
    async fn volume(&self, name: &str, size: &str, more: Value) {
        volumes(&self.client).create(&WriteOptions::default(), &volume(name, size, more)).await.unwrap();
    }

    /// Creates a claim of 1Gi without a class.
    async fn request(&self, name: &str, more: Value) {
        let mut spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let claim =
            json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec});
        self.create("persistentvolumeclaims", claim).await;
    }

    async fn claim_in(&self, name: &str, expected: &str) -> Object {
        self.until(&format!("{name} to be {expected}"), async || {
            let claim = self.api("persistentvolumeclaims").get(name).await.unwrap();
            (phase(&claim) == expected).then_some(claim)
        })
        .await
    }

    async fn volume_in(&self, name: &str, expected: &str) -> Object {
        self.until(&format!("{name} to be {expected}"), async || {
            let volume = volumes(&self.client).get(name).await.unwrap();
            (phase(&volume) == expected).then_some(volume)
        })
        .await
    }

    /// The message of an event of the claim or volume.
    async fn event_message(&self, name: &str, reason: &str) -> String {
        self.until(&format!("{reason} of {name}"), async || {
            let events = self.list("events").await;
            let is = |e: &&Object| {
                e.str_at(&["involvedObject", "name"]) == Some(name) && e.str_at(&["reason"]) == Some(reason)
            };
            events.iter().find(is).and_then(|e| e.str_at(&["message"])).map(str::to_owned)
        })
        .await
    }

    /// Makes volumes for the claims that ask `example.com/x`, and deletes those that are released.
    fn provisioner(&self) {
        let (client, claims) = (self.client.clone(), self.api("persistentvolumeclaims"));
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                for claim in claims.list(&client::ListOptions::default()).await.map(|l| l.items).unwrap_or_default() {
                    let asked = claim.annotation("volume.kubernetes.io/storage-provisioner") == Some("example.com/x");
                    if !asked || claim.str_at(&["spec", "volumeName"]).is_some() {
                        continue;
                    }
                    let reference = json!({"kind": "PersistentVolumeClaim", "namespace": "default", "name": claim.name(),
                        "uid": claim.uid()});
                    let class = claim.str_at(&["spec", "storageClassName"]).unwrap();
                    let more = json!({"claimRef": reference, "storageClassName": class, "persistentVolumeReclaimPolicy": "Delete"});
                    let mut made = volume(&format!("pvc-{}", claim.uid()), "1Gi", more);
                    made.set_annotation("pv.kubernetes.io/provisioned-by", "example.com/x");
                    let _ = volumes(&client).create(&WriteOptions::default(), &made).await;
                }
                for volume in
                    volumes(&client).list(&client::ListOptions::default()).await.map(|l| l.items).unwrap_or_default()
                {
                    if phase(&volume) == "Released" && volume.annotation("pv.kubernetes.io/provisioned-by").is_some() {
                        let _ = volumes(&client).delete(volume.name(), &DeleteOptions::default()).await;
                    }
                }
            }
        });
    }

    async fn class(&self, name: &str, mode: &str, is_default: bool) {
        let annotations = json!({"storageclass.kubernetes.io/is-default-class": is_default.to_string()});
        let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name, "annotations": annotations},
            "provisioner": "example.com/x", "volumeBindingMode": mode});
        assert_eq!(self.cluster.call("POST", "/apis/storage.k8s.io/v1/storageclasses", class).await.code, 201);
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_gets_the_smallest_volume_that_fits() {
    let p = Plane::start().await;
    for (name, size) in [("large", "9Gi"), ("small", "1Mi"), ("fits", "2Gi")] {
        p.volume(name, size, json!({})).await;
        p.volume_in(name, "Available").await;
    }
    p.request("data", json!({})).await;
    let claim = p.claim_in("data", "Bound").await;
    assert_eq!(claim.str_at(&["spec", "volumeName"]), Some("fits"));
    assert_eq!(claim.str_at(&["status", "capacity", "storage"]), Some("2Gi"));
    assert_eq!(claim.annotation("pv.kubernetes.io/bind-completed"), Some("yes"));
    assert_eq!(claim.annotation("pv.kubernetes.io/bound-by-controller"), Some("yes"));
    let bound = p.volume_in("fits", "Bound").await;
    assert_eq!(bound.str_at(&["spec", "claimRef", "uid"]), Some(claim.uid()));
    assert_eq!(bound.annotation("pv.kubernetes.io/bound-by-controller"), Some("yes"));
    // Of two claims for the other volume one waits, until another volume comes.
    p.request("first", json!({})).await;
    p.request("second", json!({})).await;
    p.claim_in("first", "Bound").await;
    let why = "no persistent volumes available for this claim and no storage class is set";
    assert_eq!(p.event_message("second", "FailedBinding").await, why);
    assert_eq!(phase(&p.api("persistentvolumeclaims").get("second").await.unwrap()), "Pending");
    p.volume("more", "1Gi", json!({})).await;
    let second = p.claim_in("second", "Bound").await;
    assert_eq!(second.str_at(&["spec", "volumeName"]), Some("more"));
}

#[tokio::test(start_paused = true)]
async fn users_bind_claims_and_volumes() {
    let p = Plane::start().await;
    p.volume("free", "1Gi", json!({})).await;
    p.volume("reserved", "5Gi", json!({"claimRef": {"namespace": "default", "name": "data"}})).await;
    p.volume_in("reserved", "Available").await;
    p.request("data", json!({})).await;
    let claim = p.claim_in("data", "Bound").await;
    assert_eq!(claim.str_at(&["spec", "volumeName"]), Some("reserved"));
    let reserved = p.volume_in("reserved", "Bound").await;
    assert_eq!(reserved.annotation("pv.kubernetes.io/bound-by-controller"), None, "a user bound it");
    p.request("named", json!({"volumeName": "later"})).await;
    p.request("wrong", json!({"volumeName": "reserved"})).await;
    assert_eq!(
        p.event_message("wrong", "FailedBinding").await,
        "volume \"reserved\" already bound to a different claim."
    );
    p.request("large", json!({"volumeName": "free", "resources": {"requests": {"storage": "2Gi"}}})).await;
    let mismatch = "Cannot bind to requested volume \"free\": requested PV is too small";
    assert_eq!(p.event_message("large", "VolumeMismatch").await, mismatch);
    p.volume("later", "1Gi", json!({})).await;
    let named = p.claim_in("named", "Bound").await;
    assert_eq!(named.annotation("pv.kubernetes.io/bound-by-controller"), None);
}

#[tokio::test(start_paused = true)]
async fn volumes_are_provisioned_and_deleted() {
    let p = Plane::start().await;
    p.class("fast", "Immediate", false).await;
    p.request("data", json!({"storageClassName": "fast"})).await;
    assert!(p.event_message("data", "ExternalProvisioning").await.contains("the external provisioner 'example.com/x'"));
    p.provisioner();
    let claim = p.claim_in("data", "Bound").await;
    assert_eq!(claim.annotation("volume.beta.kubernetes.io/storage-provisioner"), Some("example.com/x"));
    let name = format!("pvc-{}", claim.uid());
    p.volume_in(&name, "Bound").await;
    p.api("persistentvolumeclaims").delete("data", &DeleteOptions::default()).await.unwrap();
    p.until("the volume to go", async || volumes(&p.client).get_opt(&name).await.unwrap().is_none().then_some(()))
        .await;
}

#[tokio::test(start_paused = true)]
async fn claims_wait_for_their_first_consumer() {
    let p = Plane::start().await;
    p.node("a", "1").await;
    p.class("late", "WaitForFirstConsumer", false).await;
    p.provisioner();
    p.request("data", json!({"storageClassName": "late"})).await;
    let message = "waiting for first consumer to be created before binding";
    assert_eq!(p.event_message("data", "WaitForFirstConsumer").await, message);
    let spec = json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
        "containers": [{"name": "c", "image": "i"}]});
    p.create("pods", json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec})).await;
    p.claim_in("data", "Bound").await;
    assert_eq!(p.node_of("web").await, "a");
}

#[tokio::test(start_paused = true)]
async fn retained_volumes_wait_for_their_administrator() {
    let p = Plane::start().await;
    p.volume("disk", "1Gi", json!({})).await;
    p.request("data", json!({})).await;
    p.claim_in("data", "Bound").await;
    p.api("persistentvolumeclaims").delete("data", &DeleteOptions::default()).await.unwrap();
    p.volume_in("disk", "Released").await;
    // A new claim of the name has another UID.
    p.request("data", json!({})).await;
    p.event_message("data", "FailedBinding").await;
    p.volume_in("disk", "Released").await;
    let patch = Patch::Merge(json!({"spec": {"claimRef": null}}));
    volumes(&p.client).patch("disk", &WriteOptions::default(), &patch).await.unwrap();
    p.claim_in("data", "Bound").await;
    p.volume_in("disk", "Bound").await;
}

#[tokio::test(start_paused = true)]
async fn volumes_that_cannot_be_reclaimed_fail() {
    let p = Plane::start().await;
    for (policy, reason, why) in [
        ("Recycle", "VolumeFailedRecycle", "No recycler plugin found for the volume!"),
        (
            "Delete",
            "VolumeFailedDelete",
            "error getting deleter volume plugin for volume \"delete\": no deletable volume plugin matched",
        ),
    ] {
        let name = policy.to_lowercase();
        p.volume(&name, "1Gi", json!({"persistentVolumeReclaimPolicy": policy})).await;
        p.request(&name, json!({"volumeName": name})).await;
        p.claim_in(&name, "Bound").await;
        p.api("persistentvolumeclaims").delete(&name, &DeleteOptions::default()).await.unwrap();
        let failed = p.volume_in(&name, "Failed").await;
        assert_eq!(failed.str_at(&["status", "message"]), Some(why));
        assert_eq!(p.event_message(&name, reason).await, why);
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_volume_is_gone_is_lost() {
    let p = Plane::start().await;
    p.volume("disk", "1Gi", json!({})).await;
    p.request("data", json!({})).await;
    p.claim_in("data", "Bound").await;
    volumes(&p.client).delete("disk", &DeleteOptions::default()).await.unwrap();
    let held = p.volume_in("disk", "Bound").await;
    assert!(held.is_deleting(), "it is protected");
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    volumes(&p.client).patch("disk", &WriteOptions::default(), &patch).await.unwrap();
    let lost = p.claim_in("data", "Lost").await;
    assert_eq!(lost.at(&["status", "capacity"]), None);
    let message = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
    assert_eq!(p.event_message("data", "ClaimLost").await, message);
}

#[tokio::test(start_paused = true)]
async fn claims_without_a_class_get_the_default_one_later() {
    let p = Plane::start().await;
    p.provisioner();
    p.request("data", json!({})).await;
    p.request("none", json!({"storageClassName": ""})).await;
    p.event_message("data", "FailedBinding").await;
    p.class("standard", "Immediate", true).await;
    let claim = p.claim_in("data", "Bound").await;
    assert_eq!(claim.str_at(&["spec", "storageClassName"]), Some("standard"));
    let none = p.api("persistentvolumeclaims").get("none").await.unwrap();
    assert_eq!((phase(&none), none.str_at(&["spec", "storageClassName"])), ("Pending", Some("")));
}
