//! Exec and attach over WebSocket (`k8s.io/kubelet/pkg/cri/streaming/remotecommand/websocket.go`).
//!
//! The first byte of a message is its channel: 0 stdin, 1 stdout, 2 stderr, 3 the status at the end, 4 the terminal's size, and in
//! v5 255, which closes the channel named by the second byte. Since v4 the end is a `Status`; before, it is the text of an error, and
//! empty for a success. Versions before v5 begin with an empty message, which confirms the connection.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use http::{Request, Response};
use runtime::{ExecRequest, Reader, Resizer, Writer};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message};

use super::coding::Coding;
use super::command_status::{not_attached, not_executed, outcome, success, terminal_size};
use super::upgrade::{self, Socket, take_over};
use super::{Body, Error, Query, remote};
use crate::options::Options;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

/// How long a client may take to close after it got the status of its command.
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
    let q = Query::parse(&request);
    let arguments = q.get_all("command");
    if arguments.is_empty() {
        return Err(Error::BadRequest("you must specify at least one command for the container".into()));
    }
    let tty = q.flag("tty");
    let command = ExecRequest {
        command: arguments,
        tty,
        stdin: q.flag("stdin") || q.flag("input"),
        stdout: q.flag("stdout") || q.flag("output"),
        stderr: (q.flag("stderr") || q.flag("error")) && !tty,
    };
    if !(command.stdin || command.stdout || command.stderr) {
        return Err(Error::BadRequest("you must specify at least 1 of stdin, stdout, stderr".into()));
    }
    let options = options.clone();
    if upgrade::is_spdy(&request) {
        return remote::exec(options, id, command, request);
    }
    let first = first_output(command.stdout, command.stderr);
    take_over(request, PROTOCOLS, move |socket, protocol| async move {
        let coding = Coding::new(protocol);
        let (sink, stream) = socket.split();
        let sink: Sink = Arc::new(Mutex::new(sink));
        greet(&sink, protocol, first).await;
        let (status, input) = match options.runtime.exec(&id, command).await {
            Err(e) => (not_executed(&e), tokio::spawn(discard(stream))),
            Ok(mut session) => {
                let input = Input { stdin: session.stdin.take(), resizer: session.control.resizer(), coding };
                let input = tokio::spawn(input.run(stream));
                let out = copy(session.stdout.take(), STDOUT, coding, &sink);
                let err = copy(session.stderr.take(), STDERR, coding, &sink);
                // All output precedes the status.
                let ((), (), code) = tokio::join!(out, err, session.control.wait());
                (outcome(code), input)
            }
        };
        finish(&sink, protocol, &status, input).await;
    })
}

pub(super) fn attach(options: &Arc<Options>, id: String, request: Request<Bytes>) -> Result<Response<Body>, Error> {
    let q = Query::parse(&request);
    let tty = q.flag("tty");
    let (stdin, stdout, stderr) = (q.flag("stdin"), q.flag("stdout"), q.flag("stderr") && !tty);
    if !(stdin || stdout || stderr) {
        return Err(Error::BadRequest("you must specify at least 1 of stdin, stdout, stderr".into()));
    }
    let options = options.clone();
    if upgrade::is_spdy(&request) {
        return remote::attach(options, id, remote::StreamSelection { stdin, stdout, stderr, tty }, request);
    }
    take_over(request, PROTOCOLS, move |socket, protocol| async move {
        let coding = Coding::new(protocol);
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

/// The channel on which clients expect the first message.
fn first_output(stdout: bool, stderr: bool) -> u8 {
    match (stdout, stderr) {
        (true, _) => STDOUT,
        (false, true) => STDERR,
        (false, false) => STATUS,
    }
}

/// Confirms the connection to clients that wait for it.
async fn greet(sink: &Sink, protocol: &str, channel: u8) {
    if protocol != PROTOCOLS[0] {
        let _ = sink.lock().await.send(Coding::new(protocol).write(channel, b"")).await;
    }
}

/// The last message in a version of the protocol; `None` if the version has none for this status.
fn last_message(protocol: &str, status: &Value) -> Option<String> {
    match (protocol.starts_with('v'), status["status"].as_str()) {
        (true, _) => Some(status.to_string()),
        (false, Some("Success")) => None,
        (false, _) => Some(status["message"].as_str().unwrap_or_default().to_owned()),
    }
}

/// Sends the status and closes. Reads until the client closes too: unread bytes would reset the connection, and the client would lose
/// the status.
async fn finish(sink: &Sink, protocol: &str, status: &Value, mut input: JoinHandle<()>) {
    let mut sink = sink.lock().await;
    if let Some(end) = last_message(protocol, status) {
        let _ = sink.send(Coding::new(protocol).write(STATUS, end.as_bytes())).await;
    }
    // Clients treat a close without a code as a broken connection.
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

/// Sends everything that `from` gives, until it ends or the client is gone.
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
    use super::super::command_status::non_zero;
    use super::*;

    #[test]
    fn older_clients_get_messages_of_failures_only() {
        for protocol in ["", "channel.k8s.io", "base64.channel.k8s.io"] {
            assert_eq!(last_message(protocol, &success()), None, "{protocol}");
            let message = "command terminated with non-zero exit code: command terminated with exit code 3";
            assert_eq!(last_message(protocol, &non_zero(3)).as_deref(), Some(message), "{protocol}");
        }
        let status = serde_json::from_str::<Value>(&last_message("v4.channel.k8s.io", &success()).unwrap()).unwrap();
        assert_eq!(status["status"], "Success");
    }
}
