//! The channels of `v5.channel.k8s.io` and v4: the first byte of a frame names its stream.

use super::detach::Detach;
use super::{SessionStreams, terminal};
use crate::error::{Error, Result, text};
use crate::kube::Kube;
use base64::Engine as _;
use bytes::Bytes;
use client::Upgrade;
use futures::{SinkExt as _, StreamExt as _};
use http::{HeaderValue, Request, header};
use meta::Value;
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
/// Only in v5: the stream that the second byte names has ended.
const CLOSE: u8 = 255;

const V5: &str = "v5.channel.k8s.io";
/// The protocol without half-closing, and the one for port forwarding.
pub const V4: &str = "v4.channel.k8s.io";

/// Switches protocols and copies streams until the command ends. Returns its exit code.
pub async fn run(k: &mut Kube, mut request: Request<Bytes>, streams: SessionStreams) -> Result<u8> {
    let (stream, protocol) = open(k, &mut request).await?;
    let (mut to, mut from) = stream.split();
    let (sender, mut input) = mpsc::channel::<Message>(16);
    if streams.stdin {
        let ends = (protocol == V5).then(|| Message::Binary(vec![CLOSE, STDIN].into()));
        read_input(k, sender.clone(), ends, streams.detach);
    }
    if streams.tty {
        watch_size(sender.clone());
    }
    drop(sender);
    let mut code = None;
    loop {
        tokio::select! {
            m = input.recv(), if !input.is_closed() || !input.is_empty() => {
                // The user detached; the command continues.
                if matches!(m, Some(Message::Close(_))) {
                    code = Some(0);
                    break;
                }
                if let Some(m) = m
                    && to.send(m).await.is_err()
                {
                    // The connection is closed, but received messages are still to be read.
                    input.close();
                }
            }
            m = from.next() => match m {
                Some(Ok(Message::Binary(data))) => match data.split_first() {
                    Some((&STDOUT, rest)) => { k.out.write(rest); k.out.flush(); }
                    Some((&STDERR, rest)) => k.err.write(rest),
                    Some((&ERROR, rest)) => { code = Some(exit_code(rest)?); break; }
                    _ => {}
                },
                Some(Ok(Message::Close(_))) | None => break,
                Some(Ok(_)) => {}
                Some(Err(e)) => {
                    // A server may close the connection without a close frame after the last message.
                    if code.is_none() { return text(format!("the connection was lost: {e}")); }
                    break;
                }
            },
        }
    }
    let _ = to.close().await;
    match code {
        Some(c) => Ok(c),
        None => text("the connection ended before the command did"),
    }
}

/// A WebSocket over an upgraded connection.
pub type Socket = WebSocketStream<client::Upgraded>;

async fn open(k: &mut Kube, request: &mut Request<Bytes>) -> Result<(Socket, &'static str)> {
    let request = std::mem::replace(request, Request::new(Bytes::new()));
    let client = k.client().await?;
    socket(&client, &*k.shell.rng, request, &[V5, V4]).await
}

/// Switches to a WebSocket with one of the given protocols.
pub async fn socket(
    client: &client::Client,
    rng: &dyn meta::Rng,
    mut request: Request<Bytes>,
    protocols: &[&'static str],
) -> Result<(Socket, &'static str)> {
    let mut nonce = [0u8; 16];
    rng.fill(&mut nonce);
    let value = |t: &str| HeaderValue::from_str(t).map_err(|e| Error::Text(e.to_string()));
    let key = value(&base64::engine::general_purpose::STANDARD.encode(nonce))?;
    let h = request.headers_mut();
    h.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    h.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    h.insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
    h.insert(header::SEC_WEBSOCKET_PROTOCOL, value(&protocols.join(", "))?);
    h.insert(header::SEC_WEBSOCKET_KEY, key);
    match client.upgrade(request).await? {
        Upgrade::Switched(parts, stream) => {
            let spoken = parts.headers.get(header::SEC_WEBSOCKET_PROTOCOL).and_then(|v| v.to_str().ok());
            let Some(protocol) = protocols.iter().find(|p| spoken == Some(**p)) else {
                return text(format!("the server chose the protocol {spoken:?}, which was not offered"));
            };
            Ok((WebSocketStream::from_raw_socket(stream, Role::Client, None).await, protocol))
        }
        Upgrade::Refused(answer) => Err(client::client::upgrade_failure(answer).await.into()),
    }
}

/// Reads standard input on its own thread, because a terminal cannot be read without blocking.
fn read_input(k: &mut Kube, to: mpsc::Sender<Message>, ends: Option<Message>, mut detach: Option<Detach>) {
    let mut input = std::mem::replace(&mut k.shell.input, Box::new(std::io::empty()));
    std::thread::spawn(move || {
        let mut buffer = vec![0u8; 16 * 1024];
        loop {
            match input.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(n) => {
                    let (typed, left) = match &mut detach {
                        Some(d) => d.pass(&buffer[..n]),
                        None => (buffer[..n].to_vec(), false),
                    };
                    if left {
                        let _ = to.blocking_send(Message::Close(None));
                        return;
                    }
                    if typed.is_empty() {
                        continue;
                    }
                    let mut frame = Vec::with_capacity(typed.len() + 1);
                    frame.push(STDIN);
                    frame.extend_from_slice(&typed);
                    if to.blocking_send(Message::Binary(frame.into())).is_err() {
                        return;
                    }
                }
            }
        }
        if let Some(m) = ends {
            let _ = to.blocking_send(m);
        }
    });
}

/// Sends the size of the terminal, initially and after every change.
fn watch_size(to: mpsc::Sender<Message>) {
    tokio::spawn(async move {
        let Ok(mut changes) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::window_change()) else {
            return;
        };
        loop {
            if let Some((width, height)) = terminal::size() {
                let text = format!("{{\"Width\":{width},\"Height\":{height}}}");
                let frame = [&[RESIZE], text.as_bytes()].concat();
                if to.send(Message::Binary(frame.into())).await.is_err() {
                    return;
                }
            }
            changes.recv().await;
        }
    });
}

/// Returns the exit code in the `Status` that ends a command.
fn exit_code(text_of: &[u8]) -> Result<u8> {
    let status: Value = match serde_json::from_slice(text_of) {
        Ok(v) => v,
        Err(_) => return text(String::from_utf8_lossy(text_of).into_owned()),
    };
    if status["status"] == "Success" {
        return Ok(0);
    }
    let causes = status["details"]["causes"].as_array().map_or(&[][..], Vec::as_slice);
    let code = causes.iter().find(|c| c["reason"] == "ExitCode").and_then(|c| c["message"].as_str());
    match code.and_then(|c| c.parse::<i32>().ok()) {
        Some(c) => Ok(u8::try_from(c).unwrap_or(1)),
        None => {
            let message = status["message"].as_str().unwrap_or_default();
            text(if message.is_empty() { "the command failed for a reason the server did not give" } else { message })
        }
    }
}
