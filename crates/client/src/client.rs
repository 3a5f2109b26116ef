//! The client: a transport with the headers and limits of one caller.

use crate::error::Error;
use crate::metrics;
use crate::resource::encode;
use crate::transport::{Body, Transport, Upgrade};
use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue, IF_NONE_MATCH, USER_AGENT};
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use meta::{Reason, Status};
use serde::de::DeserializeOwned;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// Media type of JSON.
pub const JSON: &str = "application/json";
/// Accept header for metadata only.
pub const PARTIAL_METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
/// Accept header for lists of metadata only.
pub const PARTIAL_METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
/// Accept header for tables, as `kubectl get` sends it.
pub const TABLE: &str =
    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";

/// The user to impersonate (`kubectl --as`). Empty fields are not sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impersonation {
    /// User name (`Impersonate-User`).
    pub user: String,
    /// User ID (`Impersonate-Uid`).
    pub uid: String,
    /// Group names, a header `Impersonate-Group` each.
    pub groups: Vec<String>,
    /// Pairs of key and value, a header `Impersonate-Extra-<key>` each. A key may repeat.
    pub extra: Vec<(String, String)>,
}

impl Impersonation {
    /// Adds the impersonation headers.
    pub fn write(&self, h: &mut HeaderMap) -> Result<(), Error> {
        // Names are UTF-8, as Go's clients send them.
        let value = |v: &str| {
            HeaderValue::from_bytes(v.as_bytes()).map_err(|e| Error::Request(format!("impersonation {v:?}: {e}")))
        };
        if !self.user.is_empty() {
            h.insert("impersonate-user", value(&self.user)?);
        }
        if !self.uid.is_empty() {
            h.insert("impersonate-uid", value(&self.uid)?);
        }
        for g in &self.groups {
            h.append("impersonate-group", value(g)?);
        }
        for (k, v) in &self.extra {
            let mut name = String::from("impersonate-extra-");
            encode(&mut name, k);
            let name = HeaderName::try_from(name).map_err(|e| Error::Request(format!("impersonation {k:?}: {e}")))?;
            h.append(name, value(v)?);
        }
        Ok(())
    }
}

type Warn = Arc<dyn Fn(&str) + Send + Sync>;

/// A caller of the API. Cheap to clone; clones share the transport.
#[derive(Clone)]
pub struct Client {
    transport: Arc<dyn Transport>,
    headers: Arc<HeaderMap>,
    warn: Option<Warn>,
    timeout: Option<Duration>,
    limit: Option<Duration>,
}

impl Client {
    /// The first part of `user_agent`, up to the slash, is the field manager when a request names none.
    pub fn new(transport: impl Transport, user_agent: &str) -> Self {
        Self::shared(Arc::new(transport), user_agent)
    }

    /// Like [`Self::new`], for a transport that others use too.
    pub fn shared(transport: Arc<dyn Transport>, user_agent: &str) -> Self {
        let mut headers = HeaderMap::new();
        if let Ok(v) = HeaderValue::from_str(user_agent) {
            headers.insert(USER_AGENT, v);
        }
        Self { transport, headers: Arc::new(headers), warn: None, timeout: None, limit: None }
    }

    /// The transport, with its layers.
    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    /// The headers of every request: user agent and impersonation.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Wraps the transport of this client in a layer.
    #[must_use]
    pub fn over(mut self, layer: impl FnOnce(Arc<dyn Transport>) -> Arc<dyn Transport>) -> Self {
        self.transport = layer(self.transport);
        self
    }

    /// The same connection under another user agent.
    #[must_use]
    pub fn with_user_agent(mut self, user_agent: &str) -> Self {
        if let Ok(v) = HeaderValue::from_str(user_agent) {
            Arc::make_mut(&mut self.headers).insert(USER_AGENT, v);
        }
        self
    }

    /// Sends requests as another user. Fails if a name cannot be in a header.
    pub fn with_impersonation(mut self, who: &Impersonation) -> Result<Self, Error> {
        who.write(Arc::make_mut(&mut self.headers))?;
        Ok(self)
    }

    /// Calls `warn` with the text of every `Warning` header.
    #[must_use]
    pub fn with_warnings(mut self, warn: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.warn = Some(Arc::new(warn));
        self
    }

