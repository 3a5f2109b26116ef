//! Exec and attach over WebSocket (`k8s.io/kubelet/pkg/cri/streaming/remotecommand/websocket.go`).
//!
//! The first byte of a message is its channel: 0 stdin, 1 stdout, 2 stderr, 3 how it ended, 4 the terminal's size, and in
//! v5 255, which closes the channel named by the second byte. Since v4 the end is a `Status`; before, it is the text of an error, and
//! nothing is said of a success. Versions before v5 begin with an empty message, which says that the connection stands.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use http::{Request, Response};
use runtime::{ExecRequest, Reader, Resizer, TerminalSize, Writer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message};

use super::coding::Coding;
use super::upgrade::{self, Socket, take_over};
use super::{Body, Error, Query, remote};
use crate::agent::Options;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

/// How long a client may take to close, once it was told how its command ended.
const ENDING: Duration = Duration::from_secs(10);

type Sink = Arc<Mutex<SplitSink<Socket, Message>>>;

const PROTOCOLS: &[&str] = &[
    "v5.channel.k8s.io",
    "v4.channel.k8s.io",
    "v4.base64.channel.k8s.io",
    "channel.k8s.io",
    "base64.channel.k8s.io",
    "",
];

pub(super) fn exec(options: &Arc<Options>, id: String, request: Request<Bytes>) -> Result<Response<Body>, Error> {
    let q = Query::of(&request);
    let command = q.all("command");
    if command.is_empty() {
        return Err(Error::BadRequest("you must specify at least one command for the container".into()));
    }
    let tty = q.flag("tty");
    let wanted = ExecRequest {
        command,
        tty,
        stdin: q.flag("stdin") || q.flag("input"),
        stdout: q.flag("stdout") || q.flag("output"),
        stderr: (q.flag("stderr") || q.flag("error")) && !tty,
    };
    if !(wanted.stdin || wanted.stdout || wanted.stderr) {
        return Err(Error::BadRequest("you must specify at least 1 of stdin, stdout, stderr".into()));
    }
    let options = options.clone();
    if upgrade::is_spdy(&request) {
        return remote::exec(options, id, wanted, request);
    }
    let first = first_output(wanted.stdout, wanted.stderr);
    take_over(request, PROTOCOLS, move |socket, protocol| async move {
        let coding = Coding::of(protocol);
        let (sink, stream) = socket.split();
        let sink: Sink = Arc::new(Mutex::new(sink));
        greet(&sink, protocol, first).await;
        let (status, input) = match options.runtime.exec(&id, wanted).await {
            Err(e) => (not_executed(&e), tokio::spawn(discard(stream))),
            Ok(mut session) => {
                let input = Input { stdin: session.stdin.take(), resizer: session.control.resizer(), coding };
                let input = tokio::spawn(input.run(stream));
                let out = copy(session.stdout.take(), STDOUT, coding, &sink);
                let err = copy(session.stderr.take(), STDERR, coding, &sink);
                // Output first: a command that ends has said all it had to say.
                let ((), (), code) = tokio::join!(out, err, session.control.wait());
                (outcome(code), input)
            }
        };
        finish(&sink, protocol, &status, input).await;
    })
}

pub(super) fn attach(options: &Arc<Options>, id: String, request: Request<Bytes>) -> Result<Response<Body>, Error> {
    let q = Query::of(&request);
    let tty = q.flag("tty");
    let (stdin, stdout, stderr) = (q.flag("stdin"), q.flag("stdout"), q.flag("stderr") && !tty);
    if !(stdin || stdout || stderr) {
        return Err(Error::BadRequest("you must specify at least 1 of stdin, stdout, stderr".into()));
    }
    let options = options.clone();
    if upgrade::is_spdy(&request) {
        return remote::attach(options, id, remote::Wanted { stdin, stdout, stderr, tty }, request);
    }
    take_over(request, PROTOCOLS, move |socket, protocol| async move {
        let coding = Coding::of(protocol);
        let (sink, stream) = socket.split();
        let sink: Sink = Arc::new(Mutex::new(sink));
        greet(&sink, protocol, first_output(stdout, stderr)).await;
        let (status, input) = match options.runtime.attach(&id, stdin).await {
            Err(e) => (not_attached(&e), tokio::spawn(discard(stream))),
            Ok(session) => {
                let input = Input { stdin: session.stdin, resizer: session.resizer, coding };
                let input = tokio::spawn(input.run(stream));
                let out = copy(Some(session.stdout).filter(|_| stdout), STDOUT, coding, &sink);
                let err = copy(session.stderr.filter(|_| stderr), STDERR, coding, &sink);
                tokio::join!(out, err);
                (success(), input)
            }
        };
        finish(&sink, protocol, &status, input).await;
    })
}

pub(super) fn success() -> Value {
    json!({"metadata": {}, "status": "Success"})
}

/// How a command ended.
pub(super) fn outcome(code: runtime::Result<i32>) -> Value {
    match code {
        Ok(0) => success(),
        Ok(code) => non_zero(code),
        Err(e) => not_executed(&e),
    }
}

