//! The place of admission in a write. What is admitted is decided elsewhere.

use async_trait::async_trait;
use meta::{Object, Status};
use store::Op;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

/// Called once per attempt of a write; a retried update is admitted again, since its object is another.
#[async_trait]
pub trait Admit: Send + Sync {
    async fn mutate(&self, operation: Operation, object: &mut Object, old: Option<&Object>) -> Result<Mutated, Status>;

    /// `object` is none for a deletion.
    async fn validate(&self, operation: Operation, object: Option<&Object>, old: Option<&Object>)
    -> Result<(), Status>;

    /// What must be written together with the object (the usage of a quota). Asked again when a write lost a race.
    async fn charge(&self, _operation: Operation, _object: &Object, _old: Option<&Object>) -> Result<Charge, Status> {
        Ok(Charge::default())
    }
}

/// Who changed an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutated {
    /// At most the server itself.
    Inside,
    /// Somebody who may have changed anything, also what only the server changes.
    Outside,
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
    async fn mutate(&self, _: Operation, _: &mut Object, _: Option<&Object>) -> Result<Mutated, Status> {
        Ok(Mutated::Inside)
    }

    async fn validate(&self, _: Operation, _: Option<&Object>, _: Option<&Object>) -> Result<(), Status> {
        Ok(())
    }
}
