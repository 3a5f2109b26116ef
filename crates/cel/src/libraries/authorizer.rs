//! The values of authorization checks: an expression builds a check part by part, then runs it.

pub(crate) const AUTHORIZER: &str = "kubernetes.authorization.Authorizer";
pub(crate) const PATH: &str = "kubernetes.authorization.PathCheck";
pub(crate) const GROUP: &str = "kubernetes.authorization.GroupCheck";
pub(crate) const RESOURCE: &str = "kubernetes.authorization.ResourceCheck";
pub(crate) const DECISION: &str = "kubernetes.authorization.Decision";

/// Decides authorization checks.
pub trait Authorizer {
    /// Decides a check.
    fn decide(&self, question: &Question) -> Decision;
}

/// An authorization check, as far as it was built.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// Namespace and name of a service account. None for the user of the request.
    pub service_account: Option<(String, String)>,
    /// The path of a non-resource check.
    pub path: Option<String>,
    /// The API group of the resource.
    pub group: String,
    /// The resource.
    pub resource: String,
    /// The subresource; empty for none.
    pub subresource: String,
    /// The namespace; empty for all, or for cluster-scoped resources.
    pub namespace: String,
    /// The name of the object; empty for all.
    pub name: String,
    /// The field selector; empty for none.
    pub field_selector: String,
    /// The label selector; empty for none.
    pub label_selector: String,
    /// The verb.
    pub verb: String,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request is allowed.
    pub allowed: bool,
    /// The reason; may be empty.
    pub reason: String,
    /// The error, if the check could not be decided.
    pub error: Option<String>,
}

/// A check while an expression builds it.
#[derive(Clone)]
pub struct Request<'a> {
    pub(crate) authorizer: &'a dyn Authorizer,
    pub(crate) stage: Stage,
    pub(crate) question: Question,
}

/// The part that was added last.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Start,
    Path,
    Group,
    Resource,
}

impl<'a> Request<'a> {
    /// The value of the variable `authorizer`.
    pub fn new(authorizer: &'a dyn Authorizer) -> Self {
        Self { authorizer, stage: Stage::Start, question: Question::default() }
    }

    /// The value of a check that has its resource (`authorizer.requestResource`).
    pub fn for_resource(authorizer: &'a dyn Authorizer, question: Question) -> Self {
        Self { authorizer, stage: Stage::Resource, question }
    }

    /// The name of its CEL type.
    pub fn type_name(&self) -> &'static str {
        match self.stage {
            Stage::Start => AUTHORIZER,
            Stage::Path => PATH,
            Stage::Group => GROUP,
            Stage::Resource => RESOURCE,
        }
    }
}
