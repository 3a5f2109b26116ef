//! Keys and certificates: created at the first start in `DIR/pki`, read at the next ones, renewed before they expire.

use apiserver::AnyCertificate;
use auth::jwt::PrivateKey;
use client::https::ClientIdentity;
use controllers::certificates::{Authority, AuthorityError};
use jiff::{SignedDuration, Timestamp};
use meta::Clock;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error("making a certificate: {0}")]
    Make(#[from] rcgen::Error),
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error("{path}: {why}")]
    Read { path: PathBuf, why: String },
}

pub struct Pki {
    directory: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    pub ca_pem: String,
    key_pem: String,
    /// The CA of authenticating proxies. The client certificate of the cluster's own proxy lies beside it: `front-proxy-client`.
    pub proxy_ca_pem: String,
    /// The client certificate for extension API servers.
    pub proxy_client: ClientIdentity,
    clock: Arc<dyn Clock>,
}

/// The common name of the cluster's own proxy.
pub const FRONT_PROXY: &str = "front-proxy-client";

/// A certificate with its key, in PEM.
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

impl Pki {
    pub fn open(directory: &Path, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        fs::create_dir_all(directory).map_err(|source| Error::File { path: directory.into(), source })?;
        let (ca_pem, key_pem, issuer) = authority(directory, "ca", "kemudi-ca", &*clock)?;
        let (proxy_ca_pem, _, proxies) = authority(directory, "front-proxy-ca", "kemudi-front-proxy-ca", &*clock)?;
        let mut p = CertificateParams::default();
        p.distinguished_name.push(DnType::CommonName, FRONT_PROXY);
        p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let proxy = sign(p, &proxies, &*clock)?;
        write_private(&directory.join("front-proxy-client.key"), &proxy.key)?;
        write(&directory.join("front-proxy-client.crt"), &proxy.certificate)?;
        let proxy_client = ClientIdentity { certificates: proxy.certificate.into_bytes(), key: proxy.key.into_bytes() };
        Ok(Self { directory: directory.into(), issuer, ca_pem, key_pem, proxy_ca_pem, proxy_client, clock })
    }

    /// The authority that signs CertificateSigningRequests.
    pub fn authority(&self, longest: SignedDuration) -> Result<Authority, Error> {
        Ok(Authority::new(&self.ca_pem, &self.key_pem, longest)?)
    }

    /// Issues the server's certificate for these names and addresses.
    pub fn server(&self, names: &[&str], addresses: &[IpAddr]) -> Result<Pair, Error> {
        let mut p = CertificateParams::default();
        p.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        for n in names {
            p.subject_alt_names.push(SanType::DnsName((*n).try_into()?));
        }
        p.subject_alt_names.extend(addresses.iter().map(|a| SanType::IpAddress(*a)));
        p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        sign(p, &self.issuer, &*self.clock)
    }

    /// Issues the serving certificate of a node's agent (`kubernetes.io/kubelet-serving`).
    pub fn kubelet(&self, node: &str, addresses: &[IpAddr]) -> Result<Pair, Error> {
        let mut p = CertificateParams::default();
        p.distinguished_name.push(DnType::OrganizationName, auth::user::GROUP_NODES);
        p.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
        p.subject_alt_names.push(SanType::DnsName(node.try_into()?));
        p.subject_alt_names.extend(addresses.iter().map(|a| SanType::IpAddress(*a)));
        p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        sign(p, &self.issuer, &*self.clock)
    }

    /// Issues the API server's client certificate for kubelets. It is created at each start and never stored.
    pub fn kubelet_client(&self) -> Result<ClientIdentity, Error> {
        let mut p = CertificateParams::default();
        p.distinguished_name.push(DnType::OrganizationName, auth::user::GROUP_MASTERS);
        p.distinguished_name.push(DnType::CommonName, "kube-apiserver-kubelet-client");
        p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let pair = sign(p, &self.issuer, &*self.clock)?;
        Ok(ClientIdentity { certificates: pair.certificate.into_bytes(), key: pair.key.into_bytes() })
    }

    /// TLS of the listener, see [`tls`].
    pub fn tls(&self, pair: &Pair, authorities: &[&str]) -> Result<Arc<rustls::ServerConfig>, Error> {
        tls(pair, authorities, &self.directory)
    }

