//! Commands in a container, each over a connection of its own (`v5.channel.k8s.io`).

use crate::benches::run::running;
use crate::context::{Context, Target};
use crate::{Bench, Error, Outcome, Row};
use async_trait::async_trait;
use bytes::Bytes;
use client::Upgrade;
use futures::StreamExt;
use http::{HeaderValue, Method, Request, header};
use std::time::Duration;
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

pub struct Exec;

const COMMANDS: u64 = 200;
/// The channel with the status of the command.
const ERROR: u8 = 3;
/// The built-in image has no other program.
const BUILT_IN: &str = "kemudi.local/demo";
/// Any key of 16 bytes is valid; a cache that would replay an answer is not in the way.
const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAA==";

#[async_trait]
impl Bench for Exec {
    fn name(&self) -> &'static str {
        "exec"
    }

    fn about(&self) -> &'static str {
        "Commands in a container, one after the other"
    }

    async fn run(&self, cx: &mut Context) -> Result<Outcome, Error> {
        let namespace = cx.enter().await?;
        let Some(pods) = running(cx, &namespace, 1).await? else {
            return Ok(Outcome::Skipped("no node is Ready".into()));
        };
        let command: &[&str] = match cx.options.image.starts_with(BUILT_IN) {
            true => &["/kemudi", "demo-app", "sleep", "0"],
            false => &["true"],
        };
        let command: String = command.iter().map(|word| format!("&command={word}")).collect();
        let path =
            format!("/api/v1/namespaces/{namespace}/pods/{}/exec?container=c&stdout=true{command}", pods[0].name);
        let target = cx.target()?;
        let end = Instant::now() + cx.options.duration.max(Duration::from_secs(1));
        let (mut times, mut errors) = (Vec::new(), Vec::new());
        for _ in 0..cx.options.count_or(COMMANDS) {
            let begun = Instant::now();
            match execute(target, &path).await {
                Ok(()) => times.push(begun.elapsed()),
                Err(e) => errors.push(e.to_string()),
            }
            if Instant::now() >= end || errors.len() > 10 {
                break;
            }
        }
        let row = Row::times(self.name(), times).with_errors(errors.len() as u64, errors.into_iter().next());
        Ok(Outcome::Measured(vec![row]))
    }
}

/// Executes a command and waits for its end. Errors unless it succeeds.
async fn execute(target: &Target, path: &str) -> Result<(), Error> {
    let mut request = Request::new(Bytes::new());
    *request.method_mut() = Method::GET;
    *request.uri_mut() = path.parse().map_err(|e: http::uri::InvalidUri| Error::Answer(e.to_string()))?;
    let headers = request.headers_mut();
    for (name, value) in [
        (header::CONNECTION, "Upgrade"),
        (header::UPGRADE, "websocket"),
        (header::SEC_WEBSOCKET_VERSION, "13"),
        (header::SEC_WEBSOCKET_PROTOCOL, "v5.channel.k8s.io"),
        (header::SEC_WEBSOCKET_KEY, KEY),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let stream = match target.client.upgrade(request).await? {
        Upgrade::Switched(_, stream) => stream,
        Upgrade::Refused(answer) => return Err(client::client::upgrade_failure(answer).await.into()),
    };
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Client, None).await;
    while let Some(message) = socket.next().await {
        let Message::Binary(data) = message.map_err(|e| Error::Answer(e.to_string()))? else { continue };
        if let Some((&ERROR, status)) = data.split_first() {
            let text = String::from_utf8_lossy(status);
            return if text.contains("\"Success\"") { Ok(()) } else { Err(Error::Answer(text.into_owned())) };
        }
    }
    Err(Error::Answer("the connection ended before the command did".into()))
}
