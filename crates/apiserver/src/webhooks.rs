//! The webhook transport: HTTPS with the configuration's CA, to a URL or to an endpoint of a service, with the
//! credentials of a kubeconfig.
//!
//! **Invariant**: users who write a service or its endpoints cannot make this server call an address of its own
//! machine ([`Reach::Network`]); a URL, which an administrator writes, may be such an address.

use crate::Metrics;
use crate::services::Services;
use crate::workers;
use admission::{CallError, TOO_MANY_OUTSIDE};
use async_trait::async_trait;
use auth::remote::refusal;
use auth::{Caller, Endpoint, EndpointAddress};
use bytes::Bytes;
use client::https::{Config, Https, Reach, Roots};
use client::{Error, Transport};
use http::Request;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, USER_AGENT};
use http_body_util::{BodyExt, Limited};
use meta::Clock;
use parking_lot::Mutex;
use registry::convert::Conversion;
use registry::{Registry, WebhookTransport};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of cached connections; above it, all are dropped.
const KEPT: usize = 128;
/// Maximum size of a response: a patch may add as much as a request.
pub(crate) const MAX_ANSWER: usize = 2 * crate::content::MAX_BODY;

/// Server URL, CA bundle, server name and caller.
type ConnectionKey = (String, Vec<u8>, Option<String>, Option<String>);

/// Cached connections to webhooks.
pub(crate) struct Clients {
    connections: Mutex<HashMap<ConnectionKey, Arc<dyn Transport>>>,
    metrics: Arc<Metrics>,
    services: Arc<Services>,
    /// Where endpoints of services may be.
    endpoints: Reach,
}

/// The target of a call.
struct Target {
    /// `https://host:port`.
    server: String,
    /// As in error messages.
    host: String,
    path: String,
    name: Option<String>,
    reach: Reach,
}

#[async_trait]
impl WebhookTransport for Clients {
    async fn post(
        &self,
        registry: &Registry,
        to: &Endpoint,
        timeout: Duration,
        body: Vec<u8>,
    ) -> Result<Vec<u8>, String> {
        let answer = workers::await_remote(self.call(registry, to, None, timeout, body)).await;
        answer.unwrap_or(Err(CallError::Busy)).map_err(|e| match e {
            CallError::NotSent(why) | CallError::Failed { why, .. } => why,
            CallError::Busy => TOO_MANY_OUTSIDE.into(),
        })
    }

    fn converted(&self, conversion: &Conversion<'_>) {
        self.metrics.converted(conversion);
    }
}

impl Clients {
    pub fn new(metrics: Arc<Metrics>, services: Arc<Services>, endpoints: Reach) -> Self {
        Self { connections: Mutex::default(), metrics, services, endpoints }
    }

    /// Errors have the messages of Go's HTTP client.
    pub async fn call(
        &self,
        registry: &Registry,
        to: &Endpoint,
        caller: Option<&Arc<Caller>>,
        timeout: Duration,
        body: Vec<u8>,
    ) -> Result<Vec<u8>, CallError> {
        let sending = |why: String| CallError::Failed { code: None, why };
        let shown = |host: &str, path: &str| format!("Post \"https://{host}{path}?timeout={}s\"", timeout.as_secs());
        let target = match &to.place {
            EndpointAddress::Url(url) => by_url(url).map_err(CallError::NotSent)?,
            EndpointAddress::Service { namespace, name, path, port } => {
                let host = format!("{name}.{namespace}.svc:{port}");
                let path = cleaned(path);
                let address = self.services.resolve(registry, namespace, name, *port);
                let address = address.map_err(|e| sending(format!("{}: {e}", shown(&host, &path))))?;
                let server = format!("https://{address}");
                Target { server, host, path, name: Some(format!("{name}.{namespace}.svc")), reach: self.endpoints }
            }
        };
        let what = shown(&target.host, &target.path);
        let work = async {
            let client = self.client(&target, &to.ca, caller, &registry.clock).await;
            let client = client.map_err(|e| Failure::Asking(e.why()))?;
            exchange(&*client, request(&target, caller, timeout, body).map_err(Failure::Asking)?).await
        };
        match tokio::time::timeout(timeout, work).await {
            Ok(Err(Failure::Asking(why))) => Err(CallError::NotSent(why)),
            Err(_) => Err(sending(format!("{what}: context deadline exceeded"))),
            Ok(Err(Failure::Sending(e))) => Err(sending(format!("{what}: {e}"))),
            Ok(Err(Failure::Answer(code, why))) => Err(CallError::Failed { code: Some(code), why }),
            Ok(Ok(body)) => Ok(body),
        }
    }

