//! Writes allocations into the status of claims.

use crate::devices::DeviceClaim;
use crate::pod::Pod;
use client::{ApiResource, Client, Error, Patch, WriteOptions};
use meta::Clock;
use serde_json::{Value, json};

/// Keeps a claim with devices until they are returned.
pub(super) const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// Attempts to write, where others write at the same time.
const TRIES: usize = 5;

pub(super) fn resource() -> ApiResource {
    ApiResource::named("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", true)
}

/// Gives a claim its devices, unless it has some, and lets the pod use it. Returns the revision at which that was written. Errors if the
/// claim was allocated otherwise meanwhile.
pub(super) async fn reserve(
    client: &Client,
    clock: &dyn Clock,
    pod: &Pod,
    (name, uid): (&str, &str),
    allocation: &Value,
) -> Result<u64, Error> {
    let claims = client.dynamic(&resource()).namespace(&pod.meta.namespace);
    let mut conflict = None;
    for _ in 0..TRIES {
        let mut now = claims.get(name).await?;
        if now.uid() != uid {
            return Err(Error::Unexpected(format!("claim {name} was recreated")));
        }
        let has = now.at(&["status", "allocation"]).cloned().unwrap_or_default();
        let is_same = has["devices"] == allocation["devices"];
        if !allocation.is_null() && !has.is_null() && !is_same {
            return Err(Error::Unexpected(format!("claim {name} got allocated elsewhere in the meantime")));
        }
        if allocation.is_null() && has.is_null() {
            return Err(Error::Unexpected(format!("claim {name} got deallocated elsewhere in the meantime")));
        }
        let mut finalizers = now.at(&["metadata", "finalizers"]).cloned().unwrap_or_else(|| json!([]));
        if let Some(list) = finalizers.as_array_mut()
            && has.is_null()
            && !list.iter().any(|f| f == FINALIZER)
        {
            list.push(FINALIZER.into());
            let metadata = json!({"resourceVersion": now.resource_version(), "finalizers": finalizers});
            let patch = Patch::Merge(json!({"metadata": metadata}));
            match claims.patch(name, &WriteOptions::default(), &patch).await {
                Ok(written) => now = written,
                Err(e) if e.is_conflict() => {
                    conflict = Some(e);
                    continue;
                }
                Err(e) => return Err(e),
            }
        }
        let mut consumers = now.at(&["status", "reservedFor"]).cloned().unwrap_or_else(|| json!([]));
        if let Some(list) = consumers.as_array_mut()
            && !list.iter().any(|c| c["uid"] == *pod.meta.uid)
        {
            list.push(json!({"resource": "pods", "name": &*pod.meta.name, "uid": &*pod.meta.uid}));
        }
        let mut status = json!({"reservedFor": consumers});
        if has.is_null() {
            status["allocation"] = allocation.clone();
            status["allocation"]["allocationTimestamp"] = meta::time::format(clock.now()).into();
        }
        let patch = Patch::Merge(json!({"metadata": {"resourceVersion": now.resource_version()}, "status": status}));
        match claims.patch_status(name, &WriteOptions::default(), &patch).await {
            Ok(written) => return Ok(written.resource_version().parse().unwrap_or_default()),
            Err(e) if e.is_conflict() => conflict = Some(e),
            Err(e) => return Err(e),
        }
    }
    Err(conflict.unwrap_or_else(|| Error::Unexpected("claim could not be written".into())))
}

/// Takes back the devices of a claim, so that it can get others. Errors if the claim was changed meanwhile.
pub(super) async fn deallocate(client: &Client, claim: &DeviceClaim) -> Result<(), Error> {
    let claims = client.dynamic(&resource()).namespace(&claim.meta.namespace);
    let status = json!({"allocation": null, "reservedFor": null, "devices": null});
    let version = json!({"resourceVersion": &*claim.meta.resource_version, "uid": &*claim.meta.uid});
    let patch = Patch::Merge(json!({"metadata": version, "status": status}));
    claims.patch_status(&claim.meta.name, &WriteOptions::default(), &patch).await.map(drop)
}
