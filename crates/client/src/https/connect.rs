//! Connections: TCP, an HTTP CONNECT proxy if configured, TLS.

use super::connection_trace::note;
use super::dial::{dial, handshake_error};
use super::{Config, Reach, tls};
use crate::error::{BoxError, Error};
use base64::Engine;
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// An HTTP proxy that is used with CONNECT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    address: String,
    authorization: Option<String>,
}

impl Proxy {
    /// Reads `http://[user:password@]host[:port]`.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let wrong = |why: &str| Error::Request(format!("proxy {url:?}: {why}"));
        let rest = url.strip_prefix("http://").ok_or_else(|| wrong("only http:// proxies are supported"))?;
        let host = rest.split('/').next().unwrap_or_default();
        let (user, host) = match host.rsplit_once('@') {
            Some((u, h)) => (Some(u), h),
            None => (None, host),
        };
        if host.is_empty() {
            return Err(wrong("it has no host"));
        }
        let authorization = user.map(|u| base64::engine::general_purpose::STANDARD.encode(u));
        let has_port = host.rsplit_once(':').is_some_and(|(_, p)| p.parse::<u16>().is_ok());
        Ok(Self { address: if has_port { host.to_owned() } else { format!("{host}:80") }, authorization })
    }
}

#[derive(Clone)]
pub(super) struct Connector {
    tls: TlsConnector,
    server_name: Option<ServerName<'static>>,
    proxy: Option<Proxy>,
    reach: Reach,
    timeout: Duration,
    replicas: Replicas,
}

/// The hosts and ports of a server's replicas, and which was reached last. The first is the one that the request names.
#[derive(Clone, Default)]
struct Replicas {
    others: Arc<[Uri]>,
    last: Arc<AtomicUsize>,
}

/// The most time to reach one of several replicas.
const REPLICA_TIMEOUT: Duration = Duration::from_secs(5);

impl Connector {
    pub(super) fn new(c: &Config, http2: bool) -> Result<Self, Error> {
        let server_name = match &c.server_name {
            None => None,
            Some(n) => Some(
                ServerName::try_from(n.clone()).map_err(|e| Error::Request(format!("tls-server-name {n:?}: {e}")))?,
            ),
        };
        Ok(Self {
            tls: TlsConnector::from(tls::config(c, http2)?),
            server_name,
            proxy: c.proxy.clone(),
            reach: c.reach,
            timeout: if c.replicas.is_empty() { c.connect_timeout } else { c.connect_timeout.min(REPLICA_TIMEOUT) },
            replicas: Replicas {
                others: c.replicas.iter().filter_map(|url| url.parse().ok()).collect(),
                last: Arc::default(),
            },
        })
    }

    /// Connects to the replica that was reached last, otherwise to the next one. Errors with the first failure if none can be reached.
    async fn connect(self, to: Uri) -> Result<Stream, BoxError> {
        let others = &self.replicas.others;
        let (count, begin) = (others.len() + 1, self.replicas.last.load(Ordering::Relaxed));
        let mut failure = None;
        for n in (begin..begin + count).map(|n| n % count) {
            let replica = n.checked_sub(1).map_or_else(|| to.clone(), |other| others[other].clone());
            match self.open(&replica).await {
                Ok(stream) => {
                    self.replicas.last.store(n, Ordering::Relaxed);
                    note(|c| c.ready = Some(Instant::now()));
                    return Ok(stream);
                }
                Err(e) => drop(failure.get_or_insert(e)),
            }
        }
        Err(failure.unwrap_or_else(|| "no server".into()))
    }

    async fn open(&self, to: &Uri) -> Result<Stream, BoxError> {
        let secure = to.scheme_str() != Some("http");
        let host = to.host().ok_or("no host")?;
        let port = to.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let plain_host = host.trim_start_matches('[').trim_end_matches(']');
        let tcp = match &self.proxy {
            None => dial(plain_host, port, self.reach, self.timeout).await?,
            Some(p) => {
                let target = format!("{host}:{port}");
                let through = through(p, &target);
                let late = |_| BoxError::from(format!("proxy {}: i/o timeout", p.address));
                tokio::time::timeout(self.timeout, through).await.map_err(late)??
            }
        };
        tcp.set_nodelay(true)?;
        if !secure {
            return Ok(Stream::Plain(TokioIo::new(tcp)));
        }
        let name = match &self.server_name {
            Some(n) => n.clone(),
            None => ServerName::try_from(plain_host.to_owned())?,
        };
        let begun = Instant::now();
        let shaken = tokio::time::timeout(self.timeout, self.tls.connect(name, tcp)).await;
        note(|c| c.handshake = begun.elapsed());
        match shaken {
            Ok(Ok(tls)) => Ok(Stream::Tls(Box::new(TokioIo::new(tls)))),
            Ok(Err(e)) => Err(handshake_error(&e).into()),
            Err(_) => Err("net/http: TLS handshake timeout".into()),
        }
    }
}

async fn through(proxy: &Proxy, target: &str) -> Result<TcpStream, BoxError> {
    let mut tcp = TcpStream::connect(&proxy.address).await.map_err(|e| format!("proxy {}: {e}", proxy.address))?;
    let mut connect = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
    if let Some(a) = &proxy.authorization {
        connect.push_str(&format!("Proxy-Authorization: Basic {a}\r\n"));
    }
    connect.push_str("\r\n");
    tcp.write_all(connect.as_bytes()).await?;
    // Byte by byte, because the bytes after the head belong to the tunnel.
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > 16 * 1024 {
            return Err("the proxy's response header is incomplete or too long".into());
        }
        head.push(tcp.read_u8().await?);
    }
    let line = String::from_utf8_lossy(&head);
    let line = line.lines().next().unwrap_or_default();
    match line.split(' ').nth(1) {
        Some(code) if code.starts_with('2') => Ok(tcp),
        _ => Err(format!("the proxy refused CONNECT: {line}").into()),
    }
}

impl tower_service::Service<Uri> for Connector {
    type Response = Stream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        Box::pin(self.clone().connect(to))
    }
}

pub(super) enum Stream {
    Plain(TokioIo<TcpStream>),
    Tls(Box<TokioIo<TlsStream<TcpStream>>>),
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        match self {
            Self::Plain(_) => Connected::new(),
            Self::Tls(s) if s.inner().get_ref().1.alpn_protocol() == Some(b"h2") => Connected::new().negotiated_h2(),
            Self::Tls(_) => Connected::new(),
        }
    }
}

impl Read for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_read(cx, buf),
            Self::Tls(s) => Pin::new(s.as_mut()).poll_read(cx, buf),
        }
    }
}

impl Write for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_write(cx, buf),
            Self::Tls(s) => Pin::new(s.as_mut()).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_flush(cx),
            Self::Tls(s) => Pin::new(s.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_shutdown(cx),
            Self::Tls(s) => Pin::new(s.as_mut()).poll_shutdown(cx),
        }
    }
}
