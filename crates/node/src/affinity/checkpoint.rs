//! A file in which a manager keeps what it has given away.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The file of a manager with a policy. Blocks.
pub struct Checkpoint {
    path: PathBuf,
    /// The manager in messages.
    manager: &'static str,
    policy: String,
    /// What the file has, so that it is not written again.
    written: Mutex<Vec<u8>>,
}

impl Checkpoint {
    pub fn new(path: PathBuf, manager: &'static str, policy: &str) -> Self {
        Self { path, manager, policy: policy.to_owned(), written: Mutex::default() }
    }

    /// An error with what to do about it.
    pub fn complaint(&self, why: &str) -> String {
        let (manager, path) = (self.manager, self.path.display());
        format!(
            "could not restore state from checkpoint: {why}, please drain this node and delete the {manager} manager checkpoint \
             file \"{path}\" before restarting Kubelet"
        )
    }

    /// The content of the file, if there is one. Errors if it is of another policy.
    pub fn load<T: DeserializeOwned>(&self) -> Result<Option<T>, String> {
        let bytes = match std::fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(self.complaint(&e.to_string())),
        };
        let content: Value = serde_json::from_slice(&bytes).map_err(|e| self.complaint(&e.to_string()))?;
        let (own, saved) = (&self.policy, content["policyName"].as_str().unwrap_or_default());
        if own != saved {
            let why = format!("configured policy \"{own}\" differs from state checkpoint policy \"{saved}\"");
            return Err(self.complaint(&why));
        }
        serde_json::from_value(content).map(Some).map_err(|e| self.complaint(&e.to_string()))
    }

    /// Replaces the content. A failure is logged: the allocations are then lost if the agent starts again.
    pub fn save(&self, content: &impl Serialize) {
        let Ok(bytes) = serde_json::to_vec(content) else { return };
        let mut written = self.written.lock();
        if *written == bytes {
            return;
        }
        match self.write(&bytes) {
            Ok(()) => *written = bytes,
            Err(error) => tracing::error!(path = %self.path.display(), %error, "storing a checkpoint failed"),
        }
    }

    fn write(&self, bytes: &[u8]) -> std::io::Result<()> {
        let new = self.path.with_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&new, &self.path)?;
        match self.path.parent() {
            Some(directory) => File::open(directory)?.sync_all(),
            None => Ok(()),
        }
    }
}
