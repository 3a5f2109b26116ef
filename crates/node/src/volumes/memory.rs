//! File systems in memory (tmpfs) and in huge pages (hugetlbfs) for volumes.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::mount::{MsFlags, mount};

/// Whether volumes in memory are mounted. Tests without the privilege to mount use plain directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    Mounted,
    #[cfg(test)]
    Plain,
}

/// Mounts a file system in memory at `path`, unless one is mounted there. `size` is in bytes.
pub(super) fn mount_tmpfs(path: &Path, size: Option<i64>) -> io::Result<()> {
    if is_mounted(path) {
        return Ok(());
    }
    let size = size.map(|s| format!(",size={s}")).unwrap_or_default();
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    // Secrets must not reach a swap device; older kernels do not know the option.
    let options = format!("mode=0755{size},noswap");
    if mount(Some("tmpfs"), path, Some("tmpfs"), flags, Some(options.as_str())).is_ok() {
        return Ok(());
    }
    let options = format!("mode=0755{size}");
    mount(Some("tmpfs"), path, Some("tmpfs"), flags, Some(options.as_str())).map_err(io::Error::from)
}

/// Mounts a file system in huge pages at `path`, unless one is mounted there. `option` names the size of its pages.
pub(super) fn mount_hugetlbfs(path: &Path, option: &str) -> io::Result<()> {
    if is_mounted(path) {
        return Ok(());
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("nodev"), path, Some("hugetlbfs"), flags, Some(option)).map_err(io::Error::from)
}

fn is_mounted(path: &Path) -> bool {
    let device = |p: &Path| fs::symlink_metadata(p).ok().map(|m| m.dev());
    path.parent().is_some_and(|parent| device(path).is_some() && device(path) != device(parent))
}
