use super::{Env, Request};
use meta::Object;
use meta::field::ErrorList;

/// Preparation and validation of changes, including writes of subresources (`rest.RESTUpdateStrategy`).
pub trait UpdateStrategy: Send + Sync {
    fn prepare_for_update(&self, _env: Env<'_>, _request: &Request, _object: &mut Object, _old: &Object) {}

    fn validate_update(&self, _object: &Object, _old: &Object, _errors: &mut ErrorList) {}

    /// Validates an update through a subresource.
    fn validate_part(&self, _subresource: &str, _object: &Object, _old: &Object, _errors: &mut ErrorList) {}

    /// The warnings of an update through a subresource.
    fn part_warnings(&self, _subresource: &str, _object: &Object) -> Vec<String> {
        Vec::new()
    }

    /// Whether a write through `subresource` (empty: the object itself) changes the desired state, and so increments
    /// the generation.
    fn counts_generation(&self, subresource: &str) -> bool {
        subresource.is_empty()
    }

    /// Restores from `old` everything in `object` that `subresource` must not change. The default keeps `status`.
    fn take_part(&self, subresource: &str, object: &mut Object, old: &Object) {
        take_field(subresource, object, old, self.fixed_by_status(old));
    }

    /// The metadata keys that a status update cannot change. None for most kinds; newer kinds use [`ALL_METADATA`].
    fn fixed_by_status(&self, _old: &Object) -> &'static [&'static str] {
        &[]
    }
}

/// The metadata that users set.
pub const USER_METADATA: &[&str] = &["labels", "annotations", "finalizers", "ownerReferences"];

/// The metadata that `metav1.ResetObjectMetaForStatus` keeps from the old object, besides immutable fields.
pub const ALL_METADATA: &[&str] = &["labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp"];

/// All metadata but managed fields.
pub const WHOLE_METADATA: &[&str] = &[
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generateName",
];

/// Keeps one field and the metadata of `object`, except the metadata keys in `fixed`; restores everything else from
/// `old`.
pub fn take_field(field: &str, object: &mut Object, old: &Object, fixed: &[&str]) {
    let metadata = object.metadata_mut();
    for key in fixed {
        match old.metadata().and_then(|m| m.get(*key)) {
            Some(v) => metadata.insert((*key).into(), v.clone()),
            None => metadata.remove(*key),
        };
    }
    let taken = |key: &str| key == field || key == "metadata";
    object.0.retain(|k, _| taken(k) || old.0.contains_key(k));
    // Usually nothing else differs.
    for (k, v) in old.0.iter().filter(|(k, _)| !taken(k)) {
        if object.get(k) != Some(v) {
            object.0.insert(k.clone(), v.clone());
        }
    }
}
