//! `httpGet` of probes and hooks. Redirects to the same host are followed. A probe succeeds with a status from 200 to 399, and with a
//! warning from 300 on; a hook succeeds with any answer. Certificates are not verified. Follows upstream's `pkg/probe/http`,
//! `pkg/kubelet/lifecycle` and Go's HTTP client.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{HTTPGetAction, HTTPHeader};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};

use super::target::{MAX_OUTPUT, Outcome, Target};
use super::url::{self, Url};

/// The `User-Agent` of probes.
pub(super) const USER_AGENT: &str = "kube-probe/1.36";
const HOOK_USER_AGENT: &str = "kube-lifecycle/1.36";
/// Requests of one attempt, as Go's HTTP client limits them.
const MAX_REDIRECTS: usize = 10;
/// Header fields of an answer.
const MAX_HEADERS: usize = 1000;
/// The error of Go's TLS client when the server answers in plain HTTP.
const PLAIN_ANSWER: &str = "http: server gave HTTP response to HTTPS client";

/// What an HTTP request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The status of the answer counts.
    Probe,
    /// Any answer is a success. If the server answers HTTPS with plain HTTP, the request is repeated in plain HTTP.
    Hook,
}

impl Purpose {
    fn user_agent(self) -> &'static str {
        match self {
            Self::Probe => USER_AGENT,
            Self::Hook => HOOK_USER_AGENT,
        }
    }
}

/// The answer of a server.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    location: Option<String>,
    /// The first [`MAX_OUTPUT`] bytes, of a redirect only.
    body: Vec<u8>,
}

pub(super) async fn get(
    target: &Target<'_>,
    a: &HTTPGetAction,
    purpose: Purpose,
    timeout: Duration,
) -> Result<Outcome, String> {
    let path = a.path.as_deref().filter(|p| !p.is_empty()).unwrap_or("/");
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let tls = a.scheme.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("https"));
    let mut url = Url {
        scheme: if tls { "https" } else { "http" }.to_owned(),
        host: target.host(a.host.as_deref())?,
        port: Some(target.port(&a.port)?),
        user: None,
        target: url::escape(&path),
    };
    let headers = a.http_headers.as_deref().unwrap_or_default();
    let (first, mut plain_headers) = (url.clone(), headers.to_vec());
    let work = async {
        match follow(target, &mut url, headers, purpose).await {
            Err(message) if purpose == Purpose::Hook && message.ends_with(PLAIN_ANSWER) => {
                plain_headers.retain(|h| !h.name.eq_ignore_ascii_case(header::AUTHORIZATION.as_str()));
                url = Url { scheme: "http".to_owned(), ..first };
                follow(target, &mut url, &plain_headers, purpose).await
            }
            answer => answer,
        }
    };
    match tokio::time::timeout(timeout, work).await {
        Ok(answer) => outcome(answer?, purpose),
        Err(_) => {
            let why = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
            Err(failed(&url, why))
        }
    }
}

fn failed(url: impl std::fmt::Display, why: impl std::fmt::Display) -> String {
    format!("Get \"{url}\": {why}")
}

fn outcome(answer: Answer, purpose: Purpose) -> Result<Outcome, String> {
    match answer.status {
        _ if purpose == Purpose::Hook => Ok(Outcome::Success),
        200..300 => Ok(Outcome::Success),
        300..400 => {
            let body = String::from_utf8_lossy(&answer.body);
            Ok(Outcome::Warning(format!("Probe terminated redirects, Response body: {body}")))
        }
        status => Err(format!("HTTP probe failed with statuscode: {status}")),
    }
}

/// Requests `url` and follows redirects to the same host. `url` becomes the URL of the last request.
async fn follow(
    target: &Target<'_>,
    url: &mut Url,
    headers: &[HTTPHeader],
    purpose: Purpose,
) -> Result<Answer, String> {
    let first = url.host.clone();
    let is_host = |h: &&HTTPHeader| h.name.eq_ignore_ascii_case("host") && !h.value.is_empty();
    let mut host = headers.iter().find(is_host).map(|h| h.value.clone());
    let mut referer = None;
    let mut requests = 0;
    loop {
        let request = request(url, headers, host.as_deref(), referer.as_deref(), purpose);
        let answer =
            exchange(target, url, request.map_err(|e| failed(&*url, e))?).await.map_err(|e| failed(&*url, e))?;
        requests += 1;
        let is_redirect = matches!(answer.status, 301 | 302 | 303 | 307 | 308);
        let Some(location) = answer.location.as_deref().filter(|l| is_redirect && !l.is_empty()) else {
            return Ok(answer);
        };
        let next = url.join(location).map_err(|e| {
            failed(&*url, format!("failed to parse Location header {location:?}: parse {location:?}: {e}"))
        })?;
        if next.host != first {
            return Ok(answer);
        }
        if requests >= MAX_REDIRECTS {
            return Err(failed(location, format!("stopped after {MAX_REDIRECTS} redirects")));
        }
        if url::is_absolute(location) {
            // The Host header of the probe applies to relative redirects only.
            host = None;
        }
        referer = (url.scheme == next.scheme || next.scheme == "https").then(|| url.to_string());
        *url = next;
    }
}

