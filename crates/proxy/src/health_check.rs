//! Health checks of services with `externalTrafficPolicy: Local` (upstream `pkg/proxy/healthcheck`): on the `healthCheckNodePort` of a
//! service, every node tells load balancers whether it has endpoints.
//!
//! Each connection gets one response. A port has a limited number of connections, and connections that only wait keep nobody out.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use supervisor::Shutdown;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

/// Connections of a port at a time.
const CONNECTIONS: usize = 64;
/// How long a connection may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum length of a request.
const REQUEST: usize = 8192;
/// The pause after a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// The health of a service on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The namespace of the service.
    pub namespace: String,
    /// The name of the service.
    pub name: String,
    /// The number of its ready endpoints on this node.
    pub local_endpoints: usize,
}

impl Health {
    fn response(&self) -> String {
        let Health { namespace, name, local_endpoints } = self;
        let status = if *local_endpoints > 0 { "200 OK" } else { "503 Service Unavailable" };
        let body = format!(
            "{{\n\t\"service\": {{\n\t\t\"namespace\": {namespace:?},\n\t\t\"name\": {name:?}\n\t}},\n\t\"localEndpoints\": {local_endpoints},\n\t\"serviceProxyHealthy\": true\n}}"
        );
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
             X-Load-Balancing-Endpoint-Weight: {local_endpoints}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
    }
}

/// A served port.
struct Server {
    health: watch::Sender<Health>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The served ports.
#[derive(Default)]
pub struct HealthChecks {
    servers: BTreeMap<u16, Server>,
}

impl HealthChecks {
    /// Serves these ports and no others. A port that cannot be opened is logged, and tried again with the next call.
    pub async fn set(&mut self, desired: &BTreeMap<u16, Health>, shutdown: &Shutdown) {
        self.servers.retain(|port, _| desired.contains_key(port));
        for (port, health) in desired {
            if let Some(server) = self.servers.get(port) {
                server.health.send_if_modified(|known| {
                    *known != *health && {
                        known.clone_from(health);
                        true
                    }
                });
                continue;
            }
            // On the addresses of both families, if the machine has them.
            let listener = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, *port)).await {
                Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).await,
                both => both,
            };
            let listener = match listener {
                Ok(listener) => listener,
                Err(error) => {
                    let service = format!("{}/{}", health.namespace, health.name);
                    tracing::warn!(%error, port, service, "the port for health checks of a service cannot be opened");
                    continue;
                }
            };
            let sender = watch::Sender::new(health.clone());
            let (receiver, shutdown) = (sender.subscribe(), shutdown.clone());
            let task = tokio::spawn(async move { _ = shutdown.race(serve(listener, receiver)).await });
            self.servers.insert(*port, Server { health: sender, task });
        }
    }
}

/// The open connections of a port, oldest first.
#[derive(Default)]
struct Connections(Vec<(IpAddr, AbortHandle)>);

impl Connections {
    /// Makes room for one more: closes the oldest connection of the address that has the most.
    fn make_room(&mut self) {
        if self.0.len() < CONNECTIONS {
            return;
        }
        self.0.retain(|(_, task)| !task.is_finished());
        if self.0.len() < CONNECTIONS {
            return;
        }
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        self.0.iter().for_each(|(address, _)| *counts.entry(*address).or_default() += 1);
        let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(address, _)| address);
        if let Some(oldest) = self.0.iter().position(|(address, _)| Some(*address) == most) {
            self.0.remove(oldest).1.abort();
        }
    }
}

async fn serve(listener: TcpListener, health: watch::Receiver<Health>) {
    let mut open = Connections::default();
    // Dropped with this task, and the connections with it.
    let mut tasks = JoinSet::new();
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        while tasks.try_join_next().is_some() {}
        open.make_room();
        let response = health.borrow().response();
        let task = tasks.spawn(async move {
            let _ = tokio::time::timeout(PATIENCE, respond(stream, &response)).await;
        });
        open.0.push((peer.ip(), task));
    }
}

/// Reads a request, whatever it is, and responds.
async fn respond(mut stream: TcpStream, response: &str) -> io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.windows(4).any(|w| w == b"\r\n\r\n") {
        let length = stream.read(&mut buffer).await?;
        if length == 0 || request.len() + length > REQUEST {
            return Ok(());
        }
        request.extend_from_slice(&buffer[..length]);
    }
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn get(port: u16) -> io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    }

    /// Connections without a request held the port until each of them had timed out.
    #[tokio::test]
    async fn silent_connections_keep_nobody_out() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let health = watch::Sender::new(Health::default());
        let server = tokio::spawn(serve(listener, health.subscribe()));
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS * 3 {
            silent.push(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap());
        }
        let answer = tokio::time::timeout(PATIENCE / 2, get(port)).await.expect("it is answered at once").unwrap();
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        server.abort();
    }

    #[tokio::test]
    async fn a_port_shows_the_number_of_endpoints() {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let (_trigger, shutdown) = client::shutdown();
        let mut checks = HealthChecks::default();
        let health = |local_endpoints| {
            let health = Health { namespace: "default".into(), name: "web".into(), local_endpoints };
            BTreeMap::from([(port, health)])
        };
        checks.set(&health(2), &shutdown).await;
        let text = get(port).await.unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(text.contains("X-Load-Balancing-Endpoint-Weight: 2\r\n"), "{text}");
        let (_, body) = text.split_once("\r\n\r\n").unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        let expect = serde_json::json!({"service": {"namespace": "default", "name": "web"}, "localEndpoints": 2,
            "serviceProxyHealthy": true});
        assert_eq!(body, expect);
        checks.set(&health(0), &shutdown).await;
        assert!(get(port).await.unwrap().starts_with("HTTP/1.1 503 Service Unavailable\r\n"));
        checks.set(&BTreeMap::new(), &shutdown).await;
        let mut closed = false;
        for _ in 0..100 {
            closed |= get(port).await.is_err();
            tokio::task::yield_now().await;
        }
        assert!(closed);
    }
}
