//! The parser.

use crate::duration;
use crate::{Field, Fields, Kind, time_zone};
use jiff::tz::TimeZone;

type Read<T> = Result<T, String>;

/// The range of a field, and names for its values from the minimum on.
struct Bounds {
    low: u64,
    high: u64,
    names: &'static [&'static str],
}

const MINUTE: Bounds = Bounds { low: 0, high: 59, names: &[] };
const HOUR: Bounds = Bounds { low: 0, high: 23, names: &[] };
const DAY_OF_MONTH: Bounds = Bounds { low: 1, high: 31, names: &[] };
const MONTH: Bounds = Bounds {
    low: 1,
    high: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
const DAY_OF_WEEK: Bounds = Bounds { low: 0, high: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] };

/// Descriptors and the fields that they stand for.
const DESCRIPTORS: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

pub(crate) fn schedule(text: &str) -> Read<Kind> {
    if text.is_empty() {
        return Err("empty spec string".to_owned());
    }
    let zoned = ["TZ=", "CRON_TZ="].iter().find_map(|prefix| text.strip_prefix(prefix));
    let (zone, rest) = match zoned {
        None => (TimeZone::UTC, text),
        Some(zoned) => {
            // Upstream reports the panic of its parser.
            let without_fields =
                || "invalid schedule format: runtime error: slice bounds out of range [:-1]".to_owned();
            let (name, rest) = zoned.split_once(' ').ok_or_else(without_fields)?;
            (time_zone(name).map_err(|why| format!("provided bad location {name}: {why}"))?, rest.trim())
        }
    };
    if rest.starts_with('@') {
        return descriptor(rest, zone);
    }
    fields(rest, zone)
}

fn descriptor(text: &str, zone: TimeZone) -> Read<Kind> {
    if let Some((_, expansion)) = DESCRIPTORS.iter().find(|(name, _)| *name == text) {
        return fields(expansion, zone);
    }
    let Some(every) = text.strip_prefix("@every ") else { return Err(format!("unrecognized descriptor: {text}")) };
    let delay = duration::parse(every).map_err(|why| format!("failed to parse duration {text}: {why}"))?;
    Ok(Kind::Every((delay / 1_000_000_000).max(1)))
}

fn fields(text: &str, zone: TimeZone) -> Read<Kind> {
    let all: Vec<&str> = text.split_whitespace().collect();
    let [minute, hour, day_of_month, month, day_of_week] = all[..] else {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", all.len(), all.join(" ")));
    };
    Ok(Kind::Fields(Box::new(Fields {
        minute: field(minute, &MINUTE)?,
        hour: field(hour, &HOUR)?,
        day_of_month: field(day_of_month, &DAY_OF_MONTH)?,
        month: field(month, &MONTH)?,
        day_of_week: field(day_of_week, &DAY_OF_WEEK)?,
        zone,
    })))
}

/// Parses a list of ranges. An empty one has no values.
fn field(text: &str, bounds: &Bounds) -> Read<Field> {
    let mut all = Field { bits: 0, star: false };
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let part = range(part, bounds)?;
        all.bits |= part.bits;
        all.star |= part.star;
    }
    Ok(all)
}

/// Parses `*`, `3` or `3-5`, with an optional step. `3/5` means from 3 to the maximum.
fn range(text: &str, bounds: &Bounds) -> Read<Field> {
    let parts: Vec<&str> = text.split('/').collect();
    let ends: Vec<&str> = parts[0].split('-').collect();
    let mut star = false;
    let (start, mut end) = match ends[..] {
        ["*" | "?", ..] => {
            star = true;
            (bounds.low, bounds.high)
        }
        [one] => {
            let n = number_or_name(one, bounds)?;
            (n, n)
        }
        [a, b] => (number_or_name(a, bounds)?, number_or_name(b, bounds)?),
        _ => {
            number_or_name(ends[0], bounds)?;
            return Err(format!("too many hyphens: {text}"));
        }
    };
    let step = match parts[..] {
        [_] => 1,
        [_, step] => {
            end = if ends.len() == 1 { bounds.high } else { end };
            number(step)?
        }
        _ => return Err(format!("too many slashes: {text}")),
    };
    if start < bounds.low {
        return Err(format!("beginning of range ({start}) below minimum ({}): {text}", bounds.low));
    }
    if end > bounds.high {
        return Err(format!("end of range ({end}) above maximum ({}): {text}", bounds.high));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {text}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {text}"));
    }
    let bits = (start..=end).filter(|v| (v - start) % step == 0).fold(0, |bits, v| bits | 1 << v);
    Ok(Field { bits, star: star && step == 1 })
}

