//! PersistentVolumeClaimResize: a claim may grow only if it is bound and its class allows volume expansion.

use crate::{Operation, Plugin, Review};
use meta::{Object, Quantity, Status};

pub struct PersistentVolumeClaimResize;

impl Plugin for PersistentVolumeClaimResize {
    fn name(&self) -> &'static str {
        "PersistentVolumeClaimResize"
    }

    fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        let update = review.is("", "persistentvolumeclaims") && review.operation == Operation::Update;
        let (Some(new), Some(old)) = (object.filter(|_| update), review.old) else { return Ok(()) };
        let size = |o: &Object| {
            let q = o.str_at(&["spec", "resources", "requests", "storage"]);
            q.and_then(|q| Quantity::parse(q).ok()).unwrap_or(Quantity::from_int(0))
        };
        if size(new) <= size(old) {
            return Ok(());
        }
        if old.str_at(&["status", "phase"]) != Some("Bound") {
            return Err(review.forbidden("Only bound persistent volume claims can be expanded"));
        }
        let grows = match (class(new), class(old)) {
            (Some(n), Some(o)) if n == o => {
                let class = review.lookup.get("storage.k8s.io", "storageclasses", "", n)?;
                class.is_some_and(|c| c.get("allowVolumeExpansion").is_some_and(|a| a == true))
            }
            _ => false,
        };
        if grows {
            return Ok(());
        }
        let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
        Err(review.forbidden(why))
    }
}

fn class(o: &Object) -> Option<&str> {
    let beta = o.annotation("volume.beta.kubernetes.io/storage-class");
    beta.or_else(|| o.str_at(&["spec", "storageClassName"])).filter(|c| !c.is_empty())
}
