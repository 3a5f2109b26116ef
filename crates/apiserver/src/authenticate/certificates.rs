//! Client certificates. The handshake accepts every certificate; authentication decides here, so that an unknown one
//! gets a response instead of a closed connection, as upstream does.

use auth::User;
use aws_lc_rs::digest::{SHA256, digest};
use client::certificate::common_name;
use meta::Clock;
use parking_lot::{Mutex, RwLock};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use std::sync::Arc;
use std::time::Duration;

/// The OID of the subject attribute with the user's UID.
const UID: &str = "1.3.6.1.4.1.57683.2";

#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    #[error("certificates of an authority: {0}")]
    Pem(String),
    #[error("certificates of an authority: {0}")]
    Verifier(String),
}

/// The client CAs, which may be reloaded. Clones share them.
#[derive(Clone, Default)]
pub struct Certificates(Arc<RwLock<Known>>);

#[derive(Default)]
struct Known {
    users: Option<Arc<dyn ClientCertVerifier>>,
    proxies: Option<Arc<dyn ClientCertVerifier>>,
    /// The reload count.
    changes: u64,
}

/// The certificates of a connection, and the result of their last verification.
pub(crate) struct Holder {
    chain: Vec<CertificateDer<'static>>,
    seen: Mutex<(u64, Peer)>,
}

/// The client of a connection. A request extension.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    pub user: Option<User>,
    /// The common name of a front proxy's certificate.
    pub proxy: Option<String>,
    /// There is a certificate that no CA verifies.
    pub unknown: bool,
    /// When the certificate expires, in seconds since 1970.
    pub expires: Option<i64>,
}

impl Certificates {
    /// `users` and `proxies` are PEM with one or more CAs each.
    pub fn new(users: &str, proxies: Option<&str>) -> Result<Self, PeerError> {
        let known = Known { users: Some(verifier(users)?), proxies: proxies.map(verifier).transpose()?, changes: 0 };
        Ok(Self(Arc::new(RwLock::new(known))))
    }

    /// Replaces the CAs, also for open connections.
    pub fn replace(&self, users: &str, proxies: &str) -> Result<(), PeerError> {
        let (users, proxies) = (Some(verifier(users)?), Some(verifier(proxies)?));
        let mut known = self.0.write();
        *known = Known { users, proxies, changes: known.changes + 1 };
        Ok(())
    }

    pub(crate) fn holder(&self, chain: &[CertificateDer<'_>], clock: &dyn Clock) -> Holder {
        let chain: Vec<_> = chain.iter().map(|c| c.clone().into_owned()).collect();
        let seen = (self.0.read().changes, self.peer(&chain, clock));
        Holder { chain, seen: Mutex::new(seen) }
    }

    pub fn peer(&self, chain: &[CertificateDer<'_>], clock: &dyn Clock) -> Peer {
        let Some((leaf, more)) = chain.split_first() else { return Peer::default() };
        let now = UnixTime::since_unix_epoch(Duration::from_secs(clock.now().as_second().unsigned_abs()));
        let known = |by: &Option<Arc<dyn ClientCertVerifier>>| {
            by.as_ref().is_some_and(|v| v.verify_client_cert(leaf, more, now).is_ok())
        };
        let (users, proxies) = {
            let known = self.0.read();
            (known.users.clone(), known.proxies.clone())
        };
        let user = if known(&users) { user_of(leaf) } else { None };
        let proxy = if known(&proxies) { user_of(leaf).map(|u| u.name) } else { None };
        let expires = x509_parser::parse_x509_certificate(leaf).ok().map(|(_, c)| c.validity().not_after.timestamp());
        Peer { unknown: user.is_none() && proxy.is_none(), user, proxy, expires }
    }
}

impl Holder {
    /// Verifies again if the CAs have changed or the certificate has expired.
    pub fn peer(&self, certificates: &Certificates, clock: &dyn Clock) -> Peer {
        if self.chain.is_empty() {
            return Peer::default();
        }
        let changes = certificates.0.read().changes;
        let mut seen = self.seen.lock();
        let over = !seen.1.unknown && seen.1.expires.is_some_and(|e| e < clock.now().as_second());
        if seen.0 != changes || over {
            *seen = (changes, certificates.peer(&self.chain, clock));
        }
        seen.1.clone()
    }
}

fn verifier(pem: &str) -> Result<Arc<dyn ClientCertVerifier>, PeerError> {
    let mut roots = RootCertStore::empty();
    for c in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let c = c.map_err(|e| PeerError::Pem(e.to_string()))?;
        roots.add(c).map_err(|e| PeerError::Pem(e.to_string()))?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let built = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
    Ok(built.map_err(|e| PeerError::Verifier(e.to_string()))? as Arc<dyn ClientCertVerifier>)
}

/// Common name, organizations and UID.
pub(crate) fn user_of(certificate: &[u8]) -> Option<User> {
    let (_, c) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let subject = c.subject();
    let name = common_name(subject).filter(|n| !n.is_empty())?.to_owned();
    let groups: Vec<&str> = subject.iter_organization().filter_map(|o| o.as_str().ok()).collect();
    let mut user = User::new(name, &groups);
    let uid = subject.iter_attributes().find(|a| a.attr_type().to_id_string() == UID);
    user.uid = uid.and_then(|a| a.as_str().ok()).unwrap_or_default().to_owned();
    let digest: String = digest(&SHA256, certificate).as_ref().iter().map(|b| format!("{b:02x}")).collect();
    user.extra.insert("authentication.kubernetes.io/credential-id".into(), vec![format!("X509SHA256={digest}")]);
    Some(user)
}

/// Accepts every certificate in the handshake whose private key the client has.
#[derive(Debug)]
pub struct AnyCertificate {
    provider: Arc<CryptoProvider>,
    /// Sent to clients, to select their certificate.
    hints: Vec<DistinguishedName>,
}

impl AnyCertificate {
    pub fn new(provider: Arc<CryptoProvider>, authorities: &RootCertStore) -> Arc<Self> {
        Arc::new(Self { provider, hints: authorities.subjects() })
    }
}

impl ClientCertVerifier for AnyCertificate {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
