//! Makes and removes volumes.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::mount::{MntFlags, umount2};
use runtime::beneath::mounts_of_device;
use runtime::loop_device::LoopDevice;
use supervisor::blocking;

use super::devices::records;
use super::error::{Error, failed};
use super::files::{TEMPORARY, UNFINISHED, copy_data, create, finish, open};
use super::format::FileOptions;
use super::programs::run_successfully;
use super::{FileVolume, FileVolumes};

impl FileVolumes {
    /// Makes the file of a volume, and its file system, or a copy of `source`, which has the same format and is not larger. Does nothing if
    /// the file exists.
    pub async fn make(
        &self,
        name: &str,
        size: u64,
        options: FileOptions,
        source: Option<&FileVolume>,
    ) -> Result<(), Error> {
        let _guard = self.lock(name).await;
        let (root, path) = (self.root.clone(), self.path(name));
        let unfinished = path.with_extension(UNFINISHED);
        let place = path.with_extension(TEMPORARY);
        if path.exists() {
            return Ok(());
        }
        let pods = self.pods.clone();
        let made = async {
            let (new, allocation) = (unfinished.clone(), self.allocation.clone());
            blocking(move || create(&root, &new, size, options.is_preallocated, &allocation)).await?;
            if let Some(source) = source {
                return self.copy(source, &unfinished, &path).await;
            }
            if let Some(program) = options.format.make(&unfinished, options.is_preallocated) {
                run_successfully(program).await?;
            }
            let (new, place) = (unfinished.clone(), place.clone());
            blocking(move || finish(&new, &path, Some((&place, &pods)), options.format)).await
        };
        let made = made.await;
        if made.is_err() {
            blocking(move || {
                let _ = umount2(&place, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
                drop(fs::remove_dir(place));
                drop(fs::remove_file(unfinished));
            })
            .await;
        }
        made
    }

    /// Fills a new file with the contents of a volume, which then use all of it.
    async fn copy(&self, source: &FileVolume, unfinished: &Path, path: &Path) -> Result<(), Error> {
        let _guard = self.lock(&source.name).await;
        let (from, to, name) = (self.path(&source.name), unfinished.to_owned(), source.name.clone());
        let allocation = self.allocation.clone();
        let grows = blocking(move || {
            let (from, to) = (open(&from)?, open(&to)?);
            if LoopDevice::find(&from).map_err(failed("finding the loop device"))?.is_some() {
                return Err(Error::SourceInUse(name));
            }
            let used = from.metadata().map_err(failed("reading the size"))?.blocks().saturating_mul(512);
            let _promise = allocation.promise(&to, used)?;
            copy_data(&from, &to).map_err(failed("copying the volume"))?;
            let length = |f: &File| f.metadata().map(|m| m.len()).map_err(failed("reading the size"));
            Ok::<_, Error>(length(&to)? > length(&from)?)
        })
        .await?;
        if grows {
            self.check(source.format, true, unfinished, path).await?;
            if let Some(program) = source.format.grow(unfinished, None) {
                run_successfully(program).await?;
            }
        }
        let (unfinished, path, format) = (unfinished.to_owned(), path.to_owned(), source.format);
        blocking(move || finish(&unfinished, &path, None, format)).await
    }

    /// Removes the file of a volume. Errors if it is mounted, or a pod has its device. Does nothing if it does not exist.
    pub async fn remove(&self, name: &str) -> Result<(), Error> {
        let _guard = self.lock(name).await;
        let (path, pods, own) = (self.path(name), self.pods.clone(), name.to_owned());
        if blocking(move || records(&pods).iter().any(|(_, n)| *n == own)).await {
            return Err(Error::IsDevice);
        }
        drop(self.held.lock().remove(name));
        blocking(move || {
            let file = match open(&path) {
                Err(Error::Gone(_)) => return Ok(()),
                file => file?,
            };
            if let Some(device) = LoopDevice::find(&file).map_err(failed("finding the loop device"))? {
                let mounts = mounts_of_device(&device.path()).map_err(failed("reading mounts"))?;
                if let Some(place) = mounts.first() {
                    return Err(Error::InUse(place.display().to_string()));
                }
                device.detach().map_err(failed("detaching a loop device"))?;
            }
            fs::remove_file(&path).map_err(failed(path.display()))
        })
        .await
    }
}
