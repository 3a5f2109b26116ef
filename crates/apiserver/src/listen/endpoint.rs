//! Serves an API other than the API server's own on separate sockets: the kubelet API. Its connections, heads, bodies
//! and responses have the same kinds of limits, with separate budgets.

use super::{Connection, Service, Table, accept};
use crate::answer::{PER_USER, TOTAL, failure};
use crate::audit::Address;
use crate::authenticate::{Certificates, Peer};
use crate::body::Body;
use crate::budget::Budget;
use crate::request_body::{self, RequestBody, head_size, room_for_head};
use async_trait::async_trait;
use auth::User;
use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use meta::Clock;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use supervisor::Shutdown;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// How long open requests may continue after shutdown starts.
const LAST_REQUESTS: Duration = Duration::from_millis(500);

/// Authorizes and handles requests.
#[async_trait]
pub trait Handler: Send + Sync {
    /// Authenticates and authorizes a request. Returns the user's name, or the rejection. The body has not been read.
    /// `owner` is the owner of the client certificate, if a client CA signed it.
    async fn admit(
        &self,
        parts: &mut Parts,
        owner: Option<User>,
        address: Option<IpAddr>,
    ) -> Result<String, Response<Body>>;
    /// Handles an admitted request. An upgrade request has an `OnUpgrade` in its extensions.
    async fn answer(&self, request: Request<Bytes>) -> Response<Body>;
}

pub struct Endpoint {
    handler: Arc<dyn Handler>,
    certificates: Certificates,
    clock: Arc<dyn Clock>,
    connections: Arc<Table>,
    answers: Budget,
    bodies: Budget,
    heads: Budget,
}

impl Endpoint {
    /// `certificates` authenticates client certificates. At most half of `max_connections` may be of clients without
    /// an admitted request, and at most a quarter of one such address.
    pub fn new(
        handler: Arc<dyn Handler>,
        certificates: Certificates,
        clock: Arc<dyn Clock>,
        max_connections: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            handler,
            certificates,
            clock,
            connections: Table::new(max_connections),
            answers: Budget::new(TOTAL / 4, PER_USER / 4),
            bodies: Budget::new(request_body::TOTAL / 4, request_body::PER_USER / 4),
            heads: Budget::new(request_body::HEADS / 4, request_body::HEADS_PER_ADDRESS / 4),
        })
    }

    /// Serves until shutdown. New connections use the current value of `tls`.
    pub fn serve(
        self: &Arc<Self>,
        listener: Arc<TcpListener>,
        tls: watch::Receiver<Arc<rustls::ServerConfig>>,
        shutdown: Shutdown,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(accept(self.clone(), listener, tls, shutdown))
    }

    async fn respond(&self, request: Request<RequestBody>) -> Response<Body> {
        let (mut parts, body) = request.into_parts();
        let head = head_size(&parts);
        let large_head = match room_for_head(&self.heads, &parts, head).await {
            Ok(room) => room,
            Err(s) => return failure(&s),
        };
        let owner = parts.extensions.remove::<Peer>().and_then(|p| p.user);
        let address = parts.extensions.remove::<Address>().map(|a| a.0);
        let user = match self.handler.admit(&mut parts, owner, address).await {
            Ok(user) => user,
            Err(refusal) => {
                body.discard(head).await;
                return refusal;
            }
        };
        drop(large_head);
        if let Some(connection) = parts.extensions.remove::<Arc<Connection>>() {
            connection.became_known(&user);
        }
        match body.read(&self.bodies, &user, head).await {
            Ok((bytes, _room)) => self.handler.answer(Request::from_parts(parts, bytes)).await,
            Err(s) => failure(&s),
        }
    }
}

impl Service for Endpoint {
    fn answer(self: Arc<Self>, request: Request<RequestBody>) -> Pin<Box<dyn Future<Output = Response<Body>> + Send>> {
        Box::pin(async move { self.respond(request).await })
    }

    fn connections(&self) -> &Arc<Table> {
        &self.connections
    }

    fn answers(&self) -> &Budget {
        &self.answers
    }

    fn certificates(&self) -> &Certificates {
        &self.certificates
    }

    fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    fn longest_request(&self) -> Duration {
        LAST_REQUESTS
    }
}
