//! What is next for a claim that requests more than its volume has, and what its status says meanwhile. Pure functions.
//!
//! The order is upstream's, of external-resizer and kubelet: the volume grows, then its file system, and the claim's status says after
//! each step what is done, so that a provisioner that starts again continues there.

use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition, PersistentVolumeClaimStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};

use super::decide::{Medium, bytes, capacity, requested};

/// The next step for a claim that is bound.
#[derive(Clone, Debug, PartialEq)]
pub enum Growth {
    /// It has what it requests.
    None,
    /// The volume is to get this capacity.
    Volume(Quantity),
    /// The volume has this capacity, which the file system is to use.
    FileSystem(Quantity),
    /// The request was taken back: the status still says that the claim grows.
    Forget,
}

/// What is next for a claim that is bound to the volume.
pub fn growth(claim: &PersistentVolumeClaim, volume: &PersistentVolume, medium: Medium) -> Growth {
    let status = claim.status.clone().unwrap_or_default();
    let has = bytes(status.capacity.as_ref().and_then(|c| c.get("storage")));
    let spec = volume.spec.as_ref();
    let current = spec.and_then(|s| s.capacity.as_ref()?.get("storage")).cloned().unwrap_or_default();
    let (requested_size, volume_has) = (requested(claim), bytes(Some(&current)));
    // Without a capacity the claim is not bound yet.
    if has == 0 {
        return Growth::None;
    }
    if requested_size > volume_has {
        let request = claim.spec.as_ref().and_then(|s| s.resources.as_ref()?.requests.as_ref()?.get("storage"));
        return request.map_or(Growth::None, |r| Growth::Volume(capacity(medium, r)));
    }
    if volume_has > has {
        return Growth::FileSystem(current);
    }
    let statuses = status.allocated_resource_statuses.unwrap_or_default();
    let grows = statuses.contains_key("storage") || status.conditions.iter().flatten().any(is_of_growth);
    if grows { Growth::Forget } else { Growth::None }
}

/// Whether the last growth of a claim was one that can never succeed.
pub fn is_infeasible(claim: &PersistentVolumeClaim) -> bool {
    let statuses = claim.status.as_ref().and_then(|s| s.allocated_resource_statuses.as_ref());
    statuses.and_then(|s| s.get("storage")).is_some_and(|s| s == "ControllerResizeInfeasible")
}

/// The capacity that the claim is to get, or was to.
pub fn allocated(claim: &PersistentVolumeClaim) -> Option<&Quantity> {
    claim.status.as_ref()?.allocated_resources.as_ref()?.get("storage")
}

fn is_of_growth(condition: &PersistentVolumeClaimCondition) -> bool {
    const TYPES: [&str; 4] = ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];
    TYPES.contains(&&*condition.type_)
}

