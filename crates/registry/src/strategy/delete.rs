use crate::options::DeleteOptions;
use meta::{Object, Status};

/// Graceful deletion (`rest.RESTGracefulDeleteStrategy`).
pub trait DeleteStrategy: Send + Sync {
    /// The grace period of a deletion; none for kinds that are deleted immediately.
    fn grace_period(&self, _object: &Object, _options: &DeleteOptions) -> Option<i64> {
        None
    }

    /// Whether an object may be deleted at all.
    fn validate_delete(&self, _object: &Object) -> Result<(), Status> {
        Ok(())
    }

    /// The warning for a deletion without a propagation policy.
    fn propagation_warning(&self) -> Option<&'static str> {
        None
    }

    /// Whether deletion must wait for more than metadata finalizers (a namespace's `spec.finalizers`).
    fn keeps_alive(&self, _object: &Object) -> bool {
        false
    }

    /// Whether upstream's storage of the kind starts the deletion itself, with preconditions of its own.
    fn deletes_in_phases(&self) -> bool {
        false
    }

    /// Updates an object when its deletion starts (a namespace's phase).
    fn begin_deletion(&self, _object: &mut Object) {}
}
