//! The limit of open files: the server uses its hard limit, and containers get the limit with which the process started.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::sync::OnceLock;

/// The soft limit with which this process started, once it was raised.
static BEFORE: OnceLock<u64> = OnceLock::new();

/// Raises the soft limit of this process to its hard limit, and returns it.
pub fn raise() -> nix::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    BEFORE.get_or_init(|| soft);
    Ok(hard)
}

/// The soft limit that a shim sets for itself and its containers.
pub(crate) fn before() -> Option<u64> {
    BEFORE.get().copied()
}

/// Sets the soft limit of this process.
pub(crate) fn lower(soft: u64) -> nix::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, soft.min(hard), hard)
}
