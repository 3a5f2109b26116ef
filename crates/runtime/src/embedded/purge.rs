//! Removes everything that a runtime with given options has created, in any state.

use std::io;

use super::cleaning::retry_here;
use super::{Options, blocking, hooks, remove_directory};
use crate::api::{Error, Result};
use crate::beneath;
use crate::cgroup::{self, Hierarchies};
use crate::records;
use crate::spec::ShimRecord;
use std::path::PathBuf;

/// Kills all processes of all pods, shims first, as a machine that loses its power. Returns the directory of the runtime.
fn kill(options: &Options) -> Result<PathBuf> {
    let root = std::path::absolute(&options.root).map_err(Error::io("root directory"))?;
    let hierarchies = Hierarchies::detect().map_err(Error::io("cgroup hierarchies"))?;
    let prefix = &options.cgroup_prefix;
    for entry in std::fs::read_dir(root.join("pods")).into_iter().flatten().flatten() {
        // Only a process that certainly is this pod's shim is killed here. If its record cannot be read, its cgroup finds it.
        if let Ok(Some(shim)) = records::read::<ShimRecord>(&entry.path().join("shim.json")) {
            shim.kill();
        }
    }
    retry_here(|| {
        cgroup::kill_all(&hierarchies.directories(prefix));
        hierarchies.remove(prefix)
    })
    .map_err(Error::io(format!("cgroup {prefix}")))?;
    Ok(root)
}

pub(super) async fn power_off(options: &Options) -> Result<()> {
    let options = options.clone();
    blocking(move || kill(&options).map(drop)).await
}

pub(super) async fn purge(options: &Options) -> Result<()> {
    let options = options.clone();
    blocking(move || {
        let root = kill(&options)?;
        hooks::poststop_all(&root.join("pods"), options.start_timeout);
        let pods = root.join("pods");
        let removed = retry_here(|| {
            beneath::unmount_below(&root)?;
            // A mount that came meanwhile, of a container that was being made, is unmounted in the next round.
            beneath::remove_tree(&pods).map_err(|e| match e.kind() {
                io::ErrorKind::CrossesDevices => io::Error::new(io::ErrorKind::ResourceBusy, e),
                _ => e,
            })
        });
        removed.map_err(Error::io(pods.display().to_string()))?;
        remove_directory(&root.join("images"))?;
        // The directory itself is removed only if it is empty.
        let _ = std::fs::remove_dir(&root);
        Ok(())
    })
    .await
}