    async fn client(
        &self,
        to: &Target,
        ca: &[u8],
        caller: Option<&Arc<Caller>>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Arc<dyn Transport>, Error> {
        // Only services have a server name here, so they never share a connection with a URL, which may be any
        // address.
        let key = (to.server.clone(), ca.to_vec(), to.name.clone(), caller.map(|c| c.name.clone()));
        if let Some(c) = self.connections.lock().get(&key) {
            return Ok(c.clone());
        }
        let roots = if ca.is_empty() { Roots::System } else { Roots::Pem(ca.to_vec()) };
        // HTTP/2 would send all requests to one of several backends.
        let config = Config {
            roots,
            server_name: to.name.clone(),
            disable_http2: true,
            reach: to.reach,
            ..Config::new(to.server.clone())
        };
        let client: Arc<dyn Transport> = match caller {
            Some(c) => c.user.transport(config, clock).await?,
            None => Arc::new(Https::new(&config)?),
        };
        let mut connections = self.connections.lock();
        if connections.len() >= KEPT {
            connections.clear();
        }
        connections.insert(key, client.clone());
        Ok(client)
    }
}

fn request(
    to: &Target,
    caller: Option<&Arc<Caller>>,
    timeout: Duration,
    body: Vec<u8>,
) -> Result<Request<Bytes>, String> {
    let request = Request::post(format!("{}?timeout={}s", to.path, timeout.as_secs()))
        .header(HOST, &to.host)
        .header(CONTENT_TYPE, "application/json")
        .header(ACCEPT, "application/json, */*")
        .header(USER_AGENT, "kube-apiserver-admission");
    let mut request = request.body(Bytes::from(body)).map_err(|e| e.to_string())?;
    if let Some(c) = caller {
        c.user.impersonation().write(request.headers_mut()).map_err(|e| e.why())?;
    }
    Ok(request)
}

async fn exchange(client: &dyn Transport, request: Request<Bytes>) -> Result<Vec<u8>, Failure> {
    let answer = client.send(request).await.map_err(|e| Failure::Sending(e.to_string()))?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
    let body = body.map_err(|e| Failure::Sending(e.to_string()))?.to_bytes();
    if status.is_success() { Ok(body.to_vec()) } else { Err(Failure::Answer(status.as_u16(), refusal(status, &body))) }
}

enum Failure {
    /// The client could not be created.
    Asking(String),
    Sending(String),
    /// An unsuccessful response.
    Answer(u16, String),
}

/// The path of a call to this server's own service: as with upstream's loopback client, it is trusted and has
/// credentials.
pub(crate) fn own_path(to: &Endpoint) -> Option<String> {
    match &to.place {
        address if address.target() != "kubernetes.default.svc:443" => None,
        EndpointAddress::Service { path, .. } => Some(cleaned(path)),
        EndpointAddress::Url(url) => by_url(url).ok().map(|t| t.path),
    }
}

fn by_url(url: &str) -> Result<Target, String> {
    let uri: http::Uri = url.parse().map_err(|e| format!("Unparsable URL: {e}"))?;
    let Some(authority) = uri.authority().filter(|_| uri.scheme_str() == Some("https")) else {
        return Err(format!("Unparsable URL: {url:?} is not https with a host"));
    };
    let host = authority.to_string();
    let path = cleaned(uri.path());
    Ok(Target { server: format!("https://{host}"), host, path, name: None, reach: Reach::Anywhere })
}

/// A path without empty parts, dots and a slash at its end, as Go's `path.Join` makes it: configurations often have two slashes where a
/// base and a path meet, and servers in Go answer such a path with a redirection.
fn cleaned(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}
