//! The place of admission in a write. What is admitted is decided elsewhere.

use async_trait::async_trait;
use meta::{Object, Status};

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
    async fn mutate(&self, operation: Operation, object: &mut Object, old: Option<&Object>) -> Result<(), Status>;

    /// `object` is none for a deletion.
    async fn validate(&self, operation: Operation, object: Option<&Object>, old: Option<&Object>)
    -> Result<(), Status>;
}

/// Admits everything: for writes of the server itself before anyone can ask.
pub struct AdmitAll;

#[async_trait]
impl Admit for AdmitAll {
    async fn mutate(&self, _: Operation, _: &mut Object, _: Option<&Object>) -> Result<(), Status> {
        Ok(())
    }

    async fn validate(&self, _: Operation, _: Option<&Object>, _: Option<&Object>) -> Result<(), Status> {
        Ok(())
    }
}
