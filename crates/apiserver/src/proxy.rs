//! The `proxy` subresource: forwards a request to a pod, an endpoint of a service, or a node
//! (`k8s.io/apimachinery/pkg/util/proxy`). Upgraded connections are joined end to end.
//!
//! **Invariant**: no task and no connection to the backend outlives the client's, however silent the backend is.
//! Links to the backend, in HTML and in `Location`, are rewritten to lead through the proxy.

mod coded;
mod html;
mod links;

use crate::Server;
use crate::answer::bytes;
use crate::body::Body;
use crate::call::Call;
use crate::lookup::stored_size;
use bytes::Bytes;
use client::https::{Reach, handshake_error};
use coded::{Coding, rewritten};
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, LOCATION, TRANSFER_ENCODING,
    UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request as HttpRequest, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use links::Origin;
use meta::Status;
use registry::{ProxyTarget, Request, Upstream};
use rustls::pki_types::ServerName;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio_rustls::TlsConnector;

/// Timeout for connecting to a backend.
const CONNECT: Duration = Duration::from_secs(30);

/// How long closing a connection may take.
const CLOSE: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{0}")]
    Connect(client::BoxError),
    #[error("{0}")]
    Tls(String),
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

pub async fn proxy(server: &Arc<Server>, call: Call, mut request: Request) -> Result<Response<Body>, Status> {
    let (name, target) = split(&request.name)?;
    request.name = name;
    let (ns, strategy) = (&request.namespace, &request.resource.strategy);
    let size = stored_size(server, &request.resource, ns, &request.name).unwrap_or_default()
        + strategy.reads(server.registry.env(), &request.subresource, ns, &request.name);
    let (server_handle, user) = (server.clone(), call.user.name.clone());
    let find = async move {
        let object = server_handle.registry.get(&request).await?;
        request.resource.strategy.proxy(server_handle.registry.env(), &request, &object, &target)
    };
    let upstream = server.workers.run(&user, size, find).await?;
    let Call { mut parts, body, target, user, .. } = call;
    let path = parts.uri.path().to_owned();
    // `/api/v1/…/NAME/proxy`, and the raw path after it.
    let (root, rest) = path.split_at(target.rest.min(path.len()));
    let query = parts.uri.query().map(|q| format!("?{q}")).unwrap_or_default();
    if rest.is_empty() && matches!(parts.method, Method::GET | Method::HEAD) {
        let mut r = bytes(301, "text/html; charset=utf-8", Body::empty());
        if let Ok(v) = HeaderValue::from_str(&format!("{path}/{query}")) {
            r.headers_mut().insert(LOCATION, v);
        }
        return Ok(r);
    }
    let requested_host =
        parts.headers.get(HOST).and_then(|h| h.to_str().ok()).or(parts.uri.authority().map(|a| a.as_str()));
    let requested_host = requested_host.unwrap_or_default().to_owned();
    let forwarded =
        links::join(root, rest) + if rest.len() > 1 && rest.ends_with('/') || rest == "/" { "/" } else { "" };
    if let Ok(v) = HeaderValue::from_str(&forwarded) {
        parts.headers.insert("x-forwarded-uri", v);
    }
    add_client(&mut parts);
    let is_head = parts.method == Method::HEAD;
    let location = format!("{}{query}", if rest.is_empty() { "/" } else { rest });
    parts.uri = location.parse::<Uri>().map_err(|e| Status::bad_request(format!("{location:?}: {e}")))?;
    parts.headers.remove(AUTHORIZATION);
    match upstream {
        Upstream::Agent(node) => {
            let connector = server.connector.read().clone();
            match connector {
                Some(c) => {
                    let answered = c.connect(&node, &user.name, HttpRequest::from_parts(parts, body)).await;
                    let response = answered.map_err(|e| e.status("error trying to reach service"))?;
                    let origin = Origin { dialled: String::new(), requested_host, root: root.to_owned() };
                    Ok(through(response, origin, is_head))
                }
                None => Err(Status::unavailable(format!("no way to the agent of node {node:?}"))),
            }
        }
        Upstream::Address { tls, host, port } => {
            let origin = Origin { dialled: format!("{host}:{port}"), requested_host, root: root.to_owned() };
            match send(parts, body, (&host, port), tls, &origin).await {
                Ok(r) => Ok(through(r, origin, is_head)),
                Err(e) => Err(Status::unavailable(format!("error trying to reach service: {e}"))),
            }
        }
    }
}

