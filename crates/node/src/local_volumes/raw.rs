//! Devices of the node that pods have as they are (`volumeMode: Block`).
//!
//! A link at `volumeDevices/kemudi.io~device/NAME` of a pod's directory names the device, from before the pod gets it. A device that a pod
//! has is not formatted, whether a program has it open or not.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use supervisor::blocking;

use super::{LocalVolumes, is_plain, names};

/// The directory of devices of pods; those of other kinds are beside it.
const DEVICES: &str = "volumeDevices";
const TYPE_DIRECTORY: &str = "kemudi.io~device";

impl LocalVolumes {
    /// Notes that a pod gets a block device. Waits until it is formatted, if it is for another volume.
    pub async fn map(&self, name: &str, device: &Path, pod: &str) -> Result<(), String> {
        let path = device.to_owned();
        let number = blocking(move || device_number(&path)).await?;
        if !is_plain(name) {
            return Err(format!("{name:?} is no name of a volume"));
        }
        let _guard = self.lock(format!("device/{number}")).await;
        let (target, link) = (device.to_owned(), self.pods.join(pod).join(DEVICES).join(TYPE_DIRECTORY).join(name));
        let written = blocking(move || {
            let directory = link.parent().unwrap_or(&link);
            fs::create_dir_all(directory)?;
            match fs::remove_file(&link) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
                _ => symlink(target, &link),
            }
        });
        written.await.map_err(|e| format!("noting the device of the pod: {e}"))
    }
}

/// The number of a block device.
fn device_number(path: &Path) -> Result<u64, String> {
    match fs::metadata(path) {
        Ok(found) if found.file_type().is_block_device() => Ok(found.rdev()),
        Ok(_) => Err(format!("path {path:?} is not a block device")),
        Err(e) => Err(format!("path {path:?}: {e}")),
    }
}

/// The pod that has a block device with this number. Blocks.
pub(super) fn pod_with_device(pods: &Path, number: u64) -> Option<String> {
    let has = |pod: &String| {
        let kinds = pods.join(pod).join(DEVICES);
        let links = names(&kinds).into_iter().map(|kind| kinds.join(kind));
        let mut devices = links.flat_map(|kind| names(&kind).into_iter().map(move |name| kind.join(name)));
        devices.any(|link: PathBuf| device_number(&link) == Ok(number))
    };
    names(pods).into_iter().find(has)
}
