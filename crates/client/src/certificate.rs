//! What certificates and requests for them say of their owner.

use x509_parser::x509::X509Name;

/// The common name of a subject. Of several the last one counts, as in Go, for everybody who reads it: who approves a request sees the name
/// that the certificate will stand for. None if there is none, or if it is no text.
pub fn common_name<'a>(subject: &'a X509Name<'_>) -> Option<&'a str> {
    subject.iter_common_name().last()?.as_str().ok()
}

/// Whether every value of a subject is text that is read here. What is left out here may be read by somebody else (Go reads BMPString and
/// T61String), who then sees another name or group in the same certificate.
pub fn is_readable(subject: &X509Name<'_>) -> bool {
    subject.iter_attributes().all(|a| a.as_str().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use x509_parser::prelude::FromDer;

    /// A DER element of less than 128 bytes.
    fn element(tag: u8, content: &[u8]) -> Vec<u8> {
        [&[tag, content.len() as u8], content].concat()
    }

    /// A subject with these common names, each with the tag of its kind of text.
    fn subject(names: &[(u8, &str)]) -> Vec<u8> {
        let oid = element(6, &[0x55, 4, 3]);
        let one = |(tag, name): &(u8, &str)| {
            element(0x31, &element(0x30, &[oid.clone(), element(*tag, name.as_bytes())].concat()))
        };
        element(0x30, &names.iter().flat_map(one).collect::<Vec<u8>>())
    }

    /// An administrator who saw `jane` approved a request whose certificate stood for `boss`.
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
