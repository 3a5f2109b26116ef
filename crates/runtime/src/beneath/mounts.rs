//! Mounts below a directory.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// Every mount point of the machine, in the order of mounting.
fn mount_points() -> io::Result<Vec<PathBuf>> {
    let table = std::fs::read("/proc/thread-self/mountinfo")?;
    let points = table.split(|b| *b == b'\n').filter_map(|l| l.split(|b| *b == b' ').nth(4));
    Ok(points.map(unescape).collect())
}

/// Where the file system of a block device is mounted.
pub fn mounts_of_device(device: &Path) -> io::Result<Vec<PathBuf>> {
    let number = std::fs::metadata(device)?.rdev();
    let number = format!("{}:{}", nix::sys::stat::major(number), nix::sys::stat::minor(number));
    let table = std::fs::read("/proc/thread-self/mountinfo")?;
    let lines = table.split(|b| *b == b'\n').map(|l| l.split(|b| *b == b' '));
    let points = lines.filter_map(|mut l| l.nth(2).filter(|n| *n == number.as_bytes()).and(l.nth(1)));
    Ok(points.map(unescape).collect())
}

/// Mount points below `root`, the last mounted first.
pub fn mounts_below(root: &Path) -> io::Result<Vec<PathBuf>> {
    let root = std::fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
    let mut points = mount_points()?;
    points.retain(|p| p.starts_with(&root) && *p != root);
    points.reverse();
    Ok(points)
}

/// Whether something is mounted on the directory, an absolute path without links.
pub fn is_mount_point(directory: &Path) -> io::Result<bool> {
    Ok(mount_points()?.iter().any(|p| p == directory))
}

/// Mounts a directory on itself, so that it has propagation of its own.
pub fn bind_to_itself(directory: &Path) -> io::Result<()> {
    Ok(mount(Some(directory), directory, None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
}

/// Mounts below the mount point appear in its copies in other namespaces, and theirs here.
pub fn share(mount_point: &Path) -> io::Result<()> {
    Ok(mount(None::<&str>, mount_point, None::<&str>, MsFlags::MS_SHARED, None::<&str>)?)
}

/// Unmounts everything below `root`, also what is mounted several times.
pub fn unmount_below(root: &Path) -> io::Result<()> {
    for point in mounts_below(root)? {
        match umount2(&point, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            // It was unmounted together with the mount below it.
            Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
            Err(e) => {
                return Err(io::Error::new(io::Error::from(e).kind(), format!("unmounting {}: {e}", point.display())));
            }
        }
    }
    Ok(())
}

/// The kernel writes white space and backslashes of a path as three octal digits.
fn unescape(text: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, tail)) = rest.split_first() {
        let number = tail.get(..3).filter(|d| *first == b'\\' && d.iter().all(|b| (b'0'..=b'7').contains(b)));
        match number {
            Some(digits) => {
                out.push(digits.iter().fold(0u8, |n, d| n.wrapping_mul(8).wrapping_add(d - b'0')));
                rest = &tail[3..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_mounts_are_read_as_they_are() {
        assert_eq!(unescape(br"/a\040b\011\134040/c\9"), Path::new("/a b\t\\040/c\\9"));
    }
}
