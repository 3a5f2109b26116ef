//! The data directory: secrets of pods, tokens, keys and programs of images lie in it, so nobody but its owner may enter.

use runtime::beneath::make_private;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// What a cluster keeps in directories of its data directory, as far as it exists.
const DIRECTORIES: [&str; 7] = ["store", "keys", "runtime", "node", "logs", "network", "netns"];

/// Whether a cluster has been here.
pub fn is_ours(directory: &Path) -> bool {
    ["admin.token", "store", "network", "runtime", "lock"].iter().any(|f| directory.join(f).exists())
}

/// Makes the data directory, or takes the permissions of others from it and from what is in it. A directory that holds other
/// things too keeps its own permissions. Errors if somebody else owns what a cluster keeps.
pub fn prepare(directory: &Path) -> io::Result<()> {
    if let Some(parent) = directory.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    if is_ours(directory) || fs::read_dir(directory)?.next().is_none() {
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
    fn nobody_else_may_enter() {
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

        let shared = base.path().join("shared");
        fs::create_dir_all(shared.join("of-others")).unwrap();
        open(&shared);
        prepare(&shared).unwrap();
        assert_eq!(mode(&shared), 0o755, "what others keep there stays theirs");
    }
}
