//! The file system, as far as kustomize needs one, and one in memory.

use std::collections::BTreeMap;

/// A path that leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The part of the path that is not there.
    pub at: String,
    /// In the system's words.
    pub why: String,
}

/// Paths have slashes. What comes from [`Files::resolve`] is absolute and without links.
pub trait Files {
    /// Resolves a path to an absolute one without links.
    fn resolve(&self, path: &str) -> Result<String, Missing>;
    /// Whether a resolved path is a directory.
    fn is_directory(&self, resolved: &str) -> bool;
    /// Reads the file at a resolved path.
    fn read(&self, resolved: &str) -> Result<Vec<u8>, String>;
}

/// Files by absolute path; directories are where files are.
#[derive(Clone, Debug, Default)]
pub struct Memory(BTreeMap<String, Vec<u8>>);

impl Memory {
    /// Adds a file.
    pub fn insert(&mut self, path: &str, bytes: impl Into<Vec<u8>>) {
        self.0.insert(clean(path), bytes.into());
    }
}

impl Files for Memory {
    fn resolve(&self, path: &str) -> Result<String, Missing> {
        let path = clean(&format!("/{path}"));
        let parts: Vec<&str> = path.split('/').skip(1).filter(|p| !p.is_empty()).collect();
        for n in 1..=parts.len() {
            let at = format!("/{}", parts[..n].join("/"));
            if !self.0.contains_key(&at) && !self.is_directory(&at) {
                return Err(Missing { at, why: "no such file or directory".to_owned() });
            }
        }
        Ok(path)
    }

    fn is_directory(&self, resolved: &str) -> bool {
        let inside = format!("{}/", resolved.trim_end_matches('/'));
        self.0.range(inside.clone()..).next().is_some_and(|(p, _)| p.starts_with(&inside))
    }

    fn read(&self, resolved: &str) -> Result<Vec<u8>, String> {
        self.0.get(resolved).cloned().ok_or_else(|| format!("open {resolved}: no such file or directory"))
    }
}

/// A path without `.`, `..` and doubled slashes, as Go's `filepath.Clean` leaves it.
pub fn clean(path: &str) -> String {
    let absolute = path.starts_with('/');
    let mut out: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => match out.last() {
                Some(&last) if last != ".." => _ = out.pop(),
                _ if absolute => {}
                _ => out.push(".."),
            },
            part => out.push(part),
        }
    }
    match (absolute, out.join("/")) {
        (true, rest) => format!("/{rest}"),
        (false, rest) if rest.is_empty() => ".".to_owned(),
        (false, rest) => rest,
    }
}

pub fn join(dir: &str, path: &str) -> String {
    if dir.is_empty() { clean(path) } else { clean(&format!("{dir}/{path}")) }
}

/// Whether a directory is another or lies in it.
pub fn is_within(dir: &str, other: &str) -> bool {
    other == "/" || dir == other || dir.strip_prefix(other).is_some_and(|rest| rest.starts_with('/'))
}
