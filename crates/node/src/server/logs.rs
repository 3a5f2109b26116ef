//! Serves log files of containers: the last lines, since a time, and following.

use std::fs::Metadata;
use std::io::SeekFrom;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use futures::{FutureExt, SinkExt, StreamExt};
use http::{Request, Response};
use jiff::Timestamp;
use runtime::ContainerState;
use supervisor::blocking;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message};

use super::{Body, Error, Handle, Query, absent, stream, upgrade};
use crate::options::Options;

/// How often a followed file is checked for new lines.
const LOOK: Duration = Duration::from_millis(200);
/// How often a file is checked while its client does not read.
const LOOK_STALLED: Duration = Duration::from_secs(1);
const BLOCK: usize = 64 * 1024;
/// Pieces that may wait for a client.
const WAITING: usize = 4;

#[derive(Clone, Debug, Default)]
struct LogQuery {
    follow: bool,
    timestamps: bool,
    tail: Option<usize>,
    since: Option<Timestamp>,
    limit: Option<usize>,
}

impl LogQuery {
    fn parse(q: &Query, now: Timestamp) -> Result<Self, Error> {
        let positive = |name: &str| -> Result<Option<usize>, Error> {
            match q.number(name)? {
                None => Ok(None),
                Some(n) => usize::try_from(n)
                    .map(Some)
                    .map_err(|_| Error::BadRequest(format!("{name}: must be greater than or equal to 0"))),
            }
        };
        let since = match (q.number("sinceSeconds")?, q.get("sinceTime")) {
            (Some(s), _) => Some(meta::time::plus(now, -s.max(0))),
            (None, Some(t)) => {
                let wrong = || Error::BadRequest(format!("sinceTime: {t:?} is not a time"));
                Some(meta::time::parse(t).ok_or_else(wrong)?)
            }
            (None, None) => None,
        };
        Ok(Self {
            follow: q.flag("follow"),
            timestamps: q.flag("timestamps"),
            tail: positive("tailLines")?,
            since,
            limit: positive("limitBytes")?,
        })
    }
}

pub(super) async fn serve(
    handle: &Handle,
    ns: &str,
    pod: &str,
    name: &str,
    request: Request<Bytes>,
) -> Result<Response<Body>, Error> {
    let q = &Query::parse(&request);
    let query = LogQuery::parse(q, handle.options.clock.now())?;
    let mut all = handle.containers(ns, pod, name).await?;
    let newest = all.pop();
    let container = if q.flag("previous") {
        let current = newest.as_ref().map(|c| c.labels.get(crate::pod::container::POD_UID).cloned());
        let previous = all.pop().filter(|c| Some(c.labels.get(crate::pod::container::POD_UID).cloned()) == current);
        previous.ok_or_else(|| {
            Error::BadRequest(format!("previous terminated container {name:?} in pod {pod:?} not found"))
        })?
    } else {
        match newest {
            Some(c) => c,
            None => return Err(absent::no_log(handle, ns, pod, name).await),
        }
    };
    let (sender, receiver) = mpsc::channel::<Bytes>(WAITING);
    let (options, path) = (handle.options.clone(), container.log_path.clone());
    let reader = tokio::spawn(async move {
        let id: Arc<str> = container.id.into();
        let runs = move || {
            let (options, id) = (options.clone(), id.clone());
            async move { runs(&options, &id).await }.boxed()
        };
        match send(&path, &query, &sender, &runs).await {
            // A container without output may have no file.
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), "reading a log failed: {e}");
                Err(e)
            }
            _ => Ok(()),
        }
    });
    if upgrade::is_websocket(&request) {
        return upgrade::take_over(request, PROTOCOLS, |socket, protocol| messages(socket, protocol, receiver, reader));
    }
    let mut response = Response::new(stream(receiver, reader));
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain"));
    Ok(response)
}

/// A log over WebSocket is its bytes in messages, the first of which is empty (`k8s.io/apimachinery`, `wsstream.Reader`).
const PROTOCOLS: &[&str] = &["binary.k8s.io", "base64.binary.k8s.io", ""];

