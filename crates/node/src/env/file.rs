//! Variables from a file in a volume of the pod (`fileKeyRef`).
//!
//! Containers of the pod write the file, so it may be anything: it is read within limits, and links in it lead nowhere outside of its volume.
//! Follows kubelet's `makeEnvironmentVariables` and `pkg/kubelet/util/env`.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::FileKeySelector;
use runtime::beneath::{Directory, Links};
use supervisor::blocking;

use super::MAX_BYTES;

/// Bytes of a line.
const MAX_LINE: usize = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot find the volume \"{0}\" referenced by FileKeyRef")]
    Volume(String),
    #[error("couldn't parse env file")]
    Unreadable,
    #[error("environment variable key \"{key}\" not found in file \"{}\"", path.display())]
    Missing { key: String, path: PathBuf },
}

impl Error {
    /// The file lacks a key, or its value is empty.
    pub fn missing(volumes: &BTreeMap<String, PathBuf>, wanted: &FileKeySelector) -> Self {
        let volume = volumes.get(&wanted.volume_name).cloned().unwrap_or_default();
        Self::Missing { key: wanted.key.clone(), path: volume.join(wanted.path.trim_start_matches('/')) }
    }
}

/// Reads a variable, which is empty if the file does not have it, and says how many bytes were read. Errors if the file cannot be read, or has an error before the variable.
pub async fn read(volumes: &BTreeMap<String, PathBuf>, wanted: &FileKeySelector) -> Result<(String, usize), Error> {
    let volume = volumes.get(&wanted.volume_name).ok_or_else(|| Error::Volume(wanted.volume_name.clone()))?;
    let (volume, path, key) = (volume.clone(), wanted.path.clone(), wanted.key.clone());
    blocking(move || {
        let text = contents(&volume, Path::new(path.trim_start_matches('/'))).map_err(|error| {
            tracing::debug!(path, %error, "reading a file with variables failed");
            Error::Unreadable
        })?;
        let found = find(&text, &key).map_err(|Wrong { line, why }| {
            tracing::debug!(path, line, why, "a file with variables has an error");
            Error::Unreadable
        })?;
        Ok((found, text.len()))
    })
    .await
}