pub(super) fn not_executed(why: &runtime::Error) -> Value {
    internal(&format!("error executing command in container: {why}"))
}

pub(super) fn not_attached(why: &runtime::Error) -> Value {
    internal(&format!("error attaching to container: {why}"))
}

/// As `NewInternalError` of upstream's API has it.
fn internal(message: &str) -> Value {
    json!({"metadata": {}, "status": "Failure", "message": format!("Internal error occurred: {message}"), "reason": "InternalError", "code": 500,
        "details": {"causes": [{"message": message}]}})
}

/// How clients learn the exit code (`remotecommand.NonZeroExitCodeReason`).
fn non_zero(code: i32) -> Value {
    json!({
        "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
        "message": format!("command terminated with non-zero exit code: command terminated with exit code {code}"),
        "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
    })
}

/// The channel on which something comes first.
fn first_output(stdout: bool, stderr: bool) -> u8 {
    match (stdout, stderr) {
        (true, _) => STDOUT,
        (false, true) => STDERR,
        (false, false) => STATUS,
    }
}

/// Says that the connection stands, where clients wait for that.
async fn greet(sink: &Sink, protocol: &str, channel: u8) {
    if protocol != PROTOCOLS[0] {
        let _ = sink.lock().await.send(Coding::of(protocol).write(channel, b"")).await;
    }
}

/// How it ended, as clients of a version of the protocol are told; none: nothing is said.
fn ending(protocol: &str, status: &Value) -> Option<String> {
    match (protocol.starts_with('v'), status["status"].as_str()) {
        (true, _) => Some(status.to_string()),
        (false, Some("Success")) => None,
        (false, _) => Some(status["message"].as_str().unwrap_or_default().to_owned()),
    }
}

/// Tells how it ended and closes. What the client still sends is read until it closes too: unread bytes would reset the connection, and
/// it would lose what it was told.
async fn finish(sink: &Sink, protocol: &str, status: &Value, mut input: JoinHandle<()>) {
    let mut sink = sink.lock().await;
    if let Some(end) = ending(protocol, status) {
        let _ = sink.send(Coding::of(protocol).write(STATUS, end.as_bytes())).await;
    }
    // Clients take a close without a code for a broken connection.
    let normal = CloseFrame { code: CloseCode::Normal, reason: "".into() };
    let _ = sink.send(Message::Close(Some(normal))).await;
    let _ = sink.close().await;
    drop(sink);
    let _ = tokio::time::timeout(ENDING, &mut input).await;
    input.abort();
}

/// Reads until the client closes.
async fn discard(mut stream: SplitStream<Socket>) {
    while let Some(Ok(message)) = stream.next().await {
        if message.is_close() {
            return;
        }
    }
}

/// Sends everything that comes, until it ends or nobody listens.
async fn copy(from: Option<Reader>, channel: u8, coding: Coding, sink: &Sink) {
    let Some(mut from) = from else { return };
    let mut block = vec![0; 32 * 1024];
    loop {
        match from.read(&mut block).await {
            Ok(0) | Err(_) => return,
            Ok(n) => {
                if sink.lock().await.send(coding.write(channel, &block[..n])).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// `{"Width":…,"Height":…}`
pub(super) fn terminal_size(json: &[u8]) -> Option<TerminalSize> {
    let size: Value = serde_json::from_slice(json).ok()?;
    let get = |name: &str| size[name].as_u64().and_then(|n| u16::try_from(n).ok());
    Some(TerminalSize { rows: get("Height")?, columns: get("Width")? })
}

struct Input {
    stdin: Option<Writer>,
    resizer: Resizer,
    coding: Coding,
}

impl Input {
    async fn run(mut self, mut stream: SplitStream<Socket>) {
        while let Some(Ok(message)) = stream.next().await {
            if message.is_close() {
                return;
            }
            match self.coding.read(message) {
                Some((STDIN, data)) => {
                    let Some(stdin) = &mut self.stdin else { continue };
                    let written = async {
                        stdin.write_all(&data).await?;
                        stdin.flush().await
                    };
                    if written.await.is_err() {
                        self.stdin = None;
                    }
                }
                Some((CLOSE, data)) if data.first() == Some(&STDIN) => {
                    if let Some(mut stdin) = self.stdin.take() {
                        let _ = stdin.shutdown().await;
                    }
                }
                Some((RESIZE, data)) => {
                    if let Some(size) = terminal_size(&data) {
                        (self.resizer)(size);
                    }
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_clients_are_told_of_failures_only() {
        for protocol in ["", "channel.k8s.io", "base64.channel.k8s.io"] {
            assert_eq!(ending(protocol, &success()), None, "{protocol}");
            let said = "command terminated with non-zero exit code: command terminated with exit code 3";
            assert_eq!(ending(protocol, &non_zero(3)).as_deref(), Some(said), "{protocol}");
        }
        let status = serde_json::from_str::<Value>(&ending("v4.channel.k8s.io", &success()).unwrap()).unwrap();
        assert_eq!(status["status"], "Success");
    }
}