async fn messages(
    socket: upgrade::Socket,
    protocol: &'static str,
    mut pieces: mpsc::Receiver<Bytes>,
    reader: JoinHandle<std::io::Result<()>>,
) {
    let message = |bytes: Bytes| match protocol {
        "base64.binary.k8s.io" => Message::Text(STANDARD.encode(bytes).into()),
        _ => Message::Binary(bytes),
    };
    let (mut sink, mut incoming) = socket.split();
    let send = async {
        sink.send(message(Bytes::new())).await?;
        while let Some(piece) = pieces.recv().await {
            sink.send(message(piece)).await?;
        }
        let end = match reader.await.map_err(std::io::Error::other).flatten() {
            Ok(()) => CloseFrame { code: CloseCode::Normal, reason: "".into() },
            Err(_) => CloseFrame { code: CloseCode::Error, reason: "the log could not be read to its end".into() },
        };
        sink.send(Message::Close(Some(end))).await?;
        sink.close().await
    };
    // The only message of a client is its close.
    let gone = async {
        while let Some(Ok(m)) = incoming.next().await.filter(|m| !matches!(m, Ok(Message::Close(_)))) {
            drop(m)
        }
    };
    tokio::select! {
        sent = send => if let Err(error) = sent {
            tracing::debug!(%error, "sending a log failed");
        },
        () = gone => {}
    }
}

/// Renders lines of the file according to the query.
struct Renderer {
    timestamps: bool,
    since: Option<Timestamp>,
    left: Option<usize>,
    /// The line before was partial, and this one continues it.
    partial: bool,
}

impl Renderer {
    /// Renders a line of the file into `out`. Returns `false` when the limit of bytes is reached.
    fn line(&mut self, line: &[u8], out: &mut BytesMut) -> bool {
        let mut parts = line.splitn(4, |b| *b == b' ');
        let (Some(time), Some(_), Some(tag), Some(content)) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return true;
        };
        if let Some(since) = self.since {
            let at = std::str::from_utf8(time).ok().and_then(meta::time::parse);
            if at.is_none_or(|t| t < since) {
                return true;
            }
        }
        let before = out.len();
        if self.timestamps && !self.partial {
            out.extend_from_slice(time);
            out.extend_from_slice(b" ");
        }
        out.extend_from_slice(content);
        self.partial = tag == b"P";
        if !self.partial {
            out.extend_from_slice(b"\n");
        }
        if let Some(left) = &mut self.left {
            let added = out.len() - before;
            if added >= *left {
                out.truncate(before + *left);
                *left = 0;
                return false;
            }
            *left -= added;
        }
        true
    }
}

/// The offset of the last `lines` lines. `None` if `over` returned true, since the client has left.
async fn tail_start(file: &mut File, lines: usize, over: impl Fn() -> bool) -> std::io::Result<Option<u64>> {
    let size = file.metadata().await?.len();
    if lines == 0 {
        return Ok(Some(size));
    }
    let (mut end, mut seen) = (size, 0);
    let mut block = vec![0; BLOCK];
    while end > 0 {
        let start = end.saturating_sub(BLOCK as u64);
        let part = &mut block[..(end - start) as usize];
        file.seek(SeekFrom::Start(start)).await?;
        file.read_exact(part).await?;
        for (i, b) in part.iter().enumerate().rev() {
            // The newline at the end of the file belongs to the last line.
            if *b == b'\n' && start + i as u64 + 1 < size {
                seen += 1;
                if seen == lines {
                    return Ok(Some(start + i as u64 + 1));
                }
            }
        }
        if over() {
            return Ok(None);
        }
        end = start;
    }
    Ok(Some(0))
}

/// Whether the container of a log runs.
type Runs = dyn Fn() -> BoxFuture<'static, bool> + Send + Sync;

/// Waits until a piece can be sent. `None` if the client has left, or if the file was removed while the client did not read: an open
/// file would keep its blocks on the disk.
async fn room<'a>(sender: &'a mpsc::Sender<Bytes>, file: &File) -> std::io::Result<Option<mpsc::Permit<'a, Bytes>>> {
    loop {
        match tokio::time::timeout(LOOK_STALLED, sender.reserve()).await {
            Ok(permit) => return Ok(permit.ok()),
            Err(_) if file.metadata().await?.nlink() == 0 => return Ok(None),
            Err(_) => {}
        }
    }
}

