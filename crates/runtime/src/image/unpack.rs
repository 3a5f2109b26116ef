//! Unpacks layers. Whiteouts become those of overlayfs.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{FchmodatFlags, Mode, SFlag, fchmod, fchmodat, fstatat, futimens, makedev, mkdirat, mknodat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchownat, linkat, symlinkat, unlinkat};

use super::budget::Budget;
use super::{Error, Result, entries};
use crate::api::{FileKind, MAX_ID};
use crate::beneath::{Directory, Links, remove_tree_at};

/// The directory of the last entry, kept for the next ones.
struct Parent {
    path: PathBuf,
    fd: OwnedFd,
}

const PARENT_MODE: Mode = Mode::from_bits_truncate(0o755);

/// Unpacks one layer. Files are written below `root` only: every parent must be a real directory of the layer.
pub fn unpack(reader: &mut impl Read, root: &Path, budget: &Budget) -> Result<()> {
    let layer = Directory::open(root, Links::Refuse).map_err(Error::io("layer"))?;
    let mut parent: Option<Parent> = None;
    entries::each(
        reader,
        |e| Error::io("layer")(e),
        |entry| {
            budget.take_entry().map_err(Error::io("layer"))?;
            let relative = inside(&entry.path().map_err(Error::io("layer"))?)?;
            fits(root, &relative)?;
            let Some(name) = relative.file_name() else { return Ok(()) };
            let above = relative.parent().unwrap_or(Path::new(""));
            if parent.as_ref().is_none_or(|p| p.path != above) {
                parent = Some(Parent { path: above.to_owned(), fd: directory(&layer, above, budget)? });
            }
            let Some(parent) = &parent else { return Ok(()) };
            add(&layer, parent.fd.as_fd(), name, entry).map_err(|e| e.with_path(&relative))
        },
    )
}

/// A path that is too long cannot be opened, neither here nor in a container.
fn fits(root: &Path, relative: &Path) -> Result<()> {
    let most = (libc::PATH_MAX as usize).saturating_sub(root.as_os_str().len() + 2);
    let length = relative.as_os_str().len();
    if length <= most {
        return Ok(());
    }
    Err(Error::PathTooLong { start: relative.iter().take(3).collect(), length, most })
}

/// Opens a directory of the layer and creates it and its parents if they are missing, which the budget counts. Errors if a parent is
/// a link or a file.
fn directory(layer: &Directory, path: &Path, budget: &Budget) -> Result<OwnedFd> {
    make_directories(layer, path, budget).map_err(|e| match e.raw_os_error() {
        Some(libc::ELOOP | libc::ENOTDIR | libc::EXDEV) => Error::Escape(path.to_owned()),
        _ => Error::io(path.display().to_string())(e),
    })
}

fn make_directories(layer: &Directory, path: &Path, budget: &Budget) -> std::io::Result<OwnedFd> {
    match layer.open_at(path, OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty()) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
        found => return found,
    }
    let mut at = layer.directory(Path::new("."))?;
    for name in path {
        at = match at.directory(Path::new(name)) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {
                budget.take_entry()?;
                at.make_directory(name, PARENT_MODE)?
            }
            found => found?,
        };
    }
    at.resolve(Path::new("."))
}

/// Why an entry was not added.
enum Refused {
    Escape,
    Io(std::io::Error),
}

impl From<std::io::Error> for Refused {
    fn from(e: std::io::Error) -> Self {
        Self::Io(e)
    }
}

impl From<Errno> for Refused {
    fn from(e: Errno) -> Self {
        Self::Io(e.into())
    }
}

impl Refused {
    fn with_path(self, path: &Path) -> Error {
        match self {
            Self::Escape => Error::Escape(path.to_owned()),
            Self::Io(e) => Error::io(path.display().to_string())(e),
        }
    }
}

