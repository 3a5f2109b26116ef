//! Errors of the values of flags.

use apiserver::audit;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error("loading audit policy file: {source}: from file {path}")]
    Policy { path: PathBuf, source: audit::Error },
    #[error("{0}")]
    Audit(String),
    #[error("invalid argument {0:?} for \"--feature-gates\" flag: {1}")]
    Gate(String, String),
}
