//! Dialling, with the error texts of Go's `net` and `crypto/tls`, which clients and users match.

use super::connection_trace::{Step, note};
use super::trust::Distrust;
use super::{Reach, go_errors};
use crate::error::BoxError;
use crate::lookups::{Lookups, Share};
use rustls::{AlertDescription, CertificateError, InvalidMessage, OtherError};
use std::io::{Error, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;
use std::time::Duration;
use tokio::net::TcpStream;

/// Lookups of the whole process. Users choose some of the names: webhooks may call services of type ExternalName.
static LOOKUPS: LazyLock<Lookups> = LazyLock::new(|| Lookups::new(32));
const LOOKUPS_PER_HOST: usize = 4;

/// Connects to the first address of a host that accepts, within `limit`, skipping addresses that `reach` forbids. Returns the error of
/// the first address if none accepts.
pub async fn dial(host: &str, port: u16, reach: Reach, limit: Duration) -> Result<TcpStream, BoxError> {
    let begun = tokio::time::Instant::now();
    let deadline = begun + limit;
    let share = Share { key: host, limit: LOOKUPS_PER_HOST };
    let lookup = tokio::time::timeout_at(deadline, LOOKUPS.lookup(&[share], host, port)).await;
    let addresses = match lookup {
        Err(_) => return Err(format!("dial tcp: lookup {host}: i/o timeout").into()),
        Ok(Err(e)) => return Err(go_errors::lookup(host, &e)),
        Ok(Ok(addresses)) => addresses,
    };
    // An IP address is not looked up.
    if host.parse::<IpAddr>().is_err() {
        note(|c| {
            c.lookup = begun.elapsed();
            let addresses = addresses.iter().map(SocketAddr::ip).collect();
            c.steps.push(Step::Lookup { host: host.to_owned(), addresses });
        });
    }
    let mut first = None;
    for address in addresses {
        let refused = reach == Reach::Network && meta::address::is_special(address.ip());
        let failed = if refused {
            Error::other(format!("dial tcp {address}: address not allowed"))
        } else {
            match connect(address, deadline).await {
                Ok(tcp) => return Ok(tcp),
                Err(why) => why,
            }
        };
        first.get_or_insert(failed);
    }
    Err(first.unwrap_or_else(|| Error::other(format!("dial tcp: lookup {host}: no such host"))).into())
}

async fn connect(address: SocketAddr, deadline: tokio::time::Instant) -> Result<TcpStream, Error> {
    let begun = tokio::time::Instant::now();
    let connected = match tokio::time::timeout_at(deadline, TcpStream::connect(address)).await {
        Ok(Ok(tcp)) => Ok(tcp),
        Ok(Err(e)) => Err(connect_error(address, &e)),
        Err(_) => Err(Error::new(ErrorKind::TimedOut, format!("dial tcp {address}: i/o timeout"))),
    };
    note(|c| {
        c.dial = begun.elapsed();
        c.steps
            .push(Step::Dial { address: address.to_string(), error: connected.as_ref().err().map(Error::to_string) });
    });
    connected
}

/// The error of a failed connect, of the same kind as the system's error.
fn connect_error(address: SocketAddr, e: &Error) -> Error {
    Error::new(e.kind(), format!("dial tcp {address}: connect: {}", go_errors::os_error(e)))
}

/// The error text of a failed TLS handshake.
pub fn handshake_error(e: &Error) -> String {
    let Some(tls) = e.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>()) else {
        return match e.kind() {
            ErrorKind::UnexpectedEof => "EOF".into(),
            ErrorKind::ConnectionReset => "read: connection reset by peer".into(),
            _ => go_errors::os_error(e),
        };
    };
    match tls {
        rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(why))) if why.is::<Distrust>() => {
            format!("tls: failed to verify certificate: {why}")
        }
        rustls::Error::AlertReceived(alert) => match alert_text(*alert) {
            Some(text) => format!("remote error: tls: {text}"),
            None => format!("remote error: tls: alert({})", u8::from(*alert)),
        },
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "http: server gave HTTP response to HTTPS client".into()
        }
        other => format!("tls: {other}"),
    }
}

fn alert_text(alert: AlertDescription) -> Option<&'static str> {
    Some(match alert {
        AlertDescription::CloseNotify => "close notify",
        AlertDescription::UnexpectedMessage => "unexpected message",
        AlertDescription::BadRecordMac => "bad record MAC",
        AlertDescription::RecordOverflow => "record overflow",
        AlertDescription::HandshakeFailure => "handshake failure",
        AlertDescription::BadCertificate => "bad certificate",
        AlertDescription::UnsupportedCertificate => "unsupported certificate",
        AlertDescription::CertificateRevoked => "revoked certificate",
        AlertDescription::CertificateExpired => "expired certificate",
        AlertDescription::CertificateUnknown => "unknown certificate",
        AlertDescription::IllegalParameter => "illegal parameter",
        AlertDescription::UnknownCA => "unknown certificate authority",
        AlertDescription::AccessDenied => "access denied",
        AlertDescription::DecodeError => "error decoding message",
        AlertDescription::DecryptError => "error decrypting message",
        AlertDescription::ProtocolVersion => "protocol version not supported",
        AlertDescription::InsufficientSecurity => "insufficient security level",
        AlertDescription::InternalError => "internal error",
        AlertDescription::UserCanceled => "user canceled",
        AlertDescription::NoRenegotiation => "no renegotiation",
        AlertDescription::MissingExtension => "missing extension",
        AlertDescription::UnsupportedExtension => "unsupported extension",
        AlertDescription::UnrecognisedName => "unrecognized name",
        AlertDescription::CertificateRequired => "certificate required",
        AlertDescription::NoApplicationProtocol => "no application protocol",
        _ => return None,
    })
}
