//! `hostPath`: a path of the host, checked or made as its type says.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use k8s_openapi::api::core::v1::HostPathVolumeSource;
use nix::sys::stat::Mode;
use runtime::FileKind;
use runtime::beneath::{Directory, Leaf, Links};

use super::{Error, failed};

/// What the type says the path must be; `None` for anything.
pub(super) fn kind(source: &HostPathVolumeSource) -> Option<FileKind> {
    match source.type_.as_deref().unwrap_or_default() {
        "DirectoryOrCreate" | "Directory" => Some(FileKind::Directory),
        "FileOrCreate" | "File" => Some(FileKind::File),
        "Socket" => Some(FileKind::Socket),
        "CharDevice" => Some(FileKind::CharacterDevice),
        "BlockDevice" => Some(FileKind::BlockDevice),
        _ => None,
    }
}

/// Makes the path if its type says so, and checks what is there. The mount checks again what it really mounts, since others may
/// write where the path leads.
pub(super) fn prepare(source: &HostPathVolumeSource) -> Result<(), Error> {
    let (path, text) = (Path::new(&source.path), &source.path);
    let make = |leaf| -> Result<(), Error> {
        // By descriptors: a directory that is replaced meanwhile is not given other permissions.
        let host = Directory::open(Path::new("/"), Links::Root).map_err(failed(text))?;
        host.make(path, leaf, Mode::from_bits_truncate(0o755)).map(drop).map_err(failed(text))
    };
    match source.type_.as_deref().unwrap_or_default() {
        // Without a type, what is not there becomes a directory, as container runtimes have it.
        "DirectoryOrCreate" | "" => make(Leaf::Directory)?,
        "FileOrCreate" => make(Leaf::File)?,
        _ => {}
    }
    let Some(kind) = kind(source) else { return Ok(()) };
    let found = match fs::metadata(path) {
        Ok(m) => Some(FileKind::from_mode(m.permissions().mode())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(failed(text)(e)),
    };
    if found == Some(kind) {
        return Ok(());
    }
    Err(Error::Content(format!("hostPath type check failed: {text} is not a {kind}")))
}