    /// Limits the duration of requests other than watches and streams.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Limits the duration of requests with their responses, including watches and streams (Go's `http.Client.Timeout`).
    #[must_use]
    pub fn with_limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Sends a request, adding the caller's headers unless the request has them, and returns the response whatever its status;
    /// see [`Self::checked`]. Retries only when the server is overloaded and sends `Retry-After`,
    /// as all Kubernetes clients do.
    pub async fn raw(&self, mut request: Request<Bytes>) -> Result<Response<Body>, Error> {
        self.add_headers(&mut request);
        let mut tries = 0;
        let response = loop {
            let (begun, method) = (Instant::now(), request.method().clone());
            let sent = self.transport.send(request.clone());
            let response = match self.limit {
                None => sent.await,
                Some(limit) => within(limit, sent).await,
            };
            let code = response.as_ref().ok().map(|r| r.status().as_u16());
            metrics::requested(self.transport.host(), method.as_str(), code, begun.elapsed());
            let response = response?;
            match retry_after(&response) {
                Some(pause) if tries < TRIES => tokio::time::sleep(pause).await,
                _ => break response,
            }
            tries += 1;
        };
        self.pass_warnings(&response);
        Ok(response)
    }

    /// Sends a request to switch protocols (exec, attach, port-forward).
    pub async fn upgrade(&self, mut request: Request<Bytes>) -> Result<Upgrade, Error> {
        self.add_headers(&mut request);
        self.transport.upgrade(request).await
    }

    /// Like [`Self::raw`], but returns an error unless the response is a success.
    pub async fn checked(&self, request: Request<Bytes>) -> Result<Response<Body>, Error> {
        let response = self.raw(request).await?;
        if response.status().is_success() { Ok(response) } else { Err(failure(response).await) }
    }

    /// Sends a request and reads the complete response within the client's time limit.
    pub async fn bytes(&self, request: Request<Bytes>) -> Result<Bytes, Error> {
        self.in_time(async { collect(self.checked(request).await?.into_body()).await }).await
    }

    /// Like [`Self::bytes`], for a cached document: returns its ETag and bytes, or none if `etag` is still current
    /// (empty: nothing is cached).
    pub async fn changed(&self, mut request: Request<Bytes>, etag: &str) -> Result<Option<(String, Bytes)>, Error> {
        if let Some(known) = HeaderValue::from_str(etag).ok().filter(|t| !t.is_empty()) {
            request.headers_mut().insert(IF_NONE_MATCH, known);
        }
        let work = async {
            let response = self.raw(request).await?;
            match response.status() {
                StatusCode::NOT_MODIFIED => return Ok(None),
                s if !s.is_success() => return Err(failure(response).await),
                _ => {}
            }
            let etag = response.headers().get(ETAG).and_then(|t| t.to_str().ok()).unwrap_or_default().to_owned();
            Ok(Some((etag, collect(response.into_body()).await?)))
        };
        self.in_time(work).await
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        match self.timeout {
            None => work.await,
            Some(t) => tokio::time::timeout(t, work).await.map_err(|_| Error::Timeout(t))?,
        }
    }

    /// Sends a request and decodes the JSON body. Fails if the response is no success.
    pub async fn json<T: DeserializeOwned>(&self, request: Request<Bytes>) -> Result<T, Error> {
        let what = format!("{} {}", request.method(), request.uri().path());
        decode(&self.bytes(request).await?, || what)
    }

    /// GETs any path and decodes the response.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.json(request(Method::GET, path, JSON, None)?).await
    }

    /// Like [`Self::get`] with a limit on the bytes of the response, for paths that other servers may answer.
    pub async fn get_at_most<T: DeserializeOwned>(&self, path: &str, limit: usize) -> Result<T, Error> {
        let request = request(Method::GET, path, JSON, None)?;
        let read = async { collect_at_most(self.checked(request).await?.into_body(), limit).await };
        decode(&self.in_time(read).await?, || format!("GET {path}"))
    }

    fn add_headers(&self, request: &mut Request<Bytes>) {
        let to = request.headers_mut();
        for name in self.headers.keys() {
            if !to.contains_key(name) {
                for v in self.headers.get_all(name) {
                    to.append(name.clone(), v.clone());
                }
            }
        }
    }

    fn pass_warnings(&self, response: &Response<Body>) {
        let Some(warn) = &self.warn else { return };
        for v in response.headers().get_all("warning") {
            if let Some(text) = v.to_str().ok().and_then(warning_text) {
                warn(&text);
            }
        }
    }
}

