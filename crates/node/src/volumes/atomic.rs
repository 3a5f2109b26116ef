//! Files that change together: written into a directory of their own, which a symbolic link then points to.
//!
//! ```text
//! VOLUME/..2026_11_20_10_00_00.4711/key    the files
//! VOLUME/..data -> ..2026_11_20_10_00_00.4711
//! VOLUME/key    -> ..data/key
//! ```
//! A reader that resolved `..data` sees one state only (kubelet `util/atomic_writer.go`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Component, Path};

const DATA: &str = "..data";
const NEXT: &str = "..data_tmp";

/// One file: its bytes and its permission bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub content: Vec<u8>,
    pub mode: u32,
    /// Owner, where it is not root.
    pub user: Option<u32>,
}

/// Files by relative path.
pub type Payload = BTreeMap<String, File>;

/// A path that stays within the volume and does not take our own names.
pub fn check_path(path: &str) -> Result<(), String> {
    if path.is_empty() || path.len() > 4096 {
        return Err(format!("invalid path: {path:?}"));
    }
    if path.starts_with('/') || path.starts_with("..") {
        return Err(format!("invalid path: {path:?} must be relative and not start with '..'"));
    }
    if Path::new(path).components().any(|c| !matches!(c, Component::Normal(_))) {
        return Err(format!("invalid path: {path:?} must not contain '..'"));
    }
    Ok(())
}

/// Brings the volume to `payload`. Nothing is touched if it is there already. `stamp` names the new directory; `group` owns
/// the files, which are made readable for it.
pub fn write(volume: &Path, payload: &Payload, stamp: &str, group: Option<u32>) -> io::Result<()> {
    fs::create_dir_all(volume)?;
    let data = volume.join(DATA);
    let old = fs::read_link(&data).ok().map(|l| volume.join(l));
    let current = old.as_deref().is_some_and(|d| same(d, payload));
    if !current {
        let name = format!("..{stamp}");
        let fresh = volume.join(&name);
        if fresh.exists() {
            fs::remove_dir_all(&fresh)?;
        }
        fs::create_dir(&fresh)?;
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755))?;
        for (path, file) in payload {
            let target = fresh.join(path);
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::write(&target, &file.content)?;
            let mut mode = file.mode;
            if let Some(gid) = group {
                chown(&target, file.user, Some(gid))?;
                mode |= 0o440;
            } else if file.user.is_some() {
                chown(&target, file.user, None)?;
            }
            fs::set_permissions(&target, fs::Permissions::from_mode(mode))?;
        }
        let next = volume.join(NEXT);
        let _ = fs::remove_file(&next);
        symlink(&name, &next)?;
        fs::rename(&next, &data)?;
    }
    // The links that users see: one per first component.
    let wanted: BTreeSet<&str> = payload.keys().filter_map(|p| p.split('/').next()).collect();
    for name in &wanted {
        let link = volume.join(name);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new(DATA).join(name), &link)?;
        }
    }
    for entry in fs::read_dir(volume)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_link = entry.file_type()?.is_symlink();
        if is_link && name != DATA && !wanted.contains(name.as_ref()) {
            fs::remove_file(entry.path())?;
        }
    }
    if let Some(old) = old.filter(|_| !current) {
        let _ = fs::remove_dir_all(old); // who still reads it keeps its files open
    }
    Ok(())
}

fn same(directory: &Path, payload: &Payload) -> bool {
    fn count(d: &Path) -> usize {
        let entries = fs::read_dir(d).into_iter().flatten().flatten();
        entries.map(|e| if e.path().is_dir() { count(&e.path()) } else { 1 }).sum()
    }
    count(directory) == payload.len()
        && payload.iter().all(|(p, f)| fs::read(directory.join(p)).is_ok_and(|c| c == f.content))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(files: &[(&str, &str)]) -> Payload {
        let file = |c: &str| File { content: c.as_bytes().to_vec(), mode: 0o640, user: None };
        files.iter().map(|(p, c)| ((*p).to_owned(), file(c))).collect()
    }

    /// Clauses: K06
    #[test]
    fn files_change_together() {
        let dir = tempfile::tempdir().unwrap();
        let v = dir.path();
        write(v, &payload(&[("a", "1"), (".hidden", "h"), ("deep/er/b", "2")]), "one", None).unwrap();
        let read = |p: &str| fs::read_to_string(v.join(p)).ok();
        assert_eq!(
            (read("a"), read(".hidden"), read("deep/er/b")),
            (Some("1".into()), Some("h".into()), Some("2".into()))
        );
        assert_eq!(fs::metadata(v.join("a")).unwrap().permissions().mode() & 0o777, 0o640);
        let first = fs::read_link(v.join(DATA)).unwrap();
        write(v, &payload(&[("a", "1"), (".hidden", "h"), ("deep/er/b", "2")]), "two", None).unwrap();
        assert_eq!(fs::read_link(v.join(DATA)).unwrap(), first, "nothing changed, nothing written");

        let directory = fs::File::open(v.join("..data/a")).unwrap();
        write(v, &payload(&[("a", "3"), ("new", "n")]), "three", None).unwrap();
        assert_eq!((read("a"), read("new"), read("deep/er/b")), (Some("3".into()), Some("n".into()), None));
        assert_eq!(io::read_to_string(directory).unwrap(), "1", "an open file stays what it was");
        let names: BTreeSet<String> =
            fs::read_dir(v).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        assert_eq!(names, ["..data", "..three", "a", "new"].map(String::from).into());
    }

    #[test]
    fn paths_stay_inside() {
        for bad in ["", "/etc/passwd", "../x", "a/../../b", "..data", "a/./../b"] {
            assert!(check_path(bad).is_err(), "{bad}");
        }
        for good in ["a", ".a", "a/b..c", "a..b"] {
            assert!(check_path(good).is_ok(), "{good}");
        }
    }
}
