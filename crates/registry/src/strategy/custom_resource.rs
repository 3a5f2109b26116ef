use super::Env;

/// Behaviour that only kinds of CustomResourceDefinitions have (`k8s.io/apiextensions-apiserver/pkg/apiserver`).
pub trait CustomResource: Send + Sync {
    /// Whether objects remain writable after the resource has left discovery.
    fn serves_more(&self) -> bool {
        false
    }

    /// Whether a stored CustomResourceDefinition defines this kind: its schema is [`Self::published`].
    fn is_custom(&self) -> bool {
        false
    }

    /// The schema in published OpenAPI, if the built-in description lacks it. Read on demand, to keep descriptions
    /// out of memory.
    fn published(&self, _env: Env<'_>) -> Option<meta::Value> {
        None
    }
}