/// `[scheme:]name[:port]`
fn split(id: &str) -> Result<(String, ProxyTarget), Status> {
    let parts: Vec<&str> = id.split(':').collect();
    let (scheme, name, port) = match parts[..] {
        [name] => ("", name, ""),
        [name, port] => ("", name, port),
        [scheme, name, port] => (scheme, name, port),
        _ => ("?", "", ""),
    };
    if name.is_empty() || !matches!(scheme, "" | "http" | "https") {
        return Err(Status::bad_request(format!("invalid proxy request {id:?}")));
    }
    Ok((name.to_owned(), ProxyTarget { scheme: scheme.to_owned(), port: port.to_owned() }))
}

async fn send(
    parts: http::request::Parts,
    body: Bytes,
    address: (&str, u16),
    tls: bool,
    origin: &Origin,
) -> Result<Response<Body>, Error> {
    let (host, port) = address;
    let bare = host.trim_matches(['[', ']']);
    let socket = client::https::dial(bare, port, Reach::Anywhere, CONNECT).await.map_err(Error::Connect)?;
    let _ = socket.set_nodelay(true);
    // The backend receives the host of the client's request.
    let host = if origin.requested_host.is_empty() { &origin.dialled } else { &origin.requested_host };
    let (request, ours) = outgoing(parts, body, host);
    let response = if tls {
        let config = client::https::unverified().map_err(|e| Error::Tls(e.why()))?;
        let name = ServerName::try_from(bare.to_owned()).map_err(|e| Error::Tls(e.to_string()))?;
        let stream = TlsConnector::from(config).connect(name, socket).await;
        exchange(stream.map_err(|e| Error::Tls(handshake_error(&e)))?, request).await?
    } else {
        exchange(socket, request).await?
    };
    Ok(answer(response, ours))
}

/// Builds the outgoing request with the `Host` of the backend, and the client's upgrade, if any.
pub(crate) fn outgoing(
    mut parts: http::request::Parts,
    body: Bytes,
    host: &str,
) -> (HttpRequest<Full<Bytes>>, Option<OnUpgrade>) {
    let ours = parts.extensions.remove::<OnUpgrade>();
    let upgrade = parts.headers.get(UPGRADE).cloned();
    drop_hop_by_hop(&mut parts.headers);
    if let Some(protocol) = &upgrade {
        parts.headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        parts.headers.insert(UPGRADE, protocol.clone());
    }
    if let Ok(host) = HeaderValue::from_str(host) {
        parts.headers.insert(HOST, host);
    }
    parts.headers.remove(AUTHORIZATION);
    parts.version = http::Version::HTTP_11;
    parts.extensions = http::Extensions::new();
    (HttpRequest::from_parts(parts, Full::new(body)), ours)
}

pub(crate) async fn exchange<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    io: S,
    request: HttpRequest<Full<Bytes>>,
) -> Result<Response<Incoming>, hyper::Error> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(io)).await?;
    tokio::spawn(async move {
        if let Err(e) = connection.with_upgrades().await {
            tracing::debug!("a connection of a proxy ended: {e}");
        }
    });
    sender.send_request(request).await
}

pub(crate) fn answer(mut response: Response<Incoming>, ours: Option<OnUpgrade>) -> Response<Body> {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let theirs = hyper::upgrade::on(&mut response);
        if let Some(ours) = ours {
            tokio::spawn(async move {
                let (Ok(a), Ok(b)) = tokio::join!(ours, theirs) else { return };
                carry(TokioIo::new(a), TokioIo::new(b)).await;
            });
        }
        return response.map(|_| Body::empty());
    }
    let (mut parts, body) = response.into_parts();
    drop_hop_by_hop(&mut parts.headers);
    Response::from_parts(parts, Body::relay(body))
}

/// Copies bytes both ways until either side ends; does not wait for the other, which may be silent forever.
pub(crate) async fn carry(ours: impl AsyncRead + AsyncWrite, theirs: impl AsyncRead + AsyncWrite) {
    let (mut from_us, mut to_us) = tokio::io::split(ours);
    let (mut from_them, mut to_them) = tokio::io::split(theirs);
    // Either side may have failed: both end.
    tokio::select! {
        _ = tokio::io::copy(&mut from_us, &mut to_them) => {}
        _ = tokio::io::copy(&mut from_them, &mut to_us) => {}
    }
    let _ = tokio::time::timeout(CLOSE, async { tokio::join!(to_us.shutdown(), to_them.shutdown()) }).await;
}

