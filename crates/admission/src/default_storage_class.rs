//! DefaultStorageClass: sets the default class of claims without one.

use crate::{Lookup, Operation, Plugin, ReadScope, Review, WriteRequest};
use meta::{Object, Status};

pub struct DefaultStorageClass;

const IS_DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";
const BETA: &str = "volume.beta.kubernetes.io/storage-class";

impl Plugin for DefaultStorageClass {
    fn name(&self) -> &'static str {
        "DefaultStorageClass"
    }

    fn reads(&self, write: &WriteRequest<'_>, lookup: &dyn Lookup) -> usize {
        let claims = write.creates("", "persistentvolumeclaims");
        if claims { lookup.bytes("storage.k8s.io", "storageclasses", None, ReadScope::All) } else { 0 }
    }

    fn mutate(&self, review: &Review<'_>, object: &mut Object) -> Result<(), Status> {
        let applies = review.is("", "persistentvolumeclaims") && review.operation == Operation::Create;
        let has_class = object.at(&["spec", "storageClassName"]).is_some() || object.annotation(BETA).is_some();
        if !applies || has_class {
            return Ok(());
        }
        let classes = review.lookup.list("storage.k8s.io", "storageclasses", None);
        let is_default = |c: &Object| c.annotation(IS_DEFAULT) == Some("true");
        let defaults = classes.filter(|c| c.as_ref().map_or(true, is_default)).collect::<Result<Vec<_>, _>>()?;
        // The newest, then the first by name.
        let newest =
            |a: &Object, b: &Object| b.creation_timestamp().cmp(a.creation_timestamp()).then(a.name().cmp(b.name()));
        if let Some(c) = defaults.into_iter().min_by(newest) {
            object.set(&["spec", "storageClassName"], c.name());
        }
        Ok(())
    }
}
