//! Resolves paths below a directory in which a container may write, by descriptors and never as text.
//!
//! [`Directory`] resolves a path with `openat2`, so the kernel refuses a path that leads out while it resolves it. The result is a
//! descriptor of the file that was found, whatever is renamed or linked afterwards. `trees` removes and counts trees, `mounts` finds
//! mounts in them.
//!
//! The path of the directory itself is trusted: only root may write in its parents.

mod mounts;
mod trees;

pub use mounts::{bind_to_itself, is_mount_point, mounts_below, mounts_of_device, share, unmount_below};
pub use trees::{disk_usage, each_directory, give_to_group, remove_directories, remove_tree, remove_tree_at};

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat, openat2, readlinkat, renameat};
use nix::sys::stat::{Mode, fchmod, fstat, mkdirat};
use nix::unistd::symlinkat;

/// Links that one path may follow, as in the kernel.
const MAX_LINKS: usize = 40;
/// How often a path is resolved again while other processes rename files on it, as in runc.
const MAX_TRIES: usize = 128;
/// How often a file is opened again while other processes replace it.
const MAX_EXCHANGES: usize = 16;

/// How symbolic links in a path are handled. No mode follows the links of `/proc` to open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Any link is an error.
    Refuse,
    /// Relative links that stay below the directory are followed, others are an error (`RESOLVE_BENEATH`).
    Inside,
    /// Links are followed as if the directory were the root (`RESOLVE_IN_ROOT`).
    Root,
}

impl Links {
    fn flags(self) -> ResolveFlag {
        ResolveFlag::RESOLVE_NO_MAGICLINKS
            | match self {
                Self::Refuse => ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS,
                Self::Inside => ResolveFlag::RESOLVE_BENEATH,
                Self::Root => ResolveFlag::RESOLVE_IN_ROOT,
            }
    }
}

/// What [`Directory::make`] creates at a path that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaf {
    /// A directory.
    Directory,
    /// An empty regular file.
    File,
}

/// A directory below which paths are resolved.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    links: Links,
    /// Further flags of `openat2`.
    also: ResolveFlag,
}

impl Directory {
    /// Opens a trusted path; links in it are followed as usual.
    pub fn open(path: &Path, links: Links) -> io::Result<Self> {
        let fd = open(path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        Ok(Self::from_fd(fd, links))
    }

    /// A directory from its descriptor, which may be one of `O_PATH`.
    pub fn from_fd(fd: OwnedFd, links: Links) -> Self {
        Self { fd, links, also: ResolveFlag::empty() }
    }

    /// Refuses paths that lead through a mount point too (`EXDEV`).
    pub fn without_mounts(self) -> Self {
        Self { also: ResolveFlag::RESOLVE_NO_XDEV, ..self }
    }

    /// Opens `path`. `flags` are those of `open(2)`; close-on-exec is always set. Errors are the kernel's: `EXDEV` if the path leads
    /// out of the directory, `ELOOP` for a refused link.
    pub fn open_at(&self, path: &Path, flags: OFlag, mode: Mode) -> io::Result<OwnedFd> {
        let path = match self.links {
            Links::Root => path,
            // The kernel refuses absolute paths; here they are relative to the directory.
            Links::Refuse | Links::Inside => path.strip_prefix("/").unwrap_or(path),
        };
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).mode(mode).resolve(self.links.flags() | self.also);
        for _ in 0..MAX_TRIES {
            match openat2(&self.fd, path, how) {
                // The kernel could not tell whether `..` stays inside, because something was renamed meanwhile.
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                result => return Ok(result?),
            }
        }
        Err(exchanged())
    }

    /// Opens `path` without access to its content (`O_PATH`).
    pub fn resolve(&self, path: &Path) -> io::Result<OwnedFd> {
        self.open_at(path, OFlag::O_PATH, Mode::empty())
    }

