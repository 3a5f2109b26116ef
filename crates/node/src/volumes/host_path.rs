//! `hostPath`: a path of the host, checked or made as its type says.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use k8s_openapi::api::core::v1::HostPathVolumeSource;

use super::{Error, failed};

pub(super) fn check(source: &HostPathVolumeSource) -> Result<(), Error> {
    let path = Path::new(&source.path);
    let text = &source.path;
    let found = fs::metadata(path).ok().map(|m| m.file_type());
    let is = |want: bool, what: &str| {
        if want { Ok(()) } else { Err(Error::Content(format!("hostPath type check failed: {text} is not a {what}"))) }
    };
    match source.type_.as_deref().unwrap_or_default() {
        "DirectoryOrCreate" if found.is_none() => {
            fs::create_dir_all(path).map_err(failed(text))?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(failed(text))
        }
        "FileOrCreate" if found.is_none() => {
            fs::File::create(path).map_err(failed(text))?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o644)).map_err(failed(text))
        }
        "DirectoryOrCreate" | "Directory" => is(found.is_some_and(|t| t.is_dir()), "directory"),
        "FileOrCreate" | "File" => is(found.is_some_and(|t| t.is_file()), "file"),
        "Socket" => is(found.is_some_and(|t| t.is_socket()), "socket file"),
        "CharDevice" => is(found.is_some_and(|t| t.is_char_device()), "character device"),
        "BlockDevice" => is(found.is_some_and(|t| t.is_block_device()), "block device"),
        // No check asked for: as other runtimes do, what is not there becomes a directory.
        _ if found.is_none() => fs::create_dir_all(path).map_err(failed(text)),
        _ => Ok(()),
    }
}
