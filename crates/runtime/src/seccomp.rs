//! System call filters.

use serde::{Deserialize, Serialize};

/// A compiled filter: instructions of classic BPF, each packed as `code << 48 | jt << 40 | jf << 32 | k`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program(pub(crate) Vec<u64>);

impl Program {
    /// Installs the filter on the calling thread, for good.
    pub(crate) fn install(&self) -> std::io::Result<()> {
        crate::shim::install_seccomp(&self.0)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the profile is not valid JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// `None` where nothing is to be filtered. `capabilities` are those of the container, by number.
pub fn compile(profile: &crate::api::Seccomp, _capabilities: &[u8]) -> Option<Result<Program, Error>> {
    match profile {
        _ => None,
    }
}
