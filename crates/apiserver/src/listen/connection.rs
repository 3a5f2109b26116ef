//! One connection: TLS, HTTP/1.1 or HTTP/2, and idle timeouts.

use super::Service;
use super::sent::AnswerBody;
use super::table::{Connection, TableEntry};
use crate::answer::failure;
use crate::audit::Address;
use crate::authenticate::Identity;
use crate::body::Body;
use crate::budget::Share;
use crate::request_body::RequestBody;
use http::header::{CONTENT_LENGTH, Entry};
use http::{Method, Request, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use meta::Status;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use supervisor::Shutdown;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Timeout of the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Idle timeout: before the first authenticated request, as upstream's `ReadHeaderTimeout`; afterwards longer than Go
/// clients keep idle connections.
const UNKNOWN_IDLE: Duration = Duration::from_secs(32);
const IDLE: Duration = Duration::from_secs(180);
/// Interval of checks of a connection with open requests.
const LOOK: Duration = Duration::from_secs(15);
/// Timeout for a client to react to the shutdown notice: it may be suspended and never acknowledge it.
const QUIET: Duration = Duration::from_millis(500);
/// Maximum size of a request head. HTTP limits its URL to 64 KiB.
const MAX_HEAD: u32 = 256 << 10;
/// Maximum concurrent streams: at least upstream's. Our own clients wait at the limit instead of opening another
/// connection.
const MAX_STREAMS: u32 = 250;
/// HTTP/2 receive window of a body before it is read.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Send buffer of a stream.
const SEND_BUFFER: usize = 128 << 10;
/// A response larger than this is charged to its user's budget until it is read; an HTTP/2 connection may carry many.
/// A stream is charged this much, and a response compressed on the fly its encoder's memory.
const LARGE: usize = 256 << 10;
const LARGE_SHARED: usize = 8 << 10;
const STREAM: usize = 16 << 10;
const ENCODER: usize = 512 << 10;
const PATIENCE: Duration = Duration::from_secs(20);
/// Timeout of HTTP/2 pings.
const PING: Duration = Duration::from_secs(30);
const PONG: Duration = Duration::from_secs(30);

pub(super) async fn run(
    server: Arc<dyn Service>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    entry: TableEntry,
    shutdown: Shutdown,
) {
    let _ = stream.set_nodelay(true);
    let connection = entry.0.clone();
    let handshake = tokio::select! {
        accepted = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)) => accepted,
        () = connection.closed() => return,
    };
    let Ok(Ok(stream)) = handshake else {
        server.handshake_failed();
        return;
    };
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEAD)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .keep_alive_interval(PING)
            .keep_alive_timeout(PONG);
        let requests = Requests::new(&server, &connection, &stream, true);
        let io = TokioIo::new(Metered { stream, entry });
        let conn = builder.serve_connection(io, service_fn(move |r| requests.clone().answer(r)));
        drive(conn, http2::Connection::graceful_shutdown, &*server, &connection, shutdown).await;
    } else {
        let mut builder = http1::Builder::new();
        // Idle time between requests is measured here: hyper's timer does not distinguish clients.
        builder.timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(MAX_HEAD as usize);
        let requests = Requests::new(&server, &connection, &stream, false);
        let io = TokioIo::new(Metered { stream, entry });
        let conn = builder.serve_connection(io, service_fn(move |r| requests.clone().answer(r))).with_upgrades();
        drive(conn, http1::UpgradeableConnection::graceful_shutdown, &*server, &connection, shutdown).await;
    }
}

/// Serves until the client disconnects, is idle too long or does not read, or the server shuts down.
async fn drive<C: Future<Output = hyper::Result<()>>>(
    conn: C,
    leave: fn(Pin<&mut C>),
    server: &dyn Service,
    connection: &Connection,
    shutdown: Shutdown,
) {
    tokio::pin!(conn);
    let overdue = tokio::select! {
        r = conn.as_mut() => {
            if let Err(e) = r {
                tracing::debug!("a connection ended: {e}");
            }
            return;
        }
        // A connection closed for others, or that does not read, gets no graceful shutdown.
        () = connection.closed() => return,
        o = overdue(connection) => o,
        () = shutdown.wait() => Overdue::Server,
    };
    let longest = match overdue {
        Overdue::Stalled => return,
        Overdue::Idle => QUIET,
        Overdue::Server => server.longest_request(),
    };
    leave(conn.as_mut());
    let mut requests = connection.open.subscribe();
    tokio::select! {
        _ = conn => {}
        () = connection.closed() => {}
        () = quiet(&mut requests) => {}
        () = tokio::time::sleep(longest) => {}
    }
}

