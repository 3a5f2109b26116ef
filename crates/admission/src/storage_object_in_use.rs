//! StorageObjectInUseProtection: adds the protection finalizer to volumes and claims.

use crate::{Operation, Plugin, Review};
use meta::{Object, Status};

pub struct StorageObjectInUseProtection;

impl Plugin for StorageObjectInUseProtection {
    fn name(&self) -> &'static str {
        "StorageObjectInUseProtection"
    }

    fn mutate(&self, review: &Review<'_>, object: &mut Object) -> Result<(), Status> {
        if review.operation != Operation::Create {
            return Ok(());
        }
        let finalizer = if review.is("", "persistentvolumes") {
            "kubernetes.io/pv-protection"
        } else if review.is("", "persistentvolumeclaims") {
            "kubernetes.io/pvc-protection"
        } else if review.is("storage.k8s.io", "volumeattributesclasses") {
            "kubernetes.io/vac-protection"
        } else {
            return Ok(());
        };
        let mut all: Vec<String> = object.finalizers().map(str::to_owned).collect();
        if !all.iter().any(|f| f == finalizer) {
            all.push(finalizer.into());
            object.set_finalizers(all);
        }
        Ok(())
    }
}