/// How far the growth of a claim is.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// The volume is to get this capacity.
    Started(&'a Quantity),
    /// The volume can never have this capacity.
    Infeasible(&'a str),
    /// The file system is to use the capacity of the volume.
    FileSystemPending,
    /// A driver makes the file system larger on the node.
    OnNode,
    /// A driver has not made the file system larger; if `is_infeasible`, it is not called again.
    FailedOnNode { is_infeasible: bool, why: &'a str },
    /// The claim has this capacity.
    Finished(&'a Quantity),
    /// The claim does not grow any more.
    Forgotten,
}

/// The part of the claim's status to merge, with the time of new conditions. None if it says that already.
pub fn status(claim: &PersistentVolumeClaim, progress: Progress<'_>, now: &str) -> Option<Value> {
    let status = claim.status.clone().unwrap_or_default();
    let old = status.conditions.unwrap_or_default();
    let condition = |kind: &str, message: &str| {
        let same = |c: &&PersistentVolumeClaimCondition| c.type_ == kind && c.status == "True";
        let since = old.iter().find(same).and_then(|c| c.last_transition_time.as_ref());
        let since = since.and_then(|t| serde_json::to_value(t).ok()).unwrap_or_else(|| json!(now));
        let message = if message.is_empty() { Value::Null } else { json!(message) };
        json!({"type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": since, "message": message})
    };
    let resizing = || condition("Resizing", "");
    let of_growth = || -> Vec<Value> {
        old.iter().filter(|c| is_of_growth(c)).filter_map(|c| serde_json::to_value(c).ok()).collect()
    };
    let (mut out, new) = match progress {
        Progress::Started(size) => (
            json!({"allocatedResources": {"storage": size},
                "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"}}),
            vec![resizing()],
        ),
        Progress::Infeasible(why) => (
            json!({"allocatedResourceStatuses": {"storage": "ControllerResizeInfeasible"}}),
            vec![resizing(), condition("ControllerResizeError", &format!("failed to expand pvc with {why}"))],
        ),
        Progress::FileSystemPending => (
            json!({"allocatedResourceStatuses": {"storage": "NodeResizePending"}}),
            vec![
                resizing(),
                condition(
                    "FileSystemResizePending",
                    "Waiting for user to (re-)start a pod to finish file system resize of volume on node.",
                ),
            ],
        ),
        Progress::OnNode => (json!({"allocatedResourceStatuses": {"storage": "NodeResizeInProgress"}}), of_growth()),
        Progress::FailedOnNode { is_infeasible, why } => {
            let mut conditions = of_growth();
            conditions.retain(|c| c["type"] != "NodeResizeError");
            conditions.push(condition("NodeResizeError", &format!("failed to expand pvc with {why}")));
            let changed = match is_infeasible {
                true => json!({"allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}}),
                false => json!({}),
            };
            (changed, conditions)
        }
        Progress::Finished(size) => (
            json!({"capacity": {"storage": size}, "allocatedResources": {"storage": size},
                "allocatedResourceStatuses": {"storage": null}}),
            Vec::new(),
        ),
        Progress::Forgotten => (
            json!({"allocatedResources": {"storage": null}, "allocatedResourceStatuses": {"storage": null}}),
            Vec::new(),
        ),
    };
    let kept = old.iter().filter(|c| !is_of_growth(c)).filter_map(|c| serde_json::to_value(c).ok());
    let conditions: Vec<Value> = kept.chain(new).collect();
    out["conditions"] = if conditions.is_empty() { Value::Null } else { json!(conditions) };
    let before = serde_json::to_value(&claim.status).unwrap_or_default();
    let mut after = before.clone();
    merge(&mut after, &out);
    let after: Option<PersistentVolumeClaimStatus> = serde_json::from_value(after).ok();
    (after != claim.status).then_some(out)
}

/// Merges a patch into a value (RFC 7386).
pub(crate) fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = json!({});
    }
    let Value::Object(fields) = value else { return };
    for (key, change) in changes {
        if change.is_null() {
            fields.remove(key);
        } else {
            merge(fields.entry(key.clone()).or_insert(Value::Null), change);
        }
    }
    // The API has no empty maps here.
    fields.retain(|_, v| !v.as_object().is_some_and(|o| o.is_empty()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_volumes::{FileOptions, Format};

    const FILE: Medium = Medium::File(FileOptions { format: Format::Ext4, is_preallocated: false });

    fn claim(request: &str, status: Value) -> PersistentVolumeClaim {
        let spec = json!({"resources": {"requests": {"storage": request}}});
        serde_json::from_value(json!({"spec": spec, "status": status})).unwrap()
    }

    fn volume(capacity: &str) -> PersistentVolume {
        serde_json::from_value(json!({"spec": {"capacity": {"storage": capacity}}})).unwrap()
    }

    fn quantity(text: &str) -> Quantity {
        Quantity(text.into())
    }

    #[test]
    fn each_step_follows_from_what_is_done() {
        let has = |size: &str| json!({"phase": "Bound", "capacity": {"storage": size}});
        let stale = json!({"phase": "Bound", "capacity": {"storage": "10Mi"},
            "allocatedResourceStatuses": {"storage": "ControllerResizeInfeasible"}});
        for (request, status, capacity, expected) in [
            ("10Mi", has("10Mi"), "10Mi", Growth::None),
            ("1", has("1Mi"), "1Mi", Growth::None),
            ("20Mi", json!({}), "10Mi", Growth::None),
            ("20Mi", has("10Mi"), "10Mi", Growth::Volume(quantity("20Mi"))),
            ("20Mi", has("10Mi"), "20Mi", Growth::FileSystem(quantity("20Mi"))),
            ("5000001", has("1Mi"), "1Mi", Growth::Volume(quantity("5001216"))),
            ("20Mi", has("20Mi"), "20Mi", Growth::None),
            // The request was reduced after the volume had grown.
            ("12Mi", has("10Mi"), "20Mi", Growth::FileSystem(quantity("20Mi"))),
            ("10Mi", stale, "10Mi", Growth::Forget),
        ] {
            assert_eq!(growth(&claim(request, status), &volume(capacity), FILE), expected, "{request} {capacity}");
        }
    }

    #[test]
    fn the_status_says_how_far_it_is() {
        let at = "2026-01-01T00:00:00Z";
        let mut value = json!({"phase": "Bound", "capacity": {"storage": "1Mi"},
            "conditions": [{"type": "Other", "status": "True"}]});
        let mut step = |progress: Progress<'_>, status_of_storage: Option<&str>, conditions: &[&str]| {
            let patch = status(&claim("2Mi", value.clone()), progress, at).unwrap();
            merge(&mut value, &patch);
            let found = value["allocatedResourceStatuses"]["storage"].as_str().map(str::to_owned);
            assert_eq!(found.as_deref(), status_of_storage);
            let types: Vec<_> = value["conditions"].as_array().unwrap().iter().map(|c| c["type"].clone()).collect();
            assert_eq!(types, conditions);
            assert_eq!(status(&claim("2Mi", value.clone()), progress, "later"), None, "it says that already");
        };
        let size = quantity("2Mi");
        step(Progress::Started(&size), Some("ControllerResizeInProgress"), &["Other", "Resizing"]);
        let pending = ["Other", "Resizing", "FileSystemResizePending"];
        step(Progress::FileSystemPending, Some("NodeResizePending"), &pending);
        step(Progress::Finished(&size), None, &["Other"]);
        let failed = ["Other", "Resizing", "ControllerResizeError"];
        step(Progress::Infeasible("no"), Some("ControllerResizeInfeasible"), &failed);
        step(Progress::Forgotten, None, &["Other"]);
        assert_eq!(value["capacity"]["storage"], "2Mi");
        assert_eq!(value["allocatedResources"], Value::Null);
    }
}
