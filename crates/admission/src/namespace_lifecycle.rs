//! NamespaceLifecycle: rejects creates in missing or terminating namespaces, and deletion of the system namespaces.

use crate::{Operation, Plugin, Review};
use meta::status::{Cause, Details};
use meta::{GroupResource, Object, Status};

pub struct NamespaceLifecycle;

const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

impl Plugin for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        "NamespaceLifecycle"
    }

    fn validate(&self, review: &Review<'_>, _object: Option<&Object>) -> Result<(), Status> {
        if review.operation == Operation::Delete && review.is("", "namespaces") && IMMORTAL.contains(&review.name) {
            return Err(review.forbidden("this namespace may not be deleted"));
        }
        Ok(())
    }

    fn mutate(&self, review: &Review<'_>, _object: &mut Object) -> Result<(), Status> {
        let namespaced = !review.namespace.is_empty() && review.attributes.resource != "namespaces";
        if !namespaced || review.operation != Operation::Create {
            return Ok(());
        }
        // An access review does not need the namespace.
        if review.attributes.group == "authorization.k8s.io" {
            return Ok(());
        }
        let Some(terminating) = review.lookup.is_terminating(review.namespace)? else {
            let gr = GroupResource { group: String::new(), resource: "namespaces".into() };
            return Err(Status::not_found(&gr, review.namespace));
        };
        if terminating {
            let why = format!(
                "unable to create new content in namespace {} because it is being terminated",
                review.namespace
            );
            let mut s = review.forbidden(&why);
            let details = s.details.take().map(|d| *d).unwrap_or_default();
            let cause = Cause {
                reason: "NamespaceTerminating".into(),
                message: format!("namespace {} is being terminated", review.namespace),
                field: "metadata.namespace".into(),
            };
            return Err(s.with_details(Details { causes: vec![cause], ..details }));
        }
        Ok(())
    }
}
