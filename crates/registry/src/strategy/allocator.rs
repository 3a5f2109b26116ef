use super::Env;
use meta::{Object, Status};
use store::Op;

/// Resources that are allocated in the transaction of an object, such as addresses and ports of services
/// (`BeginCreate` and `BeginUpdate` of `registry.Store`).
pub trait Allocator: Send + Sync {
    /// Whether [`Self::allocate`] changes objects.
    fn allocates(&self) -> bool {
        false
    }

    /// Operations to commit with a new or changed object (an allocated address); not called for subresources. Called
    /// before preparation and validation, and again after a conflict.
    fn allocate(&self, _env: Env<'_>, _object: &mut Object, _old: Option<&Object>) -> Result<Vec<Op>, Status> {
        Ok(Vec::new())
    }

    /// Operations to commit with the removal of an object.
    fn release(&self, _env: Env<'_>, _object: &Object) -> Vec<Op> {
        Vec::new()
    }
}
