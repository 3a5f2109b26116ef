//! `kubectl cp`: copies files to and from a container with the container's `tar`.
//!
//! Invariant: files from a container are written only below the destination; links are skipped.

use super::exec::{SessionStreams, stream};
use super::pods;
use crate::error::{Error, Result, os_message, text};
use crate::kube::Kube;
use crate::resource::Info;
use crate::shell::Stream;
use client::Query;
use std::io::{Read, Write};
use std::path::{Component, Path, PathBuf};

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// Source and destination: [[NAMESPACE/]POD:]PATH.
    pub words: Vec<String>,
    /// Container name.
    #[arg(short = 'c', long, default_value = "", hide_default_value = true)]
    pub container: String,
    /// Do not preserve owner and permissions in the container.
    #[arg(long)]
    pub no_preserve: bool,
    /// How many times a copy from a container is resumed; negative is unlimited.
    #[arg(long, default_value = "0", hide_default_value = true)]
    pub retries: i64,
}

struct Location {
    namespace: String,
    pod: String,
    path: String,
}

fn parse_location(word: &str) -> Result<Location> {
    let local = |path: &str| Location { namespace: String::new(), pod: String::new(), path: path.to_owned() };
    let wrong = || text("filespec must match the canonical format: [[namespace/]pod:]file/path");
    let mut p = match word.split_once(':') {
        None => local(word),
        Some(("", _)) => return wrong(),
        Some((of, path)) => match of.split('/').collect::<Vec<_>>().as_slice() {
            [pod] => Location { pod: (*pod).to_owned(), ..local(path) },
            [namespace, pod] => Location { pod: (*pod).to_owned(), namespace: (*namespace).to_owned(), ..local(path) },
            _ => return wrong(),
        },
    };
    if p.path.len() > 1 && p.path.ends_with('/') {
        p.path.pop();
    }
    Ok(p)
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    let [from, to] = a.words.as_slice() else { return text("source and destination are required") };
    let (from, to) = (parse_location(from)?, parse_location(to)?);
    if !from.pod.is_empty() && !to.pod.is_empty() {
        return text("one of src or dest must be a local file specification");
    }
    if from.path.is_empty() || to.path.is_empty() {
        return text("filepath can not be empty");
    }
    if !from.pod.is_empty() {
        return download(&a, k, &from, Path::new(&to.path)).await;
    }
    if !to.pod.is_empty() {
        return upload(&a, k, Path::new(&from.path), &to).await;
    }
    text("one of src or dest must be a remote file specification")
}

struct Target {
    pod: Info,
    container: String,
}

async fn resolve_target(a: &Arguments, k: &mut Kube, p: &Location) -> Result<Target> {
    if !p.namespace.is_empty() {
        k.global.namespace.clone_from(&p.namespace);
    }
    let (resource, (namespace, _)) = (k.resource("pods").await?, k.namespace()?);
    let o = k.api(&resource, &namespace).await?.get(&p.pod).await?;
    let pod = Info { resource, namespace, name: p.pod.clone(), source: String::new(), object: Some(o.clone()) };
    if let Some(phase @ ("Succeeded" | "Failed")) = o.str_at(&["status", "phase"]) {
        return text(format!("cannot exec into a container in a completed pod; current phase is {phase}"));
    }
    let container = pods::container(k, &o, &a.container, false)?;
    Ok(Target { pod, container })
}

/// Runs a command with its own streams instead of the process's.
async fn execute(
    k: &mut Kube,
    t: &Target,
    command: &[&str],
    input: Option<Box<dyn Read + Send>>,
    streams: (Stream, Stream),
) -> Result {
    let mut q = Query::default();
    command.iter().for_each(|c| q.add_item("command", c));
    q.add("container", &t.container);
    let streams_of_command = SessionStreams { stdin: input.is_some(), tty: false, detach: None };
    let old = (k.out.clone(), k.err.clone());
    (k.out, k.err) = streams;
    if let Some(i) = input {
        k.shell.input = i;
    }
    let o = t.pod.object.clone().unwrap_or_default();
    let done = stream(k, &t.pod, &o, "exec", q, streams_of_command).await;
    (k.out, k.err) = old;
    // A command that was refused has not read its input; the writer must learn that no reader is left.
    k.shell.input = Box::new(std::io::empty());
    done
}

