//! Listening, following the API, and asking others where that is allowed.

use std::net::{SocketAddr, TcpListener as StdTcp, UdpSocket as StdUdp};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use client::{Client, Informer, Informers, Shutdown};
use hickory_proto::op::{Message, MessageType};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use parking_lot::RwLock;
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Notify, Semaphore};

use crate::answer::{Answer, answer, udp_bytes};
use crate::zone::Zone;

/// Changes that come within this are taken together.
const TOGETHER: Duration = Duration::from_millis(10);
/// How long another server is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a TCP connection may be idle.
const IDLE: Duration = Duration::from_secs(10);
/// Queries that are forwarded, and TCP connections, at a time.
const AT_A_TIME: usize = 256;

/// How a server is set up.
pub struct Options {
    /// As `system:kube-dns`.
    pub client: Client,
    /// Where it listens, on UDP and TCP.
    pub listen: SocketAddr,
    /// The network namespace it listens in; `None` is the process's.
    pub namespace: Option<PathBuf>,
    /// `cluster.local`.
    pub domain: String,
    /// Asked for names that are not the cluster's; nobody if empty.
    pub upstreams: Vec<SocketAddr>,
    pub rng: Arc<dyn meta::Rng>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: std::io::Error },
}

/// A view without fields: the whole object is decoded when the zone is made.
#[derive(Deserialize)]
struct Whole {}

struct Shared {
    zone: RwLock<Arc<Zone>>,
    upstreams: Vec<SocketAddr>,
    namespace: Option<PathBuf>,
    slots: Semaphore,
}

pub struct Server {
    udp: Arc<UdpSocket>,
    tcp: TcpListener,
    shared: Arc<Shared>,
    client: Client,
    domain: String,
    rng: Arc<dyn meta::Rng>,
}

impl Server {
    /// Listens, so that the address is known to work before anyone is told of it. Must be called inside the runtime.
    pub fn bind(options: Options) -> Result<Self, Error> {
        let failed = |source| Error::Listen { address: options.listen, source };
        let (udp, tcp) = network::namespace::run_in(options.namespace.as_deref(), || {
            let udp = StdUdp::bind(options.listen)?;
            let tcp = StdTcp::bind(udp.local_addr()?)?;
            udp.set_nonblocking(true)?;
            tcp.set_nonblocking(true)?;
            Ok((udp, tcp))
        })
        .map_err(failed)?;
        let shared = Shared {
            zone: RwLock::new(Arc::new(Zone::build(&[], &[], &options.domain))),
            upstreams: options.upstreams,
            namespace: options.namespace,
            slots: Semaphore::new(AT_A_TIME),
        };
        Ok(Self {
            udp: Arc::new(UdpSocket::from_std(udp).map_err(failed)?),
            tcp: TcpListener::from_std(tcp).map_err(failed)?,
            shared: Arc::new(shared),
            client: options.client,
            domain: options.domain,
            rng: options.rng,
        })
    }

    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.udp.local_addr()
    }

    /// Runs until `shutdown`. Until the first lists have come nothing is answered: clients ask again, and a wrong answer would
    /// be kept.
    pub async fn run(self, shutdown: Shutdown) {
        let informers = Informers::new(self.client, self.rng, shutdown.clone());
        let services: Informer<Whole> = informers.of::<Service, Whole>();
        let slices: Informer<Whole> = informers.of::<EndpointSlice, Whole>();
        let changed = Arc::new(Notify::new());
        for informer in [&services, &slices] {
            let changed = changed.clone();
            informer.on_change(move |_| changed.notify_one());
        }
        let rebuild = || {
            let services: Vec<Service> = services.cache().all().filter_map(|e| e.decode().ok()).collect();
            let slices: Vec<EndpointSlice> = slices.cache().all().filter_map(|e| e.decode().ok()).collect();
            *self.shared.zone.write() = Arc::new(Zone::build(&services, &slices, &self.domain));
        };
        let follow = async {
            loop {
                rebuild();
                changed.notified().await;
                tokio::time::sleep(TOGETHER).await;
            }
        };
        let work = async {
            services.synced().await;
            slices.synced().await;
            rebuild();
            tokio::join!(follow, serve_udp(&self.udp, &self.shared), serve_tcp(&self.tcp, &self.shared))
        };
        shutdown.race(work).await;
    }
}

