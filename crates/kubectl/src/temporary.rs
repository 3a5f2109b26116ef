//! Temporary files and directories that only their owner can read: they may hold secrets.

use crate::error::{Error, Result, os_message, text};
use crate::kube::Kube;
use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// The directory for temporary files: `TMPDIR`, or else `/tmp`.
fn base(k: &Kube) -> String {
    (k.shell.environment)("TMPDIR").filter(|t| !t.is_empty()).unwrap_or_else(|| "/tmp".into())
}

/// Returns digits that are unique to this process and call.
fn unique(k: &Kube) -> String {
    format!("{}{}", std::process::id(), k.shell.rng.next_u64())
}

/// Creates a file `STEM-….EXTENSION` with mode 0600.
///
/// # Errors
/// The file cannot be created.
pub fn create_file(k: &Kube, stem: &str, extension: &str) -> Result<(PathBuf, File)> {
    let base = base(k);
    // A previous file with the same random digits may have been kept: then try the next number.
    for n in 0..u8::MAX {
        let path = Path::new(&base).join(format!("{stem}-{}-{n}.{extension}", unique(k)));
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return text(format!("creating {}: {}", path.display(), os_message(&e))),
        }
    }
    text(format!("no free name for a file in {base}"))
}

/// Creates a directory `STEM-…` with mode 0700.
///
/// # Errors
/// The directory cannot be created.
pub fn create_directory(k: &Kube, stem: &str) -> Result<PathBuf> {
    let path = Path::new(&base(k)).join(format!("{stem}-{}", unique(k)));
    DirBuilder::new()
        .mode(0o700)
        .create(&path)
        .map_err(|e| Error::Text(format!("making {}: {}", path.display(), os_message(&e))))?;
    Ok(path)
}