async fn upload(a: &Arguments, k: &mut Kube, from: &Path, to: &Location) -> Result {
    if std::fs::metadata(from).is_err() {
        return text(format!("{} doesn't exist in local filesystem", from.display()));
    }
    let t = resolve_target(a, k, to).await?;
    let silent = || Stream::new(std::io::sink());
    let mut destination = to.path.clone();
    if execute(k, &t, &["test", "-d", &to.path], None, (silent(), silent())).await.is_ok() {
        let name = from.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        destination = format!("{}/{name}", to.path.trim_end_matches('/'));
    }
    let (directory, name) = match destination.rsplit_once('/') {
        Some(("", n)) => ("/".to_owned(), n.to_owned()),
        Some((d, n)) => (d.to_owned(), n.to_owned()),
        None => (".".to_owned(), destination.clone()),
    };
    let mut command = vec!["tar"];
    if a.no_preserve {
        command.extend(["--no-same-permissions", "--no-same-owner"]);
    }
    command.extend(["-xmf", "-", "-C", &directory]);
    let (reader, writer) =
        std::io::pipe().map_err(|e| Error::Text(format!("making a pipe: {}", crate::error::os_message(&e))))?;
    let from = from.to_owned();
    let packing = std::thread::spawn(move || pack(&from, &name, writer));
    let streams = (k.out.clone(), k.err.clone());
    let done = execute(k, &t, &command, Some(Box::new(reader)), streams).await;
    match packing.join() {
        // A missing reader was already reported by the command.
        Ok(Err(e)) if done.is_ok() => text(format!("{e}")),
        _ => done,
    }
}

/// Writes a file or directory to an archive under `name`; only files, directories and links are included.
fn pack(from: &Path, name: &str, to: impl Write) -> std::io::Result<()> {
    let mut archive = tar::Builder::new(to);
    archive.follow_symlinks(false);
    fn add<W: Write>(archive: &mut tar::Builder<W>, from: &Path, name: &Path, top: bool) -> std::io::Result<()> {
        let meta = if top { std::fs::metadata(from)? } else { std::fs::symlink_metadata(from)? };
        if meta.is_dir() {
            let mut entries: Vec<_> = std::fs::read_dir(from)?.collect::<std::io::Result<_>>()?;
            entries.sort_by_key(std::fs::DirEntry::file_name);
            if entries.is_empty() {
                return archive.append_dir(name, from);
            }
            return entries.iter().try_for_each(|e| add(archive, &e.path(), &name.join(e.file_name()), false));
        }
        if meta.is_file() || meta.is_symlink() {
            return archive.append_path_with_name(from, name);
        }
        Ok(())
    }
    add(&mut archive, from, Path::new(name), true)?;
    archive.into_inner()?.flush()
}

/// Removes what `tar` strips from the front of a path, so that entries begin with the rest.
fn strip_root(path: &str) -> String {
    let clean: PathBuf = Path::new(path).components().filter(|c| matches!(c, Component::Normal(_))).collect();
    clean.to_string_lossy().into_owned()
}

async fn download(a: &Arguments, k: &mut Kube, from: &Location, to: &Path) -> Result {
    // Messages about the container go to standard error like the command's own errors.
    let err = std::mem::replace(&mut k.err, k.out.clone());
    let found = resolve_target(a, k, from).await;
    k.err = err;
    let t = found?;
    let (reader, writer) =
        std::io::pipe().map_err(|e| Error::Text(format!("making a pipe: {}", crate::error::os_message(&e))))?;
    let (prefix, to) = (strip_root(&from.path), to.to_owned());
    let hint = format!(
        " (consider using \"kubectl exec -n {:?} {:?} -- tar cf - {:?} | tar xf -\")",
        from.namespace, t.pod.name, from.path
    );
    let err = k.err.clone();
    let unpacking = std::thread::spawn(move || unpack(reader, &prefix, &to, &hint, &err));
    let counted = Counter::default();
    let out = Stream::new(counted.through(writer));
    let messages = k.out.clone();
    let mut tries = 0;
    let done = loop {
        let resumed = format!(
            "tar cf - '{}' | tail -c+{}",
            from.path.replace('\'', "'\\''"),
            if tries == 0 { 0 } else { counted.count() + 1 }
        );
        let command: Vec<&str> = match a.retries {
            0 => vec!["tar", "cf", "-", &from.path],
            _ => vec!["sh", "-c", &resumed],
        };
        let done = execute(k, &t, &command, None, (out.clone(), messages.clone())).await;
        match done {
            Err(_) if a.retries < 0 || tries < a.retries => {
                tries += 1;
                k.println(format!("Resuming copy at {} bytes, retry {tries}/{}", counted.count(), a.retries));
            }
            done => break done,
        }
    };
    drop(out);
    match unpacking.join() {
        Ok(Err(e)) if done.is_ok() => Err(e),
        _ => done,
    }
}

