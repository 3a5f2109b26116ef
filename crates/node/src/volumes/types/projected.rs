//! `projected`: files of several sources in one volume in memory. A source is a row of [`SOURCES`].

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1 as api;

use super::Volume;
use super::config_map::ConfigMap;
use super::downward_api::DownwardApi;
use super::secret::Secret;
use super::service_account_token::ServiceAccountToken;
use crate::objects::Kind;
use crate::volumes::files::{DEFAULT_MODE, FileSet, FileSource, Medium, write};
use crate::volumes::{Error, PodContext};

type FromProjection = fn(&api::VolumeProjection, i32) -> Option<Box<dyn FileSource>>;

/// The constructor of every source that this node supports; `None` if the source is another one.
const SOURCES: &[FromProjection] = &[
    |s, mode| Some(Box::new(ConfigMap::from_projection(s, mode)?)),
    |s, mode| Some(Box::new(Secret::from_projection(s, mode)?)),
    |s, mode| Some(Box::new(DownwardApi::from_projection(s, mode)?)),
    |s, mode| Some(Box::new(ServiceAccountToken::from_projection(s, mode)?)),
];

/// A source that this node does not support.
struct Unsupported;

#[async_trait::async_trait]
impl FileSource for Unsupported {
    async fn add_files(&self, _: &mut FileSet<'_>) -> Result<(), Error> {
        Err(Error::Unsupported("this source of a projected volume"))
    }
}

pub(super) struct Projected(Vec<Box<dyn FileSource>>);

#[async_trait::async_trait]
impl FileSource for Projected {
    async fn add_files(&self, files: &mut FileSet<'_>) -> Result<(), Error> {
        for source in &self.0 {
            source.add_files(files).await?;
        }
        Ok(())
    }
}

#[async_trait::async_trait]
impl Volume for Projected {
    fn from_spec(volume: &api::Volume) -> Option<Self> {
        let s = volume.projected.as_ref()?;
        let mode = s.default_mode.unwrap_or(DEFAULT_MODE);
        let source =
            |s| SOURCES.iter().find_map(|from_projection| from_projection(s, mode)).unwrap_or(Box::new(Unsupported));
        // The API server empties sources whose feature is off; they give no files, as upstream.
        let is_something = |s: &&api::VolumeProjection| **s != api::VolumeProjection::default();
        Some(Self(s.sources.iter().flatten().filter(is_something).map(source).collect()))
    }

    async fn set_up(&self, pod: &PodContext<'_>, directory: &Path) -> Result<PathBuf, Error> {
        write(self, pod, directory, Medium::Memory).await
    }

    async fn refresh(&self, pod: &PodContext<'_>, directory: &Path) -> Result<(), Error> {
        write(self, pod, directory, Medium::Memory).await.map(drop)
    }

    fn references(&self) -> Vec<(Kind, &str)> {
        self.0.iter().flat_map(|s| s.references()).collect()
    }

    fn shows_metadata(&self) -> bool {
        self.0.iter().any(|s| s.shows_metadata())
    }

    fn is_in_memory(&self) -> bool {
        true
    }

    fn is_read_only(&self) -> bool {
        true
    }
}
