//! The limit of open files: the server uses all it may, its containers get what the process began with.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::sync::OnceLock;

/// The soft limit this process began with, once it was raised.
static BEFORE: OnceLock<u64> = OnceLock::new();

/// Raises the soft limit of this process to its hard limit, and returns it.
pub fn raise() -> nix::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    BEFORE.get_or_init(|| soft);
    Ok(hard)
}

/// What a shim is to set for itself and its containers.
pub(crate) fn before() -> Option<u64> {
    BEFORE.get().copied()
}

/// Sets the soft limit of this process.
pub(crate) fn lower(soft: u64) -> nix::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, soft.min(hard), hard)
}
