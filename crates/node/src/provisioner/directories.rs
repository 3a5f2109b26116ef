//! The directories of volumes, below one that belongs to the node alone.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::sys::stat::Mode;
use runtime::beneath::{Directory, Links, make_private, remove_tree};
use supervisor::blocking;

use crate::file_volumes::is_volume_name;

/// Every user may write to a volume: its containers run as any.
const MODE: Mode = Mode::from_bits_truncate(0o777);

#[derive(Clone, Debug)]
pub struct Directories {
    root: PathBuf,
}

impl Directories {
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn checked(&self, name: &str) -> io::Result<PathBuf> {
        match is_volume_name(name) {
            true => Ok(self.path(name)),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is no name of a volume"))),
        }
    }

    /// Makes the directory of a volume. Does nothing if it exists; errors if something else has its name.
    pub async fn make(&self, name: &str) -> io::Result<()> {
        self.checked(name)?;
        let (root, name) = (self.root.clone(), name.to_owned());
        blocking(move || {
            make_private(&root)?;
            let directory = Directory::open(&root, Links::Refuse)?;
            match directory.make_directory(OsStr::new(&name), MODE) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => directory.directory(Path::new(&name)).map(drop),
                made => made.map(drop),
            }
        })
        .await
    }

    /// Removes the directory of a volume with all that is in it. Links in it are not followed. Does nothing if it does not exist.
    pub async fn remove(&self, name: &str) -> io::Result<()> {
        let path = self.checked(name)?;
        blocking(move || remove_tree(&path)).await
    }

    /// Removes the directory of a volume if it is empty.
    pub async fn remove_empty(&self, name: &str) {
        let Ok(path) = self.checked(name) else { return };
        blocking(move || drop(fs::remove_dir(path))).await;
    }

    /// The names of volumes that have a directory.
    pub async fn names(&self) -> Vec<String> {
        let root = self.root.clone();
        blocking(move || {
            let entries = fs::read_dir(root).into_iter().flatten().flatten();
            let names = entries.filter_map(|e| e.file_name().into_string().ok());
            names.filter(|name| is_volume_name(name)).collect()
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[tokio::test]
    async fn makes_and_removes_nothing_else() {
        let (root, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let directories = Directories::new(root.path().join("volumes"));
        assert!(directories.names().await.is_empty());
        for _ in 0..2 {
            directories.make("pvc-1").await.unwrap();
        }
        let mode = fs::metadata(directories.path("pvc-1")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o777);
        fs::write(elsewhere.path().join("file"), "x").unwrap();
        symlink(elsewhere.path(), directories.path("pvc-1").join("link")).unwrap();
        symlink(elsewhere.path(), directories.path("pvc-2")).unwrap();
        assert!(directories.make("pvc-2").await.is_err(), "a link is no directory");
        assert!(directories.remove("pvc-2").await.is_err());
        for name in ["..", "pvc-../x", "", "other"] {
            assert!(directories.make(name).await.is_err() && directories.remove(name).await.is_err(), "{name}");
        }
        directories.make("pvc-3").await.unwrap();
        for name in ["pvc-1", "pvc-3"] {
            directories.remove_empty(name).await;
        }
        assert!(directories.path("pvc-1").exists() && !directories.path("pvc-3").exists());
        for _ in 0..2 {
            directories.remove("pvc-1").await.unwrap();
        }
        assert!(!directories.path("pvc-1").exists());
        assert!(elsewhere.path().join("file").exists());
    }
}