fn contents(volume: &Path, path: &Path) -> std::io::Result<String> {
    let file = Directory::open(volume, Links::Root)?.read(path)?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > MAX_BYTES {
        return Err(std::io::Error::from(std::io::ErrorKind::FileTooLarge));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What is wrong in a file, and where.
#[derive(Debug, PartialEq, Eq)]
struct Wrong {
    line: usize,
    why: &'static str,
}

/// The value of a key: the first one, without its quotes. Lines have the form `NAME='VALUE'`; a value may have several lines, and a comment
/// behind it.
fn find(text: &str, key: &str) -> Result<String, Wrong> {
    let blank = [' ', '\t'];
    let mut lines = text.lines().enumerate().map(|(i, line)| (i + 1, line));
    let mut next = || match lines.next() {
        Some((line, text)) if text.len() > MAX_LINE => Err(Wrong { line, why: "it is too long" }),
        line => Ok(line),
    };
    while let Some((line, text)) = next()? {
        let wrong = |why| Err(Wrong { line, why });
        let text = text.trim_start_matches(blank);
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let Some((name, rest)) = text.split_once('=') else { return wrong("there is no '='") };
        if name.is_empty() || name.ends_with(blank) {
            return wrong("there is no name right before '='");
        }
        // As in a shell, the value is empty then.
        if rest.starts_with(blank) {
            if name == key {
                return Ok(String::new());
            }
            continue;
        }
        let Some(mut rest) = rest.strip_prefix('\'') else { return wrong("the value has no single quotes") };
        let mut value = String::new();
        let behind = loop {
            if let Some((last, behind)) = rest.split_once('\'') {
                value.push_str(last);
                break behind.trim_start_matches(blank);
            }
            value.push_str(rest);
            value.push('\n');
            let Some((_, more)) = next()? else { return wrong("the quote is not closed") };
            rest = more;
        };
        if !behind.is_empty() && !behind.starts_with('#') {
            return wrong("there is something behind the value");
        }
        if name == key {
            return Ok(value);
        }
    }
    Ok(String::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};

    #[test]
    fn values_are_in_single_quotes() {
        let text = "# comment\n\n A='one'\nB='two words' # why\r\nC='several\n lines'\nD= 'none'\nA='again'\nE='$A \"x\" \\n'\n";
        let value = |key| find(text, key).unwrap();
        assert_eq!(
            ["A", "B", "C", "D", "E", "F"].map(value),
            ["one", "two words", "several\n lines", "", "$A \"x\" \\n", ""]
        );
    }

    #[test]
    fn errors_before_the_variable_count() {
        let line = |text: &str| find(text, "K").map_err(|e| e.line);
        let long = format!("A='{}'\nK='x'", "x".repeat(MAX_LINE));
        for (text, wrong) in [
            ("A='a'\nK", 2),
            ("='x'", 1),
            ("K ='x'", 1),
            ("K=x", 1),
            ("K=\"x\"", 1),
            ("K=", 1),
            ("A='a\nb\n", 1),
            ("A='a' b\nK='x'", 1),
            (&long, 1),
        ] {
            assert_eq!(line(text), Err(wrong), "{text}");
        }
        assert_eq!(line("K='x'\nbroken"), Ok("x".into()), "what comes later is not read");
    }

    /// A container may make the file a link to a file of the machine, or a pipe that nobody writes into.
    #[tokio::test]
    async fn only_files_of_the_volume_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let volume = directory.path().join("v");
        std::fs::create_dir(&volume).unwrap();
        std::fs::write(directory.path().join("secret"), "K='secret'").unwrap();
        std::fs::write(volume.join("own"), "K='own'").unwrap();
        std::os::unix::fs::symlink("../secret", volume.join("out")).unwrap();
        std::os::unix::fs::symlink(directory.path().join("secret"), volume.join("far")).unwrap();
        std::os::unix::fs::symlink("/own", volume.join("in")).unwrap();
        nix::unistd::mkfifo(&volume.join("pipe"), Mode::S_IRUSR).unwrap();
        // Opening this device would make it exist on the machine.
        let number = 977;
        let device = makedev(7, number);
        mknod(&volume.join("device"), SFlag::S_IFBLK, Mode::S_IRUSR, device).unwrap();
        std::fs::File::create(volume.join("huge")).unwrap().set_len(MAX_BYTES as u64 + 1).unwrap();
        let volumes = BTreeMap::from([("v".to_owned(), volume.clone())]);
        let of = |volume: &str, path: &str, key: &str| FileKeySelector {
            volume_name: volume.into(),
            path: path.into(),
            key: key.into(),
            optional: None,
        };
        for path in ["own", "in", "/own"] {
            assert_eq!(read(&volumes, &of("v", path, "K")).await.unwrap(), ("own".into(), 7), "{path}");
        }
        for path in ["out", "far", "pipe", "device", "huge", ".", "none"] {
            let error = read(&volumes, &of("v", path, "K")).await.unwrap_err();
            assert_eq!(error.to_string(), "couldn't parse env file", "{path}");
        }
        assert!(!Path::new(&format!("/sys/block/loop{number}")).exists(), "the device was opened");
        assert_eq!(read(&volumes, &of("v", "own", "L")).await.unwrap().0, "");
        let missing = Error::missing(&volumes, &of("v", "own", "L")).to_string();
        assert_eq!(missing, format!("environment variable key \"L\" not found in file \"{}/own\"", volume.display()));
        let unknown = read(&volumes, &of("w", "own", "K")).await.unwrap_err().to_string();
        assert_eq!(unknown, "cannot find the volume \"w\" referenced by FileKeyRef");
    }
}
