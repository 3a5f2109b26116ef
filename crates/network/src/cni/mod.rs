//! The container network interface (CNI), in both directions.
//!
//! This program is a plugin for container runtimes that create the network namespaces of pods themselves ([`plugin`], [`serve`]), and
//! it runs the plugins of a network configuration for its own pods ([`PluginNetwork`]). Both share the versions, error codes and
//! results of the [`specification`].

mod configuration;
mod execution;
mod plugins;
mod provider;
mod records;
mod specification;

pub use execution::Place;
pub use plugins::{Bandwidth, Options, PluginAttachment, PluginNetwork, Sandbox};
pub use provider::{Files, LOOPBACK, PLUGIN, plugin, serve};
pub use records::has_attachments;

use std::path::PathBuf;

/// Why the plugins of a network configuration could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory has no network configuration.
    #[error("cni plugin not initialized")]
    NotInitialized,
    /// The network configuration cannot be used.
    #[error("cni plugin not initialized: failed to load CNI config file {}: {message}", path.display())]
    Configuration {
        /// The file.
        path: PathBuf,
        /// What is invalid.
        message: String,
    },
    /// No program of this name is in the directories of plugins.
    #[error("failed to find plugin {name:?} in path [{directories}]")]
    Missing {
        /// The type of the plugin.
        name: String,
        /// The directories, separated by spaces.
        directories: String,
    },
    /// A plugin failed.
    #[error("plugin type={name:?} failed ({command}): {message}")]
    Plugin {
        /// The type of the plugin.
        name: String,
        /// `add`, `delete`, …
        command: &'static str,
        /// What the plugin says.
        message: String,
    },
    /// The result of the last plugin cannot be used.
    #[error("the result of network {network:?} cannot be used: {message}")]
    Result {
        /// The name of the network.
        network: String,
        /// What is invalid.
        message: String,
    },
    /// A sandbox could not be connected.
    #[error("failed to setup network for sandbox {sandbox:?}: {source}")]
    SetUp {
        /// The id of the sandbox.
        sandbox: String,
        /// The cause.
        #[source]
        source: Box<crate::Error>,
    },
    /// A sandbox could not be disconnected.
    #[error("failed to destroy network for sandbox {sandbox:?}: {source}")]
    TearDown {
        /// The id of the sandbox.
        sandbox: String,
        /// The cause.
        #[source]
        source: Box<crate::Error>,
    },
}
