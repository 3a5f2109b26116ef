//! Mounts the file systems of volumes.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use nix::mount::{MsFlags, mount};
use runtime::loop_device::{Lifetime, LoopDevice};
use supervisor::blocking;

use super::devices::numbers_of_pods;
use super::error::{Error, failed};
use super::files::{USED, USED_AS_DEVICE, is_preallocated, open};
use super::format::Format;
use super::growth::Contents;
use super::{FileVolume, FileVolumes};

impl FileVolumes {
    /// Mounts the file system of a volume at `place`, unless it is mounted there. `grows`: the file is larger than its file system,
    /// which then grows if it can.
    pub async fn mount(&self, volume: &FileVolume, place: &Path, grows: bool) -> Result<Contents, Error> {
        let _guard = self.lock(&volume.name).await;
        let (path, at) = (self.path(&volume.name), place.to_owned());
        let (file, is_mounted, has_device) = blocking(move || {
            fs::create_dir_all(&at).map_err(failed(at.display()))?;
            let file = open(&path)?;
            let meta = file.metadata().map_err(failed(path.display()))?;
            if meta.mode() & 0o7777 == USED_AS_DEVICE {
                return Err(Error::WasDevice);
            }
            let has_device = LoopDevice::find(&file).map_err(failed("finding the loop device"))?.is_some();
            Ok::<_, Error>((file, crate::csi::paths::is_mounted(&at), has_device))
        })
        .await?;
        if is_mounted {
            // The provisioner lets one grow that is mounted.
            return Ok(if grows { Contents::GrowsWhenMounted } else { Contents::AsLargeAsFile });
        }
        let path = self.path(&volume.name);
        if !has_device && grows {
            // A file system that cannot grow is mounted as it is.
            match self.grow_locked(volume).await {
                Err(e @ Error::Damaged { .. }) => return Err(e),
                Err(error) => tracing::warn!(volume = volume.name, %error, "the file system of a volume did not grow"),
                Ok(_) => {}
            }
        } else if !has_device {
            self.check(volume.format, false, &path, &path).await?;
        }
        let (format, at, pods) = (volume.format, place.to_owned(), self.pods.clone());
        blocking(move || {
            let meta = file.metadata().map_err(failed(path.display()))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(USED)).map_err(failed(path.display()))?;
            mount_file(&file, &at, format, is_preallocated(&meta), &pods)
        })
        .await?;
        // Also what has grown before it was mounted: then this finds nothing to do.
        if grows && let Err(error) = self.grow_locked(volume).await {
            tracing::warn!(volume = volume.name, %error, "the file system of a volume did not grow");
            return Ok(Contents::GrowsWhenMounted);
        }
        Ok(Contents::AsLargeAsFile)
    }
}

/// Mounts a file system. Its loop device goes with the mount, and has no number that a pod ever had: the pod could read and write it.
pub(super) fn mount_file(
    file: &File,
    place: &Path,
    format: Format,
    is_preallocated: bool,
    pods: &Path,
) -> Result<(), Error> {
    let device = LoopDevice::attach(file, Lifetime::UntilUnused, &numbers_of_pods(pods, None));
    let device = device.map_err(failed("attaching a loop device"))?;
    let source = device.path();
    let flags = MsFlags::MS_NODEV | MsFlags::MS_NOSUID;
    let options = format.mount_options(is_preallocated);
    mount(Some(&source), place, format.file_system(), flags, Some(options)).map_err(|e| {
        let what = format!("mounting {} as {}", source.display(), format.file_system().unwrap_or_default());
        Error::Io { what, source: e.into() }
    })
}
