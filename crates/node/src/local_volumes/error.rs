//! Why a volume cannot be used. The texts are in events of pods.

use std::io;
use std::path::PathBuf;

use runtime::block_device::Use;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("path {0:?} does not exist")]
    Missing(PathBuf),
    #[error("path {path:?}: {source}")]
    Unreadable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("only directory and block device are supported")]
    Unsupported,
    #[error("local: failed to mount device {} at {} (fstype: {file_system}), error {source}", device.display(), place.display())]
    Device {
        device: PathBuf,
        place: PathBuf,
        file_system: String,
        #[source]
        source: DeviceError,
    },
    /// `mount` failed, with its output.
    #[error("{0}")]
    Bind(String),
    #[error("{0}")]
    Growth(#[source] DeviceError),
    #[error("{what}: {source}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// What failed, in kubelet's words.
    pub fn stage(&self) -> &'static str {
        match self {
            Self::Missing(_) | Self::Unreadable { .. } | Self::Unsupported => "MountVolume.NewMounter initialization",
            Self::Device { .. } => "MountVolume.MountDevice",
            Self::Growth(_) => "MountVolume.NodeExpandVolume",
            Self::Bind(_) | Self::Io { .. } => "MountVolume.SetUp",
        }
    }
}

pub(super) fn failed(what: impl ToString) -> impl FnOnce(io::Error) -> Error {
    let what = what.to_string();
    move |source| Error::Io { what, source }
}

/// Why a device cannot be mounted, or its file system not grow.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("failed to get disk format of disk {device}: {why}")]
    Probe { device: String, why: String },
    #[error("cannot mount unformatted disk {0} as we are manipulating it in read-only mode")]
    Unformatted(String),
    #[error("disk {device} seems to be empty, but is not formatted: pod {pod} has it as a device")]
    OfPod { device: String, pod: String },
    #[error("disk {device} seems to be empty, but is not formatted: {user}")]
    InUse { device: String, user: Use },
    #[error("disk {0} seems to be empty, but is not formatted: another program has locked it")]
    Locked(String),
    #[error("disk {device} cannot be formatted: {source}")]
    Lock {
        device: String,
        #[source]
        source: io::Error,
    },
    #[error("format of disk {device:?} failed: type:({file_system:?}) errcode:({why}) output:({output:?})")]
    Format { device: String, file_system: String, why: String, output: String },
    #[error("'fsck' found errors on device {device} but could not correct them: {output}")]
    Damaged { device: String, output: String },
    /// `mount` failed, with its output.
    #[error("{0}")]
    Mount(String),
    #[error("resize of format {format} is not supported for device {device} mounted at {place}")]
    CannotGrow { format: String, device: String, place: String },
    #[error("resizing the file system of {device} failed: {why}: {output}")]
    Resize { device: String, why: String, output: String },
}
