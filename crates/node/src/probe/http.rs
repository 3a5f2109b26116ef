//! `httpGet`: success is a status from 200 to 399, after redirects of the same host have been followed; a status from 300 on that is left
//! is a success with a warning. Certificates are not verified. Follows upstream's `pkg/probe/http` and Go's HTTP client.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{HTTPGetAction, HTTPHeader};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite};

use super::target::{MAX_OUTPUT, Outcome, Target};
use super::url::{self, Url};

pub(super) const USER_AGENT: &str = "kube-probe/1.36";

/// As Go's HTTP client has it.
const MAX_REDIRECTS: usize = 10;

/// What becomes of a redirect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirects {
    /// The final answer counts; one that leads to another host is a warning.
    Follow,
    /// It counts as a success.
    Accept,
}

/// What a server answered.
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
    redirects: Redirects,
    timeout: Duration,
) -> Result<Outcome, String> {
    let path = a.path.as_deref().filter(|p| !p.is_empty()).unwrap_or("/");
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let tls = a.scheme.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("https"));
    let mut url = Url {
        scheme: if tls { "https" } else { "http" }.to_owned(),
        host: target.host(a.host.as_deref())?,
        port: Some(target.port(&a.port)?),
        target: path,
    };
    let work = follow(target, &mut url, a.http_headers.as_deref().unwrap_or_default(), redirects);
    match tokio::time::timeout(timeout, work).await {
        Ok(answer) => outcome(answer?),
        Err(_) => {
            let why = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
            Err(failed(&url, why))
        }
    }
}

fn failed(url: impl std::fmt::Display, why: impl std::fmt::Display) -> String {
    format!("Get \"{url}\": {why}")
}

fn outcome(answer: Answer) -> Result<Outcome, String> {
    match answer.status {
        200..300 => Ok(Outcome::Success),
        300..400 => {
            let body = String::from_utf8_lossy(&answer.body);
            Ok(Outcome::Warning(format!("Probe terminated redirects, Response body: {body}")))
        }
        status => Err(format!("HTTP probe failed with statuscode: {status}")),
    }
}

/// The answer of `url`, or the one that redirects of the same host lead to. `url` is then the one that was asked last.
async fn follow(
    target: &Target<'_>,
    url: &mut Url,
    headers: &[HTTPHeader],
    redirects: Redirects,
) -> Result<Answer, String> {
    let first = url.host.clone();
    let is_host = |h: &&HTTPHeader| h.name.eq_ignore_ascii_case("host") && !h.value.is_empty();
    let mut host = headers.iter().find(is_host).map(|h| h.value.clone());
    let mut referer = None;
    let mut asked = 0;
    loop {
        let request = request(url, headers, host.as_deref(), referer.as_deref()).map_err(|e| failed(&*url, e))?;
        let answer = ask(target, url, request).await.map_err(|e| failed(&*url, e))?;
        asked += 1;
        let followed = redirects == Redirects::Follow && matches!(answer.status, 301 | 302 | 303 | 307 | 308);
        let Some(location) = answer.location.as_deref().filter(|l| followed && !l.is_empty()) else {
            return Ok(answer);
        };
        let next = url.join(location).map_err(|e| {
            failed(&*url, format!("failed to parse Location header {location:?}: parse {location:?}: {e}"))
        })?;
        if next.host != first {
            return Ok(answer);
        }
        if asked >= MAX_REDIRECTS {
            return Err(failed(location, format!("stopped after {MAX_REDIRECTS} redirects")));
        }
        if url::is_absolute(location) {
            // The probe's own Host header holds for relative redirects only.
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
) -> Result<http::Request<Empty<Bytes>>, String> {
    let mut request = http::Request::get(&url.target)
        .header(header::USER_AGENT, USER_AGENT)
        .header(header::ACCEPT, "*/*")
        .header(header::CONNECTION, "close")
        .header(header::HOST, host.unwrap_or(&url.authority()));
    if let Some(referer) = referer {
        request = request.header(header::REFERER, referer);
    }
    // A header of the user's replaces ours of the same name.
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

async fn ask(target: &Target<'_>, url: &Url, request: http::Request<Empty<Bytes>>) -> Result<Answer, String> {
    let stream = target.connect(&url.host, url.dialled_port()?).await?;
    if url.scheme != "https" {
        return send(stream, request).await;
    }
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config().map_err(|e| e.to_string())?));
    let name = ServerName::try_from(url.host.clone()).map_err(|e| e.to_string())?;
    send(connector.connect(name, stream).await.map_err(|e| e.to_string())?, request).await
}

async fn send<S>(stream: S, request: http::Request<Empty<Bytes>>) -> Result<Answer, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let said = |e: hyper::Error| if e.is_incomplete_message() { "EOF".to_owned() } else { e.to_string() };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(said)?;
    // The connection is worked on only as long as somebody waits for the answer.
    let answer = async move {
        let (head, mut rest) = sender.send_request(request).await.map_err(said)?.into_parts();
        let location = head.headers.get(header::LOCATION);
        let location = location.map(|l| String::from_utf8_lossy(l.as_bytes()).into_owned());
        let mut body = Vec::new();
        while head.status.is_redirection() && body.len() < MAX_OUTPUT {
            let Some(frame) = rest.frame().await else { break };
            body.extend(frame.map_err(said)?.into_data().unwrap_or_default());
        }
        body.truncate(MAX_OUTPUT);
        Ok(Answer { status: head.status.as_u16(), location, body })
    };
    tokio::pin!(answer, connection);
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        // The peer may have answered and closed at once.
        _ = &mut connection => answer.await,
    }
}

fn config() -> Result<rustls::ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    Ok(rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone(provider)))
        .with_no_client_auth())
}

/// A probe asks whether somebody answers, not who.
#[derive(Debug)]
struct Anyone(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
