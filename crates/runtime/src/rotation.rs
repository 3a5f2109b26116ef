//! Rotation of container logs: a log that has grown to its limit ([`LogLimits`](crate::LogLimits)) is renamed
//! (`0.log.20261120-235959.000000007`) and a new file is started. The newest files are kept, as kubelet does.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::api::Timestamp;
use crate::beneath::{Directory, Links};
use crate::shim::rfc3339;

/// Maximum entries of a directory of logs: a container has logs of two attempts.
const MAX_ENTRIES: usize = 10_000;

/// The rotated files of `log`, oldest first. Empty if the directory cannot be read.
pub fn rotated(log: &Path) -> Vec<PathBuf> {
    let (Some(parent), Some(name)) = (log.parent(), log.file_name()) else { return Vec::new() };
    let names = open(parent).and_then(|directory| names(&directory, name)).unwrap_or_default();
    names.into_iter().map(|name| parent.join(name)).collect()
}

/// Removes a log with its rotated files.
pub fn remove(log: &Path) {
    let (Some(parent), Some(name)) = (log.parent(), log.file_name()) else { return };
    let Ok(directory) = open(parent) else { return };
    for name in names(&directory, name).unwrap_or_default().iter().map(OsString::as_os_str).chain([name]) {
        let _ = directory.remove(name, 1);
    }
}

/// Renames the file `name` in `directory`, and removes the oldest ones beyond `max_files`. `time` is in RFC 3339, with
/// nanoseconds.
pub(crate) fn rotate(directory: &Directory, name: &OsStr, max_files: usize, time: &str) -> io::Result<()> {
    let stamp: String = time.chars().filter(|c| c.is_ascii_digit() || matches!(c, 'T' | '.')).collect();
    let mut away = name.to_owned();
    away.push(".");
    away.push(stamp.replace('T', "-"));
    // The oldest are removed before the new file is added.
    let old = names(directory, name)?;
    for name in &old[..(old.len() + 2).saturating_sub(max_files).min(old.len())] {
        directory.remove(name, 1)?;
    }
    directory.rename(name, &away)
}

/// Renames a log that another process writes, and removes the oldest files beyond `max_files`. The process has to open a new file
/// afterwards.
pub fn rotate_foreign(log: &Path, max_files: usize, at: Timestamp) -> io::Result<()> {
    let (Some(parent), Some(name)) = (log.parent(), log.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    rotate(&open(parent)?, name, max_files, &rfc3339(at))
}

fn open(parent: &Path) -> io::Result<Directory> {
    Directory::open(Path::new("/"), Links::Refuse)?.directory(parent)
}

fn names(directory: &Directory, name: &OsStr) -> io::Result<Vec<OsString>> {
    let is_rotated = |other: &OsStr| {
        let rest = other.as_bytes().strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"."));
        rest.is_some_and(|rest| !rest.is_empty() && rest.iter().all(|b| b.is_ascii_digit() || b"-.".contains(b)))
    };
    let mut names: Vec<OsString> = directory.entries(MAX_ENTRIES)?.into_iter().map(|(name, _)| name).collect();
    names.retain(|other| is_rotated(other));
    names.sort();
    Ok(names)
}

/// Bytes of a log with the files that were rotated away; None if there is no file.
pub fn size(log: &Path) -> Option<u64> {
    let size = |log: &Path| std::fs::symlink_metadata(log).ok().filter(|m| m.is_file()).map(|m| m.len());
    let moved: u64 = rotated(log).iter().filter_map(|log| size(log)).sum();
    Some(size(log)? + moved)
}
