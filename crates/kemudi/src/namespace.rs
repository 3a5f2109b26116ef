//! The network namespace of a cluster. Its bridge and its packet rules are in the one that `up` was started in, so that is where
//! `down --purge` removes them, wherever it is started itself.

use nix::sched::{CloneFlags, setns};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The file of the data directory with the number of the namespace.
const FILE: &str = "network-namespace";

/// Where the namespace of a cluster is, seen from this process.
#[derive(Debug)]
pub enum Place {
    /// It is this process's own, or nothing is recorded.
    Here,
    /// Another one, open.
    Other(File),
    /// There is no such namespace any more, nor what was in it.
    Gone,
}

/// Records the namespace of this process as that of the cluster.
pub fn record(data_dir: &Path) -> io::Result<()> {
    fs::write(data_dir.join(FILE), own()?.to_string())
}

fn own() -> io::Result<u64> {
    Ok(fs::metadata("/proc/self/ns/net")?.ino())
}

/// Looks for the namespace of a cluster: among those with a name, and those of processes.
pub fn find(data_dir: &Path) -> io::Result<Place> {
    let recorded = fs::read_to_string(data_dir.join(FILE)).ok().and_then(|t| t.trim().parse::<u64>().ok());
    let Some(wanted) = recorded else { return Ok(Place::Here) };
    if own()? == wanted {
        return Ok(Place::Here);
    }
    let of = |directory: &str, below: &str| -> Vec<PathBuf> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|e| e.path().join(below)).collect()
    };
    let named = of("/run/netns", "").into_iter().map(|p| p.components().collect());
    let found = named.chain(of("/proc", "ns/net")).find(|p: &PathBuf| fs::metadata(p).is_ok_and(|m| m.ino() == wanted));
    match found {
        Some(path) => Ok(Place::Other(File::open(path)?)),
        None => Ok(Place::Gone),
    }
}

/// Moves this thread, and those that it starts from now on, into a namespace.
pub fn enter(namespace: &File) -> nix::Result<()> {
    setns(namespace, CloneFlags::CLONE_NEWNET)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_is_found_again() {
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(find(directory.path()).unwrap(), Place::Here), "nothing is recorded");
        record(directory.path()).unwrap();
        assert!(matches!(find(directory.path()).unwrap(), Place::Here));
        // No inode of a file system of namespaces has this number.
        fs::write(directory.path().join(FILE), "1").unwrap();
        assert!(matches!(find(directory.path()).unwrap(), Place::Gone));
    }
}
