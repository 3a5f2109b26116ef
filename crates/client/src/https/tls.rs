//! TLS client configuration: trusted roots and client certificates.

use super::Config;
use super::trust::{Trusted, Verifier};
use crate::error::Error;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use std::path::Path;
use std::sync::Arc;

/// The certificates that are trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Roots {
    /// The system's certificates.
    #[default]
    System,
    /// PEM.
    Pem(Vec<u8>),
    /// The system's certificates, and those of a PEM text.
    SystemAnd(Vec<u8>),
}

/// A client certificate chain and its key, both PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    /// Certificate chain, the client's own first.
    pub certificates: Vec<u8>,
    /// Private key.
    pub key: Vec<u8>,
}

impl std::fmt::Debug for ClientIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClientIdentity")
    }
}

/// Where systems keep trusted certificates; Go's list.
const SYSTEM: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/ssl/cert.pem",
];

pub(super) fn config(c: &Config, http2: bool) -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| Error::Credentials(e.to_string()))?;
    let builder = if c.insecure {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
    } else {
        let verifier = Verifier::new(roots(&c.roots)?, provider);
        builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
    };
    let mut config = match &c.identity {
        None => builder.with_no_client_auth(),
        Some(id) => {
            let chain = certificates(&id.certificates, "client certificate")?;
            let key =
                PrivateKeyDer::from_pem_slice(&id.key).map_err(|e| Error::Credentials(format!("client key: {e}")))?;
            builder.with_client_auth_cert(chain, key).map_err(|e| Error::Credentials(format!("client key: {e}")))?
        }
    };
    config.alpn_protocols = if http2 { vec![b"h2".to_vec(), b"http/1.1".to_vec()] } else { vec![b"http/1.1".to_vec()] };
    Ok(Arc::new(config))
}

/// TLS for HTTP/1.1 to servers that `roots` verify, with a client certificate: the API server's configuration for kubelets.
pub fn mutual(roots: Roots, identity: ClientIdentity) -> Result<Arc<ClientConfig>, Error> {
    config(&Config { roots, identity: Some(identity), ..Config::new("") }, false)
}

/// TLS for HTTP/1.1 with a server whose certificate has one of these roots.
pub fn verified(roots: Roots) -> Result<Arc<ClientConfig>, Error> {
    config(&Config { roots, ..Config::new("") }, false)
}

/// TLS for HTTP/1.1 that accepts any certificate: the API server's configuration as a proxy for pods.
pub fn unverified() -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| Error::Credentials(e.to_string()))?;
    let mut config =
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer(provider))).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(v) if v.is_empty() => Err(Error::Credentials(format!("{what}: no certificate in it"))),
        Ok(v) => Ok(v),
        Err(e) => Err(Error::Credentials(format!("{what}: {e}"))),
    }
}

fn roots(r: &Roots) -> Result<Trusted, Error> {
    let mut trusted = Trusted::default();
    match r {
        Roots::Pem(pem) => add_pem(&mut trusted, pem)?,
        Roots::System => add_system(&mut trusted),
        Roots::SystemAnd(pem) => {
            add_pem(&mut trusted, pem)?;
            add_system(&mut trusted);
        }
    }
    Ok(trusted)
}

fn add_pem(trusted: &mut Trusted, pem: &[u8]) -> Result<(), Error> {
    let unfit = |why: String| Error::Credentials(format!("unable to load root certificates: {why}"));
    let mut failed = None;
    for c in CertificateDer::pem_slice_iter(pem) {
        let c = c.map_err(|_| unfit("unable to parse bytes as PEM block".into()))?;
        failed = trusted.add(c).err().or(failed);
    }
    // As in Go, one valid certificate is enough.
    match failed {
        _ if !trusted.is_empty() => Ok(()),
        Some(e) => Err(unfit(format!("failed to parse certificate: {e}"))),
        None => Err(unfit("unable to parse bytes as PEM block".into())),
    }
}

/// Having no roots is an error only when a certificate is verified.
fn add_system(trusted: &mut Trusted) {
    if let Some(pem) = SYSTEM.iter().find_map(|p| std::fs::read(Path::new(p)).ok()) {
        for c in certificates(&pem, "system certificates").unwrap_or_default() {
            let _ = trusted.add(c);
        }
    }
}

/// `insecure-skip-tls-verify`: verifies signatures, but neither names nor chains.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
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
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
