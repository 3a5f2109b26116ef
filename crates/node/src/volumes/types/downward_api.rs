//! `downwardAPI`: metadata of the pod and resources of its containers as files in memory.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1 as api;

use super::Volume;
use crate::fields;
use crate::volumes::files::{DEFAULT_MODE, FileSet, FileSource, Medium, write};
use crate::volumes::{Error, PodContext};

pub(super) struct DownwardApi {
    items: Vec<api::DownwardAPIVolumeFile>,
    mode: i32,
}

impl DownwardApi {
    /// The source of a projected volume whose files have `mode`.
    pub fn from_projection(source: &api::VolumeProjection, mode: i32) -> Option<Self> {
        let s = source.downward_api.as_ref()?;
        Some(Self { items: s.items.clone().unwrap_or_default(), mode })
    }
}

#[async_trait::async_trait]
impl FileSource for DownwardApi {
    async fn add_files(&self, files: &mut FileSet<'_>) -> Result<(), Error> {
        let (pod, node) = (files.context.pod, files.context.node);
        for item in &self.items {
            let value = if let Some(f) = &item.field_ref {
                fields::field(pod, &f.field_path, node)?
            } else if let Some(r) = &item.resource_field_ref {
                fields::resource(pod, "", r, node)?
            } else {
                continue;
            };
            files.add(&item.path, value, item.mode.unwrap_or(self.mode))?;
        }
        Ok(())
    }

    fn shows_metadata(&self) -> bool {
        true
    }
}

#[async_trait::async_trait]
impl Volume for DownwardApi {
    fn from_spec(volume: &api::Volume) -> Option<Self> {
        let s = volume.downward_api.as_ref()?;
        Some(Self { items: s.items.clone().unwrap_or_default(), mode: s.default_mode.unwrap_or(DEFAULT_MODE) })
    }

    async fn set_up(&self, pod: &PodContext<'_>, directory: &Path) -> Result<PathBuf, Error> {
        write(self, pod, directory, Medium::Memory).await
    }

    async fn refresh(&self, pod: &PodContext<'_>, directory: &Path) -> Result<(), Error> {
        write(self, pod, directory, Medium::Memory).await.map(drop)
    }

    fn shows_metadata(&self) -> bool {
        true
    }

    fn is_in_memory(&self) -> bool {
        true
    }

    fn is_read_only(&self) -> bool {
        true
    }
}
