//! Rotation of container logs: a log that has grown to [`MAX_SIZE`] is moved beside its place (`0.log.20261120-235959.000000007`)
//! and begun anew, and of all its files the newest [`MAX_FILES`] are kept, as kubelet does with its defaults.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::beneath::{Directory, Links};

/// Bytes of a log file (`containerLogMaxSize`).
pub const MAX_SIZE: u64 = 10 << 20;
/// Files of a log, the one that is written to among them (`containerLogMaxFiles`).
pub const MAX_FILES: usize = 5;

/// Entries of a directory of logs that are looked at: a container has those of two attempts.
const MAX_ENTRIES: usize = 10_000;

/// The files that were moved away from `log`, oldest first. Empty if the directory cannot be read.
pub fn rotated(log: &Path) -> Vec<PathBuf> {
    let (Some(parent), Some(name)) = (log.parent(), log.file_name()) else { return Vec::new() };
    let names = open(parent).and_then(|directory| names(&directory, name)).unwrap_or_default();
    names.into_iter().map(|name| parent.join(name)).collect()
}

/// Removes a log with the files that were moved away from it.
pub fn remove(log: &Path) {
    let (Some(parent), Some(name)) = (log.parent(), log.file_name()) else { return };
    let Ok(directory) = open(parent) else { return };
    for name in names(&directory, name).unwrap_or_default().iter().map(OsString::as_os_str).chain([name]) {
        let _ = directory.remove(name, 1);
    }
}

/// Moves the file `name` in `directory` away, and removes the oldest ones beyond [`MAX_FILES`]. `time` is the moment in RFC 3339, with
/// nanoseconds.
pub(crate) fn rotate(directory: &Directory, name: &OsStr, time: &str) -> io::Result<()> {
    let stamp: String = time.chars().filter(|c| c.is_ascii_digit() || matches!(c, 'T' | '.')).collect();
    let mut away = name.to_owned();
    away.push(".");
    away.push(stamp.replace('T', "-"));
    // Those that go make room for what comes.
    let old = names(directory, name)?;
    for name in &old[..(old.len() + 2).saturating_sub(MAX_FILES).min(old.len())] {
        directory.remove(name, 1)?;
    }
    directory.rename(name, &away)
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
