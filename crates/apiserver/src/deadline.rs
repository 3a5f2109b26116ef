//! Request deadlines (`k8s.io/apiserver/pkg/endpoints/filters/request_deadline.go`).
//!
//! A request that times out may still take effect: a write that has reached the store is not rolled back.

use crate::path::Query;
use meta::Status;
use std::time::Duration;

/// The deadline of a request: its `timeout` parameter, at most `most`.
pub(crate) fn timeout(query: &Query, most: Duration) -> Result<Duration, Status> {
    let timeout = query.get("timeout");
    if timeout.is_empty() {
        return Ok(most);
    }
    let nanoseconds = parse(timeout)
        .map_err(|e| Status::bad_request(format!("invalid timeout specified in the request URL - time: {e}")))?;
    match u64::try_from(nanoseconds) {
        Ok(n) if n > 0 => Ok(Duration::from_nanos(n).min(most)),
        _ => Ok(most),
    }
}

pub(crate) fn passed() -> Status {
    Status::timeout("Timeout: request did not complete within the allotted timeout")
        .with_details(meta::status::Details::default())
}

/// Parses a Go duration, for flags.
pub fn duration(text: &str) -> Result<Duration, String> {
    let nanoseconds = parse(text)?;
    u64::try_from(nanoseconds).map(Duration::from_nanos).map_err(|_| format!("{text:?} is negative"))
}

/// Parses a Go duration (`1h2m3.5s`) to nanoseconds. Errors have Go's message.
fn parse(text: &str) -> Result<i64, String> {
    let invalid = || format!("invalid duration {text:?}");
    let (sign, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (-1.0, &text[1..]),
        Some(b'+') => (1.0, &text[1..]),
        _ => (1.0, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number: f64 = rest[..end].parse().map_err(|_| invalid())?;
        rest = &rest[end..];
        let end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let unit = match &rest[..end] {
            "" => return Err(format!("missing unit in duration {text:?}")),
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            other => return Err(format!("unknown unit {other:?} in duration {text:?}")),
        };
        total += number * unit;
        rest = &rest[end..];
    }
    if total > i64::MAX as f64 {
        return Err(invalid());
    }
    Ok((sign * total) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos() {
        let check = |text: &str, expected: Result<i64, &str>| {
            assert_eq!(parse(text), expected.map_err(str::to_owned), "{text}");
        };
        check("1h2m3.5s", Ok(3_723_500_000_000));
        check("-10ms", Ok(-10_000_000));
        check("0", Ok(0));
        check(".5s", Ok(500_000_000));
        check("10", Err("missing unit in duration \"10\""));
        check("1d", Err("unknown unit \"d\" in duration \"1d\""));
        check("soon", Err("invalid duration \"soon\""));
        check("9999999999h", Err("invalid duration \"9999999999h\""));
    }

    #[test]
    fn a_request_may_ask_for_less_time_only() {
        let most = Duration::from_secs(60);
        let check = |query: &str, seconds: u64| {
            assert_eq!(timeout(&Query::parse(Some(query)), most).unwrap(), Duration::from_secs(seconds), "{query}");
        };
        check("", 60);
        check("timeout=5s", 5);
        check("timeout=5m", 60);
        check("timeout=0s", 60);
        check("timeout=-1s", 60);
        assert_eq!(timeout(&Query::parse(Some("timeout=x")), most).unwrap_err().code, 400);
    }
}