    /// The key that signs service account tokens (ECDSA P-256), created at the first start.
    pub fn token_key(&self) -> Result<PrivateKey, Error> {
        let path = self.directory.join("sa.key");
        let bad = |why: String| Error::Read { path: path.clone(), why };
        if !path.exists() {
            let (_, document) = PrivateKey::generate().map_err(bad)?;
            write_private_bytes(&path, &document)?;
        }
        let bytes = fs::read(&path).map_err(|source| Error::File { path: path.clone(), source })?;
        PrivateKey::from_der("PRIVATE KEY", &bytes).map_err(bad)
    }
}

/// TLS of the listener. It accepts any client certificate, because authenticators verify them later; `authorities` are
/// named in the handshake so that clients choose a suitable one. `directory` is that of the files, for errors.
pub fn tls(pair: &Pair, authorities: &[&str], directory: &Path) -> Result<Arc<rustls::ServerConfig>, Error> {
    let bad = |e: rustls::pki_types::pem::Error| Error::Read { path: directory.to_owned(), why: e.to_string() };
    let mut roots = rustls::RootCertStore::empty();
    for c in authorities.iter().flat_map(|pem| CertificateDer::pem_slice_iter(pem.as_bytes())) {
        roots.add(c.map_err(bad)?)?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = AnyCertificate::new(provider.clone(), &roots);
    let chain =
        CertificateDer::pem_slice_iter(pair.certificate.as_bytes()).collect::<Result<Vec<_>, _>>().map_err(bad)?;
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).map_err(bad)?;
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Opens a CA of this name, or creates it.
fn authority(
    directory: &Path,
    file: &str,
    name: &str,
    clock: &dyn Clock,
) -> Result<(String, String, Issuer<'static, KeyPair>), Error> {
    let (crt, key) = (directory.join(format!("{file}.crt")), directory.join(format!("{file}.key")));
    if !crt.exists() || !key.exists() {
        let pair = KeyPair::generate()?;
        let mut p = CertificateParams::default();
        p.distinguished_name.push(DnType::CommonName, name);
        p.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        p.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        valid(&mut p, clock.now(), 10 * 365);
        let c = p.self_signed(&pair)?;
        write_private(&key, &pair.serialize_pem())?;
        write(&crt, &c.pem())?;
    }
    let (ca_pem, key_pem) = (read(&crt)?, read(&key)?);
    let bad = |e: rcgen::Error| Error::Read { path: key.clone(), why: e.to_string() };
    let issuer = Issuer::from_ca_cert_pem(&ca_pem, KeyPair::from_pem(&key_pem).map_err(bad)?).map_err(bad)?;
    Ok((ca_pem, key_pem, issuer))
}

fn sign(mut p: CertificateParams, issuer: &Issuer<'static, KeyPair>, clock: &dyn Clock) -> Result<Pair, Error> {
    let key = KeyPair::generate()?;
    p.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    valid(&mut p, clock.now(), 365);
    let c = p.signed_by(&key, issuer)?;
    Ok(Pair { certificate: c.pem(), key: key.serialize_pem() })
}

fn valid(p: &mut CertificateParams, now: Timestamp, days: i64) {
    let date = |t: Timestamp| {
        let d = t.to_zoned(jiff::tz::TimeZone::UTC).date();
        rcgen::date_time_ymd(i32::from(d.year()), d.month() as u8, d.day() as u8)
    };
    // Clocks of other machines may be slow.
    p.not_before = date(now - SignedDuration::from_hours(24));
    p.not_after = date(now + SignedDuration::from_hours(24 * days));
}

pub(crate) fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| Error::File { path: path.into(), source })
}

pub(crate) fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(|source| Error::File { path: path.into(), source })
}

/// Writes a file that only its owner can read (0600). The file is replaced, so that a descriptor opened earlier does not see the new
/// content.
pub fn write_private(path: &Path, text: &str) -> Result<(), Error> {
    write_private_bytes(path, text.as_bytes())
}

pub(crate) fn write_private_bytes(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let failed = |source| Error::File { path: path.into(), source };
    // Replaces the target of a symbolic link, not the link.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let fresh = target.with_file_name(name);
    let _ = fs::remove_file(&fresh); // left by an earlier process with this ID
    let written = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh).and_then(|mut f| {
        f.write_all(bytes)?;
        f.sync_all()
    });
    written.and_then(|()| fs::rename(&fresh, &target)).inspect_err(|_| _ = fs::remove_file(&fresh)).map_err(failed)
}
