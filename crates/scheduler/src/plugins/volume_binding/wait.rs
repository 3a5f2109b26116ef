//! Binds volumes through the API, and waits until the claims show it.

use super::Plan;
use crate::pod::Pod;
use crate::storage::SELECTED_NODE;
use client::{Client, Error, Patch, WriteOptions};
use k8s_openapi::api::core::v1 as core;
use serde_json::json;
use std::time::Duration;

/// How often claims are looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// Writes the plan of a pod, and waits until all its claims are bound. Errors if a write fails, the pod goes, a claim loses its node, or the
/// time is up.
pub(super) async fn bind(client: &Client, plan: &Plan, pod: &Pod, node: &str, timeout: Duration) -> Result<(), Error> {
    for (volume, claim) in &plan.bindings {
        let m = &claim.meta;
        let reference = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": &*m.namespace, "name": &*m.name,
            "uid": &*m.uid, "resourceVersion": m.resource_version,
        });
        let patch = json!({
            "metadata": {
                "uid": &*volume.meta.uid,
                "resourceVersion": volume.meta.resource_version,
                "annotations": {"pv.kubernetes.io/bound-by-controller": "yes"},
            },
            "spec": {"claimRef": reference},
        });
        let volumes = client.api::<core::PersistentVolume>();
        volumes.patch(&volume.meta.name, &WriteOptions::default(), &Patch::Merge(patch)).await?;
    }
    for claim in &plan.provisions {
        let m = &claim.meta;
        let patch = json!({"metadata": {"uid": &*m.uid, "annotations": {SELECTED_NODE: node}}});
        let claims = client.api::<core::PersistentVolumeClaim>().namespace(&m.namespace);
        claims.patch(&m.name, &WriteOptions::default(), &Patch::Merge(patch)).await?;
    }
    let late = |_| Error::Unexpected("binding volumes: context deadline exceeded".into());
    tokio::time::timeout(timeout, bound(client, plan, pod, node)).await.map_err(late)?
}

async fn bound(client: &Client, plan: &Plan, pod: &Pod, node: &str) -> Result<(), Error> {
    let failed = |why: String| Err(Error::Unexpected(format!("binding volumes: {why}")));
    let pods = client.api::<core::Pod>().namespace(&pod.meta.namespace);
    let bound = plan.bindings.iter().map(|(_, claim)| (claim, false));
    for (claim, provisioned) in bound.chain(plan.provisions.iter().map(|claim| (claim, true))) {
        let claims = client.api::<core::PersistentVolumeClaim>().namespace(&claim.meta.namespace);
        loop {
            tokio::time::sleep(INTERVAL).await;
            // Its volumes are for others then. A claim of the same name may never be bound.
            let own = client::optional(pods.get(&pod.meta.name).await)?;
            if own.is_none_or(|own| own.metadata.uid.as_deref() != Some(&*pod.meta.uid)) {
                return failed(format!("pod does not exist any more: pod \"{}\" not found", pod.meta.name));
            }
            let now = claims.get(&claim.meta.name).await?;
            let annotation = |key: &str| now.metadata.annotations.as_ref().and_then(|a| a.get(key));
            if provisioned && annotation(SELECTED_NODE).is_none_or(|n| n != node) {
                return failed(format!("provisioning failed for PVC \"{}\"", claim.meta.name));
            }
            let volume = now.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or_default();
            if !volume.is_empty() && annotation("pv.kubernetes.io/bind-completed").is_some() {
                break;
            }
        }
    }
    Ok(())
}
