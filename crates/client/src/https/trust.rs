//! Verification of server certificates, with the decisions and texts of Go's `crypto/x509`.
//!
//! The leaf is checked first: its validity, names and key usage. Then it must be one of the roots
//! itself, or a chain must lead from it to a root that may sign. `webpki` verifies the chains, except for a case that it rejects and Go
//! accepts: a leaf that is marked as a CA, signed by a root.
//!
//! **Invariant**: a root signs other certificates only if it is marked as a CA; otherwise only its own certificate is trusted.

use crate::certificate::common_name;
use aws_lc_rs::digest::{SHA256, digest};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme};
use std::collections::HashSet;
use std::sync::Arc;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;
use x509_parser::x509::{SubjectPublicKeyInfo, X509Version};

/// Maximum number of certificate names that an error lists.
const MAX_NAMES: usize = 100;

/// The reason why a certificate is not trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Distrust {
    #[error("x509: malformed certificate")]
    Malformed,
    #[error("x509: certificate has expired or is not yet valid: current time {now} is {side} {limit}")]
    Time { now: String, side: &'static str, limit: String },
    #[error("x509: {0}")]
    Name(String),
    #[error("x509: unhandled critical extension")]
    CriticalExtension,
    #[error("x509: certificate specifies an incompatible key usage")]
    Usage,
    #[error("x509: certificate signed by unknown authority")]
    Authority,
    #[error("x509: {0}")]
    Other(String),
}

/// Trusted certificates.
#[derive(Default)]
pub struct Trusted {
    /// Certificates that may sign others.
    anchors: Vec<Anchor>,
    /// Hashes of all certificates; each of them is accepted as a server's.
    own: HashSet<Box<[u8]>>,
}

struct Anchor {
    anchor: TrustAnchor<'static>,
    not_before: i64,
    not_after: i64,
}

impl Trusted {
    pub fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// Adds a certificate. Errors if it cannot be read.
    pub fn add(&mut self, der: CertificateDer<'static>) -> Result<(), String> {
        let (_, cert) = X509Certificate::from_der(&der).map_err(|e| e.to_string())?;
        if may_sign(&cert) {
            let validity = cert.validity();
            let (not_before, not_after) = (validity.not_before.timestamp(), validity.not_after.timestamp());
            let mut store = RootCertStore::empty();
            store.add(der.clone()).map_err(|e| e.to_string())?;
            self.anchors.extend(store.roots.into_iter().map(|anchor| Anchor { anchor, not_before, not_after }));
        }
        self.own.insert(digest(&SHA256, &der).as_ref().into());
        Ok(())
    }
}

/// Whether signatures by `cert` are accepted (`CheckSignatureFrom`).
fn may_sign(cert: &X509Certificate<'_>) -> bool {
    let constraints = cert.basic_constraints().ok().flatten();
    let is_ca = match constraints {
        Some(c) => c.value.ca,
        None => cert.version() != X509Version::V3,
    };
    let usage = cert.key_usage().ok().flatten();
    is_ca && usage.is_none_or(|u| u.value.flags == 0 || u.value.key_cert_sign())
}

/// Verifies server certificates against trusted ones.
pub struct Verifier {
    trusted: Trusted,
    /// Verifies chains to the anchors; none if there are no anchors.
    chains: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Verifier")
    }
}

impl Verifier {
    pub fn new(trusted: Trusted, provider: Arc<CryptoProvider>) -> Self {
        let chains = chains(trusted.anchors.iter(), &provider);
        Self { trusted, chains, provider }
    }

    fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<(), Distrust> {
        let (_, cert) = X509Certificate::from_der(leaf).map_err(|_| Distrust::Malformed)?;
        valid_at(&cert, now)?;
        if cert
            .extensions()
            .iter()
            .any(|e| e.critical && matches!(e.parsed_extension(), ParsedExtension::UnsupportedExtension { .. }))
        {
            return Err(Distrust::CriticalExtension);
        }
        let parsed = ParsedCertificate::try_from(leaf).map_err(|_| Distrust::Malformed)?;
        verify_server_name(&parsed, name).map_err(|_| Distrust::Name(wrong_name(&cert, name)))?;
        if self.trusted.own.contains(digest(&SHA256, leaf).as_ref()) {
            return serves(&cert);
        }
        let at = now.as_secs() as i64;
        let good = |a: &&Anchor| a.not_before <= at && at <= a.not_after;
        let all_good = self.trusted.anchors.iter().all(|a| good(&a));
        let some = if all_good { None } else { chains(self.trusted.anchors.iter().filter(good), &self.provider) };
        let chains = if all_good { self.chains.as_ref() } else { some.as_ref() }.ok_or(Distrust::Authority)?;
        if cert.is_ca() {
            let signed = self.trusted.anchors.iter().filter(good).any(|a| signs(&a.anchor, &cert));
            return if signed { serves(&cert) } else { Err(Distrust::Authority) };
        }
        match chains.verify_server_cert(leaf, intermediates, name, ocsp, now) {
            Ok(_) => Ok(()),
            Err(rustls::Error::InvalidCertificate(why)) => Err(distrust(&why, &cert, name, now)),
            Err(e) => Err(Distrust::Other(e.to_string())),
        }
    }
}

