//! Time, injected, and how the API writes it.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use std::time::Duration;

/// The wall clock. Implemented by the system's clock at the edge and by virtual time in simulations.
pub trait Clock: Send + Sync + 'static {
    /// The current time.
    fn now(&self) -> Timestamp;
}

impl<T: Clock + ?Sized> Clock for std::sync::Arc<T> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

/// What a duration of an object is at most: adding it to any moment of a clock does not overflow.
const FAR: Duration = Duration::from_secs(200 * 365 * 24 * 3600);

/// A number of seconds as objects and queries have them: nothing when negative, very long when it is very large.
pub fn seconds(n: impl Into<i64>) -> Duration {
    Duration::from_secs(n.into().max(0).unsigned_abs()).min(FAR)
}

/// The timestamp some seconds later, or earlier if negative. Saturates at the first and the last timestamp.
pub fn plus(t: Timestamp, seconds: i64) -> Timestamp {
    t.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(t)
}

/// How much time is left at `now` until `then`; nothing when that is over.
pub fn left(now: Timestamp, then: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(now)).unwrap_or_default()
}

/// `metav1.Time`: RFC 3339 in UTC, whole seconds.
pub fn format(t: Timestamp) -> String {
    t.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `metav1.MicroTime`: RFC 3339 in UTC with six digits.
pub fn format_micro(t: Timestamp) -> String {
    t.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// Reads RFC 3339 with any offset and any fraction. None also for a time with a year beyond four digits in UTC: it could be written, but
/// not read again.
pub fn parse(text: &str) -> Option<Timestamp> {
    // RFC 3339 requires a time zone and a `T`; jiff is more lenient than Go.
    let bytes = text.as_bytes();
    if bytes.len() < 20 || bytes[10] != b'T' {
        return None;
    }
    let moment: Timestamp = text.parse().ok()?;
    (0..=9999).contains(&moment.to_zoned(TimeZone::UTC).year()).then_some(moment)
}

/// Reads a duration as Go writes it (`1h30m`, `300ms`), in nanoseconds. None if it is invalid or too long.
pub fn parse_go_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    let mut total: i128 = 0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(end);
        let length = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, next) = after.split_at(length);
        let unit: i128 = match unit {
            "ns" => 1,
            "us" | "µs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return None;
        }
        let digits = |d: &str| if d.is_empty() { Some(0) } else { d.parse::<u32>().ok().map(i128::from) };
        let fraction = fraction.get(..9).unwrap_or(fraction);
        total += digits(whole)? * unit + digits(fraction)? * unit / 10i128.pow(fraction.len() as u32);
        rest = next;
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

/// Nanoseconds as Go prints a duration: `1h30m0s`.
pub fn go_duration(nanos: i64) -> String {
    if nanos == 0 {
        return "0s".to_owned();
    }
    let sign = if nanos < 0 { "-" } else { "" };
    let n = nanos.unsigned_abs();
    let fraction = |whole: u64, rest: u64, width: usize| {
        let f = format!("{rest:0width$}");
        let f = f.trim_end_matches('0');
        if f.is_empty() { whole.to_string() } else { format!("{whole}.{f}") }
    };
    let text = match n {
        0..1_000 => format!("{n}ns"),
        1_000..1_000_000 => format!("{}µs", fraction(n / 1_000, n % 1_000, 3)),
        1_000_000..1_000_000_000 => format!("{}ms", fraction(n / 1_000_000, n % 1_000_000, 6)),
        _ => {
            let (h, m) = (n / 3_600_000_000_000, n / 60_000_000_000 % 60);
            let s = fraction(n / 1_000_000_000 % 60, n % 1_000_000_000, 9);
            match (h, m) {
                (0, 0) => format!("{s}s"),
                (0, m) => format!("{m}m{s}s"),
                (h, m) => format!("{h}h{m}m{s}s"),
            }
        }
    };
    format!("{sign}{text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        for nanos in [1, 999, 1_500, 300_000_000, 1_000_000_000, 5_400_000_000_000, -90_000_000_000] {
            assert_eq!(parse_go_duration(&go_duration(nanos)), Some(nanos), "{}", go_duration(nanos));
        }
        assert_eq!(parse_go_duration("0"), Some(0));
        assert_eq!(parse_go_duration("1.5h"), Some(5_400_000_000_000));
        for invalid in ["", "-", "5", "s", "1x", "1.2.3s", ".s", "9999999h99999999999999h"] {
            assert_eq!(parse_go_duration(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn very_large_numbers_are_very_far_away() {
        let now = parse("2026-11-20T10:00:00Z").unwrap();
        let table =
            [(i64::MIN, "-9999"), (-1, "2026-11-20T09:59:59Z"), (60, "2026-11-20T10:01:00Z"), (i64::MAX, "9999")];
        for (n, start) in table {
            let text = format(plus(now, n));
            assert!(text.starts_with(start), "{n}: {text}");
            assert!(plus(Timestamp::MAX, n) <= Timestamp::MAX && plus(Timestamp::MIN, n) >= Timestamp::MIN);
        }
        assert_eq!(
            (seconds(i64::MIN), seconds(-1), seconds(7i32)),
            (Duration::ZERO, Duration::ZERO, Duration::from_secs(7))
        );
        assert!(seconds(i64::MAX) > seconds(i32::MAX));
        assert_eq!((left(now, plus(now, 3)), left(now, plus(now, -3))), (Duration::from_secs(3), Duration::ZERO));
        assert!(left(Timestamp::MIN, Timestamp::MAX) > seconds(1));
    }

    #[test]
    fn times_are_written_as_go_writes_them() {
        let t = super::parse("2026-11-20T10:00:00.123456789+01:00").unwrap();
        assert_eq!(super::format(t), "2026-11-20T09:00:00Z");
        assert_eq!(super::format_micro(t), "2026-11-20T09:00:00.123456Z");
        assert!(super::parse("2026-11-20 10:00:00Z").is_none());
        assert!(super::parse("2026-11-20").is_none());
    }

    /// A condition of a year before 0 stopped every controller that read it.
    #[test]
    fn what_is_read_can_be_written_and_read_again() {
        for (text, year) in [
            ("0000-01-01T00:00:00Z", Some("0000-")),
            ("0000-01-01T00:00:00+00:01", None),
            ("9999-12-30T21:00:00+00:01", Some("9999-")),
            ("9999-12-31T23:59:59-00:01", None),
        ] {
            let written = parse(text).map(format);
            assert_eq!(written.as_deref().map(|w| &w[..5]), year, "{text}");
            assert_eq!(written.as_deref().and_then(parse).map(format), written, "{text}");
        }
    }
}
