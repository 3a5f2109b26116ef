//! The hook for admission in a write. The decision is made elsewhere.

use crate::strategy::Warnings;
use async_trait::async_trait;
use meta::{MutatedBy, Object, Operation, Status};
use store::Op;

/// Called once per attempt of a write; a retried update is admitted again, since its object differs.
#[async_trait]
pub trait Admit: Send + Sync {
    async fn mutate(
        &self,
        operation: Operation,
        object: &mut Object,
        old: Option<&Object>,
    ) -> Result<MutatedBy, Status>;

    /// Receives the warnings of the write for the client, also if it fails.
    fn warnings(&self) -> Option<&Warnings> {
        None
    }

    /// `object` is none for a deletion.
    async fn validate(&self, operation: Operation, object: Option<&Object>, old: Option<&Object>)
    -> Result<(), Status>;

    /// Operations to commit together with the object (the usage of a quota). Called again when a write conflicted.
    async fn charge(&self, _operation: Operation, _object: &Object, _old: Option<&Object>) -> Result<Charge, Status> {
        Ok(Charge::default())
    }
}

/// Operations that belong to a write.
#[derive(Default)]
pub struct Charge {
    pub ops: Vec<Op>,
    /// Serializes conflicting writes until this one is committed.
    pub turn: Option<Box<dyn Send + Sync>>,
}

/// Admits everything: for writes of the server itself before it serves requests.
pub struct AdmitAll;

#[async_trait]
impl Admit for AdmitAll {
    async fn mutate(&self, _: Operation, _: &mut Object, _: Option<&Object>) -> Result<MutatedBy, Status> {
        Ok(MutatedBy::Plugins)
    }

    async fn validate(&self, _: Operation, _: Option<&Object>, _: Option<&Object>) -> Result<(), Status> {
        Ok(())
    }
}
