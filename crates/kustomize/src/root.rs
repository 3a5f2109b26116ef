//! A directory with a kustomization, and the files that may be read from there.
//!
//! Invariant: nothing outside of the directory is read (unless the caller allows it), no directory includes itself, and
//! nothing is fetched: remote paths are rejected.

use crate::Error;
use crate::files::{Files, is_within, join};

/// Which files a kustomization may read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Restriction {
    /// Only files below the directory of the kustomization.
    #[default]
    RootOnly,
    /// Any file.
    None,
}

/// A directory with a kustomization.
pub struct Root<'a> {
    files: &'a dyn Files,
    restriction: Restriction,
    pub path: String,
    /// The roots that include this one.
    visited: Vec<String>,
}

/// Returns a directory and, if the path is a file, the name of the file.
fn split(files: &dyn Files, path: &str) -> Result<(String, Option<String>), Error> {
    let real = files
        .resolve(path)
        .map_err(|e| Error::text(format!("evalsymlink failure on '{path}' : lstat {}: {}", e.at, e.why)))?;
    if files.is_directory(&real) {
        return Ok((real, None));
    }
    Ok(match real.rsplit_once('/') {
        Some(("", name)) => ("/".to_owned(), Some(name.to_owned())),
        Some((dir, name)) => (dir.to_owned(), Some(name.to_owned())),
        None => (String::new(), Some(real)),
    })
}

fn directory(files: &dyn Files, path: &str) -> Result<String, Error> {
    let wrong = |e: Error| Error::text(format!("must build at directory: {e}"));
    match split(files, path).map_err(|e| wrong(Error::text(format!("not a valid directory: {e}"))))? {
        (dir, None) => Ok(dir),
        _ => Err(wrong(Error::text(format!("'{path}': file is not directory")))),
    }
}

/// Whether a text names a remote repository or file, in a form that kustomize knows.
pub fn is_remote(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    if path.starts_with('/') {
        return false;
    }
    let schemes = ["git::", "http://", "https://", "ssh://", "file://", "github.com/", "github.com:", "gh:"];
    let user = path.split(['/', ':']).next().unwrap_or_default();
    schemes.iter().any(|s| path.starts_with(s)) || (user.contains('@') && path.contains(':'))
}

fn remote_error(path: &str) -> Error {
    Error::Remote(format!(
        "{path:?} is remote, and nothing is fetched from here: get a copy and name its directory instead"
    ))
}

impl<'a> Root<'a> {
    pub fn new(files: &'a dyn Files, path: &str, restriction: Restriction) -> Result<Self, Error> {
        if is_remote(path) {
            return Err(remote_error(path));
        }
        Ok(Self { files, restriction, path: directory(files, path)?, visited: Vec::new() })
    }

    /// Returns the root of a directory that this one includes.
    pub fn enter(&self, path: &str) -> Result<Self, Error> {
        if path.is_empty() {
            return Err(Error::text("new root cannot be empty"));
        }
        if is_remote(path) {
            return Err(remote_error(path));
        }
        if path.starts_with('/') {
            return Err(Error::text(format!("new root '{path}' cannot be absolute")));
        }
        let found = directory(self.files, &join(&self.path, path))?;
        let mut visited = self.visited.clone();
        visited.push(self.path.clone());
        if let Some(outer) = visited.iter().rev().find(|v| is_within(v, &found)) {
            return Err(Error::text(format!(
                "cycle detected: candidate root '{found}' contains visited root '{outer}'"
            )));
        }
        Ok(Self { files: self.files, restriction: self.restriction, path: found, visited })
    }

    /// Reads a file of the kustomization.
    pub fn read(&self, path: &str) -> Result<Vec<u8>, Error> {
        if is_remote(path) {
            return Err(remote_error(path));
        }
        let path = if path.starts_with('/') { path.to_owned() } else { join(&self.path, path) };
        let (dir, name) = split(self.files, &path)?;
        let Some(name) = name else { return Err(Error::text(format!("'{path}' must resolve to a file"))) };
        if self.restriction == Restriction::RootOnly && !is_within(&dir, &self.path) {
            return Err(Error::text(format!("security; file '{path}' is not in or below '{}'", self.path)));
        }
        self.files.read(&join(&dir, &name)).map_err(Error::text)
    }

    /// Reads a text file of the kustomization.
    pub fn read_text(&self, path: &str) -> Result<String, Error> {
        Ok(String::from_utf8_lossy(&self.read(path)?).into_owned())
    }
}
