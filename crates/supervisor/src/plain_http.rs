//! Plain HTTP for load balancers and administrators: a few short responses on how a component is, on ports of its own.
//!
//! Each connection gets one response. A port has a limited number of connections, and connections that only wait keep nobody out.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// Connections of a port at a time.
const CONNECTIONS: usize = 64;
/// How long a connection may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum length of a request.
const REQUEST: usize = 8192;
/// The pause after a port that could not be opened.
const AGAIN: Duration = Duration::from_secs(5);
/// The pause after a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// A response to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    status: u16,
    headers: String,
    body: String,
}

impl Response {
    /// A JSON document.
    pub fn json(status: u16, body: String) -> Self {
        Self::new(status, "application/json", body)
    }

    /// Plain text.
    pub fn plain(status: u16, body: String) -> Self {
        Self::new(status, "text/plain; charset=utf-8", body)
    }

    fn new(status: u16, content_type: &str, body: String) -> Self {
        let headers = format!("Content-Type: {content_type}\r\nX-Content-Type-Options: nosniff\r\n");
        Self { status, headers, body }
    }

    /// The response to a path that does not exist.
    pub fn not_found() -> Self {
        Self::plain(404, "404 page not found\n".into())
    }

    /// Adds a header.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        let _ = write!(self.headers, "{name}: {value}\r\n");
        self
    }

    fn text(&self) -> String {
        let Self { status, headers, body } = self;
        let reason = match status {
            200 => "OK",
            404 => "Not Found",
            _ => "Service Unavailable",
        };
        format!(
            "HTTP/1.1 {status} {reason}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
    }
}

/// Listens on the addresses of both families, if the machine has them.
pub async fn on_all_addresses(port: u16) -> io::Result<TcpListener> {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await,
        both => both,
    }
}

/// Opens a port. While that fails, for example since another cluster on this machine has the port, it is logged once as an error and tried
/// again every five seconds. `what` is whose port it is, for users.
pub async fn opened<F: Future<Output = io::Result<TcpListener>>>(what: &str, open: impl Fn() -> F) -> TcpListener {
    let mut is_logged = false;
    loop {
        match open().await {
            Ok(listener) => return listener,
            Err(error) if !is_logged => {
                tracing::error!(%error, "the port {what} cannot be opened; trying again every {} seconds", AGAIN.as_secs());
                is_logged = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// The open connections of a port, oldest first.
#[derive(Default)]
struct Connections(Vec<(IpAddr, AbortHandle)>);

impl Connections {
    /// Makes room for one more: closes the oldest connection of the address that has the most.
    fn make_room(&mut self) {
        if self.0.len() < CONNECTIONS {
            return;
        }
        self.0.retain(|(_, task)| !task.is_finished());
        if self.0.len() < CONNECTIONS {
            return;
        }
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        self.0.iter().for_each(|(address, _)| *counts.entry(*address).or_default() += 1);
        let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(address, _)| address);
        if let Some(oldest) = self.0.iter().position(|(address, _)| Some(*address) == most) {
            self.0.remove(oldest).1.abort();
        }
    }
}

/// Responds to each request, whose path and query `answer` gets, until it is dropped.
pub async fn serve(listener: TcpListener, answer: impl Fn(&str, &str) -> Response + Send + Sync + 'static) {
    let answer = Arc::new(answer);
    let mut open = Connections::default();
    // Dropped with this task, and the connections with it.
    let mut tasks = JoinSet::new();
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        while tasks.try_join_next().is_some() {}
        open.make_room();
        let answer = answer.clone();
        let task = tasks.spawn(async move {
            let _ = tokio::time::timeout(PATIENCE, respond(stream, &*answer)).await;
        });
        open.0.push((peer.ip(), task));
    }
}

/// Reads a request, whatever it is, and responds.
async fn respond(mut stream: TcpStream, answer: &(impl Fn(&str, &str) -> Response + Sync)) -> io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.windows(4).any(|w| w == b"\r\n\r\n") {
        let length = stream.read(&mut buffer).await?;
        if length == 0 || request.len() + length > REQUEST {
            return Ok(());
        }
        request.extend_from_slice(&buffer[..length]);
    }
    let head = String::from_utf8_lossy(&request);
    let target = head.split_ascii_whitespace().nth(1).unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let response = answer(path, query).text();
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole response to a request for `/healthz`.
    async fn get(port: u16) -> io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    }

    /// Another cluster on the machine has the port until it ends.
    #[tokio::test(start_paused = true)]
    async fn a_port_that_is_taken_is_opened_when_it_is_free() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = taken.local_addr().unwrap();
        let mut opening = tokio::spawn(async move { opened("of a test", || TcpListener::bind(address)).await });
        assert!(tokio::time::timeout(AGAIN * 3, &mut opening).await.is_err());
        drop(taken);
        assert_eq!(opening.await.unwrap().local_addr().unwrap(), address);
    }

    /// Connections without a request held the port until each of them had timed out.
    #[tokio::test]
    async fn silent_connections_keep_nobody_out() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(serve(listener, |path: &str, _: &str| Response::json(503, path.to_owned())));
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS * 3 {
            silent.push(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap());
        }
        let answer = tokio::time::timeout(PATIENCE / 2, get(port)).await.expect("it is answered at once").unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n") && answer.ends_with("/healthz"), "{answer}");
        server.abort();
    }
}
