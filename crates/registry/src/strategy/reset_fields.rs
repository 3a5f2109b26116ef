/// The fields that a write resets, for managed fields (`rest.ResetFieldsStrategy`).
pub trait ResetFieldsStrategy: Send + Sync {
    /// The fields that writes through this path reset and so never own. None selects the default: `status` for the
    /// object, everything but `status` for the status.
    fn resets(&self, _subresource: &str) -> Option<&'static [&'static [&'static str]]> {
        None
    }
}
