//! The part of a file system that kustomize needs, and an implementation in memory.

use std::collections::BTreeMap;

/// Error for a path that does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The first part of the path that does not exist.
    pub at: String,
    /// The message of the operating system.
    pub why: String,
}

/// A file system with slashes in paths. [`Files::resolve`] returns absolute paths without links.
pub trait Files {
    /// Resolves a path to an absolute one without links.
    fn resolve(&self, path: &str) -> Result<String, Missing>;
    /// Whether a resolved path is a directory.
    fn is_directory(&self, resolved: &str) -> bool;
    /// Reads the file at a resolved path.
    fn read(&self, resolved: &str) -> Result<Vec<u8>, String>;
}

/// Files by absolute path; directories exist where files are.
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
        let prefix = format!("{}/", resolved.trim_end_matches('/'));
        self.0.range(prefix.clone()..).next().is_some_and(|(p, _)| p.starts_with(&prefix))
    }

    fn read(&self, resolved: &str) -> Result<Vec<u8>, String> {
        self.0.get(resolved).cloned().ok_or_else(|| format!("open {resolved}: no such file or directory"))
    }
}

/// Removes `.`, `..` and doubled slashes from a path, as Go's `filepath.Clean` does.
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

/// Joins two paths and cleans the result.
pub fn join(dir: &str, path: &str) -> String {
    if dir.is_empty() { clean(path) } else { clean(&format!("{dir}/{path}")) }
}

/// Whether `dir` is `other` or is inside of it.
pub fn is_within(dir: &str, other: &str) -> bool {
    other == "/" || dir == other || dir.strip_prefix(other).is_some_and(|rest| rest.starts_with('/'))
}