/// Waits for a response with its body, up to a time limit.
async fn within(
    limit: Duration,
    answer: impl Future<Output = Result<Response<Body>, Error>>,
) -> Result<Response<Body>, Error> {
    let end = Instant::now() + limit;
    let response = tokio::time::timeout_at(end, answer).await.map_err(|_| Error::Timeout(limit))??;
    let over = Box::pin(tokio::time::sleep_until(end));
    Ok(response.map(|body| Limited { body, over }.boxed_unsync()))
}

/// A body that fails when its time is over.
struct Limited {
    body: Body,
    over: Pin<Box<tokio::time::Sleep>>,
}

impl http_body::Body for Limited {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Error>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Pending => self.over.as_mut().poll(cx).map(|()| Some(Err(Error::Cut))),
            ready => ready,
        }
    }
}

/// Attempts to send a request to an overloaded server (client-go `maxRetries`).
const TRIES: u32 = 10;

/// When to retry a request that an overloaded server rejected, from `Retry-After`.
fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let busy = response.status() == StatusCode::TOO_MANY_REQUESTS || response.status().is_server_error();
    let after = response.headers().get("retry-after").filter(|_| busy)?;
    after.to_str().ok()?.parse().ok().map(Duration::from_secs)
}

/// Builds a request with the API's headers. `body` is its media type and its bytes.
pub fn request(
    method: Method,
    path: &str,
    accept: &str,
    body: Option<(&str, Vec<u8>)>,
) -> Result<Request<Bytes>, Error> {
    let mut b = Request::builder().method(method).uri(path).header(ACCEPT, accept);
    let bytes = match body {
        Some((media_type, bytes)) => {
            b = b.header(CONTENT_TYPE, media_type);
            bytes
        }
        None => Vec::new(),
    };
    b.body(Bytes::from(bytes)).map_err(|e| Error::Request(format!("{path}: {e}")))
}

/// Reads a body to its end. Trusts the server with its size.
pub async fn collect(body: Body) -> Result<Bytes, Error> {
    Ok(body.collect().await?.to_bytes())
}

/// Like [`collect`] with a byte limit, for servers that are not trusted.
pub async fn collect_at_most(body: Body, limit: usize) -> Result<Bytes, Error> {
    let mut out = BytesMut::new();
    let mut body = body;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        if out.len() + data.len() > limit {
            return Err(Error::Unexpected(format!("the answer has more than {} MiB", limit >> 20)));
        }
        out.extend_from_slice(&data);
    }
    Ok(out.freeze())
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8], what: impl FnOnce() -> String) -> Result<T, Error> {
    meta::depth::from_slice(bytes).map_err(|source| Error::Decode { what: what(), source })
}

/// Byte limit of the body of an error response.
const MAX_FAILURE_BODY: usize = 16 << 20;

/// Converts an error response to an error.
pub async fn failure(response: Response<Body>) -> Error {
    let code = response.status();
    let retry_after = response.headers().get("retry-after").and_then(|v| v.to_str().ok()?.parse::<u32>().ok());
    let bytes = match collect_at_most(response.into_body(), MAX_FAILURE_BODY).await {
        Ok(b) => b,
        Err(e) => return e,
    };
    let mut status = status_of(&bytes).unwrap_or_else(|| without_status(code, &bytes));
    if let Some(seconds) = retry_after {
        let d = status.details.get_or_insert_with(Default::default);
        if d.retry_after_seconds == 0 {
            d.retry_after_seconds = seconds;
        }
    }
    Error::Api(Box::new(status))
}

/// Converts the response of a refused upgrade to an error, with its message or its body (`httpstream/spdy`).
pub async fn upgrade_failure(response: Response<Body>) -> Error {
    let Ok(bytes) = collect(response.into_body()).await else {
        return Error::UpgradeRefused("unable to read error from server response".into());
    };
    let body: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let message = ["message", "error"].iter().filter_map(|f| body[f].as_str()).map(str::trim).find(|m| !m.is_empty());
    let text = String::from_utf8_lossy(&bytes);
    Error::UpgradeRefused(match message.unwrap_or(text.trim()) {
        "" => "empty server response".into(),
        message => message.to_owned(),
    })
}

fn status_of(body: &[u8]) -> Option<Status> {
    serde_json::from_slice(body).ok().and_then(|v| Status::from_value(&v)).filter(|s| s.code != 0)
}

