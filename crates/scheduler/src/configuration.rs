//! The configuration of the scheduler (upstream `KubeSchedulerConfiguration` v1): profiles, their plugins, and extenders.

mod arguments;
mod conversion;
mod extender;
mod profile;
mod read;
mod validate;

pub use arguments::Arguments;
pub use extender::ExtenderConfiguration;
pub use profile::{Enabled, PluginSet, Profile};

use crate::extender::Extender;
use crate::plugins::Handle;
use crate::queue::Backoff;
use std::path::PathBuf;
use std::sync::Arc;

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// The file cannot be read.
    #[error("open {}: {}", path.display(), client::kubeconfig::os_error(source))]
    Unreadable {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The text is no valid configuration.
    #[error("{0}")]
    Invalid(String),
    /// The plugins of a profile do not make a framework.
    #[error("initializing profiles: creating profile for scheduler name {scheduler}: {problem}")]
    Profile { scheduler: Arc<str>, problem: String },
}

/// The configuration of the scheduler.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// One for each `schedulerName`.
    pub profiles: Vec<Profile>,
    /// The share in percent of nodes to find before they are scored; none: it falls with the size of the cluster.
    pub percentage: Option<u32>,
    pub backoff: Backoff,
    /// In the order of their calls.
    pub extenders: Vec<ExtenderConfiguration>,
    /// What the author of an older configuration should know.
    pub warnings: Vec<String>,
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            profiles: vec![Profile::new("default-scheduler")],
            percentage: None,
            backoff: Backoff::default(),
            extenders: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

impl Configuration {
    /// Errors if the plugins of a profile do not make a framework, or an extender cannot be connected to.
    pub fn check(&self) -> Result<(), ConfigurationError> {
        crate::frameworks(self, &Handle::default(), &[])?;
        self.connect().map(|_| ())
    }

    /// The extenders, without connections yet.
    pub fn connect(&self) -> Result<Vec<Extender>, ConfigurationError> {
        let connect = |extender: &ExtenderConfiguration| {
            let invalid = |e| ConfigurationError::Invalid(format!("extender {}: {e}", extender.url));
            Extender::new(extender.clone()).map_err(invalid)
        };
        self.extenders.iter().map(connect).collect()
    }
}

#[cfg(test)]
mod tests;
