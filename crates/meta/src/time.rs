//! Time, injected, and how the API writes it.

use jiff::Timestamp;

/// The wall clock. Implemented by the system's clock at the edge and by virtual time in simulations.
pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Timestamp;
}

impl<T: Clock + ?Sized> Clock for std::sync::Arc<T> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

/// `metav1.Time`: RFC 3339 in UTC, whole seconds.
pub fn format(t: Timestamp) -> String {
    t.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `metav1.MicroTime`: RFC 3339 in UTC with six digits.
pub fn format_micro(t: Timestamp) -> String {
    t.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// Reads RFC 3339 with any offset and any fraction.
pub fn parse(text: &str) -> Option<Timestamp> {
    // RFC 3339 wants a time zone and a `T`; jiff is laxer than Go.
    let bytes = text.as_bytes();
    if bytes.len() < 20 || bytes[10] != b'T' {
        return None;
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn times_are_written_as_go_writes_them() {
        let t = super::parse("2026-11-20T10:00:00.123456789+01:00").unwrap();
        assert_eq!(super::format(t), "2026-11-20T09:00:00Z");
        assert_eq!(super::format_micro(t), "2026-11-20T09:00:00.123456Z");
        assert!(super::parse("2026-11-20 10:00:00Z").is_none());
        assert!(super::parse("2026-11-20").is_none());
    }
}
