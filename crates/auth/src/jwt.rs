//! JSON web tokens (RFC 7515, 7517, 7519): parses, verifies and signs them. Does not interpret claims.

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{self as s, KeyPair, RsaKeyPair, RsaPublicKeyComponents, UnparsedPublicKey};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD as B64};
use meta::Value;
use serde_json::json;
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

/// A parsed token; nothing is verified.
pub struct Token<'a> {
    /// The JOSE header.
    pub header: Value,
    /// The claims.
    pub claims: Value,
    signed: &'a str,
    signature: Vec<u8>,
}

impl<'a> Token<'a> {
    /// Parses a token; none if it is not a signed token.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (signed, signature) = text.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let json = |t: &str| serde_json::from_slice::<Value>(&B64.decode(t).ok()?).ok().filter(Value::is_object);
        Some(Self { header: json(header)?, claims: json(claims)?, signed, signature: B64.decode(signature).ok()? })
    }

    /// The claim `iss`; empty if absent.
    pub fn issuer(&self) -> &str {
        self.claims["iss"].as_str().unwrap_or_default()
    }

    /// Whether one of the keys signed the token. If the token's key ID is known, only that key counts.
    pub fn is_signed_by(&self, keys: &[PublicKey]) -> bool {
        let algorithm = self.header["alg"].as_str().unwrap_or_default();
        let id = self.header["kid"].as_str();
        let named = |k: &&PublicKey| id.is_some() && k.id.as_deref() == id;
        let any_named = keys.iter().any(|k| named(&k));
        keys.iter()
            .filter(|k| !any_named || named(k))
            .any(|k| k.verifies(algorithm, self.signed.as_bytes(), &self.signature))
    }

    /// The audiences: one, or several.
    pub fn audiences(&self) -> Vec<String> {
        strings(&self.claims["aud"])
    }
}

/// A string, or a list of strings.
pub fn strings(v: &Value) -> Vec<String> {
    match v {
        Value::String(s) => vec![s.clone()],
        Value::Array(a) => a.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// The curve name and the uncompressed point.
    Ec {
        curve: &'static str,
        point: Vec<u8>,
    },
    Ed25519(Vec<u8>),
}

/// A key for verifying signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    /// The ID of the key (`kid`).
    pub id: Option<String>,
    kind: Kind,
}

const CURVES: [(&str, &str, usize); 3] = [("P-256", "ES256", 32), ("P-384", "ES384", 48), ("P-521", "ES512", 66)];

