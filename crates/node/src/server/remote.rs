//! Exec and attach over SPDY (`k8s.io/apimachinery/pkg/util/remotecommand`): a stream for each of stdin, stdout, stderr, the
//! terminal's sizes, and the status at the end. The fourth version sends a `Status`; versions before it only the message of an error.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use runtime::{ExecRequest, Reader, Resizer, Writer};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::command_status as status;
use super::{Body, Error, upgrade};
use crate::options::Options;
use spdy::{Input, Output, Session, Stream};

const PROTOCOLS: &[&str] = &["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];
/// How long a client may take to open its streams.
const OPENING: Duration = Duration::from_secs(30);
/// How long a client may take to read the rest.
const ENDING: Duration = Duration::from_secs(10);
/// The longest message about the size of a terminal.
const SIZE: usize = 1024;

/// The streams that a client asks for.
#[derive(Clone, Copy)]
pub(super) struct StreamSelection {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

/// The streams of one command, by what they carry.
#[derive(Default)]
struct Streams {
    error: Option<Stream>,
    stdin: Option<Stream>,
    stdout: Option<Stream>,
    stderr: Option<Stream>,
    resize: Option<Stream>,
}

impl Streams {
    async fn collect(session: &mut Session, selected: StreamSelection, protocol: &str) -> Option<Self> {
        let sizes = selected.tty && matches!(protocol, "v4.channel.k8s.io" | "v3.channel.k8s.io");
        let mut all = Self::default();
        let complete = |a: &Self| {
            a.error.is_some()
                && a.stdin.is_some() == selected.stdin
                && a.stdout.is_some() == selected.stdout
                && a.stderr.is_some() == selected.stderr
                && a.resize.is_some() == sizes
        };
        while !complete(&all) {
            let s = session.accept().await?;
            match s.header("streamtype") {
                "error" => all.error = Some(s),
                "stdin" if selected.stdin => all.stdin = Some(s),
                "stdout" if selected.stdout => all.stdout = Some(s),
                "stderr" if selected.stderr => all.stderr = Some(s),
                "resize" if sizes => all.resize = Some(s),
                _ => s.output.reset().await,
            }
        }
        Some(all)
    }

    /// Returns the status of a command that did not start. Clients wait for the end of each output before they read it.
    async fn failed(self, status: Value) -> Value {
        for s in [self.stdout, self.stderr].into_iter().flatten() {
            s.output.finish().await;
        }
        status
    }
}

pub(super) fn exec(
    options: Arc<Options>,
    id: String,
    command: ExecRequest,
    request: Request<Bytes>,
) -> Result<Response<Body>, Error> {
    let selected =
        StreamSelection { stdin: command.stdin, stdout: command.stdout, stderr: command.stderr, tty: command.tty };
    serve(request, selected, async move |streams: Streams| match options.runtime.exec(&id, command).await {
        Err(e) => streams.failed(status::not_executed(&e)).await,
        Ok(mut s) => {
            let resizer = s.control.resizer();
            let (_in, out, err) = join(streams, s.stdin.take(), s.stdout.take(), s.stderr.take(), resizer);
            let ((), (), code) = tokio::join!(out, err, s.control.wait());
            status::outcome(code)
        }
    })
}

pub(super) fn attach(
    options: Arc<Options>,
    id: String,
    selected: StreamSelection,
    request: Request<Bytes>,
) -> Result<Response<Body>, Error> {
    serve(request, selected, async move |streams: Streams| match options.runtime.attach(&id, selected.stdin).await {
        Err(e) => streams.failed(status::not_attached(&e)).await,
        Ok(s) => {
            let (_in, out, err) = join(streams, s.stdin, Some(s.stdout), s.stderr, s.resizer);
            tokio::join!(out, err);
            status::success()
        }
    })
}

fn serve<F>(
    request: Request<Bytes>,
    selected: StreamSelection,
    work: impl FnOnce(Streams) -> F + Send + 'static,
) -> Result<Response<Body>, Error>
where
    F: Future<Output = Value> + Send + 'static,
{
    upgrade::spdy(request, PROTOCOLS, move |mut session, protocol| async move {
        let opened = tokio::time::timeout(OPENING, Streams::collect(&mut session, selected, protocol)).await;
        let Ok(Some(mut streams)) = opened else { return };
        let Some(error) = streams.error.take() else { return };
        let ends = |s: &Option<Stream>| s.as_ref().map(|s| s.output.clone());
        let halves = [ends(&streams.stdin), ends(&streams.resize)];
        let gone = async {
            while let Some(s) = session.accept().await {
                s.output.reset().await;
            }
        };
        let status = tokio::select! {
            s = work(streams) => s,
            () = gone => return,
        };
        let message = match (protocol, status["status"].as_str()) {
            ("v4.channel.k8s.io", _) => status.to_string(),
            (_, Some("Success")) => String::new(),
            _ => status["message"].as_str().unwrap_or_default().to_owned(),
        };
        if !message.is_empty() {
            error.output.send(message.as_bytes()).await;
        }
        error.output.finish().await;
        for half in halves.into_iter().flatten() {
            half.finish().await;
        }
        session.close(ENDING).await;
    })
}

/// Aborts a task when it is dropped.
struct Abort(tokio::task::JoinHandle<()>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Connects streams and pipes. Returns the tasks of the input, which end when they are dropped, and the futures of the outputs.
fn join(
    streams: Streams,
    stdin: Option<Writer>,
    stdout: Option<Reader>,
    stderr: Option<Reader>,
    resizer: Resizer,
) -> ([Abort; 2], impl Future<Output = ()>, impl Future<Output = ()>) {
    let input = tokio::spawn(feed(streams.stdin.map(|s| s.input), stdin));
    let sizes = tokio::spawn(resize(streams.resize.map(|s| s.input), resizer));
    let out = copy(stdout, streams.stdout.map(|s| s.output));
    let err = copy(stderr, streams.stderr.map(|s| s.output));
    ([Abort(input), Abort(sizes)], out, err)
}

async fn feed(from: Option<Input>, to: Option<Writer>) {
    let (Some(mut from), Some(mut to)) = (from, to) else { return };
    while let Some(piece) = from.next().await {
        if to.write_all(&piece).await.is_err() || to.flush().await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

/// Applies the sizes of the terminal, JSON values one after another.
async fn resize(from: Option<Input>, resizer: Resizer) {
    let Some(mut from) = from else { return };
    let mut pending = Vec::new();
    while let Some(piece) = from.next().await {
        pending.extend_from_slice(&piece);
        let mut read = 0;
        while let Some(end) = pending[read..].iter().position(|b| *b == b'}') {
            if let Some(size) = status::terminal_size(&pending[read..=read + end]) {
                resizer(size);
            }
            read += end + 1;
        }
        pending.drain(..read);
        if pending.len() > SIZE {
            return;
        }
    }
}

async fn copy(from: Option<Reader>, to: Option<Output>) {
    let Some(to) = to else { return };
    if let Some(mut from) = from {
        let mut block = vec![0; 32 * 1024];
        while let Ok(n @ 1..) = from.read(&mut block).await {
            if !to.send(&block[..n]).await {
                return;
            }
        }
    }
    to.finish().await;
}
