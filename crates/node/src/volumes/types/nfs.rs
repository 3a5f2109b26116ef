//! `nfs`: a directory of a file server, mounted by the machine's `mount` program, which needs `mount.nfs` (Debian's package
//! `nfs-common`).

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1 as api;
use supervisor::blocking;

use super::Volume;
use crate::csi::paths::is_mounted;
use crate::programs;
use crate::volumes::{Error, PodContext, io_error, mount_program};

/// The time that unmounting in order may take.
const UNMOUNT: Duration = Duration::from_secs(20);

pub(super) struct Nfs(api::NFSVolumeSource);

#[async_trait::async_trait]
impl Volume for Nfs {
    fn from_spec(volume: &api::Volume) -> Option<Self> {
        volume.nfs.clone().map(Self)
    }

    async fn set_up(&self, _: &PodContext<'_>, directory: &Path) -> Result<PathBuf, Error> {
        mount(&self.0, &[], self.is_read_only(), directory).await?;
        Ok(directory.to_owned())
    }

    async fn tear_down(directory: &Path) -> Result<(), Error> {
        unmount(directory).await
    }

    fn is_read_only(&self) -> bool {
        self.0.read_only == Some(true)
    }
}

fn arguments(source: &api::NFSVolumeSource, options: &[String], is_read_only: bool, directory: &Path) -> Vec<String> {
    let mut all = options.to_vec();
    if is_read_only {
        all.push("ro".into());
    }
    let mut out = vec!["-t".to_owned(), "nfs".to_owned()];
    if !all.is_empty() {
        out.extend(["-o".to_owned(), all.join(",")]);
    }
    out.extend([format!("{}:{}", source.server, source.path), directory.to_string_lossy().into_owned()]);
    out
}

/// Mounts the directory of the server, unless it is mounted.
pub(super) async fn mount(
    source: &api::NFSVolumeSource,
    options: &[String],
    is_read_only: bool,
    directory: &Path,
) -> Result<(), Error> {
    if source.server.starts_with('-') {
        return Err(Error::Content(format!("invalid NFS server {:?}", source.server)));
    }
    let place = directory.to_owned();
    let mounted = blocking(move || std::fs::create_dir_all(&place).map(|()| is_mounted(&place))).await;
    if mounted.map_err(io_error(directory.display().to_string()))? {
        return Ok(());
    }
    mount_program::run(&arguments(source, options, is_read_only, directory)).await.map_err(Error::Content)
}

/// Unmounts what is mounted at `directory`; after a time also if its server does not answer.
async fn unmount(directory: &Path) -> Result<(), Error> {
    for (arguments, time) in [(&[][..], UNMOUNT), (&["-f", "-l"][..], UNMOUNT)] {
        let place = directory.to_owned();
        if !blocking(move || is_mounted(&place)).await {
            return Ok(());
        }
        let all = arguments.iter().map(OsStr::new).chain([directory.as_os_str()]);
        let _ = programs::run("umount", all, time).await;
    }
    let place = directory.to_owned();
    match blocking(move || is_mounted(&place)).await {
        false => Ok(()),
        true => Err(Error::Content(format!("{} is still mounted", directory.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_mount_that_fails_shows_the_command_and_its_output() {
        let source = api::NFSVolumeSource { server: "192.0.2.1".into(), path: "/export".into(), read_only: None };
        let place = Path::new("/place");
        assert_eq!(arguments(&source, &[], false, place), ["-t", "nfs", "192.0.2.1:/export", "/place"]);
        let options = ["nolock".to_owned()];
        assert_eq!(arguments(&source, &options, true, place)[..4], ["-t", "nfs", "-o", "nolock,ro"]);

        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("v");
        let bad = api::NFSVolumeSource { server: "".into(), path: "relative".into(), read_only: None };
        let error = mount(&bad, &[], false, &directory).await.unwrap_err().to_string();
        assert!(error.starts_with("mount failed: exit status: ") && error.contains("Output: "), "{error}");
        assert!(error.contains("Mounting arguments: -t nfs :relative"), "{error}");
        unmount(&directory).await.unwrap();
        let option = api::NFSVolumeSource { server: "-o".into(), ..source };
        assert!(mount(&option, &[], false, &directory).await.unwrap_err().to_string().contains("invalid NFS server"));
    }
}
