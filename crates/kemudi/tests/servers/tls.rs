//! Certificates for an etcd with TLS.

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use std::path::{Path, PathBuf};

/// A CA, and a certificate that it signed for servers and clients.
pub struct Files {
    pub authority: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Files {
    pub fn create(directory: &Path, name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut p = CertificateParams::default();
        p.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = p.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(p, key);
        let key = KeyPair::generate().unwrap();
        let mut p = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = p.signed_by(&key, &issuer).unwrap().pem();
        let write = |suffix: &str, text: String| {
            let path = directory.join(format!("{name}.{suffix}"));
            std::fs::write(&path, text).unwrap();
            path
        };
        Self {
            authority: write("ca", authority),
            certificate: write("crt", certificate),
            key: write("key", key.serialize_pem()),
        }
    }
}