/// The `Status` for an error response that has none (client-go `NewGenericServerResponse`).
fn without_status(code: StatusCode, body: &[u8]) -> Status {
    let (reason, text) = match code.as_u16() {
        400 => (Reason::BadRequest, "the server rejected our request for an unknown reason"),
        401 => (Reason::Unauthorized, "the server has asked for the client to provide credentials"),
        403 => (Reason::Forbidden, "the server does not allow access to the requested resource"),
        404 => (Reason::NotFound, "the server could not find the requested resource"),
        405 => (Reason::MethodNotAllowed, "the server does not allow this method on the requested resource"),
        406 => (Reason::NotAcceptable, "the server was unable to respond with a content type that the client supports"),
        409 => (Reason::Conflict, "the server reported a conflict"),
        410 => (Reason::Gone, "the resource is gone"),
        413 => (Reason::RequestEntityTooLarge, "the request is too large"),
        415 => (Reason::UnsupportedMediaType, "the body of the request was in an unknown format"),
        422 => (Reason::Invalid, "the server rejected our request due to an error in our request"),
        429 => {
            (Reason::TooManyRequests, "the server has received too many requests and has asked us to try again later")
        }
        500 => (Reason::InternalError, "an error on the server"),
        503 => (Reason::ServiceUnavailable, "the server is currently unable to handle the request"),
        504 => (Reason::Timeout, "the server was unable to return a response in the time allotted"),
        _ => (Reason::Unknown, "the server responded with an unexpected status"),
    };
    let body = String::from_utf8_lossy(&body[..body.len().min(2048)]);
    let message = match body.trim() {
        "" => text.to_owned(),
        // A proxy or load balancer answered without a message.
        _ if matches!(code, StatusCode::NOT_FOUND | StatusCode::SERVICE_UNAVAILABLE) => text.to_owned(),
        body => format!("{text}: {body}"),
    };
    Status::new(code.as_u16(), reason, message)
}

/// The text of a `Warning` header: `299 - "text"`, with backslashes escaping.
fn warning_text(header: &str) -> Option<String> {
    let quoted = header.strip_prefix("299 ")?.split_once(' ')?.1.strip_prefix('"')?;
    let mut out = String::new();
    let mut chars = quoted.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => return Some(out),
            '\\' => out.push(chars.next()?),
            c => out.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::ApiResource;

    #[tokio::test]
    async fn an_endless_body_is_an_error() {
        use http_body_util::BodyExt as _;
        let chunk = Bytes::from(vec![b' '; 1 << 20]);
        let endless = futures::stream::repeat_with(move || Ok(http_body::Frame::data(chunk.clone())));
        let body = http_body_util::StreamBody::new(endless).boxed_unsync();
        let error = collect_at_most(body, 8 << 20).await.unwrap_err().to_string();
        assert!(error.contains("the answer has more than 8 MiB"), "{error}");
    }

    /// Responds at once, with a body that never ends.
    struct Endless;

    #[async_trait::async_trait]
    impl Transport for Endless {
        async fn send(&self, _: Request<Bytes>) -> Result<Response<Body>, Error> {
            let event = Bytes::from_static(b"{\"type\":\"ADDED\",\"object\":{}}\n");
            let first = futures::stream::iter([Ok(http_body::Frame::data(event))]);
            let body = http_body_util::StreamBody::new(futures::StreamExt::chain(first, futures::stream::pending()));
            Ok(Response::new(body.boxed_unsync()))
        }
    }

    /// When the limit expires, a watch ends as if the server had ended it, and any other response fails.
    #[tokio::test(start_paused = true)]
    async fn the_limit_includes_the_body() {
        let client = Client::new(Endless, "test").with_limit(Duration::from_secs(1));
        let begun = Instant::now();
        let answer = client.raw(Request::new(Bytes::new())).await.unwrap();
        assert!(matches!(collect(answer.into_body()).await, Err(Error::Cut)));
        assert_eq!(begun.elapsed(), Duration::from_secs(1));
        let pods = client.dynamic(&ApiResource::typed::<k8s_openapi::api::core::v1::Pod>());
        let events = pods.watch(&crate::WatchOptions::default()).await.unwrap();
        let seen: Vec<_> = futures::StreamExt::collect(events).await;
        assert!(matches!(seen.as_slice(), [Ok(crate::WatchEvent::Added(_))]), "{seen:?}");
        assert_eq!(begun.elapsed(), Duration::from_secs(2));
    }

    #[test]
    fn warnings_are_unquoted() {
        assert_eq!(warning_text(r#"299 - "a \"b\" c""#).as_deref(), Some("a \"b\" c"));
        assert_eq!(warning_text(r#"299 - "open"#), None);
        assert_eq!(warning_text("100 - \"x\""), None);
    }
}
