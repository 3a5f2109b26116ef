//! `secret`: the keys of a secret as files in memory.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1 as api;

use super::Volume;
use crate::objects::Kind;
use crate::volumes::files::{DEFAULT_MODE, FileSet, FileSource, Keys, Medium, write};
use crate::volumes::{Error, PodContext};

pub(super) struct Secret(Keys);

impl Secret {
    /// The source of a projected volume whose files have `mode`.
    pub fn from_projection(source: &api::VolumeProjection, mode: i32) -> Option<Self> {
        let s = source.secret.as_ref()?;
        Some(Self(Keys::new(Kind::Secret, Some(&s.name), s.items.as_ref(), s.optional, mode)))
    }
}

#[async_trait::async_trait]
impl FileSource for Secret {
    async fn add_files(&self, files: &mut FileSet<'_>) -> Result<(), Error> {
        files.add_keys(&self.0).await
    }

    fn references(&self) -> Vec<(Kind, &str)> {
        self.0.references()
    }
}

#[async_trait::async_trait]
impl Volume for Secret {
    fn from_spec(volume: &api::Volume) -> Option<Self> {
        let s = volume.secret.as_ref()?;
        let mode = s.default_mode.unwrap_or(DEFAULT_MODE);
        Some(Self(Keys::new(Kind::Secret, s.secret_name.as_deref(), s.items.as_ref(), s.optional, mode)))
    }

    async fn set_up(&self, pod: &PodContext<'_>, directory: &Path) -> Result<PathBuf, Error> {
        write(self, pod, directory, Medium::Memory).await
    }

    async fn refresh(&self, pod: &PodContext<'_>, directory: &Path) -> Result<(), Error> {
        write(self, pod, directory, Medium::Memory).await.map(drop)
    }

    fn references(&self) -> Vec<(Kind, &str)> {
        self.0.references()
    }

    fn is_in_memory(&self) -> bool {
        true
    }

    fn is_read_only(&self) -> bool {
        true
    }
}
