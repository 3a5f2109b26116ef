//! Connects to kubelets: HTTPS to the address and port in the node's status, with this server's client certificate
//! (`k8s.io/kubernetes/pkg/kubelet/client`).
//!
//! **Invariant**: no request is sent before the kubelet has presented a certificate of the cluster's CA for this
//! address and for `system:node:NAME`. A node that claims another node's address is therefore unreachable.

use crate::authenticate::user_of;
use crate::body::Body;
use crate::budget::{Budget, Share};
use crate::connect::{ConnectError, NodeConnector};
use crate::proxy::{answer, exchange, outgoing};
use crate::server_kinds::NODES;
use async_trait::async_trait;
use bytes::Bytes;
use client::https::{ClientIdentity, Reach, Roots, dial, handshake_error};
use http::{Request, Response};
use meta::{Object, Value};
use registry::Registry;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use store::Key;
use stored::Views;
use stored::in_place;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Timeout for connecting to a kubelet, including the handshake.
const CONNECT: Duration = Duration::from_secs(30);
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The default port of kubelets.
const PORT: u16 = 10250;
/// Address types by preference (`--kubelet-preferred-address-types`, with kubeadm's value).
const PREFERRED: [&str; 3] = ["InternalIP", "ExternalIP", "Hostname"];

/// Maximum size of the address cache in bytes.
const PLACES: usize = 4 << 20;

/// How long a request waits for another stream of its user to end.
const PATIENCE: Duration = Duration::from_secs(5);

pub struct NodeDialer {
    registry: Arc<Registry>,
    tls: Arc<ClientConfig>,
    /// Limits connections to kubelets: in total, and a third of them per user.
    streams: Budget,
    /// Cached addresses of kubelets.
    places: Views<Option<(String, u16)>>,
}

/// A connection to a kubelet, with its share of the budget.
struct AgentConnection {
    stream: TlsStream<TcpStream>,
    _share: Share,
}

impl AsyncRead for AgentConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for AgentConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl NodeDialer {
    /// `authority` is the PEM of the CA of kubelets, `identity` this server's client certificate. `streams` limits
    /// the connections to kubelets.
    pub fn new(
        registry: Arc<Registry>,
        authority: &str,
        identity: ClientIdentity,
        streams: usize,
    ) -> Result<Self, client::Error> {
        let tls = client::https::mutual(Roots::Pem(authority.as_bytes().to_vec()), identity)?;
        Ok(Self {
            registry,
            tls,
            streams: Budget::new(streams, streams.div_ceil(3)),
            places: Views::new(PLACES, PLACES / 1024),
        })
    }

    async fn reach(&self, node: &str, host: &str, port: u16) -> Result<TlsStream<TcpStream>, String> {
        let socket = dial(host, port, Reach::Anywhere, CONNECT).await.map_err(|e| e.to_string())?;
        let _ = socket.set_nodelay(true);
        let name = ServerName::try_from(host.to_owned()).map_err(|e| e.to_string())?;
        let handshake = TlsConnector::from(self.tls.clone()).connect(name, socket);
        let stream = tokio::time::timeout(HANDSHAKE, handshake).await.map_err(|_| "net/http: TLS handshake timeout")?;
        let stream = stream.map_err(|e| handshake_error(&e))?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(|c| c.first());
        let owner = certificate.and_then(|c| user_of(c)).unwrap_or_default();
        if owner.name != format!("system:node:{node}") || !owner.is_in(auth::user::GROUP_NODES) {
            return Err(format!("tls: failed to verify certificate: it is not that of node {node:?}"));
        }
        Ok(stream)
    }
}

/// The host and port of a node's kubelet.
fn agent_address(node: &Object) -> Option<(String, u16)> {
    let status = node.get("status")?;
    let port = status["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64().and_then(|p| u16::try_from(p).ok());
    let addresses = status["addresses"].as_array()?;
    let text = |a: &Value, field: &str| a[field].as_str().unwrap_or_default().to_owned();
    let best = PREFERRED.iter().find_map(|kind| addresses.iter().find(|a| a["type"] == **kind))?;
    Some((text(best, "address"), port.filter(|p| *p != 0).unwrap_or(PORT)))
}

#[async_trait]
impl NodeConnector for NodeDialer {
    async fn connect(&self, node: &str, user: &str, request: Request<Bytes>) -> Result<Response<Body>, ConnectError> {
        let entry = self.registry.store.snapshot().get(&Key::new(NODES, "", node));
        let entry = entry.ok_or_else(|| ConnectError::NoNode(node.to_owned()))?;
        // A large node object must not slow down others.
        let found = in_place::view(&self.places, &entry, |node| {
            let address = agent_address(node);
            let bytes = address.as_ref().map_or(0, |(host, _)| host.len());
            (address, bytes)
        })
        .map_err(|e| ConnectError::Unreachable(e.to_string()))?;
        let unreachable = ConnectError::Unreachable;
        let none = || unreachable("no preferred addresses found; known addresses: []".into());
        let (host, port) = Option::clone(&found).ok_or_else(none)?;
        let share = self.streams.take(user, 1, PATIENCE).await.ok_or(ConnectError::Busy)?;
        let stream =
            AgentConnection { stream: self.reach(node, &host, port).await.map_err(unreachable)?, _share: share };
        let (parts, body) = request.into_parts();
        let shown = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let (request, ours) = outgoing(parts, body, &shown);
        let response = exchange(stream, request).await.map_err(|e| unreachable(e.to_string()))?;
        Ok(answer(response, ours))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn agents_are_where_the_status_says() {
        let check = |status: Value, expected: Option<(&str, u16)>| {
            let node = Object::from_value(json!({"metadata": {"name": "n"}, "status": status})).unwrap();
            assert_eq!(agent_address(&node), expected.map(|(h, p)| (h.to_owned(), p)));
        };
        let addresses = json!([{"type": "Hostname", "address": "h"}, {"type": "InternalIP", "address": "192.0.2.1"}]);
        let port = json!({"kubeletEndpoint": {"Port": 11250}});
        check(json!({"addresses": addresses, "daemonEndpoints": port}), Some(("192.0.2.1", 11250)));
        check(json!({"addresses": addresses}), Some(("192.0.2.1", 10250)));
        check(json!({"addresses": [{"type": "Hostname", "address": "h"}]}), Some(("h", 10250)));
        check(json!({"addresses": []}), None);
        check(json!({}), None);
    }
}
