use super::Env;

/// Estimates of the work for a request, which decide where it is handled. Upstream has no counterpart.
pub trait CostEstimator: Send + Sync {
    /// Estimates how many bytes of other stored objects a write or subresource request decodes, besides the named
    /// object. Called before the body is read, to choose the threads for the request. Decodes nothing.
    fn reads(&self, _env: Env<'_>, _subresource: &str, _namespace: &str, _name: &str) -> usize {
        0
    }

    /// The object size from which writes may be slow beyond what the size suggests: their content is compiled
    /// (patterns, expressions), or expensive rules are evaluated.
    fn slow_from(&self) -> Option<usize> {
        None
    }

    /// Bytes that defaults may add to each object on reads.
    fn adds_defaults(&self) -> usize {
        0
    }
}