enum Overdue {
    Stalled,
    Idle,
    Server,
}

async fn overdue(connection: &Connection) -> Overdue {
    loop {
        let most = if connection.is_known() { IDLE } else { UNKNOWN_IDLE };
        let wait = match connection.idle() {
            Some(idle) if idle >= most => return Overdue::Idle,
            Some(idle) => most - idle,
            None if connection.is_stalled() => return Overdue::Stalled,
            None => LOOK,
        };
        tokio::time::sleep(wait).await;
    }
}

/// Returns when no request has been open for a while.
async fn quiet(requests: &mut watch::Receiver<usize>) {
    loop {
        if requests.wait_for(|n| *n == 0).await.is_err() {
            return;
        }
        if tokio::time::timeout(QUIET, requests.wait_for(|n| *n > 0)).await.is_err() {
            return;
        }
    }
}

/// What a connection adds to each of its requests.
#[derive(Clone)]
struct Requests {
    server: Arc<dyn Service>,
    connection: Arc<Connection>,
    holder: Arc<crate::authenticate::Holder>,
    address: Option<std::net::IpAddr>,
    /// Whether responses share the connection (HTTP/2).
    streams: bool,
}

impl Requests {
    fn new(
        server: &Arc<dyn Service>,
        connection: &Arc<Connection>,
        stream: &TlsStream<TcpStream>,
        streams: bool,
    ) -> Self {
        let (tcp, tls) = stream.get_ref();
        let chain = tls.peer_certificates().unwrap_or_default();
        let holder = Arc::new(server.certificates().holder(chain, server.clock()));
        let address = tcp.peer_addr().ok().map(|a| a.ip().to_canonical());
        Self { server: server.clone(), connection: connection.clone(), holder, address, streams }
    }

    async fn answer(self, mut request: Request<Incoming>) -> Result<http::Response<AnswerBody>, Infallible> {
        let open = AnswerBody::open(&self.connection);
        let (server, extensions) = (&self.server, request.extensions_mut());
        extensions.remove::<Identity>();
        if let Some(a) = self.address {
            extensions.insert(Address(a));
        }
        extensions.insert(self.holder.peer(server.certificates(), server.clock()));
        extensions.insert(self.connection.clone());
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        let is_head = *request.method() == Method::HEAD;
        let mut response = server.clone().answer(request.map(RequestBody::Socket)).await;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            self.connection.upgrade();
        }
        if is_head {
            without_body(&mut response);
        }
        let share = match self.share(response.body()).await {
            Ok(share) => share,
            Err(s) => {
                // A write has been committed and must not appear rejected: abort as if its response were lost.
                if !reads {
                    self.connection.close();
                }
                response = failure(&s);
                None
            }
        };
        Ok(response.map(|body| AnswerBody::new(body, open, self.streams, share)))
    }

    /// Budget for what the client may leave unread.
    async fn share(&self, body: &Body) -> Result<Option<Share>, Status> {
        let large = if self.streams { LARGE_SHARED } else { LARGE };
        let bytes = match body {
            Body::Full(b) if b.len() > large => b.len(),
            Body::Joined(j) if j.least() > large as u64 => j.held(),
            Body::Gzip(_) => ENCODER,
            // Watches request their budget when needed.
            Body::Stream(_) if !self.connection.user().is_empty() => STREAM,
            _ => return Ok(None),
        };
        let share = self.server.answers().take_part(self.connection.user(), bytes, PATIENCE).await;
        share
            .map(Some)
            .ok_or_else(|| Status::too_many_requests("too many bytes of answers wait to be read by this user", 1))
    }
}

/// Drops the body of a HEAD response but keeps its `Content-Length`: HTTP/2 forbids the body.
fn without_body(response: &mut http::Response<Body>) {
    let size = response.body().size_hint().exact();
    *response.body_mut() = Body::empty();
    if let (Some(size), Entry::Vacant(header)) = (size, response.headers_mut().entry(CONTENT_LENGTH)) {
        header.insert(size.into());
    }
}

/// A stream that counts bytes read while no request is open. It holds the connection's slot, also after a protocol
/// upgrade.
struct Metered {
    stream: TlsStream<TcpStream>,
    entry: TableEntry,
}

impl AsyncRead for Metered {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.entry.0.is_over(cx.waker()) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if !self.entry.0.may_read(buf.filled().len() - before) {
            return Poll::Ready(Err(io::Error::other("too much of a request that has not come to its end")));
        }
        polled
    }
}

impl AsyncWrite for Metered {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
