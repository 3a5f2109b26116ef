//! The way to the agents of nodes: HTTPS to the address and port that the node's status names, with a client certificate of this
//! server (`k8s.io/kubernetes/pkg/kubelet/client`).
//!
//! **Invariant**: no request is sent before the other side has shown a certificate of the cluster's authority for this address and
//! for `system:node:NAME`. So a node that names another node's address reaches nobody.

use crate::authenticate::user_of;
use crate::body::Body;
use crate::budget::{Budget, Share};
use crate::connect::{ConnectError, NodeConnector};
use crate::proxy::{answer, exchange, outgoing};
use crate::workers;
use async_trait::async_trait;
use bytes::Bytes;
use client::https::{ClientIdentity, Reach, Roots, dial, handshake_error};
use http::{Request, Response};
use meta::{Object, Value};
use registry::{Registry, Views};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use store::Key;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// How long it may take to reach an agent, and its handshake.
const CONNECT: Duration = Duration::from_secs(30);
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The port of agents that name none.
const PORT: u16 = 10250;
/// Addresses of nodes, best first (`--kubelet-preferred-address-types`, as kubeadm has it).
const PREFERRED: [&str; 3] = ["InternalIP", "ExternalIP", "Hostname"];

/// Bytes of addresses that are kept.
const PLACES: usize = 4 << 20;

/// How long a request may wait until another stream of its user has ended.
const PATIENCE: Duration = Duration::from_secs(5);

pub struct NodeDialer {
    registry: Arc<Registry>,
    tls: Arc<ClientConfig>,
    /// Connections to agents: at most so many, and a third of them for one user.
    streams: Budget,
    /// Where agents are.
    places: Views<Option<(String, u16)>>,
}

/// A connection to an agent, with its part of the budget.
struct AgentConnection {
    stream: TlsStream<TcpStream>,
    _room: Share,
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
    /// `authority` is the PEM of who signs certificates of agents, `identity` what they know this server by.
    /// There are at most `streams` connections to agents at a time.
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

/// Host and port of a node's agent.
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
        let entry = self.registry.store.snapshot().get(&Key::new("nodes", "", node));
        let entry = entry.ok_or_else(|| ConnectError::NoNode(node.to_owned()))?;
        // Who makes its node large slows nobody down.
        let found = workers::view(&self.places, &entry, |node| {
            let place = agent_address(node);
            let bytes = place.as_ref().map_or(0, |(host, _)| host.len());
            (place, bytes)
        })
        .map_err(|e| ConnectError::Unreachable(e.to_string()))?;
        let unreachable = ConnectError::Unreachable;
        let none = || unreachable("no preferred addresses found; known addresses: []".into());
        let (host, port) = Option::clone(&found).ok_or_else(none)?;
        let room = self.streams.take(user, 1, PATIENCE).await.ok_or(ConnectError::Busy)?;
        let stream = AgentConnection { stream: self.reach(node, &host, port).await.map_err(unreachable)?, _room: room };
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
        let check = |status: Value, want: Option<(&str, u16)>| {
            let node = Object::from_value(json!({"metadata": {"name": "n"}, "status": status})).unwrap();
            assert_eq!(agent_address(&node), want.map(|(h, p)| (h.to_owned(), p)));
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
