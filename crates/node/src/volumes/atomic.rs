//! Writes files that change together, into a new directory to which a symbolic link then points.
//!
//! ```text
//! VOLUME/..2026_11_20_10_00_00.4711/key    the files
//! VOLUME/..data -> ..2026_11_20_10_00_00.4711
//! VOLUME/key    -> ..data/key
//! ```
//! A reader that has resolved `..data` sees one state (kubelet `util/atomic_writer.go`).
//!
//! **Invariant.** A container may write to its volume at any time, so its content is not trusted: every step uses descriptors below
//! the volume's directory, follows no link, and reads, writes and removes nothing else. Files in the way are replaced; if a
//! container keeps changing them, that is an error.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{PermissionsExt, fchown};
use std::path::{Component, Path};

use bytes::Bytes;
use nix::sys::stat::Mode;
use runtime::beneath::{Directory, Leaf, Links};

const DATA: &str = "..data";
const NEXT: &str = "..data_tmp";
/// Maximum number of entries of a volume that are read or removed; payloads have fewer.
const MAX_ENTRIES: usize = 100_000;

/// A file: content, permission bits and owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub content: Bytes,
    pub mode: u32,
    /// The owner, if it is not root.
    pub user: Option<u32>,
}

/// Files by relative path.
pub type Payload = BTreeMap<String, File>;

/// Errors if `path` leads out of the volume or has a name that is reserved here.
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

/// Makes `payload` the content of the volume; does nothing if it is already. `stamp` is the name of the new directory. `group` owns
/// the files and may read them.
pub fn write(volume: &Path, payload: &Payload, stamp: &str, group: Option<u32>) -> io::Result<()> {
    payload.keys().try_for_each(|path| check_path(path).map_err(io::Error::other))?;
    fs::create_dir_all(volume)?;
    let volume = Directory::open(volume, Links::Refuse)?.without_mounts();
    let old = current(&volume);
    let is_current = old.as_ref().is_some_and(|(_, data)| same(data, payload).unwrap_or(false));
    if !is_current {
        let mut name = OsString::from(format!("..{stamp}"));
        if old.as_ref().is_some_and(|(old, _)| *old == name) {
            name.push("_"); // the old one is removed below
        }
        let made = fill(&volume, &name, payload, group)
            .and_then(|()| volume.put_link(Path::new(&name), OsStr::new(DATA), OsStr::new(NEXT), MAX_ENTRIES));
        if let Err(e) = made {
            let _ = volume.remove(&name, MAX_ENTRIES);
            return Err(e);
        }
    }
    // The links for readers: one per first path component.
    let names: BTreeSet<&OsStr> = payload.keys().filter_map(|p| p.split('/').next()).map(OsStr::new).collect();
    for name in &names {
        let target = Path::new(DATA).join(name);
        if volume.read_link(name).ok().as_deref() != Some(target.as_os_str()) {
            volume.put_link(&target, name, OsStr::new(NEXT), MAX_ENTRIES)?;
        }
    }
    for (name, is_link) in volume.entries(MAX_ENTRIES)? {
        if is_link && name != DATA && !names.contains(name.as_os_str()) {
            volume.remove(&name, MAX_ENTRIES)?;
        }
    }
    if let Some((old, _)) = old.filter(|_| !is_current) {
        let _ = volume.remove(&old, MAX_ENTRIES); // who still reads it keeps its files open
    }
    Ok(())
}

/// The target of [`DATA`], if [`write()`] may have made it: a directory in the volume with a reserved name.
fn current(volume: &Directory) -> Option<(OsString, Directory)> {
    let name = volume.read_link(OsStr::new(DATA)).ok()?;
    let mut components = Path::new(&name).components();
    match (components.next(), components.next()) {
        (Some(Component::Normal(only)), None) if only == name && only.as_encoded_bytes().starts_with(b"..") => {}
        _ => return None,
    }
    let directory = volume.directory(Path::new(&name)).ok()?;
    Some((name, directory))
}

