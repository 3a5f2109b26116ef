//! User namespaces of pods: their root is an unprivileged user of the host.
//!
//! **Invariant.** A pod's user namespace owns its network, IPC, UTS, mount, cgroup and pid namespaces, so the pod's root has
//! privileges in them only. It is created together with the network namespace, which is bound to a file and keeps it; the kernel
//! returns the owner of the network namespace.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use nix::fcntl::{OFlag, open};
use nix::sched::{CloneFlags, setns};
use nix::sys::stat::Mode;
use nix::sys::wait::waitpid;
use nix::unistd::{Gid, Pid, Uid, setgroups, setresgid, setresuid};

use crate::api::IdRange;
use crate::sys;

/// Creates a network namespace that belongs to a new user namespace, whose ids from 0 on are those of `range` on the host. Both
/// exist as long as the descriptor, or a file to which it is bound. The process may have threads. Blocks.
pub fn network(range: IdRange) -> io::Result<OwnedFd> {
    Holder::start(range, libc::CLONE_NEWNET)?.open("net")
}

/// A process that only waits in new namespaces.
struct Holder(i32);

impl Holder {
    fn start(range: IdRange, namespaces: libc::c_int) -> io::Result<Holder> {
        let flags = (libc::CLONE_NEWUSER | namespaces | libc::SIGCHLD) as libc::c_ulong;
        // SAFETY: a clone without CLONE_VM behaves like fork, and other threads may hold any lock at that moment: the child
        // makes system calls only, which take no lock, until it is killed.
        let pid = unsafe {
            let pid = libc::syscall(libc::SYS_clone, flags, 0usize, 0usize, 0usize, 0usize);
            if pid == 0 {
                libc::syscall(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
                loop {
                    libc::syscall(libc::SYS_ppoll, 0usize, 0usize, 0usize, 0usize, 0usize);
                }
            }
            pid
        };
        if pid < 0 {
            return Err(io::Error::last_os_error());
        }
        let holder = Holder(pid as i32);
        for file in ["uid_map", "gid_map"] {
            std::fs::write(holder.path(file), line(range))?;
        }
        Ok(holder)
    }

    fn path(&self, file: &str) -> String {
        format!("/proc/{}/{file}", self.0)
    }

    fn open(&self, namespace: &str) -> io::Result<OwnedFd> {
        Ok(std::fs::File::open(self.path(&format!("ns/{namespace}")))?.into())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = sys::kill(self.0, libc::SIGKILL);
        let _ = waitpid(Pid::from_raw(self.0), None);
    }
}

fn line(range: IdRange) -> String {
    format!("0 {} {}\n", range.first, range.length)
}

/// The user namespace that another namespace belongs to.
pub(crate) fn owner(namespace: BorrowedFd) -> io::Result<OwnedFd> {
    const NS_GET_USERNS: libc::c_ulong = 0xb701;
    // SAFETY: takes no argument; the result is a descriptor that the kernel has just made for us (close-on-exec).
    unsafe {
        match libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS) {
            fd if fd < 0 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// Becomes the root of a user namespace, without privileges elsewhere. The process must have one thread.
pub(crate) fn enter(users: BorrowedFd) -> io::Result<()> {
    setns(users, CloneFlags::CLONE_NEWUSER)?;
    setgroups(&[])?;
    setresgid(Gid::from_raw(0), Gid::from_raw(0), Gid::from_raw(0))?;
    setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0))?;
    // Changed by the change of user, to what the host's `fs.suid_dumpable` says.
    sys::prctl(libc::PR_SET_DUMPABLE, 0)
}

/// Whether the calling process is in a user namespace with exactly these ids.
pub(crate) fn check(range: IdRange) -> Result<(), String> {
    for file in ["uid_map", "gid_map"] {
        let path = format!("/proc/self/{file}");
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
        let found: Vec<&str> = text.split_ascii_whitespace().collect();
        if found != line(range).split_ascii_whitespace().collect::<Vec<_>>() {
            return Err(format!("the user namespace has other ids than the pod: {}", found.join(" ")));
        }
    }
    Ok(())
}

/// Errors with the reason if this host does not support user namespaces for pods, or cannot map users of files in `directories`.
pub(crate) fn probe(directories: &[&Path]) -> Result<(), String> {
    let range = IdRange { first: 65536, length: 65536 };
    let network = network(range).map_err(|e| format!("none can be made: {e}"))?;
    let users = owner(network.as_fd()).map_err(|e| format!("the owner of a network namespace: {e}"))?;
    for path in directories {
        let fail = |e: io::Error| format!("{} cannot be mounted with other users: {e}", path.display());
        let file = open(*path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).map_err(|e| fail(e.into()))?;
        let tree = sys::clone_mount(file.as_fd(), false).map_err(fail)?;
        sys::map_users(tree.as_fd(), users.as_fd()).map_err(fail)?;
    }
    let fail = |e: io::Error| format!("file systems in memory cannot be mounted with other users: {e}");
    let tmpfs = sys::detached_mount(c"tmpfs", 0).map_err(fail)?;
    sys::map_users(tmpfs.as_fd(), users.as_fd()).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_namespace_belongs_to_the_user_namespace_it_was_made_with() {
        let range = IdRange { first: 65536 * 7, length: 65536 };
        let network = network(range).unwrap();
        let users = owner(network.as_fd()).unwrap();
        let own = std::fs::read_link("/proc/self/ns/user").unwrap();
        let made = std::fs::read_link(format!("/proc/self/fd/{}", users.as_raw_fd())).unwrap();
        assert!(made.to_string_lossy().starts_with("user:[") && made != own, "{made:?}");
        let flags = nix::fcntl::fcntl(&users, nix::fcntl::FcntlArg::F_GETFD).unwrap();
        assert_eq!(flags, libc::FD_CLOEXEC);
    }
}
