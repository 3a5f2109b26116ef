//! Certificates of a node: requested with a CertificateSigningRequest, kept in one file with their key.

use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use client::{ApiResource, Client, WriteOptions};
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use meta::Object;
use rcgen::{CertificateParams, DnType, KeyPair, SanType};
use serde_json::{Value, json};

use super::Error;

/// How long a request waits for approval and signature.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// When a user is told that a request still waits.
const LONG: Duration = Duration::from_secs(10);
/// The pause between two looks at a request.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(2);
/// The reason of a denial: another machine has the node's name.
const NODE_READY: &str = "NodeReady";
/// The end of the certificate in a file, before its key.
const KEY: &str = "-----BEGIN PRIVATE KEY-----";

/// A certificate and its key, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

impl Pair {
    /// Reads a pair from a file; `None` if there is none.
    pub fn read(path: &Path) -> Result<Option<Self>, Error> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::File { path: path.into(), source }),
        };
        let (certificate, key) = text.split_once(KEY).ok_or_else(|| Error::Certificate(path.into()))?;
        let pair = Self { certificate: certificate.into(), key: format!("{KEY}{key}") };
        pair.validity().map(|_| Some(pair)).ok_or_else(|| Error::Certificate(path.into()))
    }

    /// Writes both into one private file, which replaces the former one.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let failed = |source| Error::File { path: path.into(), source };
        let new = path.with_extension("new");
        let _ = std::fs::remove_file(&new); // left by a killed process
        let mut file =
            std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).map_err(failed)?;
        file.write_all(format!("{}{}", self.certificate, self.key).as_bytes()).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        std::fs::rename(&new, path).map_err(failed)
    }

    /// From when to when the certificate is valid; `None` if it is no certificate.
    pub fn validity(&self) -> Option<(Timestamp, Timestamp)> {
        client::certificate::validity(self.certificate.as_bytes())
    }

    /// Whether it is valid at this time.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.validity().is_some_and(|(from, to)| from <= now && now < to)
    }

    /// When it is to be renewed: after 70 to 90 percent of its life (`share` is from 0 to 1).
    pub fn renew_at(&self, share: f64) -> Option<Timestamp> {
        let (from, to) = self.validity()?;
        let life = to.duration_since(from).as_secs_f64() * (0.7 + 0.2 * share.clamp(0.0, 1.0));
        from.checked_add(jiff::SignedDuration::try_from_secs_f64(life).ok()?).ok()
    }
}

/// Which certificate a node requests.
#[derive(Clone, Debug)]
pub enum Purpose {
    /// It authenticates the node to the API server.
    Client,
    /// It authenticates the kubelet's API to its clients, at these addresses.
    Serving(Vec<IpAddr>),
}

/// Requests a certificate, and waits until it is approved and signed.
pub async fn request(client: &Client, node: &str, purpose: &Purpose) -> Result<Pair, Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
    let (signer, usage) = match purpose {
        Purpose::Client => ("kubernetes.io/kube-apiserver-client-kubelet", "client auth"),
        Purpose::Serving(addresses) => {
            params.subject_alt_names.push(SanType::DnsName(node.try_into()?));
            params.subject_alt_names.extend(addresses.iter().map(|a| SanType::IpAddress(*a)));
            ("kubernetes.io/kubelet-serving", "server auth")
        }
    };
    let text = params.serialize_request(&key)?.pem()?;
    let api = client.dynamic(&ApiResource::typed::<CertificateSigningRequest>());
    let request = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"generateName": "csr-"},
        "spec": {"request": STANDARD.encode(text), "signerName": signer, "usages": ["digital signature", usage]}});
    let created = api.create(&WriteOptions::default(), &Object::from_value(request).unwrap_or_default()).await?;
    let name = created.name().to_owned();
    let signed = async {
        let (started, mut pause, mut is_noted) = (tokio::time::Instant::now(), FIRST_PAUSE, false);
        loop {
            if started.elapsed() > LONG && !std::mem::replace(&mut is_noted, true) {
                tracing::warn!(
                    "the certificate request {name} waits for its approval (`kubectl certificate approve {name}`)"
                );
            }
            let now = api.get(&name).await?;
            if let Some(certificate) = outcome(&now)? {
                return Ok(Pair { certificate, key: key.serialize_pem() });
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    };
    tokio::time::timeout(PATIENCE, signed).await.unwrap_or_else(|_| Err(Error::NotSigned(name.clone(), PATIENCE)))
}

/// The certificate (PEM) of a request, if it is signed.
fn outcome(request: &Object) -> Result<Option<String>, Error> {
    let name = || request.name().to_owned();
    let conditions = request.at(&["status", "conditions"]).and_then(Value::as_array);
    let failed = conditions.into_iter().flatten().find(|c| c["type"] == "Denied" || c["type"] == "Failed");
    if let Some(condition) = failed {
        let message = condition["message"].as_str().unwrap_or("without a reason").to_owned();
        return Err(match condition["reason"].as_str() {
            Some(NODE_READY) => Error::NameTaken(message),
            _ => Error::Denied { name: name(), message },
        });
    }
    let Some(encoded) = request.str_at(&["status", "certificate"]).filter(|c| !c.is_empty()) else { return Ok(None) };
    let decoded = STANDARD.decode(encoded).ok().and_then(|c| String::from_utf8(c).ok());
    let message = "the issued certificate is not PEM".to_owned();
    decoded.map(Some).ok_or_else(|| Error::Denied { name: name(), message })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> Pair {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2026, 1, 11);
        Pair { certificate: params.self_signed(&key).unwrap().pem(), key: key.serialize_pem() }
    }

    #[test]
    fn pairs_are_kept_in_one_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("client.pem");
        assert!(Pair::read(&path).unwrap().is_none());
        let pair = pair();
        pair.write(&path).unwrap();
        pair.write(&path).unwrap();
        assert!(Pair::read(&path).unwrap().unwrap() == pair);
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        std::fs::write(&path, "half a file").unwrap();
        assert!(matches!(Pair::read(&path), Err(Error::Certificate(_))));
    }

    #[test]
    fn certificates_are_renewed_before_their_end() {
        let at = |t: &str| t.parse::<Timestamp>().unwrap();
        let pair = pair();
        assert!(pair.is_valid(at("2026-01-10T23:59:59Z")) && !pair.is_valid(at("2026-01-11T00:00:00Z")));
        assert!(!pair.is_valid(at("2025-12-31T23:59:59Z")));
        assert_eq!(pair.renew_at(0.0), Some(at("2026-01-08T00:00:00Z")));
        assert_eq!(pair.renew_at(1.0), Some(at("2026-01-10T00:00:00Z")));
    }

    #[test]
    fn outcomes_of_requests() {
        let request =
            |status: Value| Object::from_value(json!({"metadata": {"name": "csr-1"}, "status": status})).unwrap();
        assert!(outcome(&request(json!({}))).unwrap().is_none());
        assert_eq!(outcome(&request(json!({"certificate": STANDARD.encode("PEM")}))).unwrap().unwrap(), "PEM");
        let denied =
            outcome(&request(json!({"conditions": [{"type": "Denied", "message": "not this one"}]}))).unwrap_err();
        assert_eq!(denied.to_string(), "the certificate request csr-1 was denied: not this one");
        let taken = json!([{"type": "Denied", "reason": "NodeReady", "message": "the node a is ready already"}]);
        let taken = outcome(&request(json!({"conditions": taken}))).unwrap_err();
        assert!(taken.to_string().starts_with("the node a is ready already; choose another name"), "{taken}");
    }
}
