//! The place of admission in a write. What is admitted is decided elsewhere.

use async_trait::async_trait;
use meta::{MutatedBy, Object, Operation, Status};
use store::Op;

/// Called once per attempt of a write; a retried update is admitted again, since its object is another.
#[async_trait]
pub trait Admit: Send + Sync {
    async fn mutate(
        &self,
        operation: Operation,
        object: &mut Object,
        old: Option<&Object>,
    ) -> Result<MutatedBy, Status>;

    /// `object` is none for a deletion.
    async fn validate(&self, operation: Operation, object: Option<&Object>, old: Option<&Object>)
    -> Result<(), Status>;

    /// What must be written together with the object (the usage of a quota). Asked again when a write lost a race.
    async fn charge(&self, _operation: Operation, _object: &Object, _old: Option<&Object>) -> Result<Charge, Status> {
        Ok(Charge::default())
    }
}

/// Writes that go with a write.
#[derive(Default)]
pub struct Charge {
    pub ops: Vec<Op>,
    /// Holds others back until this write is through: they would lose the race anyway.
    pub turn: Option<Box<dyn Send + Sync>>,
}

/// Admits everything: for writes of the server itself before anyone can ask.
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
