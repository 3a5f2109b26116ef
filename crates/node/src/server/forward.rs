//! Port forwarding over WebSocket: `v4.channel.k8s.io`, as older clients speak it. Two channels per port, data and error, each
//! beginning with the port's number. Left out: the tunnelled SPDY that newer clients try first; they fall back.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::{Request, Response};
use runtime::PodState;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Mutex;
use tokio_tungstenite::tungstenite::protocol::Message;

use super::{Body, Error, Handle, Query, stream};
use crate::pod::container::{POD_NAME, POD_NAMESPACE};

pub(super) async fn serve(
    handle: &Handle,
    ns: &str,
    pod: &str,
    request: Request<Bytes>,
) -> Result<Response<Body>, Error> {
    let mut ports = Vec::new();
    for list in Query::of(&request).all("port").iter().chain(&Query::of(&request).all("ports")) {
        for p in list.split(',') {
            let port: u16 = p.parse().map_err(|_| Error::BadRequest(format!("port: {p:?} is not a port")))?;
            ports.push(port);
        }
    }
    if ports.is_empty() {
        return Err(Error::BadRequest("query parameter \"port\" is required".into()));
    }
    let is = |p: &runtime::Pod, label: &str, value: &str| p.config.labels.get(label).is_some_and(|v| v == value);
    let pods = handle.options.runtime.list_pods().await?;
    let found = pods
        .into_iter()
        .filter(|p| p.state == PodState::Ready && is(p, POD_NAMESPACE, ns) && is(p, POD_NAME, pod))
        .max_by_key(|p| p.created_at);
    let Some(found) = found else { return Err(Error::NotFound(format!("pod {pod:?} is not running"))) };
    let namespace = found.config.netns.clone();
    stream::take_over(request, &["v4.channel.k8s.io"], move |socket, _| run(socket, ports, namespace))
}

/// Connects to the pod's loopback, from inside its network.
async fn connect(namespace: Option<&std::path::Path>, port: u16) -> std::io::Result<TcpStream> {
    let socket = network::namespace::run_in(namespace, TcpSocket::new_v4)?;
    socket.connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await
}

async fn run(socket: stream::Socket, ports: Vec<u16>, namespace: Option<std::path::PathBuf>) {
    let (sink, mut incoming) = socket.split();
    let sink = Arc::new(Mutex::new(sink));
    let message = |channel: u8, data: &[u8]| {
        let mut bytes = vec![channel];
        bytes.extend_from_slice(data);
        Message::Binary(bytes.into())
    };
    let mut writers = BTreeMap::new();
    let mut readers = Vec::new();
    for (i, port) in ports.iter().enumerate() {
        let Ok(data) = u8::try_from(i * 2) else { break };
        for channel in [data, data + 1] {
            if sink.lock().await.send(message(channel, &port.to_le_bytes())).await.is_err() {
                return;
            }
        }
        match connect(namespace.as_deref(), *port).await {
            Ok(stream) => {
                let (mut from, to) = stream.into_split();
                writers.insert(data, to);
                let sink = sink.clone();
                readers.push(tokio::spawn(async move {
                    let mut block = vec![0; 32 * 1024];
                    while let Ok(n @ 1..) = from.read(&mut block).await {
                        if sink.lock().await.send(message(data, &block[..n])).await.is_err() {
                            return;
                        }
                    }
                    let _ = sink.lock().await.close().await;
                }));
            }
            Err(e) => {
                let why = format!("an error occurred forwarding port {port}: {e}");
                let _ = sink.lock().await.send(message(data + 1, why.as_bytes())).await;
            }
        }
    }
    while let Some(Ok(m)) = incoming.next().await {
        match m {
            Message::Binary(b) => {
                if let Some((channel, data)) = b.split_first()
                    && let Some(to) = writers.get_mut(channel)
                    && to.write_all(data).await.is_err()
                {
                    break;
                }
            }
            Message::Close(_) => break,
            _ => {}
        }
    }
    for r in readers {
        r.abort();
    }
}
