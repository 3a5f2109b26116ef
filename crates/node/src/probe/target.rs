//! What probes and hooks are aimed at: a container, and the network of its pod.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use client::lookups::{Lookups, Share};
use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use runtime::Runtime;
use supervisor::blocking;
use tokio::net::{TcpSocket, TcpStream};

/// Bytes that are kept of a probe's output.
pub(super) const MAX_OUTPUT: usize = 10 * 1024;

/// The result of an attempt that did not fail.
pub(super) enum Outcome {
    Success,
    Warning(String),
}

/// The lookups of a pod's host names.
#[derive(Clone)]
pub struct Names {
    pub lookups: Arc<Lookups>,
    pub namespace: String,
    /// UID of the pod.
    pub uid: String,
}

impl Names {
    /// Lookups at a time: of all pods, of the pods of a namespace, and of one pod. A pod that names a host of its own DNS zone decides
    /// how long a lookup takes.
    pub const MAX: usize = 64;
    const MAX_OF_NAMESPACE: usize = 8;
    const MAX_OF_POD: usize = 2;

    async fn lookup(&self, host: &str, port: u16) -> Option<SocketAddr> {
        let namespace = format!("namespace {}", self.namespace);
        let pod = Share { key: &self.uid, limit: Self::MAX_OF_POD };
        let shares = [pod, Share { key: &namespace, limit: Self::MAX_OF_NAMESPACE }];
        self.lookups.lookup(&shares, host, port).await.ok()?.into_iter().next()
    }
}

/// The container that is probed, or runs a hook.
pub struct Target<'a> {
    pub runtime: &'a dyn Runtime,
    pub container_id: &'a str,
    pub spec: &'a Container,
    pub pod_ip: Option<IpAddr>,
    pub node_namespace: Option<PathBuf>,
    pub names: &'a Names,
}

impl Target<'_> {
    /// The host that an action names, or the pod's address.
    pub(super) fn host(&self, given: Option<&str>) -> Result<String, String> {
        match (given.filter(|h| !h.is_empty()), self.pod_ip) {
            (Some(h), _) => Ok(h.to_owned()),
            (None, Some(ip)) => Ok(ip.to_string()),
            (None, None) => Err("the pod has no address".to_owned()),
        }
    }

    /// The number of a port, which may be the name of a port of the container.
    pub(super) fn port(&self, port: &IntOrString) -> Result<u16, String> {
        let number = match port {
            IntOrString::Int(n) => Some(*n),
            IntOrString::String(name) => match name.parse() {
                Ok(n) => Some(n),
                Err(_) => {
                    self.spec.ports.iter().flatten().find(|p| p.name.as_ref() == Some(name)).map(|p| p.container_port)
                }
            },
        };
        match (number.and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0), port) {
            (Some(n), _) => Ok(n),
            (None, IntOrString::Int(n)) => Err(format!("invalid port number: {n}")),
            (None, IntOrString::String(name)) => Err(format!("couldn't find port: {name}")),
        }
    }

    /// Connects from the node's network namespace.
    pub(super) async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, String> {
        let address = self.names.lookup(host, port).await;
        let address = address.ok_or_else(|| format!("dial tcp: lookup {host}: no such host"))?;
        let error = |e: std::io::Error| format!("dial tcp {address}: connect: {}", plain(&e));
        let create = move || match address {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        };
        let socket = match self.node_namespace.clone() {
            None => create(),
            // It waits for a thread that enters the namespace.
            Some(namespace) => blocking(move || network::namespace::run_in(Some(&namespace), create)).await,
        };
        let socket = socket.map_err(error)?;
        socket.connect(address).await.map_err(error)
    }
}

/// The message of an error, as Go prints it.
fn plain(e: &std::io::Error) -> String {
    use std::io::ErrorKind;
    match e.kind() {
        ErrorKind::ConnectionRefused => "connection refused".into(),
        ErrorKind::ConnectionReset => "connection reset by peer".into(),
        ErrorKind::HostUnreachable => "no route to host".into(),
        ErrorKind::NetworkUnreachable => "network is unreachable".into(),
        ErrorKind::TimedOut => "connection timed out".into(),
        _ => e.to_string(),
    }
}
