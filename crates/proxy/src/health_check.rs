//! Health checks of services with `externalTrafficPolicy: Local` (upstream `pkg/proxy/healthcheck`): on the `healthCheckNodePort` of a
//! service, every node tells load balancers whether it has endpoints.

use std::collections::BTreeMap;
use supervisor::Shutdown;
use supervisor::plain_http::{Response, on_all_addresses, serve};
use tokio::sync::watch;
use tokio::task::JoinHandle;

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
    fn response(&self) -> Response {
        let Health { namespace, name, local_endpoints } = self;
        let body = format!(
            "{{\n\t\"service\": {{\n\t\t\"namespace\": {namespace:?},\n\t\t\"name\": {name:?}\n\t}},\n\t\"localEndpoints\": {local_endpoints},\n\t\"serviceProxyHealthy\": true\n}}"
        );
        Response::json(if *local_endpoints > 0 { 200 } else { 503 }, body)
            .with_header("X-Load-Balancing-Endpoint-Weight", &local_endpoints.to_string())
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
            let listener = match on_all_addresses(*port).await {
                Ok(listener) => listener,
                Err(error) => {
                    let service = format!("{}/{}", health.namespace, health.name);
                    tracing::warn!(%error, port, service, "the port for health checks of a service cannot be opened");
                    continue;
                }
            };
            let sender = watch::Sender::new(health.clone());
            let (receiver, shutdown) = (sender.subscribe(), shutdown.clone());
            let answer = move |_: &str, _: &str| receiver.borrow().response();
            let task = tokio::spawn(async move { _ = shutdown.race(serve(listener, answer)).await });
            self.servers.insert(*port, Server { health: sender, task });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::net::Ipv4Addr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    /// The whole response to a request for `/healthz`.
    async fn get(port: u16) -> io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
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
