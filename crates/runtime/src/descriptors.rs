//! Descriptors that a program inherits: its three streams, and nothing else.
//!
//! **Invariant.** No descriptor is inherited by accident. The server marks what its parent left open, and the shim first closes
//! everything but its socket. The helper of a start closes what it does not need before it enters a namespace of the container, and
//! all but the streams, the report and the gate before it creates the child.

use std::io;
use std::os::fd::RawFd;

const FIRST: libc::c_uint = 3;
const CLOSE_ON_EXEC: libc::c_uint = 4; // CLOSE_RANGE_CLOEXEC

fn range(first: libc::c_uint, last: libc::c_uint, flags: libc::c_uint) -> io::Result<()> {
    if first > last {
        return Ok(());
    }
    // SAFETY: takes numbers only. With CLOSE_ON_EXEC nothing is closed now; callers without it own no descriptor in the range
    // that they use again (see `close_all_but`).
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Marks every descriptor above standard error close-on-exec.
pub fn close_on_exec() -> io::Result<()> {
    range(FIRST, libc::c_uint::MAX, CLOSE_ON_EXEC)
}

/// Closes every descriptor above standard error but those in `keep`. Only for a process that uses no other descriptor afterwards,
/// although it may still have values that own one: the shim when it starts, and its forked children.
pub(crate) fn close_all_but(keep: &[RawFd]) -> io::Result<()> {
    let mut keep: Vec<libc::c_uint> = keep.iter().filter_map(|fd| libc::c_uint::try_from(*fd).ok()).collect();
    keep.retain(|fd| *fd >= FIRST);
    keep.sort_unstable();
    let mut first = FIRST;
    for fd in keep {
        if fd > first {
            range(first, fd - 1, 0)?;
        }
        first = first.max(fd + 1);
    }
    range(first, libc::c_uint::MAX, 0)
}
