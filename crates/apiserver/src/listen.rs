//! The socket: TLS, HTTP/1.1 and HTTP/2, client certificates.

use crate::Server;
use crate::answer::failure;
use crate::audit::Address;
use crate::authenticate::Identity;
use crate::body::Body;
use crate::content::MAX_BODY;
use crate::deadline;
use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use meta::Status;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// How long a client may take for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// A client that sends nothing for this long after it was told that the server ends is left: it may be asleep, and would never
/// say that it has understood.
const QUIET: Duration = Duration::from_millis(500);
/// The longest head of a request, as upstream's.
const MAX_HEAD: u32 = 1 << 20;

/// Serves until `shutdown` turns true, and ends when the open requests have ended, or have had their time. New connections
/// are taken with what `tls` is then. Boxed, as [`Server::handle`] is.
pub fn serve(
    server: Arc<Server>,
    listener: TcpListener,
    tls: watch::Receiver<Arc<rustls::ServerConfig>>,
    shutdown: watch::Receiver<bool>,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(accept(server, listener, tls, shutdown))
}

async fn accept(
    server: Arc<Server>,
    listener: TcpListener,
    tls: watch::Receiver<Arc<rustls::ServerConfig>>,
    mut shutdown: watch::Receiver<bool>,
) {
    let mut open = JoinSet::new();
    loop {
        while open.try_join_next().is_some() {}
        let accepted = tokio::select! {
            a = listener.accept() => a,
            _ = stopped(&mut shutdown) => break,
        };
        let stream = match accepted {
            Ok((s, _)) => s,
            Err(e) => {
                // Out of file descriptors, most likely: others will close theirs.
                tracing::warn!("accepting a connection: {e}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (server, shutdown) = (server.clone(), shutdown.clone());
        let acceptor = TlsAcceptor::from(tls.borrow().clone());
        open.spawn(async move { connection(server, acceptor, stream, shutdown).await });
    }
    drop(listener);
    server.end();
    while open.join_next().await.is_some() {}
}

async fn connection(
    server: Arc<Server>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    mut shutdown: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    let address = stream.peer_addr().ok().map(|a| a.ip().to_canonical());
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await else {
        server.metrics.handshakes.inc();
        return;
    };
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let holder = Arc::new(server.authenticators.certificates.holder(chain, &*server.registry.clock));
    let open = watch::Sender::new(0usize);
    let mut requests = open.subscribe();
    let longest = server.options.request_timeout;
    let service = service_fn(move |mut request: Request<Incoming>| {
        let (server, holder) = (server.clone(), holder.clone());
        let open = Open::new(&open);
        async move {
            request.extensions_mut().remove::<Identity>();
            if let Some(a) = address {
                request.extensions_mut().insert(Address(a));
            }
            request.extensions_mut().insert(holder.peer(&server.authenticators.certificates, &*server.registry.clock));
            Ok::<_, Infallible>(read_and_handle(server, request).await.map(|body| Sent { body, _open: open }))
        }
    });
    let mut builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).pipeline_flush(true).max_buf_size(MAX_HEAD as usize);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(1000).max_header_list_size(MAX_HEAD);
    let conn = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(conn);
    tokio::select! {
        r = conn.as_mut() => {
            if let Err(e) = r {
                tracing::debug!("a connection ended: {e}");
            }
        }
        _ = stopped(&mut shutdown) => {
            conn.as_mut().graceful_shutdown();
            tokio::select! {
                _ = conn => {}
                () = quiet(&mut requests) => {}
                () = tokio::time::sleep(longest) => {}
            }
        }
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

/// A request of a connection, until its answer has been sent or given up.
struct Open(watch::Sender<usize>);

impl Open {
    fn new(all: &watch::Sender<usize>) -> Self {
        all.send_modify(|n| *n += 1);
        Self(all.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.send_modify(|n| *n -= 1);
    }
}

/// The body of an answer that is being sent.
struct Sent {
    body: Body,
    _open: Open,
}

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Reads the body, bounded, and hands the request to the stack.
async fn read_and_handle(server: Arc<Server>, request: Request<Incoming>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    // The stack refuses what is larger; one byte more shows that it is.
    let whole = Limited::new(body, MAX_BODY + 1).collect();
    let Ok(whole) = tokio::time::timeout(server.options.request_timeout, whole).await else {
        return failure(&deadline::passed());
    };
    let bytes = match whole {
        Ok(b) => b.to_bytes(),
        Err(e) if e.is::<LengthLimitError>() => {
            return failure(&Status::too_large(format!("Request entity too large: limit is {MAX_BODY}")));
        }
        Err(e) => return failure(&Status::bad_request(format!("reading the body: {e}"))),
    };
    server.handle(Request::from_parts(parts, bytes)).await
}

/// Returns when the server is to stop, or nobody can say so any more.
async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|s| *s).await.map(|_| ());
}
