//! Hooks of the OCI runtime specification: programs of the machine that run at moments of a container's life.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A program, and how it is run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hook {
    /// The absolute path of the program.
    pub path: PathBuf,
    /// The arguments; the first one is the program's name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Variables, `NAME=VALUE`. It has no others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Seconds after which it is killed and has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u64>,
}

impl Hook {
    /// How long the hook may take, at most `limit`.
    pub(crate) fn patience(&self, limit: Duration) -> Duration {
        self.timeout.map_or(limit, |seconds| limit.min(Duration::from_secs(seconds)))
    }
}

/// The hooks of a container, in the order in which the moments come. The fields have the names of the specification.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Hooks {
    /// Deprecated: as `create_runtime`, and before it.
    pub prestart: Vec<Hook>,
    /// In the agent's namespaces, when those of the container and its mounts exist.
    pub create_runtime: Vec<Hook>,
    /// In the container's namespaces, before its root becomes that of the process.
    pub create_container: Vec<Hook>,
    /// In the container, with the user and the privileges of its program, right before that starts.
    pub start_container: Vec<Hook>,
    /// In the agent's namespaces, when the program runs.
    pub poststart: Vec<Hook>,
    /// In the agent's namespaces, when the container is gone.
    pub poststop: Vec<Hook>,
}

impl Hooks {
    /// All hooks.
    pub fn iter(&self) -> impl Iterator<Item = &Hook> {
        let first = self.prestart.iter().chain(&self.create_runtime).chain(&self.create_container);
        first.chain(&self.start_container).chain(&self.poststart).chain(&self.poststop)
    }

    /// Adds hooks after those that are there.
    pub fn extend(&mut self, more: Hooks) {
        self.prestart.extend(more.prestart);
        self.create_runtime.extend(more.create_runtime);
        self.create_container.extend(more.create_container);
        self.start_container.extend(more.start_container);
        self.poststart.extend(more.poststart);
        self.poststop.extend(more.poststop);
    }

    /// Whether there is no hook.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Whether the agent runs hooks before the container's root is entered.
    pub(crate) fn has_runtime(&self) -> bool {
        !(self.prestart.is_empty() && self.create_runtime.is_empty())
    }
}
