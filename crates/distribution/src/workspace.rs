//! The directory of one pull, in the layout of an OCI image.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use runtime::beneath;

use crate::error::Error;
use crate::manifest::Manifest;

/// Held by the process that uses a directory.
const LOCK: &str = "lock";

/// A directory that is removed when it is dropped. What a process that was killed left is for [`remove_leftovers`].
pub(crate) struct Workspace {
    path: PathBuf,
    _lock: File,
}

impl Workspace {
    /// Makes a directory below `parent`. Blocks.
    pub fn create(parent: &Path) -> Result<Workspace, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let failed = || Error::file(parent.display().to_string());
        fs::create_dir_all(parent).map_err(failed())?;
        loop {
            let path = parent.join(format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
            match fs::create_dir(&path) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(e) => return Err(failed()(e)),
            }
            let lock = File::options().create_new(true).write(true).open(path.join(LOCK)).map_err(failed())?;
            // Another process may have taken it for one that was left.
            if lock.try_lock().is_ok() && path.join(LOCK).exists() {
                fs::create_dir_all(path.join("blobs/sha256")).map_err(failed())?;
                return Ok(Workspace { path, _lock: lock });
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file of a blob.
    pub fn blob(&self, digest: &str) -> PathBuf {
        self.path.join("blobs/sha256").join(digest.strip_prefix("sha256:").unwrap_or(digest))
    }

    /// Writes manifest and index, which completes the layout. Blocks.
    pub fn finish(&self, manifest: &Manifest) -> Result<(), Error> {
        let write =
            |path: PathBuf, text: &[u8]| fs::write(&path, text).map_err(Error::file(path.display().to_string()));
        write(self.blob(&manifest.raw.digest), &manifest.raw.text)?;
        let index = serde_json::json!({"schemaVersion": 2, "manifests": [{
            "mediaType": manifest.raw.media_type, "digest": manifest.raw.digest, "size": manifest.raw.text.len()}]});
        write(self.path.join("index.json"), index.to_string().as_bytes())
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn remove(path: &Path) {
    if let Err(error) = beneath::remove_tree(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "removing the files of a pull failed");
    }
}

/// Removes the directories that no process uses. Blocks.
pub(crate) fn remove_leftovers(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        // One without a lock is being made.
        let Ok(lock) = File::open(entry.path().join(LOCK)) else { continue };
        if lock.try_lock().is_ok() {
            remove(&entry.path());
        }
    }
}
