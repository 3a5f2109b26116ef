//! Files on disk: the manifests of a path, and kustomization directories.

use crate::{Error, os_message};
use kustomize::{Files, Missing};
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::{Component, Path, PathBuf};

/// The extensions of files that are read from a directory.
const EXTENSIONS: [&str; 3] = ["json", "yaml", "yml"];

/// Lists the files of a path: itself, the manifests of a directory, or what a pattern in its last part matches. `given` names it in errors.
pub fn expand(path: &Path, given: &str, recursive: bool) -> Result<Vec<PathBuf>, Error> {
    if std::fs::metadata(path).is_err() {
        return glob(path, given, recursive);
    }
    // A link to a directory is not followed.
    if std::fs::symlink_metadata(path).is_ok_and(|m| !m.is_dir()) {
        return Ok(vec![path.to_owned()]);
    }
    let mut out = Vec::new();
    directory(path, recursive, &mut out)?;
    if out.is_empty() {
        return Err(Error::new(format!("error reading [{given}]: recognized file extensions are [.json .yaml .yml]")));
    }
    Ok(out)
}

/// Expands `dir/*.yaml` where the shell did not: a pattern in the last part of the path.
fn glob(path: &Path, given: &str, recursive: bool) -> Result<Vec<PathBuf>, Error> {
    let missing = || Err(Error::new(format!("the path {given:?} does not exist")));
    let (Some(dir), Some(pattern)) = (path.parent(), path.file_name().and_then(|n| n.to_str())) else {
        return missing();
    };
    if !pattern.contains(['*', '?']) {
        return missing();
    }
    let escaped = regex::escape(pattern).replace("\\*", "[^/]*").replace("\\?", "[^/]");
    let Ok(re) = regex::Regex::new(&format!("^{escaped}$")) else { return missing() };
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let mut names: Vec<PathBuf> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|e| re.is_match(&e.file_name().to_string_lossy()))
        .map(|e| path.with_file_name(e.file_name()))
        .collect();
    names.sort();
    if names.is_empty() {
        return missing();
    }
    let mut out = Vec::new();
    for n in names {
        out.extend(expand(&n, &n.to_string_lossy(), recursive)?);
    }
    Ok(out)
}

fn directory(dir: &Path, recursive: bool, out: &mut Vec<PathBuf>) -> Result<(), Error> {
    let wrong = |e: std::io::Error| Error::new(format!("open {}: {}", dir.display(), os_message(&e)));
    let mut entries: Vec<_> = std::fs::read_dir(dir).map_err(wrong)?.flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for e in entries {
        let path = e.path();
        if e.file_type().is_ok_and(|t| t.is_dir()) {
            if recursive {
                directory(&path, recursive, out)?;
            }
        } else if path.extension().and_then(|x| x.to_str()).is_some_and(|x| EXTENSIONS.contains(&x)) {
            out.push(path);
        }
    }
    Ok(())
}

/// Which types of files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileTypes {
    /// Regular files alone.
    Regular,
    /// Also named pipes, as of `<(command)` in a shell.
    RegularAndPipes,
}

/// Reads a file of at most `limit` bytes. Errors with the reason if it is larger, or not of an accepted type.
pub fn read_file_within(path: &Path, limit: u64, accepted: FileTypes) -> Result<Vec<u8>, String> {
    let kind = std::fs::metadata(path).map_err(|e| os_message(&e))?.file_type();
    if kind.is_dir() {
        return Err("is a directory".into());
    }
    let is_pipe = kind.is_fifo() && accepted == FileTypes::RegularAndPipes;
    if !kind.is_file() && !is_pipe {
        return Err("is not a regular file".into());
    }
    let file = std::fs::File::open(path).map_err(|e| os_message(&e))?;
    read_within(file, limit)
}

/// Reads at most `limit` bytes. Errors with the reason if there are more.
pub fn read_within(source: impl Read, limit: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    source.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(|e| os_message(&e))?;
    if bytes.len() as u64 > limit {
        return Err(format!("is larger than {} MiB", limit >> 20));
    }
    Ok(bytes)
}

/// The file system of the machine.
pub struct Disk;

impl Files for Disk {
    fn resolve(&self, path: &str) -> std::result::Result<String, Missing> {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path));
        match std::fs::canonicalize(&absolute) {
            Ok(found) => Ok(found.to_string_lossy().into_owned()),
            Err(e) => Err(Missing { at: first_missing(&absolute), why: os_message(&e) }),
        }
    }

    fn is_directory(&self, resolved: &str) -> bool {
        Path::new(resolved).is_dir()
    }

    fn read(&self, resolved: &str) -> std::result::Result<Vec<u8>, String> {
        std::fs::read(resolved).map_err(|e| format!("open {resolved}: {}", os_message(&e)))
    }
}

fn first_missing(path: &Path) -> String {
    let mut at = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = at.pop(),
            part => at.push(part),
        }
        if std::fs::symlink_metadata(&at).is_err() {
            break;
        }
    }
    at.to_string_lossy().into_owned()
}
