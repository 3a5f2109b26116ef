//! Finds programs in `PATH` as Go's `exec.LookPath` does: never through a relative entry, because other users may be able to write
//! to a relative directory.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Why a program was not found. The texts are those of Go's `exec.LookPath`.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// No entry of `PATH` has an executable file of this name.
    #[error("exec: {0:?}: executable file not found in $PATH")]
    NotFound(String),
    /// The first entry of `PATH` that has the program is relative.
    #[error("exec: {0:?}: cannot run executable found relative to current directory")]
    Relative(String),
}

/// Returns the file of the program `name`. A name with a slash is returned unchanged. `path` is the value of `PATH`.
pub fn look_path(name: &str, path: Option<&OsStr>) -> Result<PathBuf, Error> {
    if name.contains('/') {
        return Ok(PathBuf::from(name));
    }
    let not_found = || Error::NotFound(name.to_owned());
    if name.is_empty() {
        return Err(not_found());
    }
    // An empty entry is the current directory.
    let entries = std::env::split_paths(path.unwrap_or_default());
    let found = entries.map(|d| d.join(name)).find(|p| is_executable(p)).ok_or_else(not_found)?;
    if found.is_absolute() { Ok(found) } else { Err(Error::Relative(name.to_owned())) }
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_not_found_through_relative_entries() {
        let directory = tempfile::tempdir().unwrap();
        let (first, second) = (directory.path().join("a"), directory.path().join("b"));
        for (d, mode) in [(&first, 0o644), (&second, 0o755)] {
            std::fs::create_dir(d).unwrap();
            std::fs::write(d.join("tool"), "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(d.join("tool"), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let look = |name: &str, path: &str| look_path(name, Some(OsStr::new(path)));
        let both = format!("{}:{}", first.display(), second.display());
        assert_eq!(look("tool", &both), Ok(second.join("tool")), "the first one is not executable");
        assert_eq!(look("tool", &first.display().to_string()), Err(Error::NotFound("tool".into())));
        assert_eq!(look("./tool", ""), Ok(PathBuf::from("./tool")), "a path is not looked up");
        assert_eq!(look_path("tool", None), Err(Error::NotFound("tool".into())));
        // The crate's own directory is the current one of tests.
        let relative = pathdiff(&second);
        for path in [relative.clone(), format!("/nonexistent:{relative}:{both}")] {
            assert_eq!(look("tool", &path), Err(Error::Relative("tool".into())), "{path}");
        }
    }

    /// A relative path to an absolute one.
    fn pathdiff(to: &Path) -> String {
        let up = std::env::current_dir().unwrap().components().count() - 1;
        format!("{}{}", "../".repeat(up), to.strip_prefix("/").unwrap().display())
    }
}
