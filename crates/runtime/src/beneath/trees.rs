//! Walks trees in which a container may write: with one descriptor at a time, whatever their depth, and never through a link or a
//! mount.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, OpenHow, ResolveFlag, open, openat, openat2};
use nix::sys::stat::{FchmodatFlags, FileStat, Mode, SFlag, fchmodat, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, fchownat, unlinkat};

use super::{MAX_EXCHANGES, exchanged};
use crate::sys;

/// A file system object by device and number.
fn identity(stat: &FileStat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Maximum number of subdirectories remembered per directory.
const PENDING: usize = 1024;

/// A walk through a tree that its owner may change meanwhile. One descriptor is open at a time, so depth costs memory only; on the
/// way up the parent must be the same directory as on the way down.
struct Walk {
    at: OwnedFd,
    identity: (u64, u64),
    above: Vec<Above>,
}

struct Above {
    identity: (u64, u64),
    /// The directories of the current path.
    name: OsString,
    /// The remaining subdirectories that were found.
    pending: Vec<OsString>,
}

impl Walk {
    fn start(root: OwnedFd) -> io::Result<Self> {
        let identity = identity(&fstat(&root)?);
        Ok(Self { at: root, identity, above: Vec::new() })
    }

    /// The names of at most `most` subdirectories of the current directory. Calls `visit` with every entry before the last of them,
    /// and whether it is a directory.
    fn entries(
        &self,
        most: usize,
        visit: &mut dyn FnMut(BorrowedFd, &OsStr, bool) -> nix::Result<()>,
    ) -> io::Result<Vec<OsString>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut found = Vec::new();
        for entry in Dir::openat(&self.at, ".", flags, Mode::empty())?.iter() {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let directory = match entry.file_type() {
                Some(kind) => kind == Type::Directory,
                None => match fstatat(&self.at, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
                    Ok(stat) => SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR,
                    Err(Errno::ENOENT) => continue,
                    Err(e) => return Err(e.into()),
                },
            };
            visit(self.at.as_fd(), name, directory)?;
            if directory {
                found.push(name.to_owned());
                if found.len() == most {
                    break;
                }
            }
        }
        Ok(found)
    }

    /// Enters a subdirectory and remembers its siblings. `EXDEV` if it is a mount point; an error changes nothing.
    fn down(&mut self, name: OsString, pending: &mut Vec<OsString>) -> io::Result<()> {
        let how = OpenHow::new()
            .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV);
        let below = openat2(&self.at, name.as_os_str(), how)?;
        let of_below = identity(&fstat(&below)?);
        self.at = below;
        let above = std::mem::replace(&mut self.identity, of_below);
        self.above.push(Above { identity: above, name, pending: std::mem::take(pending) });
        Ok(())
    }

    /// Enters the next directory of the tree: one of those `below`, or a sibling found on the way down. Returns `false` after the
    /// last.
    fn next(&mut self, below: Vec<OsString>) -> io::Result<bool> {
        let mut pending = below;
        loop {
            if let Some(next) = pending.pop() {
                // Else it is gone, or a mount point: try its sibling.
                if self.down(next, &mut pending).is_ok() {
                    return Ok(true);
                }
            } else {
                match self.up()? {
                    Some(above) => pending = above.pending,
                    None => return Ok(false),
                }
            }
        }
    }

    /// Returns to the parent. `None` at the root.
    fn up(&mut self) -> io::Result<Option<Above>> {
        let Some(above) = self.above.pop() else { return Ok(None) };
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let parent = openat(&self.at, "..", flags, Mode::empty())?;
        if identity(&fstat(&parent)?) != above.identity {
            return Err(io::Error::other("a directory was moved while it was walked through"));
        }
        self.at = parent;
        self.identity = above.identity;
        Ok(Some(above))
    }
}

/// Lets a group read and write a directory and everything in it, as kubelet does for `fsGroup`: files get mode `g+rw`, directories
/// `g+rwx` and set-group-ID. Links keep their mode and lead nowhere. The directory itself comes last, so that its group shows that the
/// rest is done. What is removed meanwhile is skipped.
pub fn give_to_group(path: &Path, group: u32) -> io::Result<()> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let root = open(path, flags, Mode::empty())?;
    let mut walk = Walk::start(root.try_clone()?)?;
    loop {
        let below = walk.entries(usize::MAX, &mut |at, name, _| give_entry(at, name, group))?;
        if !walk.next(below)? {
            break;
        }
    }
    Ok(give(root.as_fd(), group)?)
}

