//! `csi`: a volume that a CSI driver makes for the pod.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1 as api;

use super::Volume;
use super::claim::fs_group_change_policy;
use crate::csi::{Failure, Inline, Request};
use crate::volumes::{Error, PodContext};

pub(super) struct Csi {
    name: String,
    source: api::CSIVolumeSource,
}

impl Csi {
    fn error(&self, Failure { stage, why }: Failure) -> Error {
        Error::PersistentVolume { name: self.name.clone(), stage, why }
    }
}

#[async_trait::async_trait]
impl Volume for Csi {
    fn from_spec(volume: &api::Volume) -> Option<Self> {
        Some(Self { name: volume.name.clone(), source: volume.csi.clone()? })
    }

    async fn set_up(&self, pod: &PodContext<'_>, _: &Path) -> Result<PathBuf, Error> {
        let Some(plugins) = &pod.volumes.plugins else { return Err(Error::Unsupported("this kind of volume")) };
        let request = Request {
            pod: pod.pod,
            is_read_only: self.is_read_only(),
            group: pod.group,
            on_mismatch: fs_group_change_policy(pod.pod) == Some("OnRootMismatch"),
            tokens: pod.tokens,
            ends: pod.ends(),
        };
        let inline = Inline { name: &self.name, source: &self.source };
        plugins.csi.set_up_inline(&inline, request).await.map_err(|e| self.error(e))
    }

    async fn refresh(&self, pod: &PodContext<'_>, directory: &Path) -> Result<(), Error> {
        let Some(plugins) = &pod.volumes.plugins else { return Ok(()) };
        let requires = plugins.csi.follow_driver(&self.source.driver, pod.pod, &self.name).await;
        if requires.map_err(|e| self.error(e))? {
            self.set_up(pod, directory).await?;
        }
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        self.source.read_only == Some(true)
    }
}
