//! Why there is no connection, in the words of Go's `net`, `crypto/tls` and `crypto/x509`, which people search for and scripts match.

use crate::error::BoxError;
use jiff::Timestamp;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::{CertificateError, Error, InvalidMessage};

/// An error of the system as C says it, and so Go: without a number behind.
pub fn os(e: &std::io::Error) -> String {
    let text = e.to_string();
    let plain = text.split(" (os error").next().unwrap_or(&text);
    let mut letters = plain.chars();
    letters.next().map(|c| c.to_lowercase().collect::<String>() + letters.as_str()).unwrap_or_default()
}

/// A name that led to no address.
pub fn lookup(host: &str, e: &std::io::Error) -> BoxError {
    let text = e.to_string();
    let why = match text.rsplit_once(": ").map_or(text.as_str(), |(_, w)| w) {
        "Name or service not known" | "No address associated with hostname" => "no such host".to_owned(),
        other => other.to_lowercase(),
    };
    format!("dial tcp: lookup {host}: {why}").into()
}

/// An address that did not answer.
pub fn dial(address: &std::net::SocketAddr, e: &std::io::Error) -> BoxError {
    format!("dial tcp {address}: connect: {}", os(e)).into()
}

/// A handshake that failed.
pub fn handshake(e: std::io::Error) -> BoxError {
    match e.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(tls) => told(tls).into(),
        None if e.kind() == std::io::ErrorKind::UnexpectedEof => "EOF".into(),
        None => os(&e).into(),
    }
}

fn told(e: &Error) -> String {
    match e {
        Error::InvalidCertificate(c) => format!("tls: failed to verify certificate: x509: {}", certificate(c)),
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "http: server gave HTTP response to HTTPS client".into()
        }
        Error::AlertReceived(a) => format!("remote error: tls: {}", words(&format!("{a:?}"))),
        other => format!("tls: {other}"),
    }
}

/// `BadCertificate` as `bad certificate`.
fn words(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !out.is_empty() && !out.ends_with(|l: char| l.is_uppercase()) {
            out.push(' ');
        }
        out.extend(c.to_lowercase());
    }
    out
}

fn certificate(c: &CertificateError) -> String {
    let at = |t: UnixTime| {
        let seconds = i64::try_from(t.as_secs()).unwrap_or(i64::MAX);
        Timestamp::from_second(seconds).map_or_else(|_| String::new(), |t| t.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
    };
    let period = "certificate has expired or is not yet valid: current time";
    match c {
        CertificateError::ExpiredContext { time, not_after } => {
            format!("{period} {} is after {}", at(*time), at(*not_after))
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            format!("{period} {} is before {}", at(*time), at(*not_before))
        }
        // A signature that is wrong is that of another authority with the same name.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "certificate signed by unknown authority".into()
        }
        CertificateError::NotValidForNameContext { expected, presented } => other_name(expected, presented),
        CertificateError::Revoked => "certificate has been revoked".into(),
        other => other.to_string(),
    }
}

/// A certificate of another host. What it is for comes as `DnsName("a")` or `IpAddress(::1)`.
fn other_name(expected: &ServerName<'_>, presented: &[String]) -> String {
    let within = |kind: &str| -> Vec<String> {
        let inner = |p: &String| Some(p.strip_prefix(kind)?.strip_suffix(')')?.trim_matches('"').to_owned());
        presented.iter().filter_map(inner).collect()
    };
    let host = expected.to_str().into_owned();
    let mut valid = match expected {
        ServerName::IpAddress(_) => within("IpAddress("),
        _ => within("DnsName("),
    };
    let mut seen = Vec::new();
    valid.retain(|n| {
        !seen.contains(n) && {
            seen.push(n.clone());
            true
        }
    });
    match expected {
        ServerName::IpAddress(_) if valid.is_empty() => {
            format!("cannot validate certificate for {host} because it doesn't contain any IP SANs")
        }
        _ if valid.is_empty() => format!("certificate is not valid for any names, but wanted to match {host}"),
        _ => format!("certificate is valid for {}, not {host}", valid.join(", ")),
    }
}

/// A request that was not answered.
pub fn exchange(chain: &str) -> String {
    for (ours, theirs) in [
        ("invalid HTTP version parsed", "net/http: HTTP/1.x transport connection broken: malformed HTTP response"),
        ("connection closed before message completed", "EOF"),
        ("Connection reset by peer", "read: connection reset by peer"),
        ("Broken pipe", "write: broken pipe"),
    ] {
        if chain.contains(ours) {
            return theirs.to_owned();
        }
    }
    chain.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_tls_are_told_as_go_tells_them() {
        let name = |n: &str| ServerName::try_from(n.to_owned()).unwrap();
        let presented =
            ["DnsName(\"localhost\")", "DnsName(\"kubernetes\")", "IpAddress(127.0.0.1)", "IpAddress(127.0.0.1)"];
        let presented: Vec<String> = presented.map(str::to_owned).to_vec();
        let of = |n: &str, presented: &[String]| CertificateError::NotValidForNameContext {
            expected: name(n),
            presented: presented.to_vec(),
        };
        let time = |s: u64| UnixTime::since_unix_epoch(std::time::Duration::from_secs(s));
        for (e, want) in [
            (of("foo", &presented), "x509: certificate is valid for localhost, kubernetes, not foo"),
            (of("10.0.0.1", &presented), "x509: certificate is valid for 127.0.0.1, not 10.0.0.1"),
            (
                of("10.0.0.1", &presented[..1]),
                "x509: cannot validate certificate for 10.0.0.1 because it doesn't contain any IP SANs",
            ),
            (of("foo", &[]), "x509: certificate is not valid for any names, but wanted to match foo"),
            (CertificateError::UnknownIssuer, "x509: certificate signed by unknown authority"),
            (CertificateError::BadSignature, "x509: certificate signed by unknown authority"),
            (
                CertificateError::ExpiredContext { time: time(100), not_after: time(60) },
                "x509: certificate has expired or is not yet valid: current time 1970-01-01T00:01:40Z is after 1970-01-01T00:01:00Z",
            ),
        ] {
            let e = std::io::Error::other(Error::InvalidCertificate(e));
            assert_eq!(handshake(e).to_string(), format!("tls: failed to verify certificate: {want}"));
        }
        let plain = std::io::Error::other(Error::InvalidMessage(InvalidMessage::InvalidContentType));
        assert_eq!(handshake(plain).to_string(), "http: server gave HTTP response to HTTPS client");
        let alert = std::io::Error::other(Error::AlertReceived(rustls::AlertDescription::BadCertificate));
        assert_eq!(handshake(alert).to_string(), "remote error: tls: bad certificate");
    }
}
