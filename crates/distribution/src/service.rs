//! The images of the embedded runtime: its store, and the pulls into it.

use std::path::PathBuf;

use async_trait::async_trait;
use runtime::Embedded;
use runtime::image::{Access, Credentials, Error, Image, ImageService, PullError, Pulled};
use supervisor::blocking;

use crate::puller::Puller;

/// The image store of the embedded runtime, and what pulls into it. Cheap to clone.
#[derive(Clone)]
pub struct EmbeddedImages {
    /// The runtime.
    pub runtime: Embedded,
    /// Pulls into the store of the runtime.
    pub puller: Puller,
}

impl From<&crate::Error> for PullError {
    fn from(error: &crate::Error) -> Self {
        Self { message: error.to_string(), is_unavailable: error.is_unavailable() }
    }
}

#[async_trait]
impl ImageService for EmbeddedImages {
    async fn find(&self, name: &str) -> Result<Image, Error> {
        let (runtime, name) = (self.runtime.clone(), name.to_owned());
        blocking(move || runtime.images().resolve(&name)).await
    }

    async fn list(&self) -> Result<Vec<Image>, Error> {
        let runtime = self.runtime.clone();
        Ok(blocking(move || runtime.images().list()).await)
    }

    async fn remove(&self, id: &str) -> Result<(), Error> {
        let (runtime, id) = (self.runtime.clone(), id.to_owned());
        blocking(move || runtime.remove_image(&id)).await
    }

    async fn remove_leftovers(&self) -> Result<(), Error> {
        let this = self.clone();
        let remove = move || {
            this.puller.remove_leftovers();
            this.runtime.remove_image_leftovers()
        };
        blocking(remove).await
    }

    async fn record_access(&self, id: &str, repository: &str, access: Access) -> Result<(), Error> {
        let (runtime, id, repository) = (self.runtime.clone(), id.to_owned(), repository.to_owned());
        blocking(move || runtime.images().record_access(&id, &repository, access).map(drop)).await
    }

    async fn pull(&self, namespace: &str, name: &str, credentials: &[Credentials]) -> Result<Pulled, PullError> {
        self.puller.pull_for(namespace, name, credentials).await.map_err(|error| PullError::from(&*error))
    }

    async fn directory(&self) -> Result<PathBuf, Error> {
        Ok(self.runtime.root().to_owned())
    }
}
