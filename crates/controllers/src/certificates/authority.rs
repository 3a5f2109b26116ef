//! Signs certificates (`k8s.io/kubernetes/pkg/controller/certificates/authority`): subject, key and alternative names are those of the
//! request, all other fields are the signer's.

use super::request::Request;
use jiff::{SignedDuration, Timestamp};
use meta::Rng;
use rcgen::{KeyPair, SigningKey};
use x509_parser::prelude::{FromDer, X509Certificate};
use yasna::models::{GeneralizedTime, ObjectIdentifier, UTCTime};
use yasna::{DERWriter, DERWriterSeq, Tag};

/// Back-dating of certificates, because clocks of other machines may be slow.
const BACKDATE: SignedDuration = SignedDuration::from_mins(5);
/// A shorter lifetime counts from now, a longer one from the back-dated start.
const SHORT: SignedDuration = SignedDuration::from_hours(8);
const MIN_LIFETIME: SignedDuration = SignedDuration::from_mins(10);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("reading the certificate authority: {0}")]
    Authority(String),
    #[error("signing: {0}")]
    Sign(#[from] rcgen::Error),
    #[error("refusing to sign a certificate that expired in the past: NotAfter {0}")]
    Past(Timestamp),
}

/// A certificate authority that signs requests.
pub struct Authority {
    key: KeyPair,
    /// The authority's name and key identifier (DER).
    name: Vec<u8>,
    key_id: Option<Vec<u8>>,
    ends: Timestamp,
    /// The maximum lifetime of a certificate.
    longest: SignedDuration,
}

impl Authority {
    pub fn new(certificate: &str, key: &str, longest: SignedDuration) -> Result<Self, Error> {
        let bad = |e: &dyn std::fmt::Display| Error::Authority(e.to_string());
        let (_, pem) = x509_parser::pem::parse_x509_pem(certificate.as_bytes()).map_err(|e| bad(&e))?;
        let (_, c) = X509Certificate::from_der(&pem.contents).map_err(|e| bad(&e))?;
        let key_id = c.iter_extensions().find_map(|e| match e.parsed_extension() {
            x509_parser::extensions::ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
            _ => None,
        });
        let ends = Timestamp::from_second(c.validity().not_after.timestamp()).map_err(|e| bad(&e))?;
        let name = c.subject().as_raw().to_vec();
        Ok(Self { key: KeyPair::from_pem(key).map_err(|e| bad(&e))?, name, key_id, ends, longest })
    }

    /// Signs a request and returns the certificate in PEM. `seconds` is the requested lifetime.
    pub fn sign(
        &self,
        request: &Request,
        usages: &[&str],
        seconds: Option<i64>,
        now: Timestamp,
        rng: &dyn Rng,
    ) -> Result<String, Error> {
        let lasts = seconds.map_or(self.longest, |s| SignedDuration::from_secs(s).max(MIN_LIFETIME).min(self.longest));
        let end = if lasts < SHORT { now + lasts } else { now + lasts - BACKDATE };
        let end = end.min(self.ends);
        if end <= now {
            return Err(Error::Past(end));
        }
        let mut serial = [0; 16];
        rng.fill(&mut serial);
        // Positive, and without a leading zero octet.
        serial[0] = serial[0] & 0x7f | 0x40;
        let algorithm = self.algorithm();
        let body = yasna::construct_der(|w| {
            w.write_sequence(|w| {
                w.next().write_tagged(Tag::context(0), |w| w.write_u8(2));
                w.next().write_bigint_bytes(&serial, true);
                w.next().write_der(&algorithm);
                w.next().write_der(&self.name);
                w.next().write_sequence(|w| {
                    time(w.next(), now - BACKDATE);
                    time(w.next(), end);
                });
                w.next().write_der(&request.subject);
                w.next().write_der(&request.public_key);
                w.next().write_tagged(Tag::context(3), |w| w.write_sequence(|w| self.extensions(w, request, usages)));
            });
        });
        let signature = self.key.sign(&body)?;
        let der = yasna::construct_der(|w| {
            w.write_sequence(|w| {
                w.next().write_der(&body);
                w.next().write_der(&algorithm);
                w.next().write_bitvec_bytes(&signature, signature.len() * 8);
            });
        });
        Ok(pem("CERTIFICATE", &der))
    }

