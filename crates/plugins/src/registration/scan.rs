//! Finds the sockets in a directory.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Levels of directories that are searched.
const DEPTH: usize = 4;
/// Files and directories that are looked at.
const MAX_ENTRIES: usize = 10_000;

/// A file, also if another one has its path and number later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

/// The sockets below `root`, which is made if it is missing, by their path relative to it. Hidden files and links are left out. Errors
/// if there are more than `max`.
pub fn sockets(root: &Path, max: usize) -> io::Result<BTreeMap<PathBuf, Identity>> {
    fs::create_dir_all(root)?;
    let mut out = BTreeMap::new();
    let mut entries_left = MAX_ENTRIES;
    let mut waiting = vec![(PathBuf::new(), 0)];
    while let Some((directory, depth)) = waiting.pop() {
        let entries = match fs::read_dir(root.join(&directory)) {
            Ok(entries) => entries,
            // A directory that a plugin has removed meanwhile.
            Err(_) if depth > 0 => continue,
            Err(e) => return Err(e),
        };
        for entry in entries.flatten() {
            entries_left = entries_left.checked_sub(1).ok_or_else(|| too_many(MAX_ENTRIES, "files"))?;
            let name = entry.file_name();
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let Ok(meta) = entry.metadata() else { continue };
            let path = directory.join(name);
            if meta.is_dir() && depth < DEPTH {
                waiting.push((path, depth + 1));
            } else if meta.file_type().is_socket() {
                let identity =
                    Identity { device: meta.dev(), inode: meta.ino(), changed: (meta.ctime(), meta.ctime_nsec()) };
                out.insert(path, identity);
                if out.len() > max {
                    return Err(too_many(max, "sockets"));
                }
            }
        }
    }
    Ok(out)
}

fn too_many(max: usize, what: &str) -> io::Error {
    io::Error::other(format!("more than {max} {what}"))
}
