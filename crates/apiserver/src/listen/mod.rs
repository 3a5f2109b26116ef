//! Listeners: accept connections, TLS, HTTP/1.1 and HTTP/2, client certificates.
//!
//! `table` limits connections and closes excess ones, `connection` serves one, `sent` tracks a response being sent.
//! Invariant: before authentication, a client holds a bounded number of bytes for a bounded time, and no connection
//! slot that an authenticated client needs. [`Endpoint`] applies the same limits to another API.

mod connection;
mod endpoint;
mod sent;
mod table;

pub use endpoint::{Endpoint, Handler};
pub(crate) use table::{Connection, Table};

use crate::Server;
use crate::authenticate::Certificates;
use crate::body::Body;
use crate::budget::Budget;
use crate::request_body::RequestBody;
use http::{Request, Response};
use meta::Clock;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use supervisor::Shutdown;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Delay after the process runs out of file descriptors.
const NO_DESCRIPTOR: Duration = Duration::from_millis(50);

/// The handler and limits of a listener.
pub(crate) trait Service: Send + Sync {
    /// Handles a request whose body has not been read. Its extensions identify the client: [`crate::Peer`],
    /// [`crate::audit::Address`], [`Connection`].
    fn answer(self: Arc<Self>, request: Request<RequestBody>) -> Pin<Box<dyn Future<Output = Response<Body>> + Send>>;
    fn connections(&self) -> &Arc<Table>;
    /// Budget for large responses.
    fn answers(&self) -> &Budget;
    fn certificates(&self) -> &Certificates;
    fn clock(&self) -> &dyn Clock;
    /// How long open requests may continue after shutdown starts.
    fn longest_request(&self) -> Duration;
    /// Called when a TLS handshake fails.
    fn handshake_failed(&self) {}
    /// Called when the listener stops accepting connections.
    fn end(&self) {}
}

impl Service for Server {
    fn answer(self: Arc<Self>, request: Request<RequestBody>) -> Pin<Box<dyn Future<Output = Response<Body>> + Send>> {
        Box::pin(async move { self.answer_socket(request).await })
    }

    fn connections(&self) -> &Arc<Table> {
        &self.connections
    }

    fn answers(&self) -> &Budget {
        &self.answers
    }

    fn certificates(&self) -> &Certificates {
        &self.authenticators.certificates
    }

    fn clock(&self) -> &dyn Clock {
        &*self.registry.clock
    }

    fn longest_request(&self) -> Duration {
        self.options.request_timeout
    }

    fn handshake_failed(&self) {
        self.metrics.handshakes.inc();
    }

    fn end(&self) {
        Server::end(self);
    }
}

/// Serves until shutdown, when open requests have ended or timed out. New connections use the current
/// value of `tls`. Boxed, as [`Server::handle`] is.
pub fn serve(
    server: Arc<Server>,
    listener: Arc<TcpListener>,
    tls: watch::Receiver<Arc<rustls::ServerConfig>>,
    shutdown: Shutdown,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(accept(server, listener, tls, shutdown))
}

async fn accept(
    server: Arc<dyn Service>,
    listener: Arc<TcpListener>,
    tls: watch::Receiver<Arc<rustls::ServerConfig>>,
    shutdown: Shutdown,
) {
    let mut open = JoinSet::new();
    loop {
        while open.try_join_next().is_some() {}
        let accepted = tokio::select! {
            a = listener.accept() => a,
            () = shutdown.wait() => break,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(e) => {
                // Out of file descriptors, most likely.
                tracing::warn!("accepting a connection: {e}");
                server.connections().close_one();
                tokio::time::sleep(NO_DESCRIPTOR).await;
                continue;
            }
        };
        // Without a free slot, close the connection: all slots are held by authenticated clients with open requests.
        let Some(entry) = server.connections().admit(Some(address.ip())) else { continue };
        let (server, shutdown) = (server.clone(), shutdown.clone());
        let acceptor = TlsAcceptor::from(tls.borrow().clone());
        open.spawn(async move { connection::run(server, acceptor, stream, entry, shutdown).await });
    }
    drop(listener);
    server.end();
    while open.join_next().await.is_some() {}
}
