//! Unix sockets, opened by descriptors.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::sys::stat::{SFlag, fstat};
use runtime::beneath::{Directory, Links};
use supervisor::blocking;
use tokio::net::{UnixListener, UnixStream};

/// A socket below a directory. Links in `path` are followed as if `root` were the root directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketPath {
    /// A trusted directory.
    pub root: PathBuf,
    /// The path of the socket, relative to `root`.
    pub path: PathBuf,
    /// The name that errors show.
    pub name: PathBuf,
}

impl SocketPath {
    /// A socket of the machine.
    pub fn machine(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { root: "/".into(), name: path.clone(), path }
    }

    /// A socket below `root`.
    pub fn below(root: impl Into<PathBuf>, path: impl Into<PathBuf>) -> Self {
        let (root, path) = (root.into(), path.into());
        Self { name: root.join(path.strip_prefix("/").unwrap_or(&path)), root, path }
    }

    fn open(&self) -> io::Result<OwnedFd> {
        let fd = Directory::open(&self.root, Links::Root)?.resolve(&self.path)?;
        let kind = SFlag::from_bits_truncate(fstat(&fd)?.st_mode) & SFlag::S_IFMT;
        match kind == SFlag::S_IFSOCK {
            true => Ok(fd),
            false => Err(io::Error::new(io::ErrorKind::ConnectionRefused, "not a socket")),
        }
    }

    /// Connects to the socket.
    pub(crate) async fn connect(&self) -> io::Result<UnixStream> {
        let path = self.clone();
        let fd = blocking(move || path.open()).await?;
        UnixStream::connect(descriptor(&fd)).await
    }

    /// Listens on a new socket, which replaces an earlier one. Its directory must exist.
    pub(crate) fn listen(&self) -> io::Result<UnixListener> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "no name of a socket");
        let name = self.path.file_name().ok_or_else(invalid)?;
        let parent = self.path.parent().unwrap_or(Path::new(""));
        let directory = Directory::open(&self.root, Links::Root)?.resolve(parent)?;
        let path = descriptor(&directory).join(name);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        UnixListener::bind(path)
    }
}

/// The path of what a descriptor has open, which is short enough for the address of a socket.
fn descriptor(fd: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}