async fn send(path: &Path, query: &LogQuery, sender: &mpsc::Sender<Bytes>, runs: &Runs) -> std::io::Result<()> {
    let path = PathBuf::from(path);
    let mut file = loop {
        match open(&path).await {
            Ok(f) => break f,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && query.follow && runs().await => {
                tokio::time::sleep(LOOK).await;
            }
            Err(e) => return Err(e),
        }
    };
    let mut at = match query.tail {
        Some(n) => match tail_start(&mut file, n, || sender.is_closed()).await? {
            Some(start) => start,
            None => return Ok(()),
        },
        None => 0,
    };
    file.seek(SeekFrom::Start(at)).await?;
    let mut renderer = Renderer { timestamps: query.timestamps, since: query.since, left: query.limit, partial: false };
    let mut rest = BytesMut::new();
    let mut block = vec![0; BLOCK];
    'files: loop {
        // Both are checked before the file is read, so everything written until then is sent.
        let goes_on = query.follow && runs().await;
        let moved = query.follow && is_moved(&file, &path).await;
        loop {
            let n = file.read(&mut block).await?;
            if n == 0 {
                break;
            }
            // Without new lines, sending does not reveal that the client has left.
            if sender.is_closed() {
                return Ok(());
            }
            at += n as u64;
            rest.extend_from_slice(&block[..n]);
            let mut out = BytesMut::new();
            let mut more = true;
            while let Some(end) = rest.iter().position(|b| *b == b'\n') {
                let line = rest.split_to(end + 1);
                more = renderer.line(&line[..end], &mut out);
                if !more {
                    break;
                }
            }
            if !out.is_empty() {
                if let Some(permit) = room(sender, &file).await? {
                    permit.send(out.freeze());
                } else {
                    // The client has missed removed lines. It continues with what exists when it reads again.
                    drop(file);
                    if sender.send(out.freeze()).await.is_err() || !more || !query.follow {
                        return Ok(());
                    }
                    (file, at) = (oldest(&path).await?, 0);
                    (rest, renderer.partial) = (BytesMut::new(), false);
                    continue 'files;
                }
            }
            if !more {
                return Ok(());
            }
        }
        if moved {
            file = newer(&file, &path).await?;
            at = 0;
            continue;
        }
        if !goes_on {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = sender.closed() => return Ok(()),
        }
        if file.metadata().await?.len() < at {
            at = file.seek(SeekFrom::Start(0)).await?;
        }
    }
}

/// Opens a log file. Errors for a link, and for anything but a regular file.
async fn open(path: &Path) -> std::io::Result<File> {
    let path = path.to_owned();
    let file = tokio::task::spawn_blocking(move || runtime::beneath::read_file(&path)).await;
    Ok(File::from_std(file.map_err(std::io::Error::other)??))
}

