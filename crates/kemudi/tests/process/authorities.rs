//! Changes of CA files while the server runs.

use crate::directory;
use crate::running::{Running, up};
use client::Transport;
use client::https::{ClientIdentity, Config, Https, Roots};
use http::Request;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::Value;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// An authority, and a client whom it knows as an administrator.
struct Authority {
    pem: String,
    client: ClientIdentity,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut p = CertificateParams::default();
        p.distinguished_name.push(DnType::CommonName, name);
        p.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = p.self_signed(&key).unwrap().pem();
        let issuer = Issuer::from_ca_cert_pem(&pem, key).unwrap();
        let mut p = CertificateParams::default();
        p.distinguished_name.push(DnType::CommonName, "jane");
        p.distinguished_name.push(DnType::OrganizationName, "system:masters");
        let key = KeyPair::generate().unwrap();
        let certificates = p.signed_by(&key, &issuer).unwrap().pem().into_bytes();
        Self { pem, client: ClientIdentity { certificates, key: key.serialize_pem().into_bytes() } }
    }

    fn client(&self, server: &Running, ca: &str) -> Https {
        let mut config = Config::new(format!("https://127.0.0.1:{}", server.port()));
        config.roots = Roots::Pem(ca.as_bytes().to_vec());
        config.identity = Some(self.client.clone());
        Https::new(&config).unwrap()
    }
}

async fn code(client: &Https) -> u16 {
    let request = Request::get("/api/v1/namespaces").body(bytes::Bytes::new()).unwrap();
    client.send(request).await.unwrap().status().as_u16()
}

/// Clients of the old CA are rejected, also on open connections; extension API servers get the new CA.
#[tokio::test]
async fn changed_authorities_are_reloaded() {
    let d = directory();
    let file = d.path().join("clients.crt");
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    std::fs::write(&file, &old.pem).unwrap();
    let data = d.path().join("data");
    let server = Running::start(up(&data).arg("--client-ca-file").arg(&file)).await.unwrap();
    let ca = std::fs::read_to_string(data.join("pki/ca.crt")).unwrap();
    let first = old.client(&server, &ca);
    assert_eq!((code(&first).await, code(&new.client(&server, &ca)).await), (200, 401));
    std::fs::write(&file, "nothing").unwrap();
    std::fs::write(&file, &new.pem).unwrap();
    let begun = Instant::now();
    while code(&new.client(&server, &ca)).await != 200 {
        assert!(begun.elapsed() < Duration::from_secs(60), "the file is not looked at");
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(code(&first).await, 401);
    let path = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let published = || async { server.call("GET", path, &Value::Null).await.1["data"]["client-ca-file"].to_string() };
    while !published().await.contains(new.pem.lines().nth(1).unwrap()) {
        assert!(begun.elapsed() < Duration::from_secs(60), "the authorities are not published");
        sleep(Duration::from_millis(100)).await;
    }
    assert!(!published().await.contains(old.pem.lines().nth(1).unwrap()));
}