/// Adds one entry to its directory. A directory gets its mode at once: modes do not restrict this process, and those of all directories
/// would be much to remember.
fn add(
    layer: &Directory,
    parent: BorrowedFd,
    name: &OsStr,
    entry: &mut tar::Entry<impl Read>,
) -> std::result::Result<(), Refused> {
    if let Some(hidden) = name.as_bytes().strip_prefix(b".wh.") {
        match hidden {
            b".wh..opq" => set_opaque(parent)?,
            // Other marks of AUFS.
            _ if hidden.starts_with(b".wh.") => {}
            b"" | b"." | b".." => return Err(Refused::Escape),
            _ => {
                let hidden = OsStr::from_bytes(hidden);
                clear(parent, hidden, Existing::Remove)?;
                mknodat(parent, hidden, SFlag::S_IFCHR, Mode::empty(), makedev(0, 0))?;
            }
        }
        return Ok(());
    }
    let header = entry.header();
    let kind = header.entry_type();
    let (uid, gid) = (owner(header.uid())?, owner(header.gid())?);
    let mode = Mode::from_bits_truncate(header.mode().unwrap_or(0o755) & 0o7777);
    let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    let own = || fchownat(parent, name, uid, gid, AtFlags::AT_SYMLINK_NOFOLLOW);
    match kind {
        tar::EntryType::Directory => {
            if clear(parent, name, Existing::KeepDirectory)? {
                mkdirat(parent, name, PARENT_MODE)?;
            }
            own()?;
            set_mode(parent, name, mode)?;
        }
        tar::EntryType::Link => {
            let link = entry.link_name()?.unwrap_or_default().into_owned();
            let from = inside(&link).map_err(|_| Refused::Escape)?;
            let of = from.file_name().ok_or(Refused::Escape)?;
            let found = layer.resolve(from.parent().unwrap_or(Path::new(""))).map_err(|e| match e.raw_os_error() {
                Some(libc::ELOOP | libc::ENOTDIR) => Refused::Escape,
                _ => e.into(),
            })?;
            clear(parent, name, Existing::Remove)?;
            linkat(&found, of, parent, name, AtFlags::empty())?;
        }
        tar::EntryType::Char | tar::EntryType::Block | tar::EntryType::Fifo => {
            let number = |n: std::io::Result<Option<u32>>| u64::from(n.ok().flatten().unwrap_or(0));
            let device = makedev(number(header.device_major()), number(header.device_minor()));
            let flag = match kind {
                tar::EntryType::Char => SFlag::S_IFCHR,
                tar::EntryType::Block => SFlag::S_IFBLK,
                _ => SFlag::S_IFIFO,
            };
            clear(parent, name, Existing::Remove)?;
            mknodat(parent, name, flag, mode, device)?;
            own()?;
            set_mode(parent, name, mode)?;
        }
        tar::EntryType::Symlink => {
            let link = entry.link_name()?.unwrap_or_default().into_owned();
            clear(parent, name, Existing::Remove)?;
            symlinkat(&link, parent, name)?;
            own()?;
        }
        tar::EntryType::Regular | tar::EntryType::Continuous => {
            let modified = header.mtime().unwrap_or(0);
            clear(parent, name, Existing::Remove)?;
            let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
            let mut file = File::from(openat(parent, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
            std::io::copy(entry, &mut file)?;
            own()?;
            fchmod(&file, mode)?; // the change of owner clears set-id bits
            let time = TimeSpec::new(i64::try_from(modified).unwrap_or(i64::MAX), 0);
            futimens(&file, &time, &time)?;
        }
        _ => {} // metadata of the archive itself
    }
    Ok(())
}

/// Sets the mode of an entry that is no link, after its owner, whose change clears bits. The umask has cut it.
fn set_mode(parent: BorrowedFd, name: &OsStr, mode: Mode) -> nix::Result<()> {
    // Nothing else writes here, so it has not become a link.
    fchmodat(parent, name, mode, FchmodatFlags::FollowSymlink)
}

/// The id of a user or group of an entry: root if the field is not a number. Errors if no user or group can have it.
fn owner(id: std::io::Result<u64>) -> std::io::Result<u32> {
    let id = id.unwrap_or(0);
    let valid = u32::try_from(id).ok().filter(|id| *id <= MAX_ID);
    valid.ok_or_else(|| std::io::Error::other(format!("owner {id}: uids and gids must be in range 0-{MAX_ID}")))
}

/// The path without its root and dots. Errors if it contains `..`.
fn inside(path: &Path) -> Result<PathBuf> {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => clean.push(part),
            Component::CurDir | Component::RootDir => {}
            _ => return Err(Error::Escape(path.to_owned())),
        }
    }
    Ok(clean)
}

/// What happens with an entry that occurs again in the same layer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Existing {
    KeepDirectory,
    Remove,
}

/// Removes an existing entry if needed. Returns whether none exists now.
fn clear(parent: BorrowedFd, name: &OsStr, existing: Existing) -> std::result::Result<bool, Refused> {
    match fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(stat) if FileKind::from_mode(stat.st_mode) == FileKind::Directory => {
            if existing == Existing::KeepDirectory {
                return Ok(false);
            }
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
            remove_tree_at(openat(parent, ".", flags, Mode::empty())?, name)?;
        }
        Ok(_) => unlinkat(parent, name, UnlinkatFlags::NoRemoveDir)?,
        Err(Errno::ENOENT) => {}
        Err(e) => return Err(e.into()),
    }
    Ok(true)
}

fn set_opaque(directory: BorrowedFd) -> std::io::Result<()> {
    let path = CString::new(format!("/proc/self/fd/{}", directory.as_raw_fd()))?;
    // SAFETY: all pointers are to NUL-terminated strings or to the one byte whose length is given.
    let result =
        unsafe { libc::setxattr(path.as_ptr(), c"trusted.overlay.opaque".as_ptr(), c"y".as_ptr().cast(), 1, 0) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
