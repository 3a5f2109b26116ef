//! Kustomization directories on disk (`-k`, and `kubectl kustomize`).

use crate::error::{Error, Result};
use crate::kube::Kube;
use kustomize::{Options, Output};
use manifests::Disk;

/// Builds a directory. Warnings about deprecated fields go to standard error.
pub fn build(k: &Kube, path: &str, options: Options) -> Result<Output> {
    let (built, warnings) = kustomize::build(&Disk, path, options);
    for w in warnings {
        k.warn(w);
    }
    built.map_err(|e| Error::Text(e.to_string()))
}
