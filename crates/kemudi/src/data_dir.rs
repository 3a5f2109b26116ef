//! The data directory. Only its owner may enter: it contains secrets of pods, tokens, keys and programs of images.

use runtime::beneath::{make_private, remove_tree};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Subdirectories that a cluster uses.
const DIRECTORIES: [&str; 12] =
    ["store", "keys", "runtime", "node", "logs", "network", "netns", "pki", "nodes", "node-netns", "cri", CNI];

/// The subdirectory of the network configuration for a container runtime, which creates it if it is started first.
pub const CNI: &str = "cni";

/// The subdirectory that every cluster creates first.
const MARK: &str = "lock";

/// Whether a cluster has used the directory.
pub fn is_ours(directory: &Path) -> bool {
    ["admin.token", "store", "network", "runtime", MARK].iter().any(|f| directory.join(f).exists())
}

/// Removes the data directory. What identifies it is removed last, so that an interrupted removal can be repeated.
pub fn remove(directory: &Path) -> io::Result<()> {
    fs::File::options().create(true).truncate(false).write(true).open(directory.join(MARK))?;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => remove_tree(&entry.path())?,
            false if entry.file_name() == MARK => {}
            false => fs::remove_file(entry.path())?,
        }
    }
    remove_tree(directory)
}

/// Creates the data directory, or removes the permissions of other users from it and its contents. A directory with foreign
/// files keeps its own permissions. Fails if another user owns data of the cluster.
pub fn prepare(directory: &Path) -> io::Result<()> {
    if let Some(parent) = directory.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let has_others = fs::read_dir(directory)?.any(|entry| entry.map_or(true, |entry| entry.file_name() != CNI));
    if is_ours(directory) || !has_others {
        make_private(directory)?;
    }
    for name in DIRECTORIES {
        let path = directory.join(name);
        if path.exists() {
            make_private(&path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn other_users_have_no_access() {
        let base = tempfile::tempdir().unwrap();
        let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode() & 0o7777;
        let open = |p: &Path| fs::set_permissions(p, fs::Permissions::from_mode(0o755)).unwrap();
        let data = base.path().join("deep/er/data");
        prepare(&data).unwrap();
        assert_eq!(mode(&data), 0o700);
        for name in DIRECTORIES {
            fs::create_dir(data.join(name)).unwrap();
            open(&data.join(name));
        }
        open(&data);
        prepare(&data).unwrap();
        assert_eq!(mode(&data), 0o700);
        assert!(DIRECTORIES.iter().all(|d| mode(&data.join(d)) == 0o700));

        let early = base.path().join("early");
        fs::create_dir_all(early.join("cni/net.d")).unwrap();
        open(&early);
        prepare(&early).unwrap();
        assert_eq!(mode(&early), 0o700, "a container runtime was there first");

        let shared = base.path().join("shared");
        fs::create_dir_all(shared.join("of-others")).unwrap();
        open(&shared);
        prepare(&shared).unwrap();
        assert_eq!(mode(&shared), 0o755, "foreign files keep their permissions");
    }

    #[test]
    fn an_interrupted_removal_can_be_repeated() {
        let base = tempfile::tempdir().unwrap();
        let data = base.path().join("data");
        let held = data.join("node/held");
        fs::create_dir_all(&held).unwrap();
        for name in ["admin.token", "lock"] {
            fs::write(data.join(name), "").unwrap();
        }
        // A file that cannot be removed.
        let flags = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("tmpfs"), &held, Some("tmpfs"), flags, None::<&str>).unwrap();
        remove(&data).unwrap_err();
        assert!(is_ours(&data));
        nix::mount::umount(&held).unwrap();
        remove(&data).unwrap();
        assert!(!data.exists());
    }
}
