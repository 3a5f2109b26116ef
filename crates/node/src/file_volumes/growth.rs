//! Lets volumes grow: first the file, then what is in it.

use runtime::beneath::mounts_of_device;
use runtime::loop_device::LoopDevice;
use supervisor::blocking;

use super::error::{Error, failed};
use super::files::{check_size, is_preallocated, open};
use super::format::Format;
use super::programs::run_successfully;
use super::{FileVolume, FileVolumes};

/// The contents of a file that has grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    AsLargeAsFile,
    /// The file system has not grown: it can only while it is mounted.
    GrowsWhenMounted,
}

impl FileVolumes {
    /// Makes the file of a volume larger. Does nothing if it is as large.
    pub async fn grow_file(&self, name: &str, size: u64) -> Result<(), Error> {
        let _guard = self.lock(name).await;
        let (root, path, allocation) = (self.root.clone(), self.path(name), self.allocation.clone());
        blocking(move || {
            let what = || failed(path.display());
            let file = open(&path)?;
            let meta = file.metadata().map_err(what())?;
            if meta.len() >= size {
                return Ok(());
            }
            check_size(&root, size)?;
            allocation.set_size(&file, meta.len(), size, is_preallocated(&meta))?;
            file.sync_all().map_err(what())
        })
        .await
    }

    /// Makes the contents of a file as large as the file.
    pub async fn grow_contents(&self, volume: &FileVolume) -> Result<Contents, Error> {
        let _guard = self.lock(&volume.name).await;
        self.grow_locked(volume).await
    }

    pub(super) async fn grow_locked(&self, volume: &FileVolume) -> Result<Contents, Error> {
        let path = self.path(&volume.name);
        let file = path.clone();
        let found = blocking(move || {
            let device = LoopDevice::find(&open(&file)?).map_err(failed("finding the loop device"))?;
            let Some(device) = device else { return Ok(None) };
            device.update_size().map_err(failed(device.path().display()))?;
            let mounts = mounts_of_device(&device.path()).map_err(failed("reading mounts"))?;
            Ok::<_, Error>(Some((device, mounts.into_iter().next())))
        })
        .await?;
        let program = match &found {
            Some((device, mounted)) => volume.format.grow(&device.path(), mounted.as_deref()),
            None => {
                self.check(volume.format, true, &path, &path).await?;
                volume.format.grow(&path, None)
            }
        };
        match program {
            Some(program) => run_successfully(program).await?,
            None if volume.format == Format::Raw => {}
            None => return Ok(Contents::GrowsWhenMounted),
        }
        Ok(Contents::AsLargeAsFile)
    }
}
