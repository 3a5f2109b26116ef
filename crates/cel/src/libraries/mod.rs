//! Types of values that Kubernetes' CEL libraries add. Their functions are in [`crate::functions`].

pub mod authorizer;
pub mod format;
pub mod net;
pub mod semver;
pub mod url;
