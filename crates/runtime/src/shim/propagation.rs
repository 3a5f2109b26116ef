//! Volumes with `mountPropagation` of a pod with users of its own: what one container mounts in them is seen by the others of the pod, and
//! by nobody else.
//!
//! The mounts that the containers' are copies of lie in a mount namespace that holds nothing else. The shim keeps it; nobody is in it but
//! helpers for a moment, before they enter a container. It and its mounts go with the last of the pod's processes.

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

/// Makes the namespace. `place` is any directory. The caller has one thread, and is where it was afterwards.
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

/// Gives a copy of `tree` whose mounts are seen by all such copies of the same file or directory, and that sees theirs. `tree` is in no peer
/// group; it is what the copies are made of, if it is the first.
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
    // Other helpers may come with the same.
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
