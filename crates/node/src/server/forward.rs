//! Port forwarding. Over SPDY, a pair of streams per connection, data and error, joined by a number; SPDY itself over the connection
//! or, from clients since v1.31, inside WebSocket messages. Over WebSocket alone (`v4.channel.k8s.io`, `v4.base64.channel.k8s.io`),
//! two channels per port, each of which starts with the port's number.

use client::{KeyedLimit, Permit};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use supervisor::blocking;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::{Request, Response};
use runtime::{PodState, PortForward, PortStream, Runtime};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::TcpSocket;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message};

use super::coding::Coding;
use super::{Body, Error, Handle, Query, upgrade};
use crate::pod::container::{POD_NAME, POD_NAMESPACE};
use spdy::{Session, Stream};

pub(super) async fn serve(
    handle: &Handle,
    ns: &str,
    pod: &str,
    request: Request<Bytes>,
) -> Result<Response<Body>, Error> {
    let spdy = upgrade::is_spdy(&request);
    let mut ports = Vec::new();
    for list in Query::parse(&request).get_all("port").iter().chain(&Query::parse(&request).get_all("ports")) {
        for p in list.split(',') {
            let port: u16 = p.parse().map_err(|_| Error::BadRequest(format!("port: {p:?} is not a port")))?;
            ports.push(port);
        }
    }
    let tunnel = request.headers().get_all(http::header::SEC_WEBSOCKET_PROTOCOL);
    let tunnel = tunnel.iter().any(|v| v.to_str().is_ok_and(|v| v.split(',').any(|p| p.trim() == TUNNEL)));
    if ports.is_empty() && !spdy && !tunnel {
        return Err(Error::BadRequest("query parameter \"port\" is required".into()));
    }
    let is = |p: &runtime::Pod, label: &str, value: &str| p.config.labels.get(label).is_some_and(|v| v == value);
    let pods = handle.options.runtime.list_pods().await?;
    let found = pods
        .into_iter()
        .filter(|p| p.state == PodState::Ready && is(p, POD_NAMESPACE, ns) && is(p, POD_NAME, pod))
        .max_by_key(|p| p.created_at);
    let Some(found) = found else { return Err(Error::Internal(format!("pod not found (\"{pod}_{ns}\")"))) };
    let target = Target {
        runtime: handle.options.runtime.clone(),
        pod: found.id.clone(),
        namespace_name: ns.to_owned(),
        forwarded: handle.forwarded.clone(),
    };
    if spdy {
        return upgrade::spdy(request, &[SPDY], move |session, _| pairs(session, target));
    }
    upgrade::take_over(request, PROTOCOLS, move |socket, protocol| async move {
        match protocol {
            TUNNEL => unwrap(socket, target).await,
            _ => run(socket, Coding::new(protocol), ports, target).await,
        }
    })
}

const SPDY: &str = "portforward.k8s.io";
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
const PROTOCOLS: &[&str] = &[TUNNEL, "v4.channel.k8s.io", "v4.base64.channel.k8s.io", ""];

/// Serves a SPDY connection inside a WebSocket.
async fn unwrap(socket: upgrade::Socket, target: Target) {
    let (client_end, server_end) = tokio::io::duplex(64 * 1024);
    let (mut from, mut to) = tokio::io::split(client_end);
    let (mut sink, mut incoming) = socket.split();
    let send = async {
        let mut block = vec![0; 32 * 1024];
        while let Ok(n @ 1..) = from.read(&mut block).await {
            let message = Message::Binary(Bytes::copy_from_slice(&block[..n]));
            if sink.send(message).await.is_err() {
                return;
            }
        }
    };
    let receive = async {
        while let Some(Ok(m)) = incoming.next().await {
            match m {
                Message::Binary(b) if to.write_all(&b).await.is_ok() => {}
                Message::Ping(_) | Message::Pong(_) => {}
                _ => return,
            }
        }
    };
    tokio::select! {
        () = send => {}
        () = receive => {}
        () = pairs(Session::start(server_end), target) => {}
    }
    let normal = CloseFrame { code: CloseCode::Normal, reason: "".into() };
    let _ = sink.send(Message::Close(Some(normal))).await;
}

/// Streams that wait for the other stream of their pair, and how long they wait (upstream's `streamCreationTimeout`).
const UNPAIRED: usize = 128;
const OPENING: Duration = Duration::from_secs(30);
/// Size of a read from the pod, in bytes.
const BLOCK: usize = 32 * 1024;

/// Pairs the two streams of each connection and serves them.
async fn pairs(mut session: Session, target: Target) {
    let mut waiting: BTreeMap<String, (Instant, Stream)> = BTreeMap::new();
    let mut running = JoinSet::new();
    while let Some(s) = session.accept().await {
        while running.try_join_next().is_some() {}
        let late: Vec<_> = waiting.extract_if(.., |_, (since, _)| since.elapsed() > OPENING).collect();
        for (_, (_, alone)) in late {
            alone.output.reset().await;
        }
        let kind = s.header("streamtype").to_owned();
        // The oldest clients send no number: the error stream comes first, then the data stream.
        let request = match (s.header("requestid"), kind.as_str()) {
            ("", "data") => s.id.saturating_sub(2).to_string(),
            ("", _) => s.id.to_string(),
            (given, _) => given.to_owned(),
        };
        let (Ok(port @ 1..), "data" | "error") = (s.header("port").parse::<u16>(), kind.as_str()) else {
            s.output.reset().await;
            continue;
        };
        match waiting.remove(&request) {
            Some((_, first)) if first.header("streamtype") != kind => {
                let (data, error) = if kind == "data" { (s, first) } else { (first, s) };
                running.spawn(pair(data, error, port, target.clone()));
            }
            Some((_, twice)) => {
                twice.output.reset().await;
                s.output.reset().await;
            }
            None if waiting.len() >= UNPAIRED => s.output.reset().await,
            None => drop(waiting.insert(request, (Instant::now(), s))),
        }
    }
}

