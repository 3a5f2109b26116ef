//! How extension API servers know this one as their front proxy: a CA of its own under `DIR/pki`, and a certificate that it
//! signs anew at each start. Others find the CA in the ConfigMap `kube-system/extension-apiserver-authentication`.

use crate::pki::{self, valid};
use client::https::ClientIdentity;
use meta::Clock;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use serde_json::{Value, json};
use std::path::Path;

/// The name in the certificate.
const NAME: &str = "front-proxy-client";

pub struct FrontProxy {
    pub ca_pem: String,
    pub identity: ClientIdentity,
}

impl FrontProxy {
    /// Reads the CA, or makes it.
    pub fn open(directory: &Path, clock: &dyn Clock) -> Result<Self, pki::Error> {
        let (crt, key) = (directory.join("front-proxy-ca.crt"), directory.join("front-proxy-ca.key"));
        if !crt.exists() || !key.exists() {
            let pair = KeyPair::generate()?;
            let mut p = CertificateParams::default();
            p.distinguished_name.push(DnType::CommonName, "front-proxy-ca");
            p.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            p.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
            valid(&mut p, clock.now(), 10 * 365);
            let c = p.self_signed(&pair)?;
            pki::write_private(&key, &pair.serialize_pem())?;
            pki::write(&crt, &c.pem())?;
        }
        let (ca_pem, key_pem) = (pki::read(&crt)?, pki::read(&key)?);
        let bad = |e: rcgen::Error| pki::Error::Read { path: key.clone(), why: e.to_string() };
        let issuer = Issuer::from_ca_cert_pem(&ca_pem, KeyPair::from_pem(&key_pem).map_err(bad)?).map_err(bad)?;
        let own = KeyPair::generate()?;
        let mut p = CertificateParams::default();
        p.distinguished_name.push(DnType::CommonName, NAME);
        p.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        valid(&mut p, clock.now(), 365);
        let c = p.signed_by(&own, &issuer)?;
        let identity = ClientIdentity { certificates: c.pem().into_bytes(), key: own.serialize_pem().into_bytes() };
        Ok(Self { ca_pem, identity })
    }

    /// What extension API servers are configured from.
    pub fn config_map(&self, client_ca: &str) -> Value {
        json!({"metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"}, "data": {
            "client-ca-file": client_ca,
            "requestheader-client-ca-file": self.ca_pem,
            "requestheader-allowed-names": json!([NAME]).to_string(),
            "requestheader-username-headers": "[\"X-Remote-User\"]",
            "requestheader-uid-headers": "[\"X-Remote-Uid\"]",
            "requestheader-group-headers": "[\"X-Remote-Group\"]",
            "requestheader-extra-headers-prefix": "[\"X-Remote-Extra-\"]"}})
    }
}
