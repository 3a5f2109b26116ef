//! The namespaces of a cluster and of its nodes. The network namespace of a cluster is the one in which `up` was started. It has the bridge and the packet rules, so
//! `down --purge` removes them there, wherever it is started itself.

use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::sethostname;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The file in the data directory with the inode of the namespace.
const FILE: &str = "network-namespace";

/// The most bytes of a host name (`HOST_NAME_MAX`).
const MAX_HOST_NAME: usize = 64;

/// The namespace of a cluster, as seen from this process.
#[derive(Debug)]
pub enum Location {
    /// The namespace of this process, or unknown.
    Here,
    /// Another namespace, opened.
    Other(File),
    /// The namespace no longer exists, nor does its content.
    Gone,
}

/// Records the namespace of this process as the cluster's.
pub fn record(data_dir: &Path) -> io::Result<()> {
    fs::write(data_dir.join(FILE), own()?.to_string())
}

fn own() -> io::Result<u64> {
    Ok(fs::metadata("/proc/self/ns/net")?.ino())
}

/// Finds the namespace of a cluster among named ones and those of processes.
pub fn find(data_dir: &Path) -> io::Result<Location> {
    let recorded = fs::read_to_string(data_dir.join(FILE)).ok().and_then(|t| t.trim().parse::<u64>().ok());
    let Some(inode) = recorded else { return Ok(Location::Here) };
    if own()? == inode {
        return Ok(Location::Here);
    }
    let paths = |directory: &str, below: &str| -> Vec<PathBuf> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|e| e.path().join(below)).collect()
    };
    let named = paths("/run/netns", "").into_iter().map(|p| p.components().collect());
    let found =
        named.chain(paths("/proc", "ns/net")).find(|p: &PathBuf| fs::metadata(p).is_ok_and(|m| m.ino() == inode));
    match found {
        Some(path) => Ok(Location::Other(File::open(path)?)),
        None => Ok(Location::Gone),
    }
}

/// Moves this thread, and threads that it starts later, into a namespace.
pub fn enter(namespace: &File) -> nix::Result<()> {
    setns(namespace, CloneFlags::CLONE_NEWNET)
}

/// Gives this thread, and threads and processes that it starts later, a host name of their own.
pub fn rename_host(name: &str) -> nix::Result<()> {
    unshare(CloneFlags::CLONE_NEWUTS)?;
    sethostname(name.get(..MAX_HOST_NAME).unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_namespace_is_found() {
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(find(directory.path()).unwrap(), Location::Here), "nothing is recorded");
        record(directory.path()).unwrap();
        assert!(matches!(find(directory.path()).unwrap(), Location::Here));
        // No namespace has this inode.
        fs::write(directory.path().join(FILE), "1").unwrap();
        assert!(matches!(find(directory.path()).unwrap(), Location::Gone));
    }
}