/// CORS headers of a backend: only the API decides about cross-origin access.
const CORS: [&str; 4] = [
    "access-control-allow-credentials",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
];

/// Converts a backend's response, rewriting links to lead through the proxy.
fn through(response: Response<Body>, origin: Origin, is_head: bool) -> Response<Body> {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    CORS.iter().for_each(|name| drop(parts.headers.remove(*name)));
    if let Some(l) = parts.headers.get(LOCATION).and_then(|l| l.to_str().ok()) {
        if let Ok(v) = HeaderValue::from_str(&origin.rewrite(l)) {
            parts.headers.insert(LOCATION, v);
        }
        return Response::from_parts(parts, body);
    }
    let text = |name: HeaderName| parts.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let is_html = text(CONTENT_TYPE).split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("text/html");
    let coding = match text(CONTENT_ENCODING) {
        "" => Coding::None,
        "gzip" => Coding::Gzip,
        "deflate" => Coding::Deflate,
        // An unknown encoding cannot be rewritten.
        _ => return Response::from_parts(parts, body),
    };
    if !is_html || is_head {
        return Response::from_parts(parts, body);
    }
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, rewritten(body, origin, coding))
}

/// Appends the client's address to `X-Forwarded-For`, as Go's `ReverseProxy` does.
pub(crate) fn add_client(parts: &mut http::request::Parts) {
    const NAME: HeaderName = HeaderName::from_static("x-forwarded-for");
    let Some(peer) = parts.extensions.get::<crate::audit::Address>().map(|a| a.0.to_string()) else { return };
    let mut all: Vec<&[u8]> = parts.headers.get_all(&NAME).iter().map(HeaderValue::as_bytes).collect();
    all.push(peer.as_bytes());
    if let Ok(v) = HeaderValue::from_bytes(&all.join(&b", "[..])) {
        parts.headers.insert(NAME, v);
    }
}

/// Hop-by-hop headers.
pub(crate) fn drop_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .filter_map(|n| n.trim().parse().ok())
        .collect();
    let always = [CONNECTION, TRANSFER_ENCODING, UPGRADE];
    let more = ["keep-alive", "proxy-connection", "te", "trailer"].map(HeaderName::from_static);
    for n in named.into_iter().chain(always).chain(more) {
        headers.remove(n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_say_scheme_and_port() {
        let check = |id: &str, scheme: &str, name: &str, port: &str| {
            let (n, p) = split(id).unwrap();
            assert_eq!((&*p.scheme, &*n, &*p.port), (scheme, name, port), "{id}");
        };
        check("web", "", "web", "");
        check("web:http", "", "web", "http");
        check("https:web:8443", "https", "web", "8443");
        check("https:web:", "https", "web", "");
        for bad in ["", ":80", "ftp:web:21", "a:b:c:d"] {
            assert_eq!(split(bad).unwrap_err().code, 400, "{bad}");
        }
    }

    #[test]
    fn the_client_comes_after_the_proxies_before() {
        let seen = |before: &[&'static str], peer: Option<&str>| {
            let mut r = HttpRequest::new(());
            before.iter().for_each(|v| _ = r.headers_mut().append("x-forwarded-for", HeaderValue::from_static(v)));
            peer.map(|p| r.extensions_mut().insert(crate::audit::Address(p.parse().unwrap())));
            let (mut parts, ()) = r.into_parts();
            add_client(&mut parts);
            let all = parts.headers.get_all("x-forwarded-for").iter().map(|v| v.to_str().unwrap().to_owned());
            all.collect::<Vec<_>>()
        };
        assert_eq!(seen(&[], Some("10.0.0.7")), ["10.0.0.7"]);
        assert_eq!(seen(&["10.0.0.1, 10.0.0.2", "10.0.0.3"], Some("::1")), ["10.0.0.1, 10.0.0.2, 10.0.0.3, ::1"]);
        assert_eq!(seen(&["10.0.0.1"], None), ["10.0.0.1"]);
    }

    #[test]
    fn headers_of_the_connection_stay_behind() {
        let mut h = HeaderMap::new();
        for (k, v) in [("connection", "close, X-Private"), ("x-private", "1"), ("te", "trailers"), ("accept", "a")] {
            h.insert(HeaderName::from_static(k), HeaderValue::from_static(v));
        }
        drop_hop_by_hop(&mut h);
        assert_eq!(h.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }
}