fn chains<'a>(
    anchors: impl Iterator<Item = &'a Anchor>,
    provider: &Arc<CryptoProvider>,
) -> Option<Arc<WebPkiServerVerifier>> {
    let roots = RootCertStore { roots: anchors.map(|a| a.anchor.clone()).collect() };
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().ok()
}

fn valid_at(cert: &X509Certificate<'_>, now: UnixTime) -> Result<(), Distrust> {
    let (at, validity) = (now.as_secs() as i64, cert.validity());
    let shown = |t: i64| jiff::Timestamp::from_second(t).map(meta::time::format).unwrap_or_default();
    let wrong = |side, limit| Err(Distrust::Time { now: shown(at), side, limit: shown(limit) });
    match (validity.not_before.timestamp(), validity.not_after.timestamp()) {
        (from, _) if at < from => wrong("before", from),
        (_, to) if at > to => wrong("after", to),
        _ => Ok(()),
    }
}

/// Checks the extended key usage; a certificate without one may be used for any purpose.
fn serves(cert: &X509Certificate<'_>) -> Result<(), Distrust> {
    match cert.extended_key_usage() {
        Ok(None) => Ok(()),
        Ok(Some(usage)) if usage.value.any || usage.value.server_auth => Ok(()),
        _ => Err(Distrust::Usage),
    }
}

/// Whether an anchor without name constraints signed the certificate.
fn signs(anchor: &TrustAnchor<'_>, cert: &X509Certificate<'_>) -> bool {
    let sequence = |content: &[u8]| {
        let mut out = vec![0x30];
        match u8::try_from(content.len()) {
            Ok(n) if n < 0x80 => out.push(n),
            _ => {
                let length = content.len().to_be_bytes();
                let bytes = &length[length.iter().take_while(|b| **b == 0).count()..];
                out.push(0x80 | bytes.len() as u8);
                out.extend_from_slice(bytes);
            }
        }
        out.extend_from_slice(content);
        out
    };
    let key = sequence(&anchor.subject_public_key_info);
    anchor.name_constraints.is_none()
        && sequence(&anchor.subject) == cert.issuer().as_raw()
        && SubjectPublicKeyInfo::from_der(&key).is_ok_and(|(_, key)| cert.verify_signature(Some(&key)).is_ok())
}

fn distrust(why: &CertificateError, cert: &X509Certificate<'_>, name: &ServerName<'_>, now: UnixTime) -> Distrust {
    let time =
        |t: &UnixTime| jiff::Timestamp::from_second(t.as_secs() as i64).map(meta::time::format).unwrap_or_default();
    match why {
        CertificateError::ExpiredContext { not_after, .. } => {
            Distrust::Time { now: time(&now), side: "after", limit: time(not_after) }
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            Distrust::Time { now: time(&now), side: "before", limit: time(not_before) }
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            Distrust::Name(wrong_name(cert, name))
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => Distrust::Usage,
        CertificateError::UnhandledCriticalExtension => Distrust::CriticalExtension,
        CertificateError::UnknownIssuer | CertificateError::BadSignature => Distrust::Authority,
        other => Distrust::Other(other.to_string()),
    }
}

/// Text of Go's `HostnameError`.
fn wrong_name(cert: &X509Certificate<'_>, name: &ServerName<'_>) -> String {
    let host = name.to_str();
    let names = cert.subject_alternative_name().ok().flatten();
    let has_names = names.is_some();
    let names = names.map(|n| &n.value.general_names[..]).unwrap_or_default();
    let common = common_name(cert.subject());
    if !has_names && common.is_some_and(|n| n.eq_ignore_ascii_case(&host)) {
        return "certificate relies on legacy Common Name field, use SANs instead".into();
    }
    let is_address = matches!(name, ServerName::IpAddress(_));
    let valid: Vec<String> = names
        .iter()
        .filter_map(|n| match n {
            GeneralName::DNSName(n) if !is_address => Some((*n).to_owned()),
            GeneralName::IPAddress(b) if is_address => address(b),
            _ => None,
        })
        .collect();
    match valid.len() {
        0 if is_address => format!("cannot validate certificate for {host} because it doesn't contain any IP SANs"),
        0 => format!("certificate is not valid for any names, but wanted to match {host}"),
        n if n > MAX_NAMES => format!("certificate is valid for {n} names, but none matched {host}"),
        _ => format!("certificate is valid for {}, not {host}", valid.join(", ")),
    }
}

fn address(bytes: &[u8]) -> Option<String> {
    if let Ok(b) = <[u8; 4]>::try_from(bytes) {
        return Some(std::net::Ipv4Addr::from(b).to_string());
    }
    <[u8; 16]>::try_from(bytes).ok().map(|b| std::net::Ipv6Addr::from(b).to_string())
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.verify(leaf, intermediates, name, ocsp, now) {
            Ok(()) => Ok(ServerCertVerified::assertion()),
            Err(why) => Err(rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(why))))),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
