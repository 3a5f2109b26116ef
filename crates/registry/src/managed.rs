//! `managedFields` of every write.

use crate::Registry;
use crate::strategy::Request;
use meta::Object;

pub fn on_create(_registry: &Registry, _request: &Request, object: &mut Object, _manager: &str) {
    object.metadata_mut().remove("managedFields");
}

pub fn on_update(_registry: &Registry, _request: &Request, new: &mut Object, old: &Object, _manager: &str) {
    match old.at(&["metadata", "managedFields"]).cloned() {
        Some(m) => new.set(&["metadata", "managedFields"], m),
        None => {
            new.remove(&["metadata", "managedFields"]);
        }
    }
}

/// Nothing but the times in `managedFields` differs.
pub fn same(new: &Object, old: &Object) -> bool {
    new == old
}
