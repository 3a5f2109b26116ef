//! The images of a node, as its agent uses them: those of the embedded store, or of a container runtime behind the CRI.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;

use super::{Access, Error, Image};

/// A user of a registry.
#[derive(Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credentials {
    /// The name, without a colon.
    pub username: String,
    /// The password or token.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

/// A pulled image.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// The image in the store.
    pub image: Image,
    /// The duration of the pull, without the time that it waited for others.
    pub duration: Duration,
    /// The credentials of the caller that the registry accepted; `None` if it was pulled without.
    pub credentials: Option<Credentials>,
}

/// Why an image was not pulled. Pod authors read the message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct PullError {
    /// The cause, in a bounded number of bytes.
    pub message: String,
    /// Whether the registry could not be reached, or is out of order.
    pub is_unavailable: bool,
}

/// The images of a node.
#[async_trait]
pub trait ImageService: Send + Sync {
    /// Finds an image by name or id. [`Error::NotFound`] if there is none.
    async fn find(&self, name: &str) -> Result<Image, Error>;
    /// All images.
    async fn list(&self) -> Result<Vec<Image>, Error>;
    /// Removes an image by its id. Errors if a container that has not ended uses it.
    async fn remove(&self, id: &str) -> Result<(), Error>;
    /// Removes what interrupted pulls and imports left.
    async fn remove_leftovers(&self) -> Result<(), Error>;
    /// Records who may use an image by the name of a repository. Until then, no pod may by that name.
    async fn record_access(&self, id: &str, repository: &str, access: Access) -> Result<(), Error>;
    /// Pulls an image for a pod of a namespace. Tries all credentials in order, or none if there are none.
    async fn pull(&self, namespace: &str, name: &str, credentials: &[Credentials]) -> Result<Pulled, PullError>;
    /// A directory on the file system of the images.
    async fn directory(&self) -> Result<PathBuf, Error>;
}
