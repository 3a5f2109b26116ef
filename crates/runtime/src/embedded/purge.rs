//! Removing everything that a runtime under given options has made, whatever state it is in.

use super::cleaning::retry_here;
use super::{Options, blocking, remove_directory};
use crate::api::{Error, Result};
use crate::beneath;
use crate::cgroup::{self, Hierarchies};
use crate::records;
use crate::spec::ShimRecord;

pub(super) async fn purge(options: &Options) -> Result<()> {
    let options = options.clone();
    blocking(move || {
        let root = std::path::absolute(&options.root).map_err(Error::io("root directory"))?;
        let hierarchies = Hierarchies::detect().map_err(Error::io("cgroup hierarchies"))?;
        let prefix = &options.cgroup_prefix;
        for entry in std::fs::read_dir(root.join("pods")).into_iter().flatten().flatten() {
            // Only a process that is provably this pod's shim; a record that cannot be read is covered by the cgroup.
            if let Ok(Some(shim)) = records::read::<ShimRecord>(&entry.path().join("shim.json")) {
                shim.kill();
            }
        }
        retry_here(|| {
            cgroup::kill_all(&hierarchies.directories(prefix));
            hierarchies.remove(prefix)
        })
        .map_err(Error::io(format!("cgroup {prefix}")))?;
        beneath::unmount_below(&root).map_err(Error::io("mounts"))?;
        remove_directory(&root.join("pods"))?;
        remove_directory(&root.join("images"))?;
        // The directory itself goes only if nobody else put something there.
        let _ = std::fs::remove_dir(&root);
        Ok(())
    })
    .await
}
