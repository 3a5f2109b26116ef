//! `/logs/`: files and directories below the machine's `/var/log`, as Go's file server shows them.
//!
//! **Invariant**: no link leads out of that directory, and only regular files are read. A pod that may write there cannot expose
//! other files of the machine (upstream follows links).

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use nix::dir::{Dir, Type};
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use runtime::beneath::{Directory, Links};
use tokio::sync::mpsc;

use super::{Body, Error, stream, text};

const ROOT: &str = "/var/log";
const BLOCK: usize = 64 << 10;
/// Maximum number of entries of a directory.
const MAX_NAMES: usize = 10_000;

enum Found {
    Directory(Vec<String>),
    File(File, u64),
}

pub(super) async fn serve(segments: &[&str], path: &str) -> Result<Response<Body>, Error> {
    let relative_path = relative_path(segments).ok_or_else(|| Error::NotFound("404 page not found\n".into()))?;
    let found = tokio::task::spawn_blocking(move || open(Path::new(ROOT), &relative_path)).await;
    match found.map_err(|e| Error::Internal(e.to_string()))? {
        Ok(Found::Directory(_)) if !path.ends_with('/') => {
            let mut response = text(StatusCode::MOVED_PERMANENTLY, String::new());
            let to = format!("{}/", path.rsplit('/').next().unwrap_or_default());
            if let Ok(to) = HeaderValue::from_str(&to) {
                response.headers_mut().insert(header::LOCATION, to);
            }
            Ok(response)
        }
        Ok(Found::Directory(names)) => Ok(listing(&names)),
        Ok(Found::File(file, size)) => Ok(content(file, size)),
        Err(e) if e.kind() == ErrorKind::NotFound => Err(Error::NotFound("404 page not found\n".into())),
        Err(error) => {
            tracing::debug!(path, %error, "reading a log of the machine failed");
            Ok(text(StatusCode::FORBIDDEN, "403 Forbidden\n".into()))
        }
    }
}

/// The path below the root; `None` if it is invalid.
fn relative_path(segments: &[&str]) -> Option<PathBuf> {
    let bad = |s: &&str| s.contains(['/', '\0']) || *s == "..";
    if segments.iter().any(bad) {
        return None;
    }
    Some(segments.iter().filter(|s| !s.is_empty()).collect())
}

fn open(root: &Path, path: &Path) -> std::io::Result<Found> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let fd = Directory::open(root, Links::Inside)?.open_at(path, flags, Mode::empty())?;
    let file = File::from(fd);
    let about = file.metadata()?;
    if about.is_dir() {
        return Ok(Found::Directory(names(OwnedFd::from(file))?));
    }
    if !about.is_file() {
        return Err(std::io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(Found::File(file, about.len()))
}

/// The sorted entries of a directory; names of directories end with a slash.
fn names(fd: OwnedFd) -> std::io::Result<Vec<String>> {
    let mut out = Vec::new();
    for entry in Dir::from_fd(fd)?.iter().take(MAX_NAMES) {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == "." || name == ".." {
            continue;
        }
        let slash = if entry.file_type() == Some(Type::Directory) { "/" } else { "" };
        out.push(name + slash);
    }
    out.sort();
    Ok(out)
}

fn listing(names: &[String]) -> Response<Body> {
    let mut page = "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n".to_owned();
    for name in names {
        page += &format!("<a href=\"{}\">{}</a>\n", link(name), html(name));
    }
    page += "</pre>\n";
    let mut response = text(StatusCode::OK, page);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    response
}

fn html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;").replace('\'', "&#39;")
}

/// Escapes a name for a relative URL. Text before a colon would be a scheme.
fn link(name: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~/$&+=@".contains(&b);
    let mut out = String::new();
    for b in name.bytes() {
        match plain(b) {
            true => out.push(char::from(b)),
            false => out += &format!("%{b:02X}"),
        }
    }
    html(&out)
}

/// Sends the first `size` bytes, also of a file that grows meanwhile.
fn content(file: File, size: u64) -> Response<Body> {
    let (sender, receiver) = mpsc::channel::<Bytes>(4);
    let reader = tokio::task::spawn_blocking(move || {
        let mut file = file.take(size);
        let mut block = vec![0; BLOCK];
        loop {
            let n = file.read(&mut block)?;
            if n == 0 || sender.blocking_send(Bytes::copy_from_slice(&block[..n])).is_err() {
                return Ok(());
            }
        }
    });
    let mut response = Response::new(stream(receiver, reader));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn nothing_outside_is_shown() {
        let elsewhere = tempfile::tempdir().unwrap();
        std::fs::write(elsewhere.path().join("secret"), "secret").unwrap();
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("pods")).unwrap();
        std::fs::write(root.path().join("pods/log"), "text").unwrap();
        symlink("pods/log", root.path().join("inside")).unwrap();
        symlink(elsewhere.path().join("secret"), root.path().join("absolute")).unwrap();
        symlink("../".repeat(20) + "etc/passwd", root.path().join("relative")).unwrap();
        symlink("/proc/self/environ", root.path().join("magic")).unwrap();
        nix::unistd::mkfifo(&root.path().join("pipe"), Mode::S_IRWXU).unwrap();
        let is_file = |path: &str| matches!(open(root.path(), Path::new(path)), Ok(Found::File(_, 4)));
        assert!(is_file("pods/log") && is_file("inside"));
        for bad in ["absolute", "relative", "magic", "pipe", "../secret", "pods/../../secret", "none"] {
            assert!(open(root.path(), Path::new(bad)).is_err(), "{bad}");
        }
        let Ok(Found::Directory(names)) = open(root.path(), Path::new("")) else { panic!("the root is a directory") };
        assert_eq!(names, ["absolute", "inside", "magic", "pipe", "pods/", "relative"]);
        for bad in [&["..", "secret"][..], &["a/b"], &["a\0"]] {
            assert_eq!(relative_path(bad), None, "{bad:?}");
        }
        assert_eq!(relative_path(&["pods", "", "log"]), Some("pods/log".into()));
    }

    #[test]
    fn names_cannot_write_into_the_page() {
        let page = link("a\"><script>:b c");
        assert_eq!(page, "a%22%3E%3Cscript%3E%3Ab%20c");
        assert_eq!(html("<&\"'>"), "&lt;&amp;&#34;&#39;&gt;");
    }
}