fn request(
    url: &Url,
    more: &[HTTPHeader],
    host: Option<&str>,
    referer: Option<&str>,
    purpose: Purpose,
) -> Result<http::Request<Empty<Bytes>>, String> {
    let mut request = http::Request::get(&url.target)
        .header(header::USER_AGENT, purpose.user_agent())
        .header(header::ACCEPT, "*/*")
        .header(header::CONNECTION, "close")
        .header(header::HOST, host.unwrap_or(&url.authority()));
    if let Some(referer) = referer {
        request = request.header(header::REFERER, referer);
    }
    if let Some(user) = &url.user {
        request = request.header(header::AUTHORIZATION, format!("Basic {}", BASE64_STANDARD.encode(user)));
    }
    // A header of the probe replaces ours of the same name.
    for h in more {
        if let Some(headers) = request.headers_mut()
            && let Ok(name) = http::HeaderName::try_from(h.name.as_str())
            && name != header::HOST
        {
            headers.remove(&name);
        }
    }
    for h in more.iter().filter(|h| !h.name.eq_ignore_ascii_case("host")) {
        request = request.header(h.name.as_str(), h.value.as_str());
    }
    request.body(Empty::new()).map_err(|e| e.to_string())
}

/// Sends a request over a new connection.
async fn exchange(target: &Target<'_>, url: &Url, request: http::Request<Empty<Bytes>>) -> Result<Answer, String> {
    let stream = target.connect(&url.host, url.dialled_port()?).await?;
    if url.scheme != "https" {
        return send(stream, request).await;
    }
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config().map_err(|e| e.why())?));
    let name = ServerName::try_from(url.host.clone()).map_err(|e| e.to_string())?;
    send(connector.connect(name, stream).await.map_err(|e| tls_error(&e))?, request).await
}

/// The message of an error of a TLS handshake.
fn tls_error(e: &std::io::Error) -> String {
    match e.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)) => PLAIN_ANSWER.to_owned(),
        _ => e.to_string(),
    }
}

async fn send<S>(stream: S, request: http::Request<Empty<Bytes>>) -> Result<Answer, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let error = |e: hyper::Error| if e.is_incomplete_message() { "EOF".to_owned() } else { e.to_string() };
    let mut builder = hyper::client::conn::http1::Builder::new();
    builder.max_headers(MAX_HEADERS);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(error)?;
    // Work on the connection ends with this future.
    let answer = async move {
        let (head, mut rest) = sender.send_request(request).await.map_err(error)?.into_parts();
        let location = head.headers.get(header::LOCATION);
        let location = location.map(|l| String::from_utf8_lossy(l.as_bytes()).into_owned());
        let mut body = Vec::new();
        while head.status.is_redirection() && body.len() < MAX_OUTPUT {
            let Some(frame) = rest.frame().await else { break };
            // A body that breaks off does not matter for a redirect that is followed.
            let Ok(frame) = frame else { break };
            body.extend(frame.into_data().unwrap_or_default());
        }
        body.truncate(MAX_OUTPUT);
        Ok(Answer { status: head.status.as_u16(), location, body })
    };
    tokio::pin!(answer, connection);
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        // The server may have answered and closed at once.
        _ = &mut connection => answer.await,
    }
}

/// TLS that accepts any certificate: a probe checks that the server answers, not its identity.
fn config() -> Result<rustls::ClientConfig, client::Error> {
    let mut config = (*client::https::unverified()?).clone();
    // A server that offers only other protocols answers anyway.
    config.alpn_protocols.clear();
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    /// Hooks try plain HTTP after this error.
    #[tokio::test]
    async fn recognizes_a_plain_answer_to_https() {
        let (client, mut server) = tokio::io::duplex(4096);
        server.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config().unwrap()));
        let name = ServerName::try_from("10.0.0.1").unwrap();
        let error = connector.connect(name, client).await.unwrap_err();
        assert_eq!(tls_error(&error), PLAIN_ANSWER);
    }

    #[test]
    fn any_answer_is_a_success_of_a_hook() {
        let answer = |status| Answer { status, location: None, body: b"b".to_vec() };
        for status in [200, 302, 404, 500] {
            assert!(matches!(outcome(answer(status), Purpose::Hook), Ok(Outcome::Success)), "{status}");
        }
        assert!(matches!(outcome(answer(302), Purpose::Probe), Ok(Outcome::Warning(_))));
        assert!(outcome(answer(404), Purpose::Probe).is_err_and(|m| m == "HTTP probe failed with statuscode: 404"));
    }
}
