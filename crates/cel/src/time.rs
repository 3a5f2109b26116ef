//! Text forms of timestamps and durations, as CEL and Go read and write them. All in nanoseconds.

use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};

const SECOND: i64 = 1_000_000_000;

/// RFC 3339, in the years 1 to 9999.
pub fn timestamp(s: &str) -> Option<i128> {
    let upper = s.len() >= 20 && s.as_bytes().get(10) == Some(&b'T');
    let t: Timestamp = upper.then(|| s.parse().ok()).flatten()?;
    in_range(t.as_nanosecond())
}

/// From 0001-01-01T00:00:00Z to 9999-12-31T23:59:59.999999999Z.
pub fn in_range(nanos: i128) -> Option<i128> {
    const FIRST: i128 = -62_135_596_800 * SECOND as i128;
    const LAST: i128 = 253_402_300_800 * SECOND as i128 - 1;
    (FIRST..=LAST).contains(&nanos).then_some(nanos)
}

pub fn timestamp_text(nanos: i128) -> String {
    Timestamp::from_nanosecond(nanos).map(|t| t.to_string()).unwrap_or_default()
}

/// The date and time of a timestamp in a time zone: a name, an offset (`+01:30`), or UTC by default.
pub fn civil(nanos: i128, zone: Option<&str>) -> Result<jiff::civil::DateTime, String> {
    let t = Timestamp::from_nanosecond(nanos).map_err(|e| e.to_string())?;
    let zone = match zone {
        None | Some("" | "UTC") => TimeZone::UTC,
        Some(z) => match offset(z) {
            Some(o) => TimeZone::fixed(o),
            None => TimeZone::get(z).map_err(|_| format!("unknown time zone {z}"))?,
        },
    };
    Ok(t.to_zoned(zone).datetime())
}

fn offset(z: &str) -> Option<Offset> {
    let (h, m) = z.split_once(':')?;
    let negative = h.starts_with('-');
    let hours: i32 = h.trim_start_matches(['+', '-']).parse().ok()?;
    let minutes: i32 = m.parse().ok().filter(|m| (0..60).contains(m))?;
    let seconds = hours * 3600 + minutes * 60;
    Offset::from_seconds(if negative { -seconds } else { seconds }).ok()
}

/// Parses a duration as Go's `time.ParseDuration`.
pub fn duration(s: &str) -> Option<i64> {
    let (negative, mut rest) = match s.strip_prefix('-') {
        Some(r) => (true, r),
        None => (false, s.strip_prefix('+').unwrap_or(s)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (whole, after) = rest.split_at(digits);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(a) => a.split_at(a.find(|c: char| !c.is_ascii_digit()).unwrap_or(a.len())),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        let unit: i128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let n: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        total = total.checked_add(n.checked_mul(unit)?)?;
        // Digits beyond nanoseconds are ignored.
        let fraction = &fraction[..fraction.len().min(15)];
        if let Ok(f) = fraction.parse::<i128>() {
            total += f * unit / 10_i128.pow(u32::try_from(fraction.len()).ok()?);
        }
        rest = next;
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

/// The text of a duration: seconds, with a fraction if there is one.
pub fn duration_text(nanos: i64) -> String {
    let (whole, rest) = (nanos / SECOND, (nanos % SECOND).abs());
    let sign = if nanos < 0 && whole == 0 { "-" } else { "" };
    if rest == 0 {
        return format!("{whole}s");
    }
    let fraction = format!("{rest:09}");
    format!("{sign}{whole}.{}s", fraction.trim_end_matches('0'))
}
