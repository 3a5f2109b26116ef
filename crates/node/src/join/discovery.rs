//! The cluster's CA, from the ConfigMap `cluster-info`, which everybody may read and which is signed with each bootstrap token.

use std::str::FromStr;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use client::Client;
use client::https::{Config, Https};
use serde_json::Value;

use super::Error;

const INFORMATION: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
/// The maximum size of the ConfigMap.
const LIMIT: usize = 1 << 20;

/// A bootstrap token (`id.secret`).
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The public part: six characters.
    pub id: String,
    secret: String,
}

impl FromStr for Token {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let valid = |part: &str, length| {
            part.len() == length && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        };
        match text.split_once('.') {
            Some((id, secret)) if valid(id, 6) && valid(secret, 16) => {
                Ok(Self { id: id.into(), secret: secret.into() })
            }
            _ => Err(Error::Token),
        }
    }
}

/// The secret is not shown.
impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token({}.…)", self.id)
    }
}

impl Token {
    /// As it is sent.
    pub fn bearer(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }

    /// Verifies a detached JWS (`header..signature`) of `payload`.
    fn verify(&self, jws: &str, payload: &str) -> Result<(), Error> {
        let (header, signature) = jws.split_once("..").ok_or(Error::Forged)?;
        let decoded = URL_SAFE_NO_PAD.decode(header).map_err(|_| Error::Forged)?;
        let fields: Value = serde_json::from_slice(&decoded).map_err(|_| Error::Forged)?;
        if fields["alg"] != "HS256" || fields["kid"] != self.id {
            return Err(Error::Forged);
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| Error::Forged)?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.secret.as_bytes());
        let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(payload));
        hmac::verify(&key, signed.as_bytes(), &signature).map_err(|_| Error::Forged)
    }
}

/// The SHA-256 of a CA's public key, as kubeadm's `--discovery-token-ca-cert-hash`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaHash(String);

impl FromStr for CaHash {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let hex = text.strip_prefix("sha256:").filter(|h| h.len() == 64 && h.bytes().all(|b| b.is_ascii_hexdigit()));
        hex.map(|h| Self(format!("sha256:{}", h.to_ascii_lowercase()))).ok_or_else(|| Error::Hash(text.into()))
    }
}

impl std::fmt::Display for CaHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl CaHash {
    /// Of a certificate in PEM; `None` if it cannot be read.
    pub fn of(pem: &str) -> Option<Self> {
        let key = client::certificate::public_key(pem.as_bytes())?;
        let hex: String = digest(&SHA256, &key).as_ref().iter().map(|b| format!("{b:02x}")).collect();
        Some(Self(format!("sha256:{hex}")))
    }
}

/// Checks the URLs of servers, without connecting to one.
pub fn check_servers(servers: &[String]) -> Result<(), Error> {
    Https::new(&Config { insecure: true, ..Config::replicated(servers) })?;
    Ok(())
}

/// Returns the CA of the cluster (PEM). Nothing secret is sent; the answer is trusted only if it is signed with the token, and if its
/// CA has one of `hashes`, unless there are none.
pub async fn discover(servers: &[String], token: &Token, hashes: &[CaHash]) -> Result<String, Error> {
    let config = Config { insecure: true, ..Config::replicated(servers) };
    let client = Client::new(Https::new(&config)?, "kemudi-agent");
    let information: Value = client.get_at_most(INFORMATION, LIMIT).await?;
    verified(&information["data"], token, hashes)
}

fn verified(data: &Value, token: &Token, hashes: &[CaHash]) -> Result<String, Error> {
    let kubeconfig = data["kubeconfig"].as_str().unwrap_or_default();
    let signature = data[format!("jws-kubeconfig-{}", token.id)].as_str().ok_or(Error::Unsigned)?;
    token.verify(signature, kubeconfig)?;
    let invalid = |why: &str| Error::Information(why.to_owned());
    let ca = ca_of(kubeconfig).ok_or_else(|| invalid("it has no CA"))?;
    let hash = CaHash::of(&ca).ok_or_else(|| invalid("the CA is no certificate"))?;
    if !hashes.is_empty() && !hashes.contains(&hash) {
        return Err(Error::OtherCa(hash.to_string()));
    }
    Ok(ca)
}

/// The CA (PEM) in the kubeconfig of the ConfigMap `cluster-info`.
pub fn ca_of(kubeconfig: &str) -> Option<String> {
    let encoded = kubeconfig.lines().find_map(|l| l.trim().strip_prefix("certificate-authority-data: "))?;
    String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn token() -> Token {
        "abcdef.0123456789abcdef".parse().unwrap()
    }

    /// What the signer controller writes.
    fn signed(kubeconfig: &str, secret: &str) -> Value {
        let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256","kid":"abcdef"}"#);
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let signature = hmac::sign(&key, format!("{header}.{}", URL_SAFE_NO_PAD.encode(kubeconfig)).as_bytes());
        json!({"kubeconfig": kubeconfig, "jws-kubeconfig-abcdef": format!("{header}..{}", URL_SAFE_NO_PAD.encode(signature))})
    }

    #[test]
    fn the_ca_is_trusted_only_with_the_signature() {
        let key = rcgen::KeyPair::generate().unwrap();
        let ca = rcgen::CertificateParams::default().self_signed(&key).unwrap().pem();
        let kubeconfig = format!("clusters:\n- cluster:\n    certificate-authority-data: {}\n", STANDARD.encode(&ca));
        let good = signed(&kubeconfig, "0123456789abcdef");
        assert_eq!(verified(&good, &token(), &[]).unwrap(), ca);
        let hash = CaHash::of(&ca).unwrap();
        assert_eq!(verified(&good, &token(), &[hash.to_string().parse().unwrap()]).unwrap(), ca);
        let other: CaHash = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
        assert!(matches!(verified(&good, &token(), &[other]), Err(Error::OtherCa(found)) if found == hash.to_string()));
        assert!(matches!(verified(&signed(&kubeconfig, "fedcba9876543210"), &token(), &[]), Err(Error::Forged)));
        let mut changed = good.clone();
        changed["kubeconfig"] = format!("{kubeconfig} ").into();
        assert!(matches!(verified(&changed, &token(), &[]), Err(Error::Forged)));
        let stranger: Token = "ghijkl.0123456789abcdef".parse().unwrap();
        assert!(matches!(verified(&good, &stranger, &[]), Err(Error::Unsigned)));
        let empty = signed("clusters: []\n", "0123456789abcdef");
        assert!(matches!(verified(&empty, &token(), &[]), Err(Error::Information(_))));
    }

    #[test]
    fn tokens_and_hashes_are_checked() {
        for bad in [
            "",
            "abcdef",
            "abcdef.0123",
            "ABCDEF.0123456789abcdef",
            "abcdef.0123456789abcde\n",
            "abcdef.0123456789abcdef.",
        ] {
            assert!(bad.parse::<Token>().is_err(), "{bad:?}");
        }
        assert!(!format!("{:?}", token()).contains("0123456789abcdef"));
        for bad in ["", "sha256:", "md5:00", &format!("sha256:{}", "g".repeat(64))] {
            assert!(bad.parse::<CaHash>().is_err(), "{bad:?}");
        }
    }
}