async fn serve_udp(socket: &Arc<UdpSocket>, shared: &Arc<Shared>) {
    let mut buffer = vec![0; 4096];
    loop {
        let (length, peer) = match socket.recv_from(&mut buffer).await {
            Ok(got) => got,
            // An earlier answer could not be delivered.
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => continue,
            Err(error) => {
                tracing::warn!(%error, "receiving a query");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Some(query) = parse(&buffer[..length]) else { continue };
        let zone = shared.zone.read().clone();
        match answer(&zone, &query) {
            Answer::Response(m) => {
                if let Some(bytes) = udp_bytes(&query, &m) {
                    let _ = socket.send_to(&bytes, peer).await;
                }
            }
            Answer::Foreign { refusal } => {
                let (shared, socket, bytes) = (shared.clone(), socket.clone(), buffer[..length].to_vec());
                tokio::spawn(async move {
                    let reply = match forward_udp(&shared, &bytes).await {
                        Some(reply) => Some(reply),
                        None => udp_bytes(&query, &refusal),
                    };
                    if let Some(reply) = reply {
                        let _ = socket.send_to(&reply, peer).await;
                    }
                });
            }
        }
    }
}

/// A query; anything else is nothing to answer.
fn parse(bytes: &[u8]) -> Option<Message> {
    Message::from_vec(bytes).ok().filter(|m| m.metadata.message_type == MessageType::Query)
}

async fn serve_tcp(listener: &TcpListener, shared: &Arc<Shared>) {
    let connections = Arc::new(Semaphore::new(AT_A_TIME));
    loop {
        let Ok(permit) = connections.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let shared = shared.clone();
                tokio::spawn(async move {
                    if let Err(error) = converse(stream, &shared).await {
                        tracing::debug!(%error, "a connection");
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accepting a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn converse(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    loop {
        let Ok(bytes) = tokio::time::timeout(IDLE, framed(&mut stream)).await else { return Ok(()) };
        let Some(bytes) = bytes? else { return Ok(()) };
        let Some(query) = parse(&bytes) else { return Ok(()) };
        let zone = shared.zone.read().clone();
        let reply = match answer(&zone, &query) {
            Answer::Response(m) => m.to_vec().ok(),
            Answer::Foreign { refusal } => match forward_tcp(shared, &bytes).await {
                Some(reply) => Some(reply),
                None => refusal.to_vec().ok(),
            },
        };
        let Some(reply) = reply else { return Ok(()) };
        send_framed(&mut stream, &reply).await?;
    }
}

/// A message with its length before it; `None` at the end.
async fn framed(stream: &mut TcpStream) -> std::io::Result<Option<Vec<u8>>> {
    let length = match stream.read_u16().await {
        Ok(n) => n,
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut bytes = vec![0; usize::from(length)];
    stream.read_exact(&mut bytes).await?;
    Ok(Some(bytes))
}

async fn send_framed(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    let length = u16::try_from(bytes.len()).map_err(std::io::Error::other)?;
    let mut out = length.to_be_bytes().to_vec();
    out.extend_from_slice(bytes);
    stream.write_all(&out).await
}

/// Asks one server after the other.
async fn forward_udp(shared: &Shared, query: &[u8]) -> Option<Vec<u8>> {
    let _slot = shared.slots.try_acquire().ok()?;
    for upstream in &shared.upstreams {
        let ask = async {
            let any: SocketAddr = if upstream.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
            let socket = network::namespace::run_in(shared.namespace.as_deref(), || {
                let s = StdUdp::bind(any)?;
                s.set_nonblocking(true)?;
                Ok(s)
            })?;
            let socket = UdpSocket::from_std(socket)?;
            socket.connect(upstream).await?;
            socket.send(query).await?;
            let mut buffer = vec![0; 4096];
            loop {
                let n = socket.recv(&mut buffer).await?;
                // Only the answer to this very query.
                if buffer.get(..2) == query.get(..2) {
                    buffer.truncate(n);
                    return Ok::<_, std::io::Error>(buffer);
                }
            }
        };
        if let Ok(Ok(reply)) = tokio::time::timeout(PATIENCE, ask).await {
            return Some(reply);
        }
    }
    None
}

async fn forward_tcp(shared: &Shared, query: &[u8]) -> Option<Vec<u8>> {
    let _slot = shared.slots.try_acquire().ok()?;
    for upstream in &shared.upstreams {
        let ask = async {
            let socket = network::namespace::run_in(shared.namespace.as_deref(), || match upstream {
                SocketAddr::V4(_) => tokio::net::TcpSocket::new_v4(),
                SocketAddr::V6(_) => tokio::net::TcpSocket::new_v6(),
            })?;
            let mut stream = socket.connect(*upstream).await?;
            send_framed(&mut stream, query).await?;
            framed(&mut stream).await
        };
        if let Ok(Ok(Some(reply))) = tokio::time::timeout(PATIENCE, ask).await {
            return Some(reply);
        }
    }
    None
}
