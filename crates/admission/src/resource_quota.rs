//! Nobody takes more of a namespace than its quotas allow. Usage is charged in the transaction that writes the object, so that it is
//! exact; what objects leave behind is found by the controller.

use crate::quota::{self, Quota};
use crate::{Operation, Plugin, Review};
use meta::{Object, Status};

pub struct ResourceQuota;

impl Plugin for ResourceQuota {
    fn name(&self) -> &'static str {
        "ResourceQuota"
    }

    fn charge(&self, review: &Review<'_>, object: &Object) -> Result<Vec<Object>, Status> {
        if !handles(review) {
            return Ok(Vec::new());
        }
        let (group, resource) = (review.attributes.group.as_str(), review.attributes.resource.as_str());
        let mut changed = Vec::new();
        for mut stored in review.lookup.list("", "resourcequotas", Some(review.namespace)) {
            let quota = Quota::of(&stored);
            let used = quota.charge(group, resource, object, review.old).map_err(|why| review.forbidden(&why))?;
            if let Some(used) = used {
                stored.set(&["status", "used"], quota::to_value(&used));
                changed.push(stored);
            } else if quota.is_uncounted(group, resource) {
                // Written as it is: what the controller is counting right now would lack this object.
                changed.push(stored);
            }
        }
        Ok(changed)
    }
}

/// Writes that may take more than before.
fn handles(review: &Review<'_>) -> bool {
    if review.namespace.is_empty() || review.attributes.resource == "namespaces" {
        return false;
    }
    let core = review.attributes.group.is_empty();
    match (review.operation, review.attributes.resource.as_str(), review.subresource) {
        (Operation::Create, _, "") => true,
        (Operation::Update, "services", "") => core,
        (Operation::Update, "persistentvolumeclaims", "" | "status") => core,
        (Operation::Update, "pods", "resize") => core,
        _ => false,
    }
}
