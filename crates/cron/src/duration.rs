//! Durations as Go writes them (`time.ParseDuration`).

const MAX: u64 = 1 << 63;

const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Parses a duration such as `-1.5h` or `1h30m`. Returns nanoseconds.
pub(crate) fn parse(text: &str) -> Result<i64, String> {
    let invalid = || format!("time: invalid duration {}", quote(text));
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if unsigned == "0" {
        return Ok(0);
    }
    if unsigned.is_empty() {
        return Err(invalid());
    }
    let (mut rest, mut total) = (unsigned, 0u64);
    while !rest.is_empty() {
        let whole = digits(rest);
        let after = &rest[whole.len()..];
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => (digits(after), &after[digits(after).len()..]),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        if unit.is_empty() {
            return Err(format!("time: missing unit in duration {}", quote(text)));
        }
        let Some((_, nanoseconds)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(format!("time: unknown unit {} in duration {}", quote(unit), quote(text)));
        };
        let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().map_err(|_| invalid())? };
        let part = format!("0.{fraction}0").parse::<f64>().unwrap_or(0.0) * *nanoseconds as f64;
        let value = whole.checked_mul(*nanoseconds).and_then(|v| v.checked_add(part as u64));
        total = value.and_then(|v| total.checked_add(v)).filter(|v| *v <= MAX).ok_or_else(invalid)?;
        rest = next;
    }
    if text.starts_with('-') {
        return Ok((total as i64).wrapping_neg());
    }
    i64::try_from(total).map_err(|_| invalid())
}

fn digits(text: &str) -> &str {
    &text[..text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())]
}

/// Quotes text as errors of Go's package `time` do: bytes that are not printable ASCII in hexadecimal.
fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend(['\\', char::from(byte)]),
            b' '..=b'\x7f' => out.push(char::from(byte)),
            _ => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_as_by_go() {
        for (text, expect) in [
            ("0", 0),
            ("1h30m", 5_400_000_000_000),
            ("-1.5s", -1_500_000_000),
            ("+.5ms", 500_000),
            ("1.s", 1_000_000_000),
            ("2µs3ns", 2_003),
            ("-9223372036854775808ns", i64::MIN),
            ("9223372036854775807ns", i64::MAX),
        ] {
            assert_eq!(parse(text), Ok(expect), "{text}");
        }
        for (text, why) in [
            ("", "time: invalid duration \"\""),
            ("-", "time: invalid duration \"-\""),
            (".s", "time: invalid duration \".s\""),
            ("h", "time: invalid duration \"h\""),
            ("1", "time: missing unit in duration \"1\""),
            ("1d", "time: unknown unit \"d\" in duration \"1d\""),
            ("1\"é", "time: unknown unit \"\\\"\\xc3\\xa9\" in duration \"1\\\"\\xc3\\xa9\""),
            ("9223372036854775808ns", "time: invalid duration \"9223372036854775808ns\""),
            ("99999999999999999999h", "time: invalid duration \"99999999999999999999h\""),
            ("2562048h", "time: invalid duration \"2562048h\""),
        ] {
            assert_eq!(parse(text), Err(why.to_owned()), "{text}");
        }
    }
}
