//! The socket: TLS, HTTP/1.1 and HTTP/2, client certificates.

use crate::Server;
use crate::authenticate::Identity;
use crate::body::Body;
use crate::content::MAX_BODY;
use crate::handle::failure;
use http::{Request, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use meta::Status;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// How long a client may take for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Serves until `shutdown` turns true, and returns when the open requests have ended, or have had their time.
pub async fn serve(
    server: Arc<Server>,
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    mut shutdown: watch::Receiver<bool>,
) {
    let acceptor = TlsAcceptor::from(tls);
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
        let (server, acceptor, shutdown) = (server.clone(), acceptor.clone(), shutdown.clone());
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
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await else { return };
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let peer = server.authenticators.certificates.peer(chain, &*server.registry.clock);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let (server, peer) = (server.clone(), peer.clone());
        async move {
            request.extensions_mut().remove::<Identity>();
            request.extensions_mut().insert(peer);
            Ok::<_, Infallible>(read_and_handle(server, request).await)
        }
    });
    let mut builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).pipeline_flush(true);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(1000);
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
            let _ = tokio::time::timeout(Duration::from_secs(5), conn).await;
        }
    }
}

/// Reads the body, bounded, and hands the request to the stack.
async fn read_and_handle(server: Arc<Server>, request: Request<Incoming>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    // The stack refuses what is larger; one byte more shows that it is.
    let bytes = match Limited::new(body, MAX_BODY + 1).collect().await {
        Ok(b) => b.to_bytes(),
        Err(e) if e.is::<LengthLimitError>() => {
            return failure(&Status::too_large(format!("Request entity too large: limit is {MAX_BODY}")));
        }
        Err(e) => return failure(&Status::bad_request(format!("reading the body: {e}"))),
    };
    server.handle(Request::from_parts(parts, bytes)).await
}

/// Returns when the server is to stop, or nobody can say so any more.
pub(crate) async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|s| *s).await.map(|_| ());
}
