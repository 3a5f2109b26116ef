//! Validation of the subresource `ephemeralcontainers` (`ValidatePodEphemeralContainersUpdate`).
//!
//! The pod has been validated as if it were new; the rules here are those about changes.

use super::pod_fields::{POD, is_mirror, items};
use crate::read::text;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object};

/// Checks that ephemeral containers are only added.
pub fn validate(o: &Object, old: &Object, errors: &mut ErrorList) {
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
