//! Volumes with `mountPropagation` of a pod with users of its own: mounts of one container in them are visible to the others of the
//! pod only.
//!
//! The mounts of the containers are copies of those in a mount namespace of its own. The shim holds it; only helpers are in it for a
//! moment before they enter a container. It ends with the last of the pod's processes.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg, OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::{Mode, fstat};

use crate::api::FileKind;
use crate::beneath::{Directory, Leaf, Links};
use crate::sys;

const OWN: &str = "/proc/self/ns/mnt";

/// Creates the namespace. `place` is any directory. The caller must have one thread, and returns to its own namespace.
pub fn make(place: &Path) -> io::Result<OwnedFd> {
    let here = File::open(OWN)?;
    unshare(CloneFlags::CLONE_NEWNS)?;
    let made = make_here(place);
    setns(&here, CloneFlags::CLONE_NEWNS)?;
    made
}

fn make_here(place: &Path) -> io::Result<OwnedFd> {
    let made = File::open(OWN)?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("tmpfs"), place, Some("tmpfs"), flags, Some("mode=700,size=1m"))?;
    std::env::set_current_dir(place)?;
    sys::pivot_root_here()?;
    umount2(".", MntFlags::MNT_DETACH)?;
    Ok(made.into())
}

/// Returns a copy of `tree` that shares mounts with all such copies of the same file or directory. `tree` must be in no peer group;
/// the first one is the origin of the copies.
pub fn join(namespace: BorrowedFd, tree: BorrowedFd) -> io::Result<OwnedFd> {
    let here = File::open(OWN)?;
    setns(namespace, CloneFlags::CLONE_NEWNS)?;
    let joined = join_here(tree);
    setns(&here, CloneFlags::CLONE_NEWNS)?;
    joined
}

fn join_here(tree: BorrowedFd) -> io::Result<OwnedFd> {
    let stat = fstat(tree)?;
    let name = PathBuf::from(format!("{}-{}", stat.st_dev, stat.st_ino));
    let path = Path::new("/").join(&name);
    let root = Directory::open(Path::new("/"), Links::Refuse)?;
    // Other helpers may do the same at the same time.
    let _alone = Flock::lock(File::open("/")?, FlockArg::LockExclusive).map_err(|(_, e)| e)?;
    if !path.exists() {
        sys::mount_setattr(tree, 0, MsFlags::MS_SHARED.bits(), true)?;
        let is_directory = FileKind::from_mode(stat.st_mode) == FileKind::Directory;
        let leaf = if is_directory { Leaf::Directory } else { Leaf::File };
        let at = root.make(&name, leaf, Mode::from_bits_truncate(0o755))?;
        if let Err(e) = sys::move_mount(tree, at.as_fd()) {
            let _ = if is_directory { std::fs::remove_dir(&path) } else { std::fs::remove_file(&path) };
            return Err(e);
        }
    }
    let file = open(&path, OFlag::O_PATH | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW, Mode::empty())?;
    sys::clone_mount(file.as_fd(), true)
}
