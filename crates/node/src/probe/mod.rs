//! One attempt of a probe or a hook: exec, HTTP, TCP, gRPC. Says whether it succeeded and, if not, why, in upstream's words.
//!
//! Sockets are made in the node's network namespace, from which pods are reached.

mod grpc;
mod http;
mod url;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use client::lookups::{Lookups, Share};
use k8s_openapi::api::core::v1::{Container, ExecAction, GRPCAction, HTTPGetAction, TCPSocketAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use runtime::Runtime;
use tokio::net::{TcpSocket, TcpStream};

pub use self::http::Redirects;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    Success,
    /// A success that somebody should know more of.
    Warning(String),
    Failure(String),
}

impl Attempt {
    /// Whether it counts as a success.
    pub fn is_good(&self) -> bool {
        !matches!(self, Self::Failure(_))
    }
}

/// How an attempt that did not fail ended.
enum Outcome {
    Success,
    Warning(String),
}

/// What to try.
pub enum Action<'a> {
    Exec(&'a ExecAction),
    Http(&'a HTTPGetAction, Redirects),
    Tcp(&'a TCPSocketAction),
    Grpc(&'a GRPCAction),
}

/// The lookups of a pod's host names.
#[derive(Clone)]
pub struct Names {
    pub lookups: Arc<Lookups>,
    pub namespace: String,
    /// Of the pod.
    pub uid: String,
}

impl Names {
    /// Lookups of all pods, of those of a namespace, and of one, at a time. They may be as slow as a DNS server, which a pod can
    /// choose by a name of its zone.
    pub const MOST: usize = 64;
    const OF_NAMESPACE: usize = 8;
    const OF_POD: usize = 2;

    async fn lookup(&self, host: &str, port: u16) -> Option<SocketAddr> {
        let namespace = format!("namespace {}", self.namespace);
        let pod = Share { key: &self.uid, most: Self::OF_POD };
        let shares = [pod, Share { key: &namespace, most: Self::OF_NAMESPACE }];
        self.lookups.lookup(&shares, host, port).await.ok()?.into_iter().next()
    }
}

/// On whom.
pub struct Target<'a> {
    pub runtime: &'a dyn Runtime,
    pub container_id: &'a str,
    pub spec: &'a Container,
    pub pod_ip: Option<IpAddr>,
    pub node_namespace: Option<PathBuf>,
    pub names: &'a Names,
}

impl Target<'_> {
    pub async fn attempt(&self, action: &Action<'_>, timeout: Duration) -> Attempt {
        let result = match action {
            Action::Exec(a) => self.exec(a, timeout).await.map(|()| Outcome::Success),
            Action::Http(a, redirects) => http::get(self, a, *redirects, timeout).await,
            Action::Tcp(a) => self.tcp(a, timeout).await.map(|()| Outcome::Success),
            Action::Grpc(a) => grpc::check(self, a, timeout).await.map(|()| Outcome::Success),
        };
        match result {
            Ok(Outcome::Success) => Attempt::Success,
            Ok(Outcome::Warning(what)) => Attempt::Warning(what),
            Err(why) => Attempt::Failure(why),
        }
    }

    async fn exec(&self, a: &ExecAction, timeout: Duration) -> Result<(), String> {
        let command = a.command.clone().unwrap_or_default();
        match self.runtime.exec_sync(self.container_id, command.clone(), Some(timeout), MAX_OUTPUT as u64).await {
            Ok(r) if r.exit_code == 0 => Ok(()),
            Ok(r) => {
                let mut out = String::from_utf8_lossy(&r.stdout).into_owned();
                out.push_str(&String::from_utf8_lossy(&r.stderr));
                truncate(&mut out);
                Err(out)
            }
            Err(runtime::Error::Timeout { .. }) => {
                let secs = timeout.as_secs();
                Err(format!("command timed out: \"{}\" timed out after {secs}s", command.join(" ")))
            }
            Err(e) => Err(e.to_string()),
        }
    }

    async fn tcp(&self, a: &TCPSocketAction, timeout: Duration) -> Result<(), String> {
        let port = self.port(&a.port)?;
        let host = self.host(a.host.as_deref())?;
        let work = async { self.connect(&host, port).await.map(drop) };
        match tokio::time::timeout(timeout, work).await {
            Ok(r) => r,
            Err(_) => Err(format!("dial tcp {host}:{port}: i/o timeout")),
        }
    }

    fn host(&self, given: Option<&str>) -> Result<String, String> {
        match (given.filter(|h| !h.is_empty()), self.pod_ip) {
            (Some(h), _) => Ok(h.to_owned()),
            (None, Some(ip)) => Ok(ip.to_string()),
            (None, None) => Err("the pod has no address".to_owned()),
        }
    }

    fn port(&self, port: &IntOrString) -> Result<u16, String> {
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

    async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, String> {
        let address = self.names.lookup(host, port).await;
        let address = address.ok_or_else(|| format!("dial tcp: lookup {host}: no such host"))?;
        let said = |e: std::io::Error| format!("dial tcp {address}: connect: {}", plain(&e));
        let socket = network::namespace::run_in(self.node_namespace.as_deref(), || match address {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        })
        .map_err(said)?;
        socket.connect(address).await.map_err(said)
    }
}

/// An error as Go prints the errno.
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

/// What is kept of a probe's output.
const MAX_OUTPUT: usize = 10 * 1024;

fn truncate(out: &mut String) {
    if out.len() > MAX_OUTPUT {
        let cut = (0..=MAX_OUTPUT).rev().find(|i| out.is_char_boundary(*i)).unwrap_or(0);
        out.truncate(cut);
    }
}
