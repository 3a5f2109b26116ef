//! What a request asks for, and the answer of authorization.

use crate::User;
use async_trait::async_trait;
use meta::{FieldSelector, LabelSelector};

/// A request as authorization and admission see it.
#[derive(Clone, Debug, Default)]
pub struct Attributes {
    pub user: User,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, or an HTTP method in lower case.
    pub verb: String,
    pub group: String,
    pub version: String,
    /// Empty for a request that is not for a resource.
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    /// The path of a request that is not for a resource.
    pub path: String,
    /// What a list, watch or deletion of many is narrowed to, as far as it can be read.
    pub fields: Option<FieldSelector>,
    pub labels: Option<LabelSelector>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// With the reason, for auditing.
    Allow(String),
    /// Refused for good; no other authorizer is asked.
    Deny(String),
    NoOpinion(String),
}

impl Decision {
    pub fn allowed(&self) -> bool {
        matches!(self, Self::Allow(_))
    }
}

#[async_trait]
pub trait Authorizer: Send + Sync {
    /// For those who cannot wait. Whoever asks somebody outside holds the thread up meanwhile.
    fn authorize(&self, a: &Attributes) -> Decision;

    /// The same for those who can.
    async fn decide(&self, a: &Attributes) -> Decision {
        self.authorize(a)
    }

    /// The rules that hold for a user in a namespace, as far as they can be listed.
    fn rules(&self, _user: &User, _namespace: &str) -> Vec<crate::rbac::PolicyRule> {
        Vec::new()
    }

    /// Why more may be allowed to a user than the rules say.
    fn unlisted(&self, _user: &User) -> Vec<&'static str> {
        Vec::new()
    }
}
