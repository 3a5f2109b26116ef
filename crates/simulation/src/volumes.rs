//! A provisioner that gives every claim a volume at once, on any node.

use client::{ApiResource, Client, Informer, Informers, Key, Patch, Scope, WriteOptions};
use meta::{Object, Value};
use serde_json::json;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// How long a claim waits after an error.
const RETRY: Duration = Duration::from_secs(1);

/// Binds claims without a volume until the informers end.
pub(crate) async fn bind(client: Client, informers: Informers) {
    let claims: Informer<Value> = informers.informer(&claim_resource(), &Scope::default());
    let (due, wake) = (Arc::<Mutex<VecDeque<Key>>>::default(), Arc::<Notify>::default());
    let (queue, waker) = (due.clone(), wake.clone());
    claims.on_change(move |change| {
        if let Some(new) = &change.new {
            queue.lock().push_back(new.key());
            waker.notify_one();
        }
    });
    loop {
        let next = due.lock().pop_front();
        let Some(key) = next else {
            wake.notified().await;
            continue;
        };
        let Some(claim) = claims.get(&key) else { continue };
        if claim.view["status"]["phase"] == "Bound" || claim.meta.is_deleting() {
            continue;
        }
        if bind_claim(&client, &key, &claim.view, &claim.meta.uid).await.is_err() {
            due.lock().push_back(key);
            tokio::time::sleep(RETRY).await;
        }
    }
}

fn claim_resource() -> ApiResource {
    ApiResource::named("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", true)
}

async fn bind_claim(client: &Client, key: &Key, claim: &Value, uid: &str) -> Result<(), client::Error> {
    let options = WriteOptions::default();
    let name = claim["spec"]["volumeName"].as_str().map_or_else(|| format!("pvc-{uid}"), str::to_owned);
    let spec = &claim["spec"];
    let capacity = json!({"storage": spec["resources"]["requests"]["storage"]});
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "capacity": capacity, "accessModes": spec["accessModes"], "storageClassName": spec["storageClassName"],
            "volumeMode": spec["volumeMode"], "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": &*key.namespace, "name": &*key.name, "uid": uid},
            "csi": {"driver": "sim.kemudi", "volumeHandle": name},
        },
    });
    let volumes = client.dynamic(&ApiResource::named("", "v1", "persistentvolumes", "PersistentVolume", false));
    match volumes.create(&options, &Object::from_value(volume).unwrap_or_default()).await {
        Err(e) if !e.is_already_exists() => return Err(e),
        _ => {}
    }
    let claims = client.dynamic(&claim_resource()).namespace(&key.namespace);
    let annotations = json!({"pv.kubernetes.io/bind-completed": "yes"});
    let patch = json!({"metadata": {"annotations": annotations}, "spec": {"volumeName": name}});
    claims.patch(&key.name, &options, &Patch::Merge(patch)).await?;
    let status = json!({"status": {"phase": "Bound", "accessModes": spec["accessModes"], "capacity": capacity}});
    claims.patch_status(&key.name, &options, &Patch::Merge(status)).await?;
    let bound = Patch::Merge(json!({"status": {"phase": "Bound"}}));
    volumes.patch_status(&name, &options, &bound).await.map(drop)
}