/// Counts the bytes that pass through a writer.
#[derive(Clone, Default)]
struct Counter(std::sync::Arc<std::sync::atomic::AtomicU64>);

struct Counted<W>(W, Counter);

impl Counter {
    fn count(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn through<W: Write>(&self, w: W) -> Counted<W> {
        Counted(w, self.clone())
    }
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, b: &[u8]) -> std::io::Result<usize> {
        let n = self.0.write(b)?;
        self.1.0.fetch_add(n as u64, std::sync::atomic::Ordering::Relaxed);
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

fn unpack(from: impl Read, prefix: &str, to: &Path, hint: &str, err: &Stream) -> Result {
    let wrong = |e: std::io::Error| Error::Text(crate::error::os_message(&e));
    let mut archive = tar::Archive::new(from);
    let mut hint = Some(hint);
    for entry in archive.entries().map_err(wrong)? {
        let mut entry = entry.map_err(wrong)?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let name = name.trim_start_matches("./");
        let Some(rest) = name.strip_prefix(prefix) else { return text("tar contents corrupted") };
        let rest = Path::new(rest.trim_start_matches('/'));
        let path = if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) };
        if rest.components().any(|c| !matches!(c, Component::Normal(_) | Component::CurDir)) {
            err.write(
                format!("warning: file {:?} is outside target destination, skipping\n", path.display().to_string())
                    .as_bytes(),
            );
            continue;
        }
        let at = |e: std::io::Error| Error::Text(format!("open {}: {}", path.display(), os_message(&e)));
        let kind = entry.header().entry_type();
        if kind.is_dir() {
            std::fs::create_dir_all(&path).map_err(at)?;
            continue;
        }
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(at)?;
        }
        if kind.is_symlink() {
            let link = entry.link_name_bytes().map(|l| String::from_utf8_lossy(&l).into_owned()).unwrap_or_default();
            let more = hint.take().unwrap_or_default();
            let shown = path.display().to_string();
            err.write(format!("warning: skipping symlink: {shown:?} -> {link:?}{more}\n").as_bytes());
            continue;
        }
        let mut file = std::fs::File::create(&path).map_err(at)?;
        std::io::copy(&mut entry, &mut file).map_err(at)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::pack;
    use crate::testing::{Server, run_with, snapshot};
    use futures::{SinkExt, StreamExt};
    use serde_json::json;
    use std::sync::{Arc, Mutex};
    use tokio_tungstenite::tungstenite::Message;

