//! Network namespaces as files. Threads that end afterwards enter them: a thread of a pool must never change its own.
//!
//! Functions that are not asynchronous block.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use supervisor::blocking;

use crate::{Error, Result};

/// Runs `work` in a thread whose network namespace is `namespace` (`None`: the process's own).
pub fn run_in<T: Send>(namespace: Option<&Path>, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let Some(path) = namespace else { return work() };
    let file = File::open(path)?;
    in_thread(move || {
        setns(file, CloneFlags::CLONE_NEWNET)?;
        work()
    })
}

/// Creates a namespace, binds it to `path` and runs `work` in it.
pub fn create<T: Send>(path: &Path, work: impl FnOnce() -> io::Result<T> + Send) -> Result<T> {
    bind(path, None, work)
}

/// The same with an existing namespace, if one is given.
pub(crate) fn bind<T: Send>(
    path: &Path,
    namespace: Option<&OwnedFd>,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> Result<T> {
    let fail = || Error::io(format!("network namespace {}", path.display()));
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(fail())?;
    }
    File::create_new(path).map_err(fail())?;
    let made = in_thread(|| {
        match namespace {
            Some(namespace) => setns(namespace, CloneFlags::CLONE_NEWNET)?,
            None => unshare(CloneFlags::CLONE_NEWNET)?,
        }
        let source = format!("/proc/self/task/{}/ns/net", nix::unistd::gettid());
        mount(Some(source.as_str()), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
        work()
    });
    made.map_err(|e| {
        let _ = remove(path);
        fail()(e)
    })
}

/// Unbinds a namespace; the kernel frees it when its last process and socket are gone. No error if it does not exist.
pub fn remove(path: &Path) -> Result<()> {
    while umount2(path, MntFlags::MNT_DETACH).is_ok() {}
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io(path.display().to_string())(e)),
        _ => Ok(()),
    }
}

/// Whether a namespace is bound there. After a crash of the machine only the file may be left.
pub fn exists(path: &Path) -> bool {
    const NSFS_MAGIC: i64 = 0x6e73_6673;
    nix::sys::statfs::statfs(path).is_ok_and(|s| s.filesystem_type().0 == NSFS_MAGIC)
}

/// Whether the namespace bound to `path` is this one.
pub(crate) fn is_bound(path: &Path, namespace: &OwnedFd) -> bool {
    let given = nix::sys::stat::fstat(namespace);
    let bound = nix::sys::stat::stat(path);
    matches!((given, bound), (Ok(a), Ok(b)) if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
}

/// Values of settings by their paths below /proc/sys/net.
pub type Settings = Vec<(String, String)>;

/// Reads a number from the settings of a namespace, a path below /proc/sys/net. `None` if it cannot be read.
pub(crate) async fn get(namespace: Option<&Path>, name: &str) -> Option<u64> {
    let (namespace, path) = (namespace.map(Path::to_owned), setting(name));
    let text = blocking(move || run_in(namespace.as_deref(), || std::fs::read_to_string(&path))).await;
    text.ok()?.trim().parse().ok()
}

/// Writes settings of a namespace.
pub async fn set(namespace: Option<&Path>, settings: Settings) -> Result<()> {
    let namespace = namespace.map(Path::to_owned);
    let written = blocking(move || run_in(namespace.as_deref(), || write_settings(&settings))).await;
    written.map_err(Error::io("network settings"))
}

/// Enables forwarding of IPv6 between all devices. Devices that learn their routes from advertisements go on to do so, which the kernel
/// would stop for a router.
pub(crate) async fn forward_ipv6(namespace: Option<&Path>) -> Result<()> {
    let namespace = namespace.map(Path::to_owned);
    let write = || {
        let conf = setting("ipv6/conf");
        let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let mut settings = Settings::new();
        for device in std::fs::read_dir(&conf)?.flatten().map(|entry| entry.file_name()) {
            let device = device.to_string_lossy();
            // Not for devices that come later: whoever is behind a new bridge could become the node's router.
            if device == "all" || device == "default" {
                continue;
            }
            let value = |name: &str| read(conf.join(&*device).join(name));
            if value("accept_ra") == "1" && value("forwarding") == "0" {
                settings.push((format!("ipv6/conf/{device}/accept_ra"), "2".into()));
            }
        }
        settings.push(("ipv6/conf/all/forwarding".into(), "1".into()));
        write_settings(&settings)
    };
    blocking(move || run_in(namespace.as_deref(), write)).await.map_err(Error::io("forwarding of IPv6"))
}

/// Writes settings of the namespace of the calling thread. Blocks.
pub(crate) fn write_settings(settings: &Settings) -> io::Result<()> {
    for (name, value) in settings {
        let path = setting(name);
        std::fs::write(&path, value).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
    }
    Ok(())
}

fn setting(name: &str) -> PathBuf {
    PathBuf::from("/proc/sys/net").join(name)
}

/// Runs `work` in a thread of its own, which may enter namespaces.
pub(crate) fn in_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netns".into()).spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
