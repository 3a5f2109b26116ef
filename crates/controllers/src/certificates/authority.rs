//! Signs certificates (`k8s.io/kubernetes/pkg/controller/certificates/authority`): subject, key and alternative names are those of the
//! request, all other fields are the signer's.

use super::request::Request;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use meta::Rng;
use rcgen::{KeyPair, SigningKey};
use x509_parser::asn1_rs::{Any, Class, Header, Length, Oid, SerializeError, Tag, ToDer};
use x509_parser::prelude::{FromDer, X509Certificate};

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
    #[error("encoding the certificate: {0}")]
    Encode(#[from] SerializeError),
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
        let algorithm = self.algorithm()?;
        let validity = sequence(&[&time(now - BACKDATE)?, &time(end)?])?;
        let body = sequence(&[
            &tagged(Class::ContextSpecific, 0, &element(Tag::Integer, &[2])?)?,
            &element(Tag::Integer, &serial)?,
            &algorithm,
            &self.name,
            &validity,
            &request.subject,
            &request.public_key,
            &tagged(Class::ContextSpecific, 3, &self.extensions(request, usages)?)?,
        ])?;
        let signature = self.key.sign(&body)?;
        let der = sequence(&[&body, &algorithm, &bits(0, &signature)?])?;
        Ok(pem("CERTIFICATE", &der))
    }

    fn extensions(&self, request: &Request, usages: &[&str]) -> Der {
        let mut extensions = Vec::new();
        let used = usages.iter().filter_map(|u| bit(u)).fold(0u16, |all, b| all | 1 << b);
        if used != 0 {
            // Bit 0 is the highest of the first octet; trailing zero bits are omitted.
            let (bytes, length) = (used.reverse_bits().to_be_bytes(), 16 - used.leading_zeros());
            let octets = if length > 8 { &bytes[..] } else { &bytes[..1] };
            let value = bits((octets.len() as u32 * 8 - length) as u8, octets)?;
            extensions.push(extension(&[2, 5, 29, 15], true, &value)?);
        }
        let purposes: Vec<Vec<u8>> = usages.iter().filter_map(|u| purpose(u)).map(oid).collect::<Result<_, _>>()?;
        if !purposes.is_empty() {
            extensions.push(extension(&[2, 5, 29, 37], false, &sequence(&purposes)?)?);
        }
        extensions.push(extension(&[2, 5, 29, 19], true, &sequence::<&[u8]>(&[])?)?);
        if let Some(id) = &self.key_id {
            let header = Header::new(Class::ContextSpecific, false, Tag(0), Length::Definite(0));
            let value = sequence(&[Any::new(header, id).to_der_vec()?])?;
            extensions.push(extension(&[2, 5, 29, 35], false, &value)?);
        }
        if let Some(names) = &request.alternative_names {
            // Critical if the subject is empty: an empty sequence has two octets.
            extensions.push(extension(&[2, 5, 29, 17], request.subject.len() <= 2, names)?);
        }
        sequence(&extensions)
    }

    /// The identifier of the signature algorithm (DER).
    fn algorithm(&self) -> Der {
        let a = self.key.algorithm();
        let (algorithm, null): (&[u64], bool) = if *a == rcgen::PKCS_ECDSA_P384_SHA384 {
            (&[1, 2, 840, 10045, 4, 3, 3], false)
        } else if *a == rcgen::PKCS_ED25519 {
            (&[1, 3, 101, 112], false)
        } else if *a == rcgen::PKCS_RSA_SHA256 {
            (&[1, 2, 840, 113_549, 1, 1, 11], true)
        } else {
            (&[1, 2, 840, 10045, 4, 3, 2], false)
        };
        let parameters = if null { element(Tag::Null, &[])? } else { Vec::new() };
        sequence(&[oid(algorithm)?, parameters])
    }
}

/// A DER element, or why it cannot be encoded.
type Der = Result<Vec<u8>, SerializeError>;

/// A primitive element of a universal type.
fn element(tag: Tag, content: &[u8]) -> Der {
    Any::new(Header::new(Class::Universal, false, tag, Length::Definite(0)), content).to_der_vec()
}

/// A constructed element; `content` is made of elements.
fn tagged(class: Class, tag: u32, content: &[u8]) -> Der {
    Any::new(Header::new(class, true, Tag(tag), Length::Definite(0)), content).to_der_vec()
}

fn sequence<E: AsRef<[u8]>>(elements: &[E]) -> Der {
    let content: Vec<u8> = elements.iter().flat_map(|e| e.as_ref()).copied().collect();
    tagged(Class::Universal, Tag::Sequence.0, &content)
}

fn bits(unused: u8, octets: &[u8]) -> Der {
    element(Tag::BitString, &[&[unused], octets].concat())
}

fn oid(arcs: &[u64]) -> Der {
    // The identifiers are constants of this file.
    Oid::from(arcs).map_err(|_| SerializeError::InvalidLength)?.to_der_vec()
}

fn extension(id: &[u64], critical: bool, value: &[u8]) -> Der {
    let critical = if critical { element(Tag::Boolean, &[0xff])? } else { Vec::new() };
    sequence(&[oid(id)?, critical, element(Tag::OctetString, value)?])
}

/// UTCTime (two digits of the year) until 2049, GeneralizedTime (four) afterwards (RFC 5280).
fn time(t: Timestamp) -> Der {
    let t = t.to_zoned(TimeZone::UTC);
    let (tag, format) =
        if t.year() < 2050 { (Tag::UtcTime, "%y%m%d%H%M%SZ") } else { (Tag::GeneralizedTime, "%Y%m%d%H%M%SZ") };
    element(tag, t.strftime(format).to_string().as_bytes())
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
