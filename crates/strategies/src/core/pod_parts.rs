//! Validation of the subresource `ephemeralcontainers` (`ValidatePodEphemeralContainersUpdate`).
//!
//! The pod has been validated as if it were new; the rules here are those about changes.

use super::pod::items;
use crate::read::text;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object};

/// The path of errors about the whole pod: as Go prints a field without a name.
pub(super) const POD: &str = "[]";
/// Marks a mirror pod, which the kubelet created from a file.
const MIRROR: &str = "kubernetes.io/config.mirror";

pub(super) fn is_mirror(o: &Object) -> bool {
    o.at(&["metadata", "annotations", MIRROR]).is_some()
}

/// Checks that ephemeral containers are only added.
pub fn ephemeral_containers(o: &Object, old: &Object, errors: &mut ErrorList) {
    if is_mirror(old) {
        *errors = vec![FieldError::forbidden(&FieldPath::new(POD), "static pods do not support ephemeral containers")];
        return;
    }
    let at = FieldPath::new("spec.ephemeralContainers");
    for was in items(old, "ephemeralContainers") {
        let name = text(was, "name");
        let why = match items(o, "ephemeralContainers").iter().find(|c| text(c, "name") == name) {
            None => "removed",
            Some(is) if is != was => "changed",
            Some(_) => continue,
        };
        let why = format!("existing ephemeral containers {name:?} may not be {why}\n");
        errors.push(FieldError::forbidden(&at, &why));
    }
}
