//! NamespaceAutoProvision: creates the missing namespace of a created object (upstream
//! `plugin/pkg/admission/namespace/autoprovision`).

use crate::plugin::{Reinvocation, Remote};
use crate::{Operation, Review};
use async_trait::async_trait;
use meta::status::Reason;
use meta::{Object, Status};

pub struct NamespaceAutoProvision;

#[async_trait]
impl Remote for NamespaceAutoProvision {
    fn name(&self) -> &'static str {
        "NamespaceAutoProvision"
    }

    fn applies(&self, review: &Review<'_>) -> bool {
        review.operation == Operation::Create
            && !review.dry_run
            && !review.namespace.is_empty()
            && (review.kind.group.as_str(), review.kind.kind.as_str()) != ("", "Namespace")
            && matches!(review.lookup.is_terminating(review.namespace), Ok(None))
    }

    async fn mutate(
        &self,
        review: &Review<'_>,
        _object: &mut Object,
        _rounds: &mut Reinvocation,
    ) -> Result<(), Status> {
        match review.host.create_namespace(review.namespace).await {
            Err(s) if s.is(Reason::Forbidden) => Err(s),
            // Another request created it first.
            Err(s) if !s.is(Reason::AlreadyExists) => Err(review.forbidden(&s.message)),
            _ => Ok(()),
        }
    }
}
