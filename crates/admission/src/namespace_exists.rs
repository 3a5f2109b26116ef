//! NamespaceExists: rejects requests in namespaces that do not exist.

use crate::{Operation, Plugin, Review};
use meta::{GroupResource, Object, Status};

pub struct NamespaceExists;

impl Plugin for NamespaceExists {
    fn name(&self) -> &'static str {
        "NamespaceExists"
    }

    fn validate(&self, review: &Review<'_>, _object: Option<&Object>) -> Result<(), Status> {
        let itself = review.attributes.group.is_empty() && review.attributes.resource == "namespaces";
        if review.namespace.is_empty() || itself || review.operation == Operation::Connect {
            return Ok(());
        }
        match review.lookup.is_terminating(review.namespace)? {
            Some(_) => Ok(()),
            None => {
                let namespaces = GroupResource { group: String::new(), resource: "namespaces".into() };
                Err(Status::not_found(&namespaces, review.namespace))
            }
        }
    }
}
