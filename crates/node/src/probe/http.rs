//! `httpGet`: success is a status from 200 to 399. Certificates are not verified, as upstream does not.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::HTTPGetAction;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite};

use super::Target;

pub(super) const USER_AGENT: &str = "kube-probe/1.36";

pub(super) async fn get(target: &Target<'_>, a: &HTTPGetAction, timeout: Duration) -> Result<(), String> {
    let port = target.port(&a.port)?;
    let host = target.host(a.host.as_deref())?;
    let path = a.path.as_deref().filter(|p| !p.is_empty()).unwrap_or("/");
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let tls = a.scheme.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("https"));
    let url = format!("{}://{host}:{port}{path}", if tls { "https" } else { "http" });
    let failed = |why: String| format!("Get \"{url}\": {why}");
    let mut request = http::Request::get(&path)
        .header(http::header::USER_AGENT, USER_AGENT)
        .header(http::header::ACCEPT, "*/*")
        .header(http::header::CONNECTION, "close");
    let mut named = false;
    for h in a.http_headers.iter().flatten() {
        named |= h.name.eq_ignore_ascii_case("host");
        // A header of the user's replaces ours of the same name.
        if let Some(headers) = request.headers_mut()
            && let Ok(name) = http::HeaderName::try_from(h.name.as_str())
        {
            headers.remove(&name);
        }
        request = request.header(h.name.as_str(), h.value.as_str());
    }
    if !named {
        request = request.header(http::header::HOST, format!("{host}:{port}"));
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|e| failed(e.to_string()))?;
    let work = async {
        let stream = target.connect(&host, port).await.map_err(&failed)?;
        if !tls {
            return send(stream, request).await.map_err(&failed);
        }
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config().map_err(|e| failed(e.to_string()))?));
        let name = ServerName::try_from(host.clone()).map_err(|e| failed(e.to_string()))?;
        let stream = connector.connect(name, stream).await.map_err(|e| failed(e.to_string()))?;
        send(stream, request).await.map_err(&failed)
    };
    let late = || failed("context deadline exceeded (Client.Timeout exceeded while awaiting headers)".into());
    let status = tokio::time::timeout(timeout, work).await.map_err(|_| late())??;
    if (200..400).contains(&status) {
        return Ok(());
    }
    Err(format!("HTTP probe failed with statuscode: {status}"))
}

async fn send<S>(stream: S, request: http::Request<Empty<Bytes>>) -> Result<u16, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let said = |e: hyper::Error| if e.is_incomplete_message() { "EOF".to_owned() } else { e.to_string() };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(said)?;
    // The connection is worked on only as long as somebody waits for the answer.
    let answer = async move { sender.send_request(request).await.map(|r| r.status().as_u16()).map_err(said) };
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
