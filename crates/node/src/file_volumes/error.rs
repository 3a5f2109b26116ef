//! Why an operation on a volume failed. The texts are in events of claims and pods.

use std::io;
use std::process::ExitStatus;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "{program} is not installed on this node: install the package {package}, or use a StorageClass with the parameter type: directory"
    )]
    Missing { program: &'static str, package: &'static str },
    #[error("{program} failed with {status}: {output}")]
    Program { program: &'static str, status: ExitStatus, output: String },
    #[error("{0} did not end in time")]
    TimedOut(&'static str),
    #[error("a volume of {size} bytes does not fit on the disk of this node, which has {disk} bytes")]
    TooLarge { size: u64, disk: u64 },
    #[error("'fsck' found errors on device {device} but could not correct them: {output}")]
    Damaged { device: String, output: String },
    #[error("the file of the volume is missing: {0}")]
    Gone(String),
    #[error("the volume is still mounted at {0}")]
    InUse(String),
    #[error("a pod still has the device of the volume")]
    IsDevice,
    #[error(
        "the volume was a device of a pod (volumeMode: Block), which may have written anything: it is not mounted as a file system"
    )]
    WasDevice,
    #[error("{needed} bytes do not fit on the disk of this node, which has {free} bytes free")]
    NoRoom { needed: u64, free: u64 },
    #[error("volume {0} cannot be copied while a pod uses it; the copy is made once no pod does")]
    SourceInUse(String),
    #[error("{what}: {source}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
}

pub(super) fn failed(what: impl ToString) -> impl FnOnce(io::Error) -> Error {
    let what = what.to_string();
    move |source| Error::Io { what, source }
}
