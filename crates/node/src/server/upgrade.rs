//! Upgrades of connections: to WebSocket, or to SPDY/3.1 for clients before v1.31.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::pieces::Pieces;
use super::{Body, Error, text};
use spdy::Session;

pub(super) type Socket = WebSocketStream<Pieces<TokioIo<Upgraded>>>;

/// Maximum length of a message, which [`Pieces`] ensures.
const MESSAGE: usize = 64 << 10;

const SPDY: &str = "SPDY/3.1";
/// The headers with the protocols that a SPDY client speaks, and with the chosen one.
const PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const ACCEPTED: HeaderName = HeaderName::from_static("x-accept-stream-protocol-versions");

pub(super) fn is_spdy(request: &Request<Bytes>) -> bool {
    asks_for(request.headers(), "spdy/3.1")
}

fn asks_for(headers: &HeaderMap, what: &str) -> bool {
    let has = |name: HeaderName, word: &str| {
        headers.get_all(name).iter().any(|v| v.to_str().is_ok_and(|v| v.to_ascii_lowercase().contains(word)))
    };
    has(header::CONNECTION, "upgrade") && has(header::UPGRADE, what)
}

/// The comma-separated values of a header, in one line or several.
fn listed(headers: &HeaderMap, name: &HeaderName) -> Vec<String> {
    let lines = headers.get_all(name).iter().filter_map(|v| v.to_str().ok());
    lines.flat_map(|v| v.split(',').map(|p| p.trim().to_owned())).collect()
}

fn switching(to: &'static str) -> Response<Body> {
    let mut response = Response::new(Empty::new().map_err(|e| match e {}).boxed_unsync());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let h = response.headers_mut();
    h.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    h.insert(header::UPGRADE, HeaderValue::from_static(to));
    response
}

/// Answers 101 and passes the session to `work`. `protocols`: the supported ones, best first; a client that sends none speaks the
/// last.
pub(super) fn spdy<F>(
    mut request: Request<Bytes>,
    protocols: &[&'static str],
    work: impl FnOnce(Session, &'static str) -> F + Send + 'static,
) -> Result<Response<Body>, Error>
where
    F: Future<Output = ()> + Send + 'static,
{
    let offered = listed(request.headers(), &PROTOCOL);
    let chosen = match offered.is_empty() {
        true => protocols.last().copied(),
        false => protocols.iter().copied().find(|p| offered.iter().any(|o| o == p)),
    };
    let Some(protocol) = chosen else {
        let why = format!(
            "unable to upgrade: unable to negotiate protocol: client supports {offered:?}, server accepts {protocols:?}"
        );
        let mut response = text(StatusCode::FORBIDDEN, why);
        for p in protocols {
            response.headers_mut().append(ACCEPTED, HeaderValue::from_static(p));
        }
        return Ok(response);
    };
    let Some(upgrade) = request.extensions_mut().remove::<OnUpgrade>() else {
        return Err(Error::Internal("this connection cannot be upgraded".into()));
    };
    tokio::spawn(async move {
        match upgrade.await {
            Ok(upgraded) => work(Session::start(TokioIo::new(upgraded)), protocol).await,
            Err(error) => tracing::debug!(%error, "upgrading a connection failed"),
        }
    });
    let mut response = switching(SPDY);
    if !offered.is_empty() {
        response.headers_mut().insert(PROTOCOL, HeaderValue::from_static(protocol));
    }
    Ok(response)
}

pub(super) fn is_websocket(request: &Request<Bytes>) -> bool {
    asks_for(request.headers(), "websocket")
}

/// Answers 101 and passes the socket to `work` after the upgrade. `protocols`: the supported ones, best first; an empty one stands
/// for clients that send none.
pub(super) fn take_over<F>(
    mut request: Request<Bytes>,
    protocols: &[&'static str],
    work: impl FnOnce(Socket, &'static str) -> F + Send + 'static,
) -> Result<Response<Body>, Error>
where
    F: Future<Output = ()> + Send + 'static,
{
    let headers = request.headers();
    if !asks_for(headers, "websocket") {
        return Err(Error::BadRequest("unable to upgrade: WebSocket and SPDY/3.1 are understood here".into()));
    }
    let Some(key) = headers.get(header::SEC_WEBSOCKET_KEY).map(|k| derive_accept_key(k.as_bytes())) else {
        return Err(Error::BadRequest("Sec-WebSocket-Key is missing".into()));
    };
    let offered = listed(headers, &header::SEC_WEBSOCKET_PROTOCOL);
    let named = |p: &&str| if p.is_empty() { offered.is_empty() } else { offered.iter().any(|o| o == p) };
    let Some(protocol) = protocols.iter().copied().find(named) else {
        let known = protocols.join(", ");
        return Err(Error::BadRequest(format!("none of the subprotocols {offered:?} is understood; known: {known}")));
    };
    let Some(upgrade) = request.extensions_mut().remove::<OnUpgrade>() else {
        return Err(Error::Internal("this connection cannot be upgraded".into()));
    };
    tokio::spawn(async move {
        match upgrade.await {
            Ok(upgraded) => {
                let io =
                    Pieces::new(TokioIo::new(upgraded), protocol.contains("channel.k8s.io") || protocol.is_empty());
                let config = WebSocketConfig::default().max_message_size(Some(MESSAGE)).max_frame_size(Some(MESSAGE));
                work(WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await, protocol).await;
            }
            Err(error) => tracing::debug!(%error, "upgrading a connection failed"),
        }
    });
    let mut response = switching("websocket");
    let h = response.headers_mut();
    if let Ok(v) = HeaderValue::from_str(&key) {
        h.insert(header::SEC_WEBSOCKET_ACCEPT, v);
    }
    if !protocol.is_empty() {
        h.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
    }
    Ok(response)
}