impl PublicKey {
    /// Parses a `SubjectPublicKeyInfo` (DER). Sets Kubernetes' key ID.
    pub fn from_der(der: &[u8]) -> Result<Self, String> {
        let (_, info) = SubjectPublicKeyInfo::from_der(der).map_err(|e| e.to_string())?;
        use x509_parser::public_key::PublicKey as Parsed;
        let bits = info.subject_public_key.data.to_vec();
        let kind = match info.parsed() {
            Ok(Parsed::RSA(k)) => Kind::Rsa { n: trimmed(k.modulus), e: trimmed(k.exponent) },
            Ok(Parsed::EC(_)) => {
                let size = (bits.len().max(1) - 1) / 2;
                let curve = CURVES.iter().find(|c| c.2 == size).ok_or("a curve that is not known")?;
                Kind::Ec { curve: curve.0, point: bits }
            }
            _ if info.algorithm.algorithm.to_id_string() == "1.3.101.112" => Kind::Ed25519(bits),
            _ => return Err("a kind of key that is not known".into()),
        };
        Ok(Self { id: Some(B64.encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, der))), kind })
    }

    /// Parses all keys of a PEM file: public keys, and the public halves of private ones.
    pub fn from_pem(text: &str) -> Result<Vec<Self>, String> {
        let mut out = Vec::new();
        for (label, der) in pem_blocks(text)? {
            match &*label {
                "PUBLIC KEY" => out.push(Self::from_der(&der)?),
                "CERTIFICATE" => {
                    let (_, c) = x509_parser::parse_x509_certificate(&der).map_err(|e| e.to_string())?;
                    out.push(Self::from_der(c.public_key().raw)?);
                }
                "RSA PUBLIC KEY" => {
                    let (_, k) = x509_parser::public_key::RSAPublicKey::from_der(&der).map_err(|e| e.to_string())?;
                    out.push(Self { id: None, kind: Kind::Rsa { n: trimmed(k.modulus), e: trimmed(k.exponent) } });
                }
                label if label.ends_with("PRIVATE KEY") => out.push(PrivateKey::from_der(label, &der)?.public()?),
                _ => {}
            }
        }
        if out.is_empty() { Err("no key found".into()) } else { Ok(out) }
    }

    /// Parses a JSON web key; none if its type is unknown, or it is not for signatures.
    pub fn from_jwk(v: &Value) -> Option<Self> {
        if v["use"].as_str().is_some_and(|u| u != "sig") {
            return None;
        }
        let bytes = |k: &str| B64.decode(v[k].as_str()?.trim_end_matches('=')).ok();
        let kind = match (v["kty"].as_str()?, v["crv"].as_str()) {
            ("RSA", _) => Kind::Rsa { n: trimmed(&bytes("n")?), e: trimmed(&bytes("e")?) },
            ("EC", Some(crv)) => {
                let (curve, _, size) = CURVES.iter().find(|c| c.0 == crv)?;
                let padded = |b: Vec<u8>| [vec![0; size.saturating_sub(b.len())], b].concat();
                Kind::Ec { curve, point: [vec![4], padded(bytes("x")?), padded(bytes("y")?)].concat() }
            }
            ("OKP", Some("Ed25519")) => Kind::Ed25519(bytes("x")?),
            _ => return None,
        };
        Some(Self { id: v["kid"].as_str().map(str::to_owned), kind })
    }

    /// The key in the JWK format.
    pub fn to_jwk(&self) -> Value {
        let mut v = match &self.kind {
            Kind::Rsa { n, e } => json!({"kty": "RSA", "alg": "RS256", "n": B64.encode(n), "e": B64.encode(e)}),
            Kind::Ec { curve, point } => {
                let (x, y) = point[1..].split_at((point.len() - 1) / 2);
                json!({"kty": "EC", "crv": curve, "alg": self.algorithm(), "x": B64.encode(x), "y": B64.encode(y)})
            }
            Kind::Ed25519(x) => json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "x": B64.encode(x)}),
        };
        v["use"] = "sig".into();
        if let Some(id) = &self.id {
            v["kid"] = id.as_str().into();
        }
        v
    }

    /// The algorithm in the header of tokens signed with the private key.
    pub fn algorithm(&self) -> &'static str {
        match &self.kind {
            Kind::Rsa { .. } => "RS256",
            Kind::Ec { curve, .. } => CURVES.iter().find(|c| c.0 == *curve).map_or("ES256", |c| c.1),
            Kind::Ed25519(_) => "EdDSA",
        }
    }

    fn verifies(&self, algorithm: &str, message: &[u8], signature: &[u8]) -> bool {
        match &self.kind {
            Kind::Rsa { n, e } => {
                let parameters = match algorithm {
                    "RS256" => &s::RSA_PKCS1_2048_8192_SHA256,
                    "RS384" => &s::RSA_PKCS1_2048_8192_SHA384,
                    "RS512" => &s::RSA_PKCS1_2048_8192_SHA512,
                    "PS256" => &s::RSA_PSS_2048_8192_SHA256,
                    "PS384" => &s::RSA_PSS_2048_8192_SHA384,
                    "PS512" => &s::RSA_PSS_2048_8192_SHA512,
                    _ => return false,
                };
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature).is_ok()
            }
            Kind::Ec { point, .. } if algorithm == self.algorithm() => {
                let a = match algorithm {
                    "ES384" => &s::ECDSA_P384_SHA384_FIXED,
                    "ES512" => &s::ECDSA_P521_SHA512_FIXED,
                    _ => &s::ECDSA_P256_SHA256_FIXED,
                };
                UnparsedPublicKey::new(a, point).verify(message, signature).is_ok()
            }
            Kind::Ed25519(x) if algorithm == "EdDSA" => {
                UnparsedPublicKey::new(&s::ED25519, x).verify(message, signature).is_ok()
            }
            _ => false,
        }
    }
}

/// Strips leading zeros of a number.
fn trimmed(b: &[u8]) -> Vec<u8> {
    b.iter().copied().skip_while(|x| *x == 0).collect()
}

/// A signing key: ECDSA on P-256, P-384 or P-521, or RSA.
pub enum PrivateKey {
    /// An ECDSA key.
    Ec(s::EcdsaKeyPair),
    /// An RSA key.
    Rsa(RsaKeyPair),
}

