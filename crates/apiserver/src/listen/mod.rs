//! The sockets: who may connect, TLS, HTTP/1.1 and HTTP/2, client certificates.
//!
//! `table` bounds how many connections there are and closes those that take room from others, `connection` serves one, `sent`
//! is an answer on its way. Invariant: until a request is authenticated, its sender holds a bounded number of bytes for a
//! bounded time, and no place that anybody known needs. [`Endpoint`] gives the same bounds to an API that is not the server's own.

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
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// How long the server waits for a descriptor when there is none for another connection.
const NO_DESCRIPTOR: Duration = Duration::from_millis(50);

/// What answers the requests of a listener's connections, and what bounds these.
pub(crate) trait Service: Send + Sync {
    /// Answers a request whose body has not been read. Its extensions say who is at the other end: [`crate::Peer`],
    /// [`crate::audit::Address`], [`Connection`].
    fn answer(self: Arc<Self>, request: Request<RequestBody>) -> Pin<Box<dyn Future<Output = Response<Body>> + Send>>;
    fn connections(&self) -> &Arc<Table>;
    /// Room for large answers.
    fn answers(&self) -> &Budget;
    fn certificates(&self) -> &Certificates;
    fn clock(&self) -> &dyn Clock;
    /// How long open requests go on after the listener was told to end.
    fn longest_request(&self) -> Duration;
    /// A client did not come through the handshake.
    fn handshake_failed(&self) {}
    /// The listener takes no more connections.
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
    server: Arc<dyn Service>,
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
        // Without a place the connection is closed at once: everybody who has one is known, and waits for an answer.
        let Some(place) = server.connections().admit(Some(address.ip())) else { continue };
        let (server, shutdown) = (server.clone(), shutdown.clone());
        let acceptor = TlsAcceptor::from(tls.borrow().clone());
        open.spawn(async move { connection::run(server, acceptor, stream, place, shutdown).await });
    }
    drop(listener);
    server.end();
    while open.join_next().await.is_some() {}
}

/// Returns when the server is to stop, or nobody can say so any more.
async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|s| *s).await.map(|_| ());
}
