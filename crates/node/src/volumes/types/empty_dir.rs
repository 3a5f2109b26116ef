//! `emptyDir`: a directory on disk, in memory or in huge pages that lives as long as the pod.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1 as api;
use meta::Quantity;
use supervisor::blocking;

use super::Volume;
use crate::hugepages;
use crate::volumes::memory::{Memory, mount_hugetlbfs, mount_tmpfs};
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
        let medium = source.medium.as_deref().unwrap_or_default();
        let pages = match hugepages::is_medium(medium) {
            true => Some(hugepages::mount_option(medium, pod.pod).map_err(Error::Content)?),
            false => None,
        };
        blocking(move || create(&path, &source, pages.as_deref(), group, memory).map(|()| path)).await
    }

    fn is_in_memory(&self) -> bool {
        self.0.medium.as_deref().is_some_and(|m| m == "Memory" || hugepages::is_medium(m))
    }
}

/// Creates the directory, or leaves an existing one unchanged. `pages` is the option of a mount of huge pages.
fn create(
    path: &Path,
    source: &api::EmptyDirVolumeSource,
    pages: Option<&str>,
    group: Option<u32>,
    memory: Memory,
) -> Result<(), Error> {
    let error = || io_error(path.display().to_string());
    let is_new = !path.exists();
    fs::create_dir_all(path).map_err(error())?;
    match (source.medium.as_deref().unwrap_or_default(), pages) {
        ("", _) => {}
        ("Memory", _) => {
            let size = source.size_limit.as_ref().and_then(|q| Quantity::parse(&q.0).ok());
            if memory == Memory::Mounted {
                mount_tmpfs(path, size.map(|q| q.value()).filter(|v| *v > 0)).map_err(error())?;
            }
        }
        (_, Some(option)) => {
            if memory == Memory::Mounted {
                mount_hugetlbfs(path, option).map_err(error())?;
            }
        }
        (medium, None) => return Err(Error::Content(format!("unknown storage medium {medium:?}"))),
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
