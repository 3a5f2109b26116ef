//! Kustomization directories on disk (`-k`, and `kubectl kustomize`).

use crate::error::{Error, Result, os_message};
use crate::kube::Kube;
use kustomize::{Files, Missing, Options, Output};
use std::path::{Component, Path, PathBuf};

/// The file system of the machine.
struct Disk;

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

/// Builds a directory. Warnings about deprecated fields go to standard error.
pub fn build(k: &Kube, path: &str, options: Options) -> Result<Output> {
    let (built, warnings) = kustomize::build(&Disk, path, options);
    for w in warnings {
        k.warn(w);
    }
    built.map_err(|e| Error::Text(e.to_string()))
}