fn give_entry(parent: BorrowedFd, name: &OsStr, group: u32) -> nix::Result<()> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_XDEV | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    match openat2(parent, name, how) {
        Ok(entry) => give(entry.as_fd(), group),
        // It is gone, or a mount point.
        Err(Errno::ENOENT | Errno::EXDEV) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Changes the file that was opened, whatever has its name now.
fn give(file: BorrowedFd, group: u32) -> nix::Result<()> {
    let stat = fstat(file)?;
    let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
    fchownat(file, "", None, Some(group.into()), AtFlags::AT_EMPTY_PATH)?;
    let more = match kind {
        SFlag::S_IFDIR => 0o2770,
        SFlag::S_IFLNK => return Ok(()),
        _ => 0o660,
    };
    let mode = Mode::from_bits_truncate((stat.st_mode & 0o7777) | more);
    // A descriptor of `O_PATH` cannot be given to fchmod; this link leads to the opened file.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    fchmodat(AT_FDCWD, path.as_str(), mode, FchmodatFlags::FollowSymlink)
}

/// Removes a directory and everything in it, also immutable files. Does nothing if it does not exist, and others may remove the same
/// tree meanwhile. A mount point below is an error (`EXDEV`), and the mounted files stay.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    remove(path, Files::Removed)
}

/// Like [`remove_tree`], for a file system whose files vanish with their directories (control groups).
pub fn remove_directories(path: &Path) -> io::Result<()> {
    remove(path, Files::Left)
}

fn remove(path: &Path, files: Files) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::EINVAL.into()) };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let parent = match open(parent, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()) {
        Err(Errno::ENOENT) => return Ok(()),
        parent => parent?,
    };
    remove_at(parent, name, files, usize::MAX)
}

/// Like [`remove_tree`], for an entry of an open directory.
pub fn remove_tree_at(parent: OwnedFd, name: &OsStr) -> io::Result<()> {
    remove_at(parent, name, Files::Removed, usize::MAX)
}

/// Removes the entry with this name of any kind, like [`remove_at`].
pub(super) fn remove_any(directory: &OwnedFd, name: &OsStr, most: usize) -> io::Result<()> {
    for _ in 0..MAX_EXCHANGES {
        match remove_entry(directory.as_fd(), name, UnlinkatFlags::NoRemoveDir, Parent::OfTree) {
            Err(Errno::EISDIR) => {}
            removed => return Ok(removed?),
        }
        match remove_at(directory.try_clone()?, name, Files::Removed, most) {
            // It is not a directory any more.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOTDIR | libc::ELOOP)) => {}
            removed => return removed,
        }
    }
    Err(exchanged())
}

/// Errors for more than `most` entries, so a process that fills the tree meanwhile cannot delay this for ever.
fn remove_at(parent: OwnedFd, name: &OsStr, files: Files, most: usize) -> io::Result<()> {
    let mut left = most;
    let mut walk = Walk::start(parent)?;
    match walk.down(name.to_owned(), &mut Vec::new()) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
        other => other?,
    }
    while !walk.above.is_empty() {
        let entries = walk.entries(PENDING, &mut |at, name, directory| {
            left = left.checked_sub(1).ok_or(Errno::E2BIG)?;
            match directory {
                false if files == Files::Removed => remove_entry(at, name, UnlinkatFlags::NoRemoveDir, Parent::InTree),
                _ => Ok(()),
            }
        });
        let mut below = match entries {
            // A directory that something else removed cannot be read.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            entries => entries?,
        };
        if below.is_empty() {
            let Some(above) = walk.up()? else { break };
            let parent = if walk.above.is_empty() { Parent::OfTree } else { Parent::InTree };
            remove_entry(walk.at.as_fd(), &above.name, UnlinkatFlags::RemoveDir, parent)?;
            below = above.pending;
        }
        // Without a sibling the parent is read again: it may have more entries than were remembered.
        while let Some(next) = below.pop() {
            match walk.down(next, &mut below) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                entered => {
                    entered?;
                    break;
                }
            }
        }
    }
    Ok(())
}

/// Whether files are removed with a tree.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Files {
    Removed,
    Left,
}

/// Whether the directory itself is removed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parent {
    InTree,
    OfTree,
}

/// Removes an entry; does nothing if it does not exist. Clears flags that prevent changes of it or its directory (a container with
/// CAP_LINUX_IMMUTABLE may set them).
fn remove_entry(parent: BorrowedFd, name: &OsStr, how: UnlinkatFlags, kind: Parent) -> nix::Result<()> {
    let gone = |result: nix::Result<()>| match result {
        Err(Errno::ENOENT) => Ok(()),
        other => other,
    };
    let result = gone(unlinkat(parent, name, how));
    if result != Err(Errno::EPERM) {
        return result;
    }
    // If it does not help, the next try fails.
    if kind == Parent::InTree {
        let _ = allow_changes(parent, OsStr::new("."));
    }
    let _ = allow_changes(parent, name);
    gone(unlinkat(parent, name, how))
}