/// Whether the log continues in another file.
async fn is_moved(file: &File, path: &Path) -> bool {
    let (Ok(here), Ok(there)) = (file.metadata().await, tokio::fs::symlink_metadata(path).await) else { return false };
    !is_same(&here, &there)
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// The file in which a rotated log continues: the one rotated after this one, the oldest one if this one is gone, or the current
/// one.
async fn newer(file: &File, path: &Path) -> std::io::Result<File> {
    let here = file.metadata().await?;
    let log = path.to_owned();
    let after = blocking(move || {
        let mut after = runtime::rotation::rotated(&log);
        let is_here = |p: &PathBuf| std::fs::symlink_metadata(p).is_ok_and(|there| is_same(&here, &there));
        if let Some(at) = after.iter().position(is_here) {
            after.drain(..=at);
        }
        after
    });
    let after = after.await;
    first(&after, path).await
}

/// Opens the oldest file of a log.
async fn oldest(path: &Path) -> std::io::Result<File> {
    let log = path.to_owned();
    first(&blocking(move || runtime::rotation::rotated(&log)).await, path).await
}

/// Opens the first of these files that still exists, or the current one.
async fn first(rotated: &[PathBuf], path: &Path) -> std::io::Result<File> {
    for file in rotated {
        // It may have been removed meanwhile.
        match open(file).await {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            opened => return opened,
        }
    }
    open(path).await
}

async fn runs(options: &Arc<Options>, id: &str) -> bool {
    let status = options.runtime.container_status(id).await;
    status.is_ok_and(|c| matches!(c.state, ContainerState::Running | ContainerState::Created))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(renderer: &mut Renderer, lines: &[&str]) -> String {
        let mut out = BytesMut::new();
        for l in lines {
            if !renderer.line(l.as_bytes(), &mut out) {
                break;
            }
        }
        String::from_utf8(out.to_vec()).unwrap()
    }

    fn renderer() -> Renderer {
        Renderer { timestamps: false, since: None, left: None, partial: false }
    }

    #[test]
    fn renders_lines_by_query() {
        let log = [
            "2026-11-20T10:00:00.1Z stdout F one",
            "2026-11-20T10:00:01.1Z stderr P tw",
            "2026-11-20T10:00:01.2Z stderr F o",
            "2026-11-20T10:00:02.1Z stdout F ",
        ];
        assert_eq!(render(&mut renderer(), &log), "one\ntwo\n\n");
        assert_eq!(
            render(&mut Renderer { timestamps: true, ..renderer() }, &log[..3]),
            "2026-11-20T10:00:00.1Z one\n2026-11-20T10:00:01.1Z two\n"
        );
        let since = meta::time::parse("2026-11-20T10:00:02Z");
        assert_eq!(render(&mut Renderer { since, ..renderer() }, &log), "\n");
        assert_eq!(render(&mut Renderer { left: Some(5), ..renderer() }, &log), "one\nt");
    }

    /// A client that did not read kept every rotated file on the disk.
    #[tokio::test]
    async fn closes_removed_files_of_idle_clients() {
        const LINES: usize = 40_000;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let line = |n: usize| format!("2026-11-20T10:00:00.1Z stdout F {n}\n");
        let write = |numbers: std::ops::Range<usize>| std::fs::write(&path, numbers.map(line).collect::<String>());
        write(0..LINES).unwrap();
        let (sender, mut receiver) = mpsc::channel::<Bytes>(WAITING);
        let query = LogQuery { follow: true, ..LogQuery::default() };
        let (running, file) = (Arc::new(std::sync::atomic::AtomicBool::new(true)), path.clone());
        let runs = running.clone();
        let sending = tokio::spawn(async move {
            let runs = move || std::future::ready(runs.load(std::sync::atomic::Ordering::Relaxed)).boxed();
            send(&file, &query, &sender, &runs).await
        });
        while receiver.len() < WAITING {
            tokio::task::yield_now().await;
        }
        // Two are removed, one is rotated, and one is current.
        std::fs::remove_file(&path).unwrap();
        write(LINES..LINES + 2).unwrap();
        std::fs::rename(&path, dir.path().join("log.20261120-100000")).unwrap();
        write(LINES + 2..LINES + 4).unwrap();
        let held = || {
            let open =
                std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|e| std::fs::read_link(e.path()).ok());
            open.filter(|p| p.starts_with(dir.path()) && p.to_string_lossy().ends_with("(deleted)")).count()
        };
        assert_eq!(held(), 1);
        let limit = tokio::time::Instant::now() + 10 * LOOK_STALLED;
        while held() > 0 {
            assert!(tokio::time::Instant::now() < limit, "the file is still held");
            tokio::time::sleep(LOOK).await;
        }
        // The client receives lines from the beginning, then a gap, then all lines that still exist.
        running.store(false, std::sync::atomic::Ordering::Relaxed);
        let mut all = String::new();
        while let Some(piece) = receiver.recv().await {
            all.push_str(std::str::from_utf8(&piece).unwrap());
        }
        sending.await.unwrap().unwrap();
        let numbers: Vec<usize> = all.lines().map(|l| l.parse().unwrap()).collect();
        let gap = numbers.windows(2).position(|w| w[1] != w[0] + 1).unwrap();
        assert!(numbers[0] == 0 && numbers[gap + 1] == LINES && numbers.len() == gap + 5, "{gap} {}", numbers.len());
    }

    #[tokio::test]
    async fn tails_start_at_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let text: String = (0..20_000).map(|n| format!("line {n}\n")).collect();
        std::fs::write(&path, &text).unwrap();
        let mut f = File::open(&path).await.unwrap();
        assert_eq!(tail_start(&mut f, 19_000, || true).await.unwrap(), None, "the client has gone");
        for n in [0, 1, 2, 9_999, 20_000, 30_000] {
            let at = tail_start(&mut f, n, || false).await.unwrap().unwrap() as usize;
            assert_eq!(text[at..].lines().count(), n.min(20_000), "{n}");
        }
    }
}
