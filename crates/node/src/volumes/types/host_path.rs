//! `hostPath`: a path of the host, checked or created according to its type.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1 as api;
use nix::sys::stat::Mode;
use runtime::FileKind;
use runtime::beneath::{Directory, Leaf, Links};
use supervisor::blocking;

use super::Volume;
use crate::volumes::{Error, PodContext, io_error};

pub(super) struct HostPath(api::HostPathVolumeSource);

#[async_trait::async_trait]
impl Volume for HostPath {
    fn from_spec(volume: &api::Volume) -> Option<Self> {
        volume.host_path.clone().map(Self)
    }

    async fn set_up(&self, pod: &PodContext<'_>, _: &Path) -> Result<PathBuf, Error> {
        let path = pod.machine_path(&self.0.path);
        let source = api::HostPathVolumeSource { path: path.to_string_lossy().into_owned(), ..self.0.clone() };
        blocking(move || prepare(&source)).await?;
        Ok(path)
    }

    fn file_kind(&self) -> Option<FileKind> {
        kind(&self.0)
    }
}

/// The kind of file that the type of the volume requires; `None` for any.
fn kind(source: &api::HostPathVolumeSource) -> Option<FileKind> {
    match source.type_.as_deref().unwrap_or_default() {
        "DirectoryOrCreate" | "Directory" => Some(FileKind::Directory),
        "FileOrCreate" | "File" => Some(FileKind::File),
        "Socket" => Some(FileKind::Socket),
        "CharDevice" => Some(FileKind::CharacterDevice),
        "BlockDevice" => Some(FileKind::BlockDevice),
        _ => None,
    }
}

/// Creates the path if the type requires it, and checks the kind of file. The mount repeats the check on the file that it mounts,
/// since other programs may write to the directories of the path.
pub(super) fn prepare(source: &api::HostPathVolumeSource) -> Result<(), Error> {
    let (path, text) = (Path::new(&source.path), &source.path);
    let make = |leaf| -> Result<(), Error> {
        // By descriptors: a directory that is replaced meanwhile does not get other permissions.
        let host = Directory::open(Path::new("/"), Links::Root).map_err(io_error(text))?;
        host.make(path, leaf, Mode::from_bits_truncate(0o755)).map(drop).map_err(io_error(text))
    };
    match source.type_.as_deref().unwrap_or_default() {
        // Without a type a missing path becomes a directory, as container runtimes do it.
        "DirectoryOrCreate" | "" => make(Leaf::Directory)?,
        "FileOrCreate" => make(Leaf::File)?,
        _ => {}
    }
    let Some(kind) = kind(source) else { return Ok(()) };
    let found = match fs::metadata(path) {
        Ok(m) => Some(FileKind::from_mode(m.permissions().mode())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(io_error(text)(e)),
    };
    if found == Some(kind) {
        return Ok(());
    }
    Err(Error::Content(format!("hostPath type check failed: {text} is not a {kind}")))
}
