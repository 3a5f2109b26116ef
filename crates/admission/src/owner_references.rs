//! OwnerReferencesPermissionEnforcement: setting owner references requires permission to delete the object.

use crate::{Operation, Plugin, Review};
use meta::{GroupVersion, Object, Status, Value};

pub struct OwnerReferencesPermissionEnforcement;

fn references(o: Option<&Object>) -> Vec<Value> {
    o.and_then(|o| o.at(&["metadata", "ownerReferences"])).and_then(Value::as_array).cloned().unwrap_or_default()
}

impl Plugin for OwnerReferencesPermissionEnforcement {
    fn name(&self) -> &'static str {
        "OwnerReferencesPermissionEnforcement"
    }

    fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        let Some(object) = object.filter(|_| matches!(review.operation, Operation::Create | Operation::Update)) else {
            return Ok(());
        };
        // The kubelet writes pod status but may not delete the pod.
        if review.is_part("", "pods", "status") {
            return Ok(());
        }
        let (new, old) = (references(Some(object)), references(review.old));
        if new == old {
            return Ok(());
        }
        let a = review.attributes;
        let name = if review.operation == Operation::Create { "" } else { review.name };
        if !review.may("delete", &a.group, &a.resource, &a.subresource, &a.namespace, name) {
            return Err(review.forbidden("cannot set an ownerRef on a resource you can't delete: , <nil>"));
        }
        for r in new.iter().filter(|r| blocks(r) && !old.iter().any(|o| blocks(o) && o["uid"] == r["uid"])) {
            may_block(review, r)?;
        }
        Ok(())
    }
}

fn blocks(r: &Value) -> bool {
    r["blockOwnerDeletion"] == true
}

/// `blockOwnerDeletion` requires permission to set finalizers of the owner.
fn may_block(review: &Review<'_>, r: &Value) -> Result<(), Status> {
    let text = |k: &str| r[k].as_str().unwrap_or_default();
    let cannot = "cannot set blockOwnerDeletion";
    let known =
        GroupVersion::parse(text("apiVersion")).and_then(|gv| review.lookup.resource(&gv.with_kind(text("kind"))));
    let Some((owner, namespaced)) = known else {
        return Err(review.forbidden(&format!(
            "{cannot} in this case because cannot find RESTMapping for APIVersion {} Kind {}",
            text("apiVersion"),
            text("kind")
        )));
    };
    let namespace = if namespaced { &*review.attributes.namespace } else { "" };
    if review.may("update", &owner.group, &owner.resource, "finalizers", namespace, text("name")) {
        return Ok(());
    }
    let why = format!("{cannot} if an ownerReference refers to a resource you can't set finalizers on: , <nil>");
    Err(review.forbidden(&why))
}
