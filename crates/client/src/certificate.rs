//! Fields of certificates and certificate signing requests.

use jiff::Timestamp;
use std::net::IpAddr;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;
use x509_parser::x509::X509Name;

/// The common name of a subject; the last one if there are several, as in Go, so that an approver of a request sees the name that
/// the certificate will authenticate. None if there is none or it is not text.
pub fn common_name<'a>(subject: &'a X509Name<'_>) -> Option<&'a str> {
    subject.iter_common_name().last()?.as_str().ok()
}

/// Whether all values of a subject are in text encodings that this crate reads. Go also reads BMPString and T61String, so a subject with
/// another encoding could show another name or group to another program.
pub fn is_readable(subject: &X509Name<'_>) -> bool {
    subject.iter_attributes().all(|a| a.as_str().is_ok())
}

/// From when to when a certificate (PEM) is valid.
pub fn validity(pem: &[u8]) -> Option<(Timestamp, Timestamp)> {
    let (_, pem) = parse_x509_pem(pem).ok()?;
    let validity = pem.parse_x509().ok()?.validity().clone();
    let at = |seconds| Timestamp::from_second(seconds).ok();
    Some((at(validity.not_before.timestamp())?, at(validity.not_after.timestamp())?))
}

/// The public key of a certificate (PEM), as DER with its algorithm.
pub fn public_key(pem: &[u8]) -> Option<Vec<u8>> {
    let (_, pem) = parse_x509_pem(pem).ok()?;
    Some(pem.parse_x509().ok()?.public_key().raw.to_vec())
}

/// The IP addresses that a certificate (PEM) is for; none if it cannot be read.
pub fn addresses(pem: &[u8]) -> Vec<IpAddr> {
    let Ok((_, pem)) = parse_x509_pem(pem) else { return Vec::new() };
    let Ok(certificate) = pem.parse_x509() else { return Vec::new() };
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return Vec::new() };
    let address = |n: &GeneralName<'_>| match n {
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(IpAddr::from),
            _ => <[u8; 16]>::try_from(*bytes).ok().map(IpAddr::from),
        },
        _ => None,
    };
    names.value.general_names.iter().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use x509_parser::prelude::FromDer;

    /// A DER element of less than 128 bytes.
    fn element(tag: u8, content: &[u8]) -> Vec<u8> {
        [&[tag, content.len() as u8], content].concat()
    }

    /// A subject with these common names, each with the ASN.1 tag of its string type.
    fn subject(names: &[(u8, &str)]) -> Vec<u8> {
        let oid = element(6, &[0x55, 4, 3]);
        let one = |(tag, name): &(u8, &str)| {
            element(0x31, &element(0x30, &[oid.clone(), element(*tag, name.as_bytes())].concat()))
        };
        element(0x30, &names.iter().flat_map(one).collect::<Vec<u8>>())
    }

    /// An administrator who saw `jane` approved a request whose certificate authenticated `boss`.
    #[test]
    fn the_last_name_counts() {
        const UTF8: u8 = 0x0c;
        const BMP: u8 = 0x1e;
        for (names, want) in [
            (vec![(UTF8, "boss"), (UTF8, "jane")], Some("jane")),
            (vec![(UTF8, "jane")], Some("jane")),
            (vec![(UTF8, "boss"), (BMP, "\0j")], None),
            (vec![], None),
        ] {
            let der = subject(&names);
            let (_, parsed) = X509Name::from_der(&der).unwrap();
            assert_eq!(common_name(&parsed), want, "{names:?}");
            assert_eq!(is_readable(&parsed), names.iter().all(|(tag, _)| *tag == UTF8), "{names:?}");
        }
    }
}