impl PrivateKey {
    /// Generates an ECDSA key on P-256. Returns it with its PKCS #8 document.
    pub fn generate() -> Result<(Self, Vec<u8>), String> {
        let document = s::EcdsaKeyPair::generate_pkcs8(&s::ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
        let document = document.map_err(|e| e.to_string())?;
        Ok((Self::from_der("PRIVATE KEY", document.as_ref())?, document.as_ref().to_vec()))
    }

    /// Parses the first private key of a PEM file.
    pub fn from_pem(text: &str) -> Result<Self, String> {
        let blocks = pem_blocks(text)?;
        let (label, der) = blocks.iter().find(|(l, _)| l.ends_with("PRIVATE KEY")).ok_or("no private key found")?;
        Self::from_der(label, der)
    }

    /// Parses a PEM block with this label.
    pub fn from_der(label: &str, der: &[u8]) -> Result<Self, String> {
        let curves = [
            &s::ECDSA_P256_SHA256_FIXED_SIGNING,
            &s::ECDSA_P384_SHA384_FIXED_SIGNING,
            &s::ECDSA_P521_SHA512_FIXED_SIGNING,
        ];
        for curve in curves {
            let read = match label {
                "PRIVATE KEY" => s::EcdsaKeyPair::from_pkcs8(curve, der),
                _ => s::EcdsaKeyPair::from_private_key_der(curve, der),
            };
            if let Ok(k) = read {
                return Ok(Self::Ec(k));
            }
        }
        let rsa = if label == "RSA PRIVATE KEY" { RsaKeyPair::from_der(der) } else { RsaKeyPair::from_pkcs8(der) };
        rsa.map(Self::Rsa).map_err(|e| format!("no key that can sign tokens: {e}"))
    }

    /// The public key.
    pub fn public(&self) -> Result<PublicKey, String> {
        let der: Result<PublicKeyX509Der<'_>, _> = match self {
            Self::Ec(k) => k.public_key().as_der(),
            Self::Rsa(k) => k.public_key().as_der(),
        };
        PublicKey::from_der(der.map_err(|e| e.to_string())?.as_ref())
    }

    /// Signs a token with these claims, under the key's ID.
    pub fn sign(&self, claims: &Value) -> Result<String, String> {
        let public = self.public()?;
        let header = json!({"alg": public.algorithm(), "kid": public.id});
        let message = format!("{}.{}", B64.encode(header.to_string()), B64.encode(claims.to_string()));
        let random = SystemRandom::new();
        let signature = match self {
            Self::Ec(k) => k.sign(&random, message.as_bytes()).map_err(|e| e.to_string())?.as_ref().to_vec(),
            Self::Rsa(k) => {
                let mut out = vec![0; k.public_modulus_len()];
                k.sign(&s::RSA_PKCS1_SHA256, &random, message.as_bytes(), &mut out).map_err(|e| e.to_string())?;
                out
            }
        };
        Ok(format!("{message}.{}", B64.encode(signature)))
    }
}

/// The blocks of a PEM file with their labels.
fn pem_blocks(text: &str) -> Result<Vec<(String, Vec<u8>)>, String> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("-----BEGIN ") {
        rest = &rest[at + 11..];
        let (label, after) = rest.split_once("-----").ok_or("a block without a label")?;
        let (body, after) = after.split_once("-----END ").ok_or_else(|| format!("{label} has no end"))?;
        let body: String = body.chars().filter(|c| !c.is_whitespace()).collect();
        out.push((label.to_owned(), STANDARD.decode(body).map_err(|e| format!("{label}: {e}"))?));
        rest = after;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_signed_is_verified_and_nothing_else() {
        let (key, der) = PrivateKey::generate().unwrap();
        let public = key.public().unwrap();
        let text = key.sign(&json!({"iss": "me", "aud": "you"})).unwrap();
        let token = Token::parse(&text).unwrap();
        assert_eq!((token.issuer(), token.audiences()), ("me", vec!["you".to_owned()]));
        assert!(token.is_signed_by(std::slice::from_ref(&public)));
        let again = PublicKey::from_jwk(&public.to_jwk()).unwrap();
        assert_eq!(again, public);
        let pem = format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", STANDARD.encode(der));
        assert_eq!(PublicKey::from_pem(&pem).unwrap(), std::slice::from_ref(&public));
        let (other, _) = PrivateKey::generate().unwrap();
        assert!(!token.is_signed_by(&[other.public().unwrap()]));
        // Try every key if none has the token's key ID.
        let unnamed = PublicKey { id: None, ..public.clone() };
        assert!(token.is_signed_by(&[other.public().unwrap(), unnamed]));
        let (head, tail) = text.split_at(text.len() - 6);
        assert!(!Token::parse(&format!("{head}AAAAAA")).unwrap().is_signed_by(std::slice::from_ref(&public)), "{tail}");
        let none = format!("{}.{}.", B64.encode(r#"{"alg":"none"}"#), B64.encode(r#"{"iss":"me"}"#));
        assert!(!Token::parse(&none).unwrap().is_signed_by(&[public]));
        assert!(Token::parse("a.b.c").is_none() && Token::parse("abc").is_none());
    }
}
