//! `image`: the files of an image, read-only. The runtime mounts it for each container; the worker pulls it before a container starts.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1 as api;

use super::Volume;
use crate::volumes::{Error, PodContext};

pub(super) struct Image(api::ImageVolumeSource);

#[async_trait::async_trait]
impl Volume for Image {
    fn from_spec(volume: &api::Volume) -> Option<Self> {
        volume.image.clone().map(Self)
    }

    /// The volume has no path on the host.
    async fn set_up(&self, _: &PodContext<'_>, _: &Path) -> Result<PathBuf, Error> {
        Ok(PathBuf::new())
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn image(&self) -> Option<&str> {
        self.0.reference.as_deref()
    }
}
