//! `emptyDir`: a directory on disk or in memory that lives as long as the pod.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1 as api;
use meta::Quantity;
use supervisor::blocking;

use super::Volume;
use crate::volumes::memory::{Memory, mount_tmpfs};
use crate::volumes::{Error, PodContext, io_error};

pub(super) struct EmptyDir(api::EmptyDirVolumeSource);

#[async_trait::async_trait]
impl Volume for EmptyDir {
    fn from_spec(volume: &api::Volume) -> Option<Self> {
        volume.empty_dir.clone().map(Self)
    }

    async fn set_up(&self, pod: &PodContext<'_>, directory: &Path) -> Result<PathBuf, Error> {
        let (path, source) = (directory.to_owned(), self.0.clone());
        let (group, memory) = (pod.group, pod.memory);
        blocking(move || create(&path, &source, group, memory).map(|()| path)).await
    }

    fn is_in_memory(&self) -> bool {
        self.0.medium.as_deref() == Some("Memory")
    }
}

/// Creates the directory, or leaves an existing one unchanged.
fn create(path: &Path, source: &api::EmptyDirVolumeSource, group: Option<u32>, memory: Memory) -> Result<(), Error> {
    let error = || io_error(path.display().to_string());
    let is_new = !path.exists();
    fs::create_dir_all(path).map_err(error())?;
    match source.medium.as_deref().unwrap_or_default() {
        "" => {}
        "Memory" => {
            let size = source.size_limit.as_ref().and_then(|q| Quantity::parse(&q.0).ok());
            if memory == Memory::Mounted {
                mount_tmpfs(path, size.map(|q| q.value()).filter(|v| *v > 0)).map_err(error())?;
            }
        }
        _ => return Err(Error::Unsupported("huge pages as the medium of an emptyDir volume")),
    }
    if is_new {
        // Containers may run as any user, so every user may write.
        let mode = if group.is_some() { 0o2777 } else { 0o777 };
        // A tmpfs has the sticky bit, and directories of a subPath get it from there, as with kubelet.
        let mode = if source.medium.as_deref() == Some("Memory") { mode | 0o1000 } else { mode };
        if let Some(gid) = group {
            chown(path, None, Some(gid)).map_err(error())?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(error())?;
    }
    Ok(())
}
