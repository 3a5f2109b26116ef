//! The files of sandboxes and containers that the interface leaves to the kubelet.
//!
//! ```text
//! ROOT/pods/SANDBOX/cgroup                    the control group of the pod: the first file, so that all can be removed after a crash
//! ROOT/pods/SANDBOX/hosts                     mounted at /etc/hosts
//! ROOT/pods/SANDBOX/resolv.conf               mounted at /etc/resolv.conf
//! ROOT/pods/SANDBOX/NAME-ATTEMPT/message      the termination message of a container
//! ROOT/pods/SANDBOX/NAME-ATTEMPT/seccomp.json the seccomp profile of a container
//! ROOT/pods/SANDBOX/NAME-ATTEMPT/mount-N      a path of a volume, bound here so that no container can exchange it
//! ROOT/access.json                            who may use which image
//! ```

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;
use runtime::beneath::{Directory, Links, make_private, remove_tree, unmount_below};
use runtime::{Error, PodConfig, Result};

use crate::io as failed;

/// The directory of the files.
#[derive(Clone, Debug)]
pub(crate) struct Files(PathBuf);

impl Files {
    /// Creates the directory if it is missing. Blocks.
    pub fn open(root: PathBuf) -> Result<Self> {
        make_private(&root).map_err(|e| failed(root.display().to_string(), e))?;
        // It is bound elsewhere, and its own path must have no links.
        let root = root.canonicalize().map_err(|e| failed(root.display().to_string(), e))?;
        Ok(Self(root))
    }

    pub fn access(&self) -> PathBuf {
        self.0.join("access.json")
    }

    fn pod(&self, id: &str) -> PathBuf {
        self.0.join("pods").join(id)
    }

    pub fn hosts(&self, pod: &str) -> PathBuf {
        self.pod(pod).join("hosts")
    }

    pub fn resolv_conf(&self, pod: &str) -> PathBuf {
        self.pod(pod).join("resolv.conf")
    }

    pub fn container(&self, pod: &str, name: &str, attempt: u32) -> PathBuf {
        self.pod(pod).join(format!("{name}-{attempt}"))
    }

    /// The termination message of a container.
    pub fn message(&self, pod: &str, name: &str, attempt: u32) -> PathBuf {
        self.container(pod, name, attempt).join("message")
    }

    /// Writes the files of a sandbox. Blocks.
    pub fn make_pod(&self, config: &PodConfig) -> Result<()> {
        let directory = self.pod(&config.id);
        let write = |path: PathBuf, text: &Option<String>| match text {
            Some(text) => fs::write(&path, text).map_err(|e| failed(path.display().to_string(), e)),
            None => Ok(()),
        };
        for directory in [&directory, &config.log_directory] {
            fs::create_dir_all(directory).map_err(|e| failed(directory.display().to_string(), e))?;
        }
        write(directory.join("cgroup"), &Some(config.cgroup_parent.clone()))?;
        write(self.hosts(&config.id), &config.hosts)?;
        write(self.resolv_conf(&config.id), &config.resolv_conf)
    }

    /// The ids of the sandboxes that have files, with the control groups of their pods. Blocks.
    pub fn pods(&self) -> Vec<(String, Option<String>)> {
        let entries = fs::read_dir(self.0.join("pods")).into_iter().flatten().flatten();
        let ids = entries.filter_map(|entry| entry.file_name().into_string().ok());
        ids.map(|id| (id.clone(), fs::read_to_string(self.pod(&id).join("cgroup")).ok())).collect()
    }

    /// Removes all files. Blocks.
    pub fn remove(&self) -> Result<()> {
        remove(&self.0)
    }

    /// Removes the files of a sandbox and of its containers. Blocks.
    pub fn remove_pod(&self, id: &str) -> Result<()> {
        remove(&self.pod(id))
    }

