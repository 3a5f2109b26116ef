//! Inline volume specifications in VolumeAttachments.

use super::persistent_volume::volume_source;
use super::volume::access_modes;
use crate::read::{is_set, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value};

/// Validates an inline volume: a CSI volume without claim, capacity and class.
pub fn validate(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    const NOT_HERE: &str = "may not be specified in the context of inline volumes";
    let mut forbid = |key: &str, why: &str| errors.push(FieldError::forbidden(&path.child(key), why));
    if is_set(spec, "claimRef") {
        forbid("claimRef", NOT_HERE);
    }
    if spec["capacity"].as_object().is_some_and(|c| !c.is_empty()) {
        forbid("capacity", NOT_HERE);
    }
    if !matches!(text(spec, "persistentVolumeReclaimPolicy"), "" | "Retain") {
        forbid("persistentVolumeReclaimPolicy", "may only be Retain in the context of inline volumes");
    }
    if is_set(spec, "nodeAffinity") {
        forbid("nodeAffinity", NOT_HERE);
    }
    if !text(spec, "storageClassName").is_empty() {
        forbid("storageClassName", NOT_HERE);
    }
    if spec["volumeMode"].as_str().is_some_and(|m| m != "Filesystem") {
        forbid("volumeMode", "may not specify volumeMode other than Filesystem in the context of inline volumes");
    }
    if !is_set(spec, "csi") {
        let why = "has to be specified in the context of inline volumes";
        errors.push(FieldError::required(&path.child("csi"), why));
    }
    access_modes(spec, path, errors);
    volume_source(spec, "", path, errors);
}