    /// Opens a regular file for reading, and nothing else: opening a pipe can block, and opening a device can do something.
    pub fn read(&self, path: &Path) -> io::Result<File> {
        let found = regular(File::from(self.resolve(path)?))?;
        File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))
    }

    /// [`Directory::read`] for a process in a container, where `/proc` may not be its own: another kind of file is opened before it is
    /// refused, without blocking.
    pub fn read_without_proc(&self, path: &Path) -> io::Result<File> {
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        regular(File::from(self.open_at(path, flags, Mode::empty())?))
    }

    /// Opens a directory below, with the same rules.
    pub fn directory(&self, path: &Path) -> io::Result<Self> {
        let fd = self.open_at(path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW, Mode::empty())?;
        Ok(Self { fd, links: self.links, also: self.also })
    }

    /// Creates a directory that must not exist, and opens it. The result is another directory if a process has replaced it
    /// meanwhile.
    pub fn make_directory(&self, name: &OsStr, mode: Mode) -> io::Result<Self> {
        mkdirat(&self.fd, name, mode)?;
        let made = self.directory(Path::new(name))?;
        let opened = made.open_at(Path::new("."), OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty())?;
        fchmod(opened, mode)?; // whatever the umask is
        Ok(made)
    }

    /// Creates a regular file that must not exist, for its owner only, and opens it for writing.
    pub fn create(&self, path: &Path) -> io::Result<File> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW;
        Ok(self.open_at(path, flags, Mode::S_IRUSR | Mode::S_IWUSR)?.into())
    }

    /// The target of the link with this name.
    pub fn read_link(&self, name: &OsStr) -> io::Result<OsString> {
        Ok(readlinkat(&self.fd, name)?)
    }

    /// Replaces the entry `name` by a symbolic link, which is first made with the name `temporary`. `most` as for
    /// [`Directory::remove`].
    pub fn put_link(&self, target: &Path, name: &OsStr, temporary: &OsStr, most: usize) -> io::Result<()> {
        for _ in 0..MAX_EXCHANGES {
            self.remove(temporary, most)?;
            match symlinkat(target, &self.fd, temporary) {
                Err(Errno::EEXIST) => continue,
                made => made?,
            }
            match renameat(&self.fd, temporary, &self.fd, name) {
                Err(Errno::EISDIR) => self.remove(name, most)?,
                // Another process has removed or replaced the link, or keeps adding entries.
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ENOTEMPTY | Errno::EEXIST) => {}
                moved => return Ok(moved?),
            }
        }
        Err(exchanged())
    }

    /// Renames an entry of the directory and replaces a file with the new name.
    pub fn rename(&self, name: &OsStr, other: &OsStr) -> io::Result<()> {
        Ok(renameat(&self.fd, name, &self.fd, other)?)
    }

    /// Removes the entry with this name, with all that is in it; links are not followed. Does nothing if it does not exist. Errors
    /// for more than `most` entries, and if something is mounted there.
    pub fn remove(&self, name: &OsStr, most: usize) -> io::Result<()> {
        trees::remove_any(&self.fd, name, most)
    }

    /// The entries of the directory: names, and whether they are symbolic links. Errors if there are more than `most`.
    pub fn entries(&self, most: usize) -> io::Result<Vec<(OsString, bool)>> {
        let mut found = Vec::new();
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        for entry in Dir::openat(&self.fd, ".", flags, Mode::empty())?.iter() {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            if found.len() == most {
                return Err(too_many(most));
            }
            let link = match entry.file_type() {
                Some(kind) => kind == Type::Symlink,
                None => readlinkat(&self.fd, name).is_ok(),
            };
            found.push((name.to_owned(), link));
        }
        Ok(found)
    }

    /// Opens `path` (`O_PATH`) and creates missing directories on the way with `mode`, and `leaf` at the end, also at the target of
    /// a dangling link. Existing files do not change, whatever their kind.
    pub fn make(&self, path: &Path, leaf: Leaf, mode: Mode) -> io::Result<OwnedFd> {
        match self.resolve(path) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
            found => return found,
        }
        let mut path = path.to_owned();
        for _ in 0..MAX_LINKS {
            match self.make_unless_link(&path, leaf, mode)? {
                Made::Entry(fd) => return Ok(fd),
                Made::Link(instead) => path = instead,
            }
        }
        Err(Errno::ELOOP.into())
    }

    fn make_unless_link(&self, path: &Path, leaf: Leaf, mode: Mode) -> io::Result<Made> {
        let parts: Vec<Component> = path.components().filter(|c| !matches!(c, Component::RootDir)).collect();
        let mut at = self.fd.try_clone()?;
        let mut known = PathBuf::new();
        for (i, part) in parts.iter().enumerate() {
            known.push(part);
            match self.resolve(&known) {
                Ok(fd) => {
                    at = fd;
                    continue;
                }
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
                Err(e) => return Err(e),
            }
            let Component::Normal(name) = *part else { return Err(Errno::ENOENT.into()) };
            let last = i + 1 == parts.len();
            match make_entry(at.as_fd(), name, if last { leaf } else { Leaf::Directory }, mode) {
                Ok(fd) => at = fd,
                // Another process was faster, or it is a link, which the next try refuses.
                Err(Errno::EEXIST) if self.links == Links::Refuse => return Ok(Made::Link(path.to_owned())),
                Err(Errno::EEXIST) => {
                    // A dangling link, or another process was faster.
                    let before = known.parent().unwrap_or(Path::new(""));
                    let mut instead = match readlinkat(&at, name) {
                        Ok(link) if self.links == Links::Inside && Path::new(&link).is_absolute() => {
                            return Err(Errno::EXDEV.into());
                        }
                        Ok(link) => before.join(link),
                        Err(Errno::EINVAL) => known.clone(),
                        Err(e) => return Err(e.into()),
                    };
                    instead.extend(&parts[i + 1..]);
                    return Ok(Made::Link(instead));
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(Made::Entry(at))
    }
}

enum Made {
    Entry(OwnedFd),
    /// Resolve again: the path leads through a link and continues here, or another process made an entry meanwhile.
    Link(PathBuf),
}

/// Creates an entry that must not exist, and opens it (`O_PATH`).
fn make_entry(parent: BorrowedFd, name: &OsStr, leaf: Leaf, mode: Mode) -> nix::Result<OwnedFd> {
    match leaf {
        Leaf::Directory => {
            mkdirat(parent, name, mode)?;
            // Sets the mode regardless of the umask, by descriptor, since the path may be another directory by now.
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            fchmod(openat(parent, name, flags, Mode::empty())?, mode)?;
        }
        Leaf::File => {
            let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
            openat(parent, name, flags, Mode::from_bits_truncate(0o644))?;
        }
    }
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    openat2(parent, name, how)
}

fn exchanged() -> io::Error {
    io::Error::other("another process keeps changing the directory")
}

fn too_many(most: usize) -> io::Error {
    io::Error::other(format!("more than {most} entries"))
}

fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
}

/// Opens the regular file at an absolute path for reading. Links in the path are refused. Never blocks.
pub fn read_file(path: &Path) -> io::Result<File> {
    Directory::open(Path::new("/"), Links::Refuse)?.read(path)
}

/// Creates a directory with mode 0700, or sets that mode of an existing one. Its parent must exist. Errors if it belongs to another
/// user.
pub fn make_private(path: &Path) -> io::Result<()> {
    match nix::unistd::mkdir(path, Mode::S_IRWXU) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(e) => return Err(e.into()),
    }
    let directory = open(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let stat = fstat(&directory)?;
    if stat.st_uid != nix::unistd::geteuid().as_raw() {
        let message = format!("belongs to user {}, who could read and change what is kept in it", stat.st_uid);
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    if stat.st_mode & 0o7777 != 0o700 {
        fchmod(&directory, Mode::S_IRWXU)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const MODE: Mode = Mode::S_IRWXU;

    fn code<T>(result: io::Result<T>) -> Option<i32> {
        result.err().and_then(|e| e.raw_os_error())
    }

    fn same(fd: &OwnedFd, path: &Path) -> bool {
        use std::os::unix::fs::MetadataExt;
        let (found, expected) = (fstat(fd).unwrap(), std::fs::symlink_metadata(path).unwrap());
        (found.st_dev, found.st_ino) == (expected.dev(), expected.ino())
    }

    #[test]
    fn links_lead_nowhere_else() {
        let elsewhere = tempfile::tempdir().unwrap();
        let root = tempfile::tempdir().unwrap();
        let at = |p: &str| root.path().join(p);
        std::fs::create_dir_all(at("a/b")).unwrap();
        symlink(elsewhere.path(), at("absolute")).unwrap();
        symlink("../..", at("a/up")).unwrap();
        symlink("../a/b", at("a/within")).unwrap();
        symlink("/a/b", at("rooted")).unwrap();
        symlink("loop", at("loop")).unwrap();
        let inside = Directory::open(root.path(), Links::Inside).unwrap();
        let resolve = |p: &str| inside.resolve(Path::new(p));
        assert!(same(&resolve("a/within").unwrap(), &at("a/b")));
        assert!(same(&resolve("").unwrap(), root.path()));
        for (path, error) in [
            ("absolute", libc::EXDEV),
            ("absolute/x", libc::EXDEV),
            ("a/up", libc::EXDEV),
            ("..", libc::EXDEV),
            ("rooted", libc::EXDEV),
            ("loop", libc::ELOOP),
            ("none", libc::ENOENT),
        ] {
            assert_eq!(code(resolve(path)), Some(error), "{path}");
            let made = inside.make(Path::new(path), Leaf::Directory, MODE);
            assert_eq!(made.is_ok(), path == "none", "{path}: {made:?}");
        }
        assert_eq!(code(inside.make(Path::new("absolute/new"), Leaf::Directory, MODE)), Some(libc::EXDEV));
        assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0, "nothing was created elsewhere");

        let as_root = Directory::open(root.path(), Links::Root).unwrap();
        assert!(same(&as_root.resolve(Path::new("/rooted")).unwrap(), &at("a/b")));
        assert!(same(&as_root.resolve(Path::new("/../a/up/..")).unwrap(), root.path()));
        assert_eq!(code(as_root.resolve(Path::new("/absolute"))), Some(libc::ENOENT));

        let refuse = Directory::open(root.path(), Links::Refuse).unwrap();
        assert_eq!(code(refuse.resolve(Path::new("a/within"))), Some(libc::ELOOP));
        assert!(refuse.resolve(Path::new("a/b")).is_ok());
    }

    #[test]
    fn what_is_missing_is_made_where_links_point() {
        let root = tempfile::tempdir().unwrap();
        let at = |p: &str| root.path().join(p);
        std::fs::create_dir_all(at("etc")).unwrap();
        symlink("../run/resolve/stub.conf", at("etc/resolv.conf")).unwrap();
        symlink("/run/rooted", at("etc/rooted")).unwrap();
        let as_root = Directory::open(root.path(), Links::Root).unwrap();
        let made = as_root.make(Path::new("/etc/resolv.conf"), Leaf::File, MODE).unwrap();
        assert!(same(&made, &at("run/resolve/stub.conf")) && at("run/resolve/stub.conf").is_file());
        as_root.make(Path::new("/etc/rooted/a"), Leaf::Directory, MODE).unwrap();
        assert!(at("run/rooted/a").is_dir());
        let inside = Directory::open(root.path(), Links::Inside).unwrap();
        std::fs::remove_dir_all(at("run")).unwrap();
        inside.make(Path::new("etc/resolv.conf"), Leaf::File, MODE).unwrap();
        assert!(at("run/resolve/stub.conf").is_file());
        assert_eq!(code(inside.make(Path::new("etc/rooted"), Leaf::File, MODE)), Some(libc::EXDEV));
    }

    /// Pods that start at the same time create the same directory of logs.
    #[test]
    fn many_may_make_the_same_directory() {
        let root = tempfile::tempdir().unwrap();
        for round in 0..50 {
            let path = PathBuf::from(format!("{round}/a/b/c"));
            std::thread::scope(|scope| {
                for links in [Links::Refuse, Links::Inside, Links::Root, Links::Refuse] {
                    let (root, path) = (root.path(), &path);
                    scope.spawn(move || {
                        Directory::open(root, links).unwrap().make(path, Leaf::Directory, MODE).unwrap();
                    });
                }
            });
        }
        symlink("/etc", root.path().join("link")).unwrap();
        let refuse = Directory::open(root.path(), Links::Refuse).unwrap();
        assert_eq!(code(refuse.make(Path::new("link/x"), Leaf::Directory, MODE)), Some(libc::ELOOP));
        symlink("nowhere", root.path().join("dangling")).unwrap();
        assert_eq!(code(refuse.make(Path::new("dangling/x"), Leaf::Directory, MODE)), Some(libc::ELOOP));
    }

    #[test]
    fn only_regular_files_are_read() {
        let root = tempfile::tempdir().unwrap();
        nix::unistd::mkfifo(&root.path().join("pipe"), MODE).unwrap();
        std::fs::write(root.path().join("file"), "text").unwrap();
        let directory = Directory::open(root.path(), Links::Refuse).unwrap();
        assert!(directory.read(Path::new("pipe")).is_err(), "and it does not wait for a writer");
        assert_eq!(io::read_to_string(directory.read(Path::new("file")).unwrap()).unwrap(), "text");
    }

    #[test]
    fn entries_go_whatever_they_are() {
        let (elsewhere, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(elsewhere.path().join("file"), "x").unwrap();
        let at = |p: &str| root.path().join(p);
        let directory = Directory::open(root.path(), Links::Refuse).unwrap().without_mounts();
        symlink(elsewhere.path(), at("link")).unwrap();
        nix::unistd::mkfifo(&at("pipe"), MODE).unwrap();
        std::fs::create_dir_all(at("tree/below")).unwrap();
        symlink(elsewhere.path(), at("tree/below/link")).unwrap();
        std::fs::write(at("file"), "x").unwrap();
        assert_eq!(directory.entries(4).unwrap().iter().filter(|(_, link)| *link).count(), 1);
        directory.entries(3).unwrap_err();
        directory.remove(OsStr::new("tree"), 1).unwrap_err();
        for name in ["link", "pipe", "tree", "file", "none"] {
            directory.remove(OsStr::new(name), 2).unwrap();
        }
        assert_eq!(directory.entries(0).unwrap(), []);

        std::fs::create_dir_all(at("name/below")).unwrap();
        std::fs::create_dir_all(at("next/below")).unwrap();
        for target in ["a", "b"] {
            directory.put_link(Path::new(target), OsStr::new("name"), OsStr::new("next"), 9).unwrap();
            assert_eq!(directory.read_link(OsStr::new("name")).unwrap(), target);
            directory.entries(1).unwrap();
        }
        symlink(elsewhere.path(), at("out")).unwrap();
        assert_eq!(code(directory.directory(Path::new("out"))), Some(libc::ENOTDIR));
        assert_eq!(code(directory.create(Path::new("out/new"))), Some(libc::ELOOP));
        symlink(elsewhere.path().join("new"), at("new")).unwrap();
        directory.create(Path::new("new")).unwrap_err();
        assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 1);
        let everything = Directory::open(Path::new("/"), Links::Refuse).unwrap().without_mounts();
        assert_eq!(code(everything.directory(Path::new("proc/self"))), Some(libc::EXDEV));
    }
}