/// Creates the directory `name` with the files of the payload.
fn fill(volume: &Directory, name: &OsStr, payload: &Payload, group: Option<u32>) -> io::Result<()> {
    let mode = Mode::from_bits_truncate(0o755);
    volume.remove(name, MAX_ENTRIES)?;
    // Files are created in the opened directory, even if another one takes its name.
    let fresh = volume.make_directory(name, mode)?;
    for (path, file) in payload {
        let path = Path::new(path);
        if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            fresh.make(parent, Leaf::Directory, mode)?;
        }
        let mut target = fresh.create(path)?;
        target.write_all(&file.content)?;
        if group.is_some() || file.user.is_some() {
            fchown(&target, file.user, group)?;
        }
        let for_group = if group.is_some() { 0o440 } else { 0 };
        target.set_permissions(fs::Permissions::from_mode(file.mode | for_group))?;
    }
    Ok(())
}

/// Whether the directory has exactly the files of the payload. Reads no more bytes than the payload has.
fn same(data: &Directory, payload: &Payload) -> io::Result<bool> {
    let mut expected: BTreeMap<&Path, BTreeSet<&OsStr>> = [(Path::new(""), BTreeSet::new())].into();
    for path in payload.keys().flat_map(|p| Path::new(p).ancestors()) {
        if let (Some(parent), Some(name)) = (path.parent(), path.file_name()) {
            expected.entry(parent).or_default().insert(name);
        }
    }
    for (directory, names) in expected {
        let found = data.directory(directory)?.entries(names.len())?;
        if found.len() != names.len() || found.iter().any(|(name, _)| !names.contains(name.as_os_str())) {
            return Ok(false);
        }
    }
    for (path, file) in payload {
        let found = data.read(Path::new(path))?;
        let length = file.content.len();
        if found.metadata()?.len() != length as u64 {
            return Ok(false);
        }
        let mut content = Vec::with_capacity(length);
        found.take(length as u64 + 1).read_to_end(&mut content)?;
        if content != file.content {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn payload(files: &[(&str, &str)]) -> Payload {
        let file = |c: &str| File { content: c.to_owned().into(), mode: 0o640, user: None };
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
        // Two states of one instant.
        write(v, &payload(&[("a", "4")]), "three", None).unwrap();
        assert_eq!(read("a"), Some("4".into()));
    }

    /// Files of the host that no container may affect.
    struct HostFiles(tempfile::TempDir);

    impl HostFiles {
        fn new() -> Self {
            let host = Self(tempfile::tempdir().unwrap());
            fs::create_dir(host.path().join("sub")).unwrap();
            fs::write(host.path().join("sub/a"), "precious").unwrap();
            fs::write(host.path().join("a"), "precious").unwrap();
            fs::set_permissions(host.path().join("a"), fs::Permissions::from_mode(0o600)).unwrap();
            host
        }

        fn path(&self) -> &Path {
            self.0.path()
        }

        fn check(&self, case: &str) {
            assert_eq!(fs::read_dir(self.path()).unwrap().count(), 2, "{case}");
            assert_eq!(fs::read_dir(self.path().join("sub")).unwrap().count(), 1, "{case}");
            for file in ["a", "sub/a"] {
                assert_eq!(fs::read_to_string(self.path().join(file)).unwrap(), "precious", "{case}");
            }
            assert_eq!(fs::metadata(self.path().join("a")).unwrap().permissions().mode() & 0o777, 0o600, "{case}");
        }
    }

    /// The agent removed the target of a link that a container had made in its volume.
    #[test]
    fn content_of_the_volume_is_not_trusted() {
        let host = HostFiles::new();
        let (first, second) = (payload(&[("a", "1"), ("d/b", "1")]), payload(&[("a", "2"), ("d/b", "2")]));
        let remove = |path: &Path| match fs::symlink_metadata(path).unwrap().is_dir() {
            true => fs::remove_dir_all(path).unwrap(),
            false => fs::remove_file(path).unwrap(),
        };
        let above = format!("../{}", host.path().file_name().unwrap().to_str().unwrap());
        // What a container puts in the place of a file.
        let link = |to: &str| {
            let to = to.to_owned();
            Box::new(move |at: &Path| symlink(&to, at).unwrap()) as Box<dyn Fn(&Path)>
        };
        let out = host.path().to_str().unwrap();
        let kinds: Vec<(&str, Box<dyn Fn(&Path)>)> = vec![
            ("link to a directory outside", link(out)),
            ("link to a file outside", link(&format!("{out}/a"))),
            ("link out of the volume", link(&above)),
            ("link to what is above", link("..")),
            ("link to the volume", link(".")),
            ("link with several components", link(&format!("..one/../{above}"))),
            ("link with a slash", link("..one/")),
            ("link to itself", link("..data")),
            ("link to endless bytes", link("/dev/zero")),
            ("link to nothing", link("..none")),
            ("pipe", Box::new(|at| nix::unistd::mkfifo(at, Mode::S_IRWXU).unwrap())),
            ("file", Box::new(|at| fs::write(at, "x").unwrap())),
            (
                "directory",
                Box::new(move |at| {
                    fs::create_dir_all(at.join("deep/er")).unwrap();
                    symlink("/", at.join("deep/link")).unwrap();
                }),
            ),
            ("socket", Box::new(|at| drop(std::os::unix::net::UnixListener::bind(at).unwrap()))),
        ];
        for path in ["..data", "..data_tmp", "..two", "a", "d", "..one/a", "..one/d", "..one/d/b", "..one"] {
            for (kind, put) in &kinds {
                for next in [&first, &second] {
                    let case = format!("{kind} as {path}");
                    let dir = tempfile::tempdir_in(host.path().parent().unwrap()).unwrap();
                    let v = dir.path();
                    write(v, &first, "one", None).unwrap();
                    let at = v.join(path);
                    if at.symlink_metadata().is_ok() {
                        remove(&at);
                    }
                    put(&at);
                    write(v, next, "two", None).unwrap_or_else(|e| panic!("{case}: {e}"));
                    host.check(&case);
                    for (path, file) in next {
                        assert_eq!(fs::read(v.join(path)).unwrap(), file.content, "{case}");
                        let data = fs::read_link(v.join(DATA)).unwrap();
                        assert!(fs::symlink_metadata(v.join(data).join(path)).unwrap().is_file(), "{case}");
                    }
                }
            }
        }
    }

    /// Files were written to the target of a link that replaced the new directory.
    #[test]
    fn the_new_directory_may_be_exchanged() {
        use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
        use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
        let host = HostFiles::new();
        let dir = tempfile::tempdir().unwrap();
        let v = dir.path();
        symlink(host.path(), v.join("moved")).unwrap();
        let (over, exchanged) = (AtomicBool::new(false), AtomicUsize::new(0));
        let names: Vec<String> = (0..200).map(|n| format!("sub/{n}")).chain(["a".into()]).collect();
        let state = |content: &str| {
            let files: Vec<(&str, &str)> = names.iter().map(|n| (n.as_str(), content)).collect();
            payload(&files)
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let _ = symlink(host.path(), v.join("moved"));
                    for name in fs::read_dir(v).unwrap().flatten().map(|e| e.file_name()) {
                        if name.as_encoded_bytes().starts_with(b"..") {
                            let flags = RenameFlags::RENAME_EXCHANGE;
                            let done = renameat2(AT_FDCWD, &v.join("moved"), AT_FDCWD, &v.join(name), flags);
                            exchanged.fetch_add(usize::from(done.is_ok()), Ordering::Relaxed);
                        }
                    }
                }
            });
            let limit = tokio::time::Instant::now() + std::time::Duration::from_secs(2);
            for n in 0.. {
                let content = n.to_string();
                let _ = write(v, &state(&content), &format!("2026.{n}"), None); // it may as well be an error
                if tokio::time::Instant::now() > limit && exchanged.load(Ordering::Relaxed) > 100 {
                    break;
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        host.check("exchanged");
        write(v, &state("last"), "last", None).unwrap();
        assert!(names.iter().all(|n| fs::read_to_string(v.join(n)).unwrap() == "last"));
        host.check("afterwards");
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