/// One connection to a port of the pod.
async fn pair(data: Stream, error: Stream, port: u16, target: Target) {
    let (mut input, output) = (data.input, data.output);
    match target.connect(port).await {
        Ok((socket, _share)) => {
            let (mut from, mut to) = tokio::io::split(socket);
            let up = async {
                while let Some(piece) = input.next().await {
                    if to.write_all(&piece).await.is_err() {
                        break;
                    }
                }
                let _ = to.shutdown().await;
            };
            let down = async {
                let mut block = Vec::new();
                while let Ok(n @ 1..) = read_some(&mut from, &mut block).await {
                    if !output.send(&block[..n]).await {
                        break;
                    }
                }
                // The client waits for the end of both before it ends its half.
                output.finish().await;
                error.output.finish().await;
            };
            tokio::join!(up, down);
        }
        Err(e) => {
            let why = format!("an error occurred forwarding port {port}: {}", client::https::os_error(&e));
            error.output.send(why.as_bytes()).await;
            error.output.finish().await;
            output.finish().await;
        }
    }
}

/// Reads what has arrived, at most [`BLOCK`] bytes. An idle connection holds no buffer.
async fn read_some(from: &mut (impl AsyncRead + Unpin), block: &mut Vec<u8>) -> std::io::Result<usize> {
    *block = Vec::new();
    std::future::poll_fn(|cx| {
        let mut bytes = vec![0; BLOCK];
        let mut buffer = ReadBuf::new(&mut bytes);
        std::task::ready!(Pin::new(&mut *from).poll_read(cx, &mut buffer))?;
        let length = buffer.filled().len();
        bytes.truncate(length);
        *block = bytes;
        std::task::Poll::Ready(Ok(length))
    })
    .await
}

/// Forwarded connections at a time: in all, and to pods of one namespace.
pub(super) const FORWARDED: usize = 2048;
pub(super) const FORWARDED_EACH: usize = 512;

/// The pod to which connections are forwarded.
#[derive(Clone)]
struct Target {
    runtime: Arc<dyn Runtime>,
    /// The id of its sandbox.
    pod: String,
    /// Its namespace in the API.
    namespace_name: String,
    forwarded: Arc<KeyedLimit<String>>,
}

impl Target {
    /// Connects to the pod's loopback, from inside its network.
    async fn connect(&self, port: u16) -> std::io::Result<(Box<dyn PortStream>, Permit<String>)> {
        let Some(share) = self.forwarded.acquire(self.namespace_name.clone()) else {
            return Err(std::io::Error::other("too many connections are being forwarded to this namespace"));
        };
        let namespace = match self.runtime.forward_port(&self.pod, port).await.map_err(std::io::Error::other)? {
            PortForward::Stream(stream) => return Ok((stream, share)),
            PortForward::Namespace(namespace) => namespace,
        };
        // It waits for a thread that enters the namespace.
        let sockets = move || {
            let in_namespace =
                |make: fn() -> std::io::Result<TcpSocket>| network::namespace::run_in(namespace.as_deref(), make);
            Ok::<_, std::io::Error>((in_namespace(TcpSocket::new_v4)?, in_namespace(TcpSocket::new_v6)))
        };
        let (v4, v6) = blocking(sockets).await?;
        let stream = match v4.connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await {
            Ok(stream) => stream,
            // A server may listen on the loopback address of IPv6 alone.
            Err(refused) => match v6 {
                Ok(v6) => v6.connect(SocketAddr::from((Ipv6Addr::LOCALHOST, port))).await.map_err(|_| refused)?,
                Err(_) => return Err(refused),
            },
        };
        Ok((Box::new(stream), share))
    }
}

async fn run(socket: upgrade::Socket, coding: Coding, ports: Vec<u16>, target: Target) {
    let (sink, mut incoming) = socket.split();
    let sink = Arc::new(Mutex::new(sink));
    let mut writers = BTreeMap::new();
    let mut readers = Vec::new();
    for (i, port) in ports.iter().enumerate() {
        let Ok(data) = u8::try_from(i * 2) else { break };
        for channel in [data, data + 1] {
            if sink.lock().await.send(coding.write(channel, &port.to_le_bytes())).await.is_err() {
                return;
            }
        }
        match target.connect(*port).await {
            Ok((stream, share)) => {
                let (mut from, to) = tokio::io::split(stream);
                writers.insert(data, to);
                let sink = sink.clone();
                readers.push(tokio::spawn(async move {
                    let _share = share;
                    let mut block = vec![0; 32 * 1024];
                    while let Ok(n @ 1..) = from.read(&mut block).await {
                        if sink.lock().await.send(coding.write(data, &block[..n])).await.is_err() {
                            return;
                        }
                    }
                    let _ = sink.lock().await.close().await;
                }));
            }
            Err(e) => {
                let why = format!("an error occurred forwarding port {port}: {}", client::https::os_error(&e));
                let _ = sink.lock().await.send(coding.write(data + 1, why.as_bytes())).await;
            }
        }
    }
    while let Some(Ok(m)) = incoming.next().await {
        if matches!(m, Message::Close(_)) {
            break;
        }
        if let Some((channel, data)) = coding.read(m)
            && let Some(to) = writers.get_mut(&channel)
            && to.write_all(&data).await.is_err()
        {
            break;
        }
    }
    for r in readers {
        r.abort();
    }
}
