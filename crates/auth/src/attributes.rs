//! The attributes of a request, and the decision of authorization.

use crate::User;
use async_trait::async_trait;
use meta::{FieldSelector, LabelSelector};

/// A request as seen by authorization and admission.
#[derive(Clone, Debug, Default)]
pub struct Attributes {
    /// The user.
    pub user: User,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, or an HTTP method in lower case.
    pub verb: String,
    /// The API group; empty for the core group.
    pub group: String,
    /// The version of the API.
    pub version: String,
    /// Empty for a non-resource request.
    pub resource: String,
    /// The subresource; empty for none.
    pub subresource: String,
    /// The namespace; empty for cluster-scoped resources.
    pub namespace: String,
    /// The name of the object; empty for none.
    pub name: String,
    /// The path of a non-resource request.
    pub path: String,
    /// The selectors of a list, watch or collection deletion, as far as they can be parsed.
    pub fields: Option<FieldSelector>,
    /// The label selector of the request, if it has one.
    pub labels: Option<LabelSelector>,
}

/// The decision of an authorizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// With the reason, for auditing.
    Allow(String),
    /// Denied; no other authorizer is called.
    Deny(String),
    /// Neither allowed nor denied, with the reason: the next authorizer is called.
    NoOpinion(String),
}

impl Decision {
    /// Whether the request is allowed.
    pub fn allowed(&self) -> bool {
        matches!(self, Self::Allow(_))
    }
}

/// Decides whether requests are allowed.
#[async_trait]
pub trait Authorizer: Send + Sync {
    /// Decides synchronously. An authorizer that calls a webhook blocks the thread.
    fn authorize(&self, a: &Attributes) -> Decision;

    /// Decides asynchronously.
    async fn decide(&self, a: &Attributes) -> Decision {
        self.authorize(a)
    }

    /// The rules of a user in a namespace, as far as they can be listed.
    fn rules(&self, _user: &User, _namespace: &str) -> Vec<crate::rbac::PolicyRule> {
        Vec::new()
    }

    /// Why the user may have more permissions than the rules list.
    fn unlisted(&self, _user: &User) -> Vec<&'static str> {
        Vec::new()
    }
}