    fn extensions(&self, w: &mut DERWriterSeq<'_>, request: &Request, usages: &[&str]) {
        let bits = usages.iter().filter_map(|u| bit(u)).fold(0u16, |all, b| all | 1 << b);
        if bits != 0 {
            // Bit 0 is the highest of the first octet; trailing zero bits are omitted.
            let (bytes, length) = (bits.reverse_bits().to_be_bytes(), 16 - bits.leading_zeros() as usize);
            let used = length.div_ceil(8);
            let value = yasna::construct_der(|w| w.write_bitvec_bytes(&bytes[..used], length));
            extension(w, &[2, 5, 29, 15], true, &value);
        }
        let purposes: Vec<&[u64]> = usages.iter().filter_map(|u| purpose(u)).collect();
        if !purposes.is_empty() {
            let value = yasna::construct_der(|w| {
                w.write_sequence(|w| {
                    purposes.iter().for_each(|p| w.next().write_oid(&ObjectIdentifier::from_slice(p)));
                });
            });
            extension(w, &[2, 5, 29, 37], false, &value);
        }
        extension(w, &[2, 5, 29, 19], true, &yasna::construct_der(|w| w.write_sequence(|_| {})));
        if let Some(id) = &self.key_id {
            let value = yasna::construct_der(|w| {
                w.write_sequence(|w| w.next().write_tagged_implicit(Tag::context(0), |w| w.write_bytes(id)));
            });
            extension(w, &[2, 5, 29, 35], false, &value);
        }
        if let Some(names) = &request.alternative_names {
            // Critical if the subject is empty: an empty sequence has two octets.
            extension(w, &[2, 5, 29, 17], request.subject.len() <= 2, names);
        }
    }

    /// The identifier of the signature algorithm (DER).
    fn algorithm(&self) -> Vec<u8> {
        let a = self.key.algorithm();
        let (oid, null): (&[u64], bool) = if *a == rcgen::PKCS_ECDSA_P384_SHA384 {
            (&[1, 2, 840, 10045, 4, 3, 3], false)
        } else if *a == rcgen::PKCS_ED25519 {
            (&[1, 3, 101, 112], false)
        } else if *a == rcgen::PKCS_RSA_SHA256 {
            (&[1, 2, 840, 113_549, 1, 1, 11], true)
        } else {
            (&[1, 2, 840, 10045, 4, 3, 2], false)
        };
        yasna::construct_der(|w| {
            w.write_sequence(|w| {
                w.next().write_oid(&ObjectIdentifier::from_slice(oid));
                if null {
                    w.next().write_null();
                }
            });
        })
    }
}

fn extension(w: &mut DERWriterSeq<'_>, oid: &[u64], critical: bool, value: &[u8]) {
    w.next().write_sequence(|w| {
        w.next().write_oid(&ObjectIdentifier::from_slice(oid));
        if critical {
            w.next().write_bool(true);
        }
        w.next().write_bytes(value);
    });
}

/// UTCTime (two digits of the year) until 2049, GeneralizedTime (four) afterwards (RFC 5280).
fn time(w: DERWriter<'_>, t: Timestamp) {
    let date = time::OffsetDateTime::from_unix_timestamp(t.as_second()).unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
    if date.year() < 2050 {
        w.write_utctime(&UTCTime::from_datetime(date));
    } else {
        w.write_generalized_time(&GeneralizedTime::from_datetime(date));
    }
}

/// The bit of a key usage (RFC 5280, 4.2.1.3).
fn bit(usage: &str) -> Option<u32> {
    Some(match usage {
        "signing" | "digital signature" => 0,
        "content commitment" => 1,
        "key encipherment" => 2,
        "data encipherment" => 3,
        "key agreement" => 4,
        "cert sign" => 5,
        "crl sign" => 6,
        "encipher only" => 7,
        "decipher only" => 8,
        _ => return None,
    })
}

/// The OID of an extended key usage.
fn purpose(usage: &str) -> Option<&'static [u64]> {
    Some(match usage {
        "any" => &[2, 5, 29, 37, 0],
        "server auth" => &[1, 3, 6, 1, 5, 5, 7, 3, 1],
        "client auth" => &[1, 3, 6, 1, 5, 5, 7, 3, 2],
        "code signing" => &[1, 3, 6, 1, 5, 5, 7, 3, 3],
        "email protection" | "s/mime" => &[1, 3, 6, 1, 5, 5, 7, 3, 4],
        "ipsec end system" => &[1, 3, 6, 1, 5, 5, 7, 3, 5],
        "ipsec tunnel" => &[1, 3, 6, 1, 5, 5, 7, 3, 6],
        "ipsec user" => &[1, 3, 6, 1, 5, 5, 7, 3, 7],
        "timestamping" => &[1, 3, 6, 1, 5, 5, 7, 3, 8],
        "ocsp signing" => &[1, 3, 6, 1, 5, 5, 7, 3, 9],
        "microsoft sgc" => &[1, 3, 6, 1, 4, 1, 311, 10, 3, 3],
        "netscape sgc" => &[2, 16, 840, 1, 113_730, 4, 1],
        _ => return None,
    })
}

fn pem(label: &str, der: &[u8]) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> = (0..text.len()).step_by(64).map(|i| &text[i..text.len().min(i + 64)]).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}