    /// Creates the directory of a container. Blocks.
    pub fn make_container(&self, pod: &str, name: &str, attempt: u32) -> Result<PathBuf> {
        let directory = self.container(pod, name, attempt);
        // What is left of a container that was not created.
        remove(&directory)?;
        fs::create_dir_all(&directory).map_err(|e| failed(directory.display().to_string(), e))?;
        let message = directory.join("message");
        File::create(&message)
            .and_then(|file| file.set_permissions(Permissions::from_mode(0o666)))
            .map_err(|e| failed(message.display().to_string(), e))?;
        Ok(directory)
    }

    /// Removes the files of a container. Blocks.
    pub fn remove_container(&self, pod: &str, name: &str, attempt: u32) -> Result<()> {
        remove(&self.container(pod, name, attempt))
    }
}

/// Unmounts what is bound below a directory, and removes it.
fn remove(directory: &Path) -> Result<()> {
    let removed = unmount_below(directory).and_then(|()| remove_tree(directory));
    removed.map_err(|e| failed(directory.display().to_string(), e))
}

/// Binds `path` below `root`, where containers may write, to a new file or directory `to`. A link that leads out of `root` is an error.
pub(crate) fn bind_below(root: &Path, path: &Path, to: &Path) -> Result<()> {
    let bind = || -> io::Result<()> {
        let source = File::from(Directory::open(root, Links::Inside)?.open_at(path, OFlag::O_PATH, Mode::empty())?);
        if source.metadata()?.is_dir() {
            fs::create_dir(to)?
        } else {
            drop(File::create_new(to)?)
        }
        let source = format!("/proc/self/fd/{}", source.as_raw_fd());
        Ok(mount(Some(source.as_str()), to, None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
    };
    bind().map_err(|source| match source.raw_os_error() {
        Some(code) if code == nix::errno::Errno::EXDEV as i32 => {
            Error::Invalid { field: "subPath", message: format!("{} leads out of its volume", path.display()) }
        }
        _ => failed(root.join(path).display().to_string(), source),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_container_go_with_what_is_bound_below_them() {
        let directory = tempfile::tempdir().unwrap();
        let volume = tempfile::tempdir().unwrap();
        fs::create_dir(volume.path().join("a")).unwrap();
        fs::write(volume.path().join("a/file"), "kept").unwrap();
        std::os::unix::fs::symlink("/etc", volume.path().join("out")).unwrap();
        let files = Files::open(directory.path().join("cri")).unwrap();
        let config = PodConfig {
            id: "u-0".into(),
            hosts: Some("h".into()),
            cgroup_parent: "kubepods/podu".into(),
            log_directory: directory.path().join("logs"),
            ..PodConfig::default()
        };
        files.make_pod(&config).unwrap();
        assert_eq!(fs::read_to_string(files.hosts("u-0")).unwrap(), "h");
        assert!(!files.resolv_conf("u-0").exists());
        assert_eq!(files.pods(), [("u-0".to_owned(), Some("kubepods/podu".to_owned()))]);
        let own = files.make_container("u-0", "c", 3).unwrap();
        let error = bind_below(volume.path(), Path::new("out"), &own.join("mount-0")).unwrap_err();
        assert_eq!(error.to_string(), "invalid subPath: out leads out of its volume");
        bind_below(volume.path(), Path::new("a"), &own.join("mount-1")).unwrap();
        bind_below(volume.path(), Path::new("a/file"), &own.join("mount-2")).unwrap();
        assert_eq!(fs::read_to_string(own.join("mount-1/file")).unwrap(), "kept");
        // A second attempt to create it finds nothing of the first.
        files.make_container("u-0", "c", 3).unwrap();
        bind_below(volume.path(), Path::new("a"), &own.join("mount-1")).unwrap();
        files.remove_pod("u-0").unwrap();
        assert!(!own.exists());
        assert_eq!(fs::read_to_string(volume.path().join("a/file")).unwrap(), "kept");
    }
}
