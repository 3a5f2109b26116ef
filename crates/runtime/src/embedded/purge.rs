//! Removing everything that a runtime under given options has made, whatever state it is in.

use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, umount2};

use super::pods::retry;
use super::{Options, blocking, remove_directory};
use crate::api::{Error, Result};
use crate::cgroup::{self, Hierarchies};
use crate::spec::{self, ShimRecord};

pub(super) async fn purge(options: &Options) -> Result<()> {
    let options = options.clone();
    blocking(move || {
        let root = std::path::absolute(&options.root).map_err(Error::io("root directory"))?;
        let hierarchies = Hierarchies::detect().map_err(Error::io("cgroup hierarchies"))?;
        let prefix = &options.cgroup_prefix;
        for entry in std::fs::read_dir(root.join("pods")).into_iter().flatten().flatten() {
            // Only a process that is provably this pod's shim; a record that cannot be read is covered by the cgroup.
            if let Ok(Some(shim)) = spec::read::<ShimRecord>(&entry.path().join("shim.json")) {
                shim.kill();
            }
        }
        retry(|| {
            cgroup::kill_all(&hierarchies.directories(prefix));
            hierarchies.remove(prefix)
        })
        .map_err(Error::io(format!("cgroup {prefix}")))?;
        for mount in mounts_below(&root)? {
            umount2(&mount, MntFlags::MNT_DETACH)
                .map_err(|e| Error::io(format!("unmounting {}", mount.display()))(e.into()))?;
        }
        remove_directory(&root.join("pods"))?;
        remove_directory(&root.join("images"))?;
        // The directory itself goes only if nobody else put something there.
        let _ = std::fs::remove_dir(&root);
        Ok(())
    })
    .await
}

/// Deepest first.
fn mounts_below(root: &Path) -> Result<Vec<PathBuf>> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").map_err(Error::io("mounts"))?;
    let mut mounts: Vec<PathBuf> = text
        .lines()
        .filter_map(|l| l.split(' ').nth(4))
        .map(|p| PathBuf::from(p.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")))
        .filter(|p| p.starts_with(root) && p != root)
        .collect();
    mounts.reverse();
    Ok(mounts)
}
