//! Checks that a private key belongs to a certificate (Go's `tls.X509KeyPair`).

use aws_lc_rs::signature::{self, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use x509_parser::asn1_rs::{Any, BitString, FromDer, Integer, OctetString, Oid, Sequence};
use x509_parser::x509::SubjectPublicKeyInfo;

const RSA: &str = "1.2.840.113549.1.1.1";
const EC: &str = "1.2.840.10045.2.1";
const ED25519: &str = "1.3.101.112";

/// The curves that Go knows. Public keys of P-224 cannot be computed here.
const P224: &str = "1.3.132.0.33";
const CURVES: [(&str, &EcdsaSigningAlgorithm); 3] = [
    ("1.2.840.10045.3.1.7", &signature::ECDSA_P256_SHA256_ASN1_SIGNING),
    ("1.3.132.0.34", &signature::ECDSA_P384_SHA384_ASN1_SIGNING),
    ("1.3.132.0.35", &signature::ECDSA_P521_SHA512_ASN1_SIGNING),
];

#[derive(PartialEq, Eq)]
enum PublicKey {
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    Ec { curve: String, point: Vec<u8> },
    Ed25519(Vec<u8>),
}

/// Checks that `certificate` and `key`, both PEM, are a pair. Errors are those of Go's package `tls`.
pub fn check(certificate: &[u8], key: &[u8]) -> Result<(), String> {
    let certificate = find(certificate, |l| l == "CERTIFICATE").map_err(|skipped| match skipped.as_slice() {
        [] => "tls: failed to find any PEM data in certificate input".to_owned(),
        [one] if one.ends_with("PRIVATE KEY") => "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched".into(),
        all => format!("tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the following types: [{}]", all.join(" ")),
    })?;
    let is_key = |l: &str| l == "PRIVATE KEY" || l.ends_with(" PRIVATE KEY");
    let key = find(key, is_key).map_err(|skipped| match skipped.as_slice() {
        [] => "tls: failed to find any PEM data in key input".to_owned(),
        [one] if one == "CERTIFICATE" => "tls: found a certificate rather than a key in the PEM for the private key".into(),
        all => format!("tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks of the following types: [{}]", all.join(" ")),
    })?;
    let (_, certificate) =
        x509_parser::parse_x509_certificate(&certificate).map_err(|_| "x509: malformed certificate")?;
    let public = certificate_key(certificate.public_key())?;
    let private = public_half(&key)?;
    let public = public.ok_or("tls: unknown public key algorithm")?;
    if std::mem::discriminant(&public) != std::mem::discriminant(&private) {
        return Err("tls: private key type does not match public key type".into());
    }
    if public != private {
        return Err("tls: private key does not match public key".into());
    }
    Ok(())
}

/// Returns the content of the first matching PEM block, or else the types of all blocks.
fn find(pem: &[u8], matches: impl Fn(&str) -> bool) -> Result<Vec<u8>, Vec<String>> {
    let text = String::from_utf8_lossy(pem);
    let mut rest = text.as_ref();
    let mut skipped = Vec::new();
    while let Some(at) = rest.find("-----BEGIN ") {
        let starts_line = at == 0 || rest[..at].ends_with('\n');
        rest = &rest[at + "-----BEGIN ".len()..];
        let Some((label, body)) = rest.split_once("-----").filter(|(l, _)| starts_line && !l.contains('\n')) else {
            continue;
        };
        let Some((body, after)) = body.split_once(&format!("-----END {label}-----")) else { continue };
        // Headers, as of old encrypted keys, end with an empty line.
        let body = if body.contains(": ") { body.split_once("\n\n").map_or("", |(_, b)| b) } else { body };
        let body: String = body.split_whitespace().collect();
        let Ok(der) = base64::engine::general_purpose::STANDARD.decode(body) else { continue };
        if matches(label) {
            return Ok(der);
        }
        skipped.push(label.to_owned());
        rest = after;
    }
    Err(skipped)
}

/// Returns the key of a certificate; `None` if its type is unknown.
fn certificate_key(info: &SubjectPublicKeyInfo<'_>) -> Result<Option<PublicKey>, &'static str> {
    let data = &*info.subject_public_key.data;
    Ok(match info.algorithm.algorithm.to_id_string().as_str() {
        RSA => Some(rsa(data, 0).ok_or("x509: invalid RSA public key")?),
        EC => {
            let curve = info.algorithm.parameters.as_ref().and_then(|p| p.as_oid().ok()).map(|o| o.to_id_string());
            let curve = curve.filter(|c| c == P224 || CURVES.iter().any(|(o, _)| o == c));
            Some(PublicKey::Ec { curve: curve.ok_or("x509: unsupported elliptic curve")?, point: data.to_vec() })
        }
        ED25519 => Some(PublicKey::Ed25519(data.to_vec())),
        _ => None,
    })
}

/// Computes the public key of a private key in PKCS #1, PKCS #8 or SEC 1.
fn public_half(der: &[u8]) -> Result<PublicKey, &'static str> {
    if let Some(key) = rsa(der, 1) {
        return Ok(key);
    }
    if let Some((algorithm, parameters, key)) = pkcs8(der) {
        let key = match algorithm.as_str() {
            RSA => rsa(&key, 1),
            EC => parameters.and_then(|curve| ec(&key, Some(curve))),
            ED25519 => ed25519(&key),
            // A key of an unknown algorithm is readable if it has no parameters.
            _ if parameters.is_none() && !algorithm.starts_with("1.2.840.113549.") => {
                return Err("tls: found unknown private key type in PKCS#8 wrapping");
            }
            _ => None,
        };
        return key.ok_or("tls: failed to parse private key");
    }
    ec(der, None).ok_or("tls: failed to parse private key")
}

/// Reads modulus and exponent, after skipping `skipped` numbers.
fn rsa(der: &[u8], skipped: usize) -> Option<PublicKey> {
    let (_, sequence) = Sequence::from_der(der).ok()?;
    let mut rest = &*sequence.content;
    let mut numbers = Vec::new();
    while numbers.len() < skipped + 2 {
        let (after, number) = Integer::from_der(rest).ok()?;
        let bytes: &[u8] = number.as_ref();
        numbers.push(bytes.iter().copied().skip_while(|b| *b == 0).collect::<Vec<u8>>());
        rest = after;
    }
    let exponent = numbers.pop()?;
    Some(PublicKey::Rsa { modulus: numbers.pop()?, exponent })
}

/// Returns the algorithm, its parameter if that is an identifier, and the inner key.
fn pkcs8(der: &[u8]) -> Option<(String, Option<String>, Vec<u8>)> {
    let (_, sequence) = Sequence::from_der(der).ok()?;
    let (rest, _version) = Integer::from_der(&sequence.content).ok()?;
    let (rest, algorithm) = Sequence::from_der(rest).ok()?;
    let (parameters, oid) = Oid::from_der(&algorithm.content).ok()?;
    let parameters = Oid::from_der(parameters).ok().map(|(_, o)| o.to_id_string());
    let (_, key) = OctetString::from_der(rest).ok()?;
    Some((oid.to_id_string(), parameters, key.as_ref().to_vec()))
}

/// Reads an elliptic curve key; its curve is named in the key or by the caller.
fn ec(der: &[u8], curve: Option<String>) -> Option<PublicKey> {
    let (_, sequence) = Sequence::from_der(der).ok()?;
    let (rest, _version) = Integer::from_der(&sequence.content).ok()?;
    let (mut rest, _secret) = OctetString::from_der(rest).ok()?;
    let (mut named, mut point) = (None, None);
    while let Ok((after, field)) = Any::from_der(rest) {
        match field.tag().0 {
            0 => named = Oid::from_der(field.data).ok().map(|(_, o)| o.to_id_string()),
            1 => point = BitString::from_der(field.data).ok().map(|(_, b)| b.data.to_vec()),
            _ => {}
        }
        rest = after;
    }
    let curve = curve.or(named)?;
    let point = match CURVES.iter().find(|(o, _)| *o == curve) {
        Some((_, algorithm)) => {
            let pair = EcdsaKeyPair::from_private_key_der(algorithm, der).ok()?;
            Some(pair.public_key().as_ref().to_vec())
        }
        None => point.filter(|_| curve == P224),
    };
    Some(PublicKey::Ec { curve, point: point? })
}

fn ed25519(key: &[u8]) -> Option<PublicKey> {
    let (_, seed) = OctetString::from_der(key).ok()?;
    let pair = Ed25519KeyPair::from_seed_unchecked(seed.as_ref()).ok()?;
    Some(PublicKey::Ed25519(pair.public_key().as_ref().to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256,
    };

    #[test]
    fn accepts_only_the_key_of_the_certificate() {
        let algorithms = [&PKCS_RSA_SHA256, &PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P384_SHA384, &PKCS_ED25519];
        let pairs: Vec<(String, String)> = algorithms
            .iter()
            .map(|a| {
                let key = KeyPair::generate_for(a).unwrap();
                let certificate = CertificateParams::default().self_signed(&key).unwrap();
                (certificate.pem(), key.serialize_pem())
            })
            .collect();
        let check = |c: &str, k: &str| check(c.as_bytes(), k.as_bytes()).err().unwrap_or_default();
        let family = [0, 1, 1, 2];
        for (i, (certificate, _)) in pairs.iter().enumerate() {
            for (j, (_, key)) in pairs.iter().enumerate() {
                let expected = match (i == j, family[i] == family[j]) {
                    (true, _) => "",
                    (_, true) => "tls: private key does not match public key",
                    _ => "tls: private key type does not match public key type",
                };
                assert_eq!(check(certificate, key), expected, "{i} {j}");
            }
            let other = KeyPair::generate_for(algorithms[i]).unwrap().serialize_pem();
            assert_eq!(check(certificate, &other), "tls: private key does not match public key", "{i}");
        }
        let (certificate, key) = &pairs[0];
        let public = KeyPair::from_pem(key).unwrap().public_key_pem();
        let both = format!("words\n{key}{certificate}");
        let block = |label: &str| format!("-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n");
        for (certificate, key, expected) in [
            (both.as_str(), both.as_str(), ""),
            ("", key, "tls: failed to find any PEM data in certificate input"),
            (certificate, "", "tls: failed to find any PEM data in key input"),
            (certificate, certificate, "tls: found a certificate rather than a key in the PEM for the private key"),
            (
                key,
                key,
                "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched",
            ),
            (
                &public,
                key,
                "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the following types: [PUBLIC KEY]",
            ),
            (
                certificate,
                &format!("{public}{}", block("X")),
                "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks of the following types: [PUBLIC KEY X]",
            ),
            (&block("CERTIFICATE"), key, "x509: malformed certificate"),
            (certificate, &block("PRIVATE KEY"), "tls: failed to parse private key"),
        ] {
            assert_eq!(check(certificate, key), expected);
        }
    }
}
