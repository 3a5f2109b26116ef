//! The listeners of the kubelet's API, with the limits of the API server's own listener.

use crate::control_plane::ControlPlane;
use crate::pki;
use apiserver::listen::{Endpoint, Handler};
use apiserver::{Body, Certificates};
use async_trait::async_trait;
use auth::User;
use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body as _;
use http_body_util::BodyExt;
use meta::Clock;
use node::{Handle, Sender};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use supervisor::{Component, OnEnd};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Listeners of the node agent.
pub struct Sockets {
    listener: TcpListener,
    /// Shared with the API server's listener.
    certificates: Certificates,
    clock: Arc<dyn Clock>,
    tls: watch::Sender<Arc<rustls::ServerConfig>>,
    max_connections: usize,
}

impl Sockets {
    /// `inside` are the addresses by which pods and the API server reach the node.
    pub fn new(
        listener: TcpListener,
        plane: &ControlPlane,
        node: &str,
        inside: &[IpAddr],
        max_connections: usize,
    ) -> Result<Self, pki::Error> {
        let bound = listener.local_addr().ok().map(|a| a.ip());
        let mut addresses = inside.to_vec();
        addresses.extend([IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()]);
        addresses.extend(bound.filter(|a| !a.is_unspecified() && !addresses.contains(a)));
        let pair = plane.pki.kubelet(node, &addresses)?;
        let tls = watch::Sender::new(plane.pki.tls(&pair, &[&plane.client_ca])?);
        let (certificates, clock) = (plane.certificates.clone(), plane.clock.clone());
        Ok(Self { listener, certificates, clock, tls, max_connections })
    }

    /// The address and port it listens on.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The listener of a node that has joined. `tls` has its certificate, and is changed when that is renewed.
    pub fn with(
        listener: TcpListener,
        certificates: Certificates,
        clock: Arc<dyn Clock>,
        tls: watch::Sender<Arc<rustls::ServerConfig>>,
        max_connections: usize,
    ) -> Self {
        Self { listener, certificates, clock, tls, max_connections }
    }

    /// Serves until shutdown; also on `inside`, if the listener is not bound to these addresses. Fails if one cannot be bound.
    pub async fn serve(
        self,
        handle: Handle,
        inside: &[IpAddr],
        listeners: &Component,
    ) -> Result<(), (SocketAddr, std::io::Error)> {
        let endpoint = Endpoint::new(Arc::new(Agent(handle)), self.certificates, self.clock, self.max_connections);
        let bound = self.listener.local_addr().map_err(|e| (SocketAddr::from(([0; 4], 0)), e))?;
        // Kept for its receivers.
        let tls = Arc::new(self.tls);
        let serve = |name, listener: TcpListener| {
            let (endpoint, listener, tls) = (endpoint.clone(), Arc::new(listener), tls.clone());
            let shutdown = listeners.shutdown().clone();
            listeners.spawn_graceful(name, OnEnd::Restart, move || {
                let tls = tls.clone();
                let served = endpoint.serve(listener.clone(), tls.subscribe(), shutdown.clone());
                async move {
                    let _tls = tls;
                    served.await;
                }
            });
        };
        for inside in inside.iter().filter(|inside| !is_covered(bound.ip(), **inside)) {
            let socket = SocketAddr::new(*inside, bound.port());
            let name = if inside.is_ipv4() { "kubelet-for-pods" } else { "kubelet-for-pods-ipv6" };
            serve(name, TcpListener::bind(socket).await.map_err(|e| (socket, e))?);
        }
        serve("kubelet", self.listener);
        Ok(())
    }
}

/// Whether a listener that is bound to an address receives connections to another one. `::` receives those of IPv4, too.
pub fn is_covered(bound: IpAddr, address: IpAddr) -> bool {
    bound == address || bound.is_unspecified() && (bound.is_ipv6() || address.is_ipv4())
}

/// Adapts the agent to the listener.
struct Agent(Handle);

#[async_trait]
impl Handler for Agent {
    async fn admit(
        &self,
        parts: &mut Parts,
        owner: Option<User>,
        address: Option<IpAddr>,
    ) -> Result<String, Response<Body>> {
        match self.0.admit(parts, &Sender { user: owner, address }).await {
            Ok(user) => Ok(user),
            Err(refusal) => Err(sendable(refusal).await),
        }
    }

    async fn answer(&self, request: Request<Bytes>) -> Response<Body> {
        sendable(self.0.handle(request).await).await
    }
}

/// Sets the length of a complete response.
async fn sendable(response: Response<node::Body>) -> Response<Body> {
    let (parts, body) = response.into_parts();
    let body = match body.size_hint().exact() {
        // A complete response in memory is not limited.
        Some(_) => body.collect().await.map_or_else(|_| Body::empty(), |b| Body::Full(b.to_bytes())),
        None => Body::relay(body),
    };
    Response::from_parts(parts, body)
}
