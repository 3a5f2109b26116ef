//! The session keyring of a process of a container: empty, and no other's.
//!
//! Whoever started the agent may have left keys in the session keyring that shims inherit. A new one is made for every process, and
//! counts as its real user's: root's, for pods with the host's users. Each container of root without a system call filter can fill
//! that quota. (The kernel counts it for who has a session keyring already; the first one of a session is free.) **Invariant.** No
//! process of a container begins with an inherited keyring, and none needs the quota that others can fill: where root's is full, the
//! keyring is made as a user whom nobody has, drawn for this one keyring, so that its quota cannot be filled before.

use std::io;

use crate::sys;

/// Real users to draw; each has a quota of 200 keys.
const FIRST_USER: u32 = 1 << 31;
/// Draws of a user whose quota is full. An attacker may have met some of them.
const MOST_DRAWS: usize = 8;

/// Who the real user of a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RealUser {
    /// Root of the host, as which every container may run.
    Host,
    /// Root of the pod's own user namespace: its quota is the pod's.
    Pod,
}

/// Leaves the session keyring that this process inherited, for a new one. Fine on a kernel without keys. The process is root and has
/// one thread.
pub fn leave_session(user: RealUser) -> io::Result<()> {
    let mut made = sys::new_session_keyring();
    for _ in 0..MOST_DRAWS {
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
    // The two last ids mean something else to the kernel, or to others.
    let user = (FIRST_USER | u32::from_ne_bytes(drawn)).min(u32::MAX - 2);
    // The effective user, and with it every privilege, stays root.
    sys::set_real_user(user)?;
    let made = sys::new_session_keyring();
    sys::set_real_user(0)?;
    made
}
