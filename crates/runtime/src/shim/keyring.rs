//! The session keyring of a process of a container: empty, and not shared.
//!
//! The session keyring that shims inherit from the agent may have keys. So a new one is created for every process. It counts against
//! the quota of the real user: root, for pods with the host's users. Every container of root without a system call filter can fill
//! that quota. (The kernel counts it for processes that have a session keyring; the first one of a session is free.) **Invariant.**
//! No process of a container starts with an inherited keyring, or depends on a quota that others can fill: if root's is full, the
//! keyring is created by a random user that nothing else uses, so its quota cannot be full.

use std::io;

use crate::sys;

/// Range of random users; each has a quota of 200 keys.
const FIRST_USER: u32 = 1 << 31;
/// Tries with random users. An attacker may have filled the quotas of some.
const MAX_DRAWS: usize = 8;

/// The real user of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RealUser {
    /// Root of the host, as which every container may run.
    Host,
    /// Root of the pod's own user namespace: its quota is the pod's.
    Pod,
}

/// Replaces the inherited session keyring by a new one. Does nothing on a kernel without keys. The process is root and has one
/// thread.
pub fn leave_session(user: RealUser) -> io::Result<()> {
    let mut made = sys::new_session_keyring();
    for _ in 0..MAX_DRAWS {
        match &made {
            Err(e) if full(e) && user == RealUser::Host => made = as_drawn_user(),
            _ => break,
        }
    }
    made
}

fn full(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EDQUOT)
}

fn as_drawn_user() -> io::Result<()> {
    let mut drawn = [0; 4];
    sys::random(&mut drawn)?;
    // The two last ids have special meanings.
    let user = (FIRST_USER | u32::from_ne_bytes(drawn)).min(u32::MAX - 2);
    // The effective user, and with it every privilege, stays root.
    sys::set_real_user(user)?;
    let made = sys::new_session_keyring();
    sys::set_real_user(0)?;
    made
}