    fn server() -> Server {
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [{"name": "c"}]}, "status": {"phase": "Running"}});
        Server::new().on("GET /api/v1/namespaces/n/pods/p", 200, pod)
    }

    #[tokio::test]
    async fn copies_files_from_a_container() {
        let dir = tempfile::tempdir().unwrap();
        let (source, to) = (dir.path().join("d"), dir.path().join("to"));
        std::fs::create_dir_all(source.join("e")).unwrap();
        std::fs::write(source.join("f"), "one").unwrap();
        std::fs::write(source.join("e/g"), "two").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", source.join("l")).unwrap();
        let mut archive = Vec::new();
        pack(&source, "tmp/d", &mut archive).unwrap();
        let s = server().on_upgrade(move |mut ws| {
            let archive = archive.clone();
            Box::pin(async move {
                for block in archive.chunks(1000) {
                    ws.send(Message::Binary([&[1], block].concat().into())).await.unwrap();
                }
                ws.send(Message::Binary(b"\x03{\"status\":\"Success\"}".to_vec().into())).await.unwrap();
                ws.close(None).await.unwrap();
            })
        });
        let t = to.to_string_lossy().into_owned();
        // Without a namespace on the command line the hint has none.
        let (_, _, err) = run_with(&s, &["cp", "p:/tmp/d", &t, "-n", "n"], "").await;
        assert!(err.contains("kubectl exec -n \"\" \"p\" -- tar"), "{err}");
        let (code, out, err) = run_with(&s, &["cp", "n/p:/tmp/d", &t], "").await;
        assert_eq!((code, out.as_str()), (0, ""));
        assert_eq!(
            err,
            format!(
                "warning: skipping symlink: \"{t}/l\" -> \"/etc/passwd\" (consider using \"kubectl exec -n \"n\" \"p\" -- tar cf - \"/tmp/d\" | tar xf -\")\n"
            )
        );
        assert_eq!(std::fs::read_to_string(to.join("e/g")).unwrap(), "two");
        assert!(
            s.requests()
                .last()
                .unwrap()
                .contains("/exec?command=tar&command=cf&command=-&command=%2Ftmp%2Fd&container=c")
        );
    }

    #[tokio::test]
    async fn copies_files_into_a_container() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), "hello").unwrap();
        let got = Arc::new(Mutex::new(Vec::new()));
        let kept = got.clone();
        let s = server().on_upgrade(move |mut ws| {
            let kept = kept.clone();
            Box::pin(async move {
                // The first command only checks whether the destination is a directory, and has no input.
                let waiting = tokio::time::timeout(std::time::Duration::from_millis(200), ws.next());
                let mut next = waiting.await.ok().flatten();
                while let Some(Ok(m)) = next {
                    let data = m.into_data();
                    match data.first() {
                        Some(0) => kept.lock().unwrap().extend_from_slice(&data[1..]),
                        _ => break,
                    }
                    next = ws.next().await;
                }
                let _ = ws.send(Message::Binary(b"\x03{\"status\":\"Success\"}".to_vec().into())).await;
                let _ = ws.close(None).await;
            })
        });
        let f = dir.path().join("f").to_string_lossy().into_owned();
        assert_eq!(run_with(&s, &["cp", &f, "n/p:/tmp"], "").await, (0, String::new(), String::new()));
        assert!(
            s.requests()
                .last()
                .unwrap()
                .contains("/exec?command=tar&command=-xmf&command=-&command=-C&command=%2Ftmp&container=c")
        );
        let bytes = got.lock().unwrap().clone();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let names: Vec<_> = archive.entries().unwrap().map(|e| e.unwrap().path().unwrap().into_owned()).collect();
        assert_eq!(names, [std::path::PathBuf::from("f")]);
    }

    /// Regression: the program that packs the file waited forever for a reader.
    #[tokio::test]
    async fn refused_command_ends_the_copy() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), vec![b'x'; 1 << 20]).unwrap();
        let f = dir.path().join("f").to_string_lossy().into_owned();
        let (code, _, err) = run_with(&server(), &["cp", &f, "n/p:/tmp/f"], "").await;
        assert!(code == 1 && err == "error: this transport has no upgraded streams\n", "{code} {err}");
    }

    #[tokio::test]
    async fn rejects_invalid_locations() {
        let s = server();
        for (line, expected) in [
            ("cp a", "! error: source and destination are required\nexit 1\n"),
            ("cp a b", "! error: one of src or dest must be a remote file specification\nexit 1\n"),
            ("cp p:a q:b", "! error: one of src or dest must be a local file specification\nexit 1\n"),
            ("cp p: b", "! error: filepath can not be empty\nexit 1\n"),
            ("cp :a b", "! error: filespec must match the canonical format: [[namespace/]pod:]file/path\nexit 1\n"),
            ("cp /nowhere p:b", "! error: /nowhere doesn't exist in local filesystem\nexit 1\n"),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
    }

    /// Output of the command in the container goes to standard output, its exit status to standard error.
    #[tokio::test]
    async fn reports_a_failing_command() {
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [{"name": "c"}, {"name": "d"}]}, "status": {"phase": "Running"}});
        let s = Server::new().on("GET /api/v1/namespaces/n/pods/p", 200, pod).on_upgrade(|mut ws| {
            Box::pin(async move {
                ws.send(Message::Binary(b"\x02tar: no\n".to_vec().into())).await.unwrap();
                let status = json!({"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [{"reason": "ExitCode", "message": "1"}]}});
                ws.send(Message::Binary([b"\x03", status.to_string().as_bytes()].concat().into())).await.unwrap();
                ws.close(None).await.unwrap();
            })
        });
        let dir = tempfile::tempdir().unwrap();
        let done = run_with(&s, &["cp", "n/p:/nosuch", &dir.path().join("x").to_string_lossy()], "").await;
        let out = "Defaulted container \"c\" out of: c, d\ntar: no\n";
        assert_eq!(done, (1, out.to_owned(), "command terminated with exit code 1\n".to_owned()));
    }
}
