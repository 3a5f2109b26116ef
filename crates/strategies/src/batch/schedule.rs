//! Cron schedules: five fields, or a descriptor such as `@hourly` (`robfig/cron`, `ParseStandard`). Errors are that
//! library's, and only the first is reported.

type Read<T> = Result<T, String>;

/// The range of a field, and names for its values from the minimum on.
struct Bounds {
    low: u64,
    high: u64,
    names: &'static [&'static str],
}

const FIELDS: [Bounds; 5] = [
    Bounds { low: 0, high: 59, names: &[] },
    Bounds { low: 0, high: 23, names: &[] },
    Bounds { low: 1, high: 31, names: &[] },
    Bounds {
        low: 1,
        high: 12,
        names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    },
    Bounds { low: 0, high: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] },
];
const DESCRIPTORS: [&str; 7] = ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];

/// Validates a non-empty schedule.
pub fn check(schedule: &str) -> Read<()> {
    let zoned = ["TZ=", "CRON_TZ="].iter().find_map(|p| schedule.strip_prefix(p));
    let rest = match zoned {
        None => schedule,
        Some(zoned) => {
            let (zone, rest) = zoned.split_once(' ').unwrap_or((zoned, ""));
            if !zone.is_empty() && !is_zone(zone) {
                return Err(format!("provided bad location {zone}: unknown time zone {zone}"));
            }
            rest.trim()
        }
    };
    if rest.starts_with('@') {
        return descriptor(rest);
    }
    let fields: Vec<&str> = rest.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
    }
    let ranges = |f: &&'_ str| f.split(',').filter(|r| !r.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    fields.iter().zip(&FIELDS).try_for_each(|(f, bounds)| ranges(f).iter().try_for_each(|r| range(r, bounds)))
}

/// Whether the time zone database contains the name, case-sensitively.
pub fn is_zone(name: &str) -> bool {
    let zone = jiff::tz::TimeZone::get(name);
    zone.is_ok_and(|z| !z.is_unknown() && z.iana_name().is_none_or(|n| n == name))
}

fn descriptor(text: &str) -> Read<()> {
    match text.strip_prefix("@every ") {
        Some("") => Err(format!("failed to parse duration {text}: time: invalid duration \"\"")),
        Some(_) => Ok(()),
        None if DESCRIPTORS.contains(&text) => Ok(()),
        None => Err(format!("unrecognized descriptor: {text}")),
    }
}

/// Parses `*`, `3` or `3-5`, with an optional step.
fn range(text: &str, bounds: &Bounds) -> Read<()> {
    let parts: Vec<&str> = text.split('/').collect();
    let ends: Vec<&str> = parts[0].split('-').collect();
    let (start, mut end) = match ends[..] {
        ["*" | "?", ..] => (bounds.low, bounds.high),
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
    Ok(())
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
    let wrong = |why: &str| format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: {why}");
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong("invalid syntax"));
    }
    let n = text.parse::<i64>().map_err(|_| wrong("value out of range"))?;
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
            "5/10 * * * *",
        ];
        for text in good {
            assert_eq!(check(text), Ok(()), "{text}");
        }
        for (text, why) in [
            ("* * *", "expected exactly 5 fields, found 3: [* * *]"),
            ("* * * * *x", "failed to parse int from *x: strconv.Atoi: parsing \"*x\": invalid syntax"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("5-3 * * * *", "beginning of range (5) beyond end of range (3): 5-3"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("*/-1 * * * *", "negative number (-1) not allowed: -1"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            ("@often", "unrecognized descriptor: @often"),
            ("TZ=No/Where * * * * *", "provided bad location No/Where: unknown time zone No/Where"),
        ] {
            assert_eq!(check(text), Err(why.to_owned()), "{text}");
        }
    }
}