fn number_or_name(text: &str, bounds: &Bounds) -> Read<u64> {
    let lower = text.to_lowercase();
    match bounds.names.iter().position(|n| *n == lower) {
        Some(i) => Ok(bounds.low + i as u64),
        None => number(text),
    }
}

fn number(text: &str) -> Read<u64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let invalid = |why: &str| format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: {why}");
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(invalid("invalid syntax"));
    }
    let n = text.parse::<i64>().map_err(|_| invalid("value out of range"))?;
    u64::try_from(n).map_err(|_| format!("negative number ({n}) not allowed: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_the_first_error() {
        let good = [
            "*/5 * * * *",
            "0,30 1-5/2 ? JAN-mar sun",
            "@hourly",
            "@every 1h",
            "TZ=Europe/Paris 1 2 3 4 5",
            "CRON_TZ=UTC @daily",
            "TZ= 0 0 * * *",
            "5/10 * * * *",
            ", * * * *",
            "*-3 +4 * * *",
        ];
        for text in good {
            assert!(schedule(text).is_ok(), "{text}: {:?}", schedule(text));
        }
        for (text, why) in [
            ("", "empty spec string"),
            ("* * *", "expected exactly 5 fields, found 3: [* * *]"),
            ("* * * * *x", "failed to parse int from *x: strconv.Atoi: parsing \"*x\": invalid syntax"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("* * * * 7", "end of range (7) above maximum (6): 7"),
            ("* * L * *", "failed to parse int from L: strconv.Atoi: parsing \"L\": invalid syntax"),
            ("5-3 * * * *", "beginning of range (5) beyond end of range (3): 5-3"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("*/-1 * * * *", "negative number (-1) not allowed: -1"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            (
                "9223372036854775808 * * * *",
                "failed to parse int from 9223372036854775808: strconv.Atoi: parsing \"9223372036854775808\": value out of range",
            ),
            ("@often", "unrecognized descriptor: @often"),
            ("@every", "unrecognized descriptor: @every"),
            ("@every soon", "failed to parse duration @every soon: time: invalid duration \"soon\""),
            ("@every 5", "failed to parse duration @every 5: time: missing unit in duration \"5\""),
            ("TZ=No/Where * * * * *", "provided bad location No/Where: unknown time zone No/Where"),
            ("TZ=../x * * * * *", "provided bad location ../x: time: invalid location name"),
            ("TZ=0", "invalid schedule format: runtime error: slice bounds out of range [:-1]"),
        ] {
            assert_eq!(schedule(text), Err(why.to_owned()), "{text}");
        }
    }

    #[test]
    fn a_field_is_a_list_of_ranges_with_steps() {
        let check = |text: &str, values: &[u64], star: bool| {
            let expect = Field { bits: values.iter().fold(0, |bits, v| bits | 1 << v), star };
            assert_eq!(field(text, &MONTH), Ok(expect), "{text}");
        };
        let all: Vec<u64> = (1..=12).collect();
        check("*", &all, true);
        check("?", &all, true);
        check("*/1", &all, true);
        check("*/5", &[1, 6, 11], false);
        check("3/4", &[3, 7, 11], false);
        check("3-9/4", &[3, 7], false);
        check("feb,Nov-DEC", &[2, 11, 12], false);
        check("2,*", &all, true);
        check("1/18446744073", &[1], false);
        check(",", &[], false);
    }
}
