//! The configuration of the scheduler (upstream `KubeSchedulerConfiguration` v1): profiles, their plugins, and extenders.

mod arguments;
mod profile;

pub use arguments::Arguments;
pub use profile::{Enabled, PluginSet, Profile};

use crate::queue::Backoff;
use std::sync::Arc;

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// The plugins of a profile do not make a framework.
    #[error("creating profile for scheduler name {scheduler}: {problem}")]
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
}

impl Default for Configuration {
    fn default() -> Self {
        Self { profiles: vec![Profile::new("default-scheduler")], percentage: None, backoff: Backoff::default() }
    }
}