fn allow_changes(parent: BorrowedFd, name: &OsStr) -> io::Result<()> {
    match sys::allow_changes(parent, &CString::new(name.as_bytes())?) {
        // An older kernel, on which only files and directories have these flags.
        Err(e) if e.raw_os_error() == Some(libc::ENOSYS) => {}
        result => return result,
    }
    let found = openat(parent, name, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
    let kind = SFlag::from_bits_truncate(fstat(&found)?.st_mode) & SFlag::S_IFMT;
    if kind != SFlag::S_IFREG && kind != SFlag::S_IFDIR {
        return Ok(());
    }
    // The file that was found, even if its name belongs to another one by now.
    let opened = File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    sys::change_flags(opened.as_fd(), |flags| flags & !(sys::IMMUTABLE | sys::APPEND_ONLY))
}

/// Bytes on disk and number of entries below a directory. Entries that vanish meanwhile, and mounts, are not counted.
pub fn disk_usage(path: &Path) -> (u64, u64) {
    let (mut bytes, mut entries) = (0, 0);
    // An error ends the walk: the tree is being changed, and a later count will be better.
    let _ = add_usage(path, &mut |stat| {
        bytes += stat.st_blocks.unsigned_abs() * 512;
        entries += 1;
    });
    (bytes, entries)
}

fn add_usage(path: &Path, add: &mut dyn FnMut(&FileStat)) -> io::Result<()> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut walk = Walk::start(open(path, flags, Mode::empty())?)?;
    loop {
        let below = walk.entries(usize::MAX, &mut |at, name, _| {
            if let Ok(stat) = fstatat(at, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
                add(&stat);
            }
            Ok(())
        })?;
        if !walk.next(below)? {
            return Ok(());
        }
    }
}

/// Calls `visit` with a directory and with each one below it. Directories that vanish meanwhile are left out. Errors if the
/// directory does not exist.
pub fn each_directory(path: &Path, visit: &mut dyn FnMut(BorrowedFd)) -> io::Result<()> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut walk = Walk::start(open(path, flags, Mode::empty())?)?;
    loop {
        visit(walk.at.as_fd());
        // A removed directory has no entries.
        let below = walk.entries(usize::MAX, &mut |_, _, _| Ok(())).unwrap_or_default();
        if !walk.next(below)? {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::mkdirat;
    use std::os::unix::fs::symlink;

    const MODE: Mode = Mode::S_IRWXU;

    #[test]
    fn trees_go_however_deep_and_wide_they_are() {
        let root = tempfile::tempdir().unwrap();
        let tree = root.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        // Deeper than a path can be long, and deeper than there may be open files.
        let mut at = File::open(&tree).unwrap();
        for _ in 0..30_000 {
            mkdirat(&at, "d", MODE).unwrap();
            at = openat(&at, "d", OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty()).unwrap().into();
        }
        drop(at);
        for n in 0..3 * PENDING {
            std::fs::create_dir_all(tree.join(format!("wide/{n}/below"))).unwrap();
            std::fs::write(tree.join(format!("wide/{n}/file")), "x").unwrap();
        }
        symlink("/", tree.join("link")).unwrap();
        let (bytes, entries) = disk_usage(&tree);
        assert_eq!(entries, 30_000 + 1 + 3 * 3 * PENDING as u64 + 1);
        assert!(bytes > 0);
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        remove_tree(&tree).unwrap();
        remove_tree(Path::new("/nonexistent/tree")).unwrap();
    }

    /// A container with CAP_LINUX_IMMUTABLE kept its pod from being removed.
    #[test]
    fn nothing_in_a_tree_keeps_it() {
        let root = tempfile::tempdir().unwrap();
        let tree = root.path().join("tree");
        std::fs::create_dir_all(tree.join("grows/below")).unwrap();
        std::fs::create_dir_all(tree.join("fixed/empty")).unwrap();
        for file in ["file", "grows/below/file", "fixed/log"] {
            std::fs::write(tree.join(file), "x").unwrap();
        }
        symlink("/", tree.join("fixed/link")).unwrap();
        for (path, flag) in [
            ("file", sys::IMMUTABLE),
            ("fixed/log", sys::APPEND_ONLY),
            ("fixed/empty", sys::IMMUTABLE),
            ("grows/below", sys::APPEND_ONLY),
            ("grows", sys::APPEND_ONLY),
            ("fixed", sys::IMMUTABLE),
            (".", sys::IMMUTABLE),
        ] {
            sys::change_flags(File::open(tree.join(path)).unwrap().as_fd(), |flags| flags | flag).unwrap();
        }
        std::fs::remove_file(tree.join("file")).unwrap_err();
        std::fs::write(tree.join("fixed/new"), "").unwrap_err();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }
}
