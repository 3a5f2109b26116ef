//! `configMap`: the keys of a config map as files.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1 as api;

use super::Volume;
use crate::objects::Kind;
use crate::volumes::files::{DEFAULT_MODE, FileSet, FileSource, Keys, Medium, write};
use crate::volumes::{Error, PodContext};

pub(super) struct ConfigMap(Keys);

impl ConfigMap {
    /// The source of a projected volume whose files have `mode`.
    pub fn from_projection(source: &api::VolumeProjection, mode: i32) -> Option<Self> {
        let s = source.config_map.as_ref()?;
        Some(Self(Keys::new(Kind::ConfigMap, Some(&s.name), s.items.as_ref(), s.optional, mode)))
    }
}

#[async_trait::async_trait]
impl FileSource for ConfigMap {
    async fn add_files(&self, files: &mut FileSet<'_>) -> Result<(), Error> {
        files.add_keys(&self.0).await
    }

    fn references(&self) -> Vec<(Kind, &str)> {
        self.0.references()
    }
}

#[async_trait::async_trait]
impl Volume for ConfigMap {
    fn from_spec(volume: &api::Volume) -> Option<Self> {
        let s = volume.config_map.as_ref()?;
        let mode = s.default_mode.unwrap_or(DEFAULT_MODE);
        Some(Self(Keys::new(Kind::ConfigMap, Some(&s.name), s.items.as_ref(), s.optional, mode)))
    }

    async fn set_up(&self, pod: &PodContext<'_>, directory: &Path) -> Result<PathBuf, Error> {
        write(self, pod, directory, Medium::Disk).await
    }

    async fn refresh(&self, pod: &PodContext<'_>, directory: &Path) -> Result<(), Error> {
        write(self, pod, directory, Medium::Disk).await.map(drop)
    }

    fn references(&self) -> Vec<(Kind, &str)> {
        self.0.references()
    }

    fn is_read_only(&self) -> bool {
        true
    }
}
