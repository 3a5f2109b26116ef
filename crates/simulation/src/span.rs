//! Durations in scenarios, as `90s`, `1h30m`, `7d` or `20ms`.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::time::Duration;

const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("ms", 1), ("m", 60_000), ("s", 1000)];
/// No scenario takes longer.
const MAX: u64 = 400 * 366 * 86_400_000;

/// A duration in whole milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// A duration that may be negative, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offset(pub i64);

fn parse(text: &str) -> Option<u64> {
    let (mut rest, mut sum) = (text, 0u64);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).filter(|n| *n > 0)?;
        let n: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let (unit, factor) = UNITS.iter().find(|(unit, _)| rest.starts_with(unit))?;
        rest = &rest[unit.len()..];
        sum = sum.checked_add(n.checked_mul(*factor)?).filter(|s| *s <= MAX)?;
    }
    (!text.is_empty()).then_some(sum)
}

fn format(mut ms: u64) -> String {
    let mut text = String::new();
    for (unit, factor) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)] {
        if ms >= factor {
            text += &format!("{}{unit}", ms / factor);
            ms %= factor;
        }
    }
    if text.is_empty() { "0s".into() } else { text }
}

impl std::fmt::Display for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&format(u64::try_from(self.0.as_millis()).unwrap_or(MAX)))
    }
}

fn problem(text: &str) -> String {
    format!("{text:?} is not a duration such as 90s, 1h30m or 7d")
}

impl Span {
    /// Parses a duration such as `90s`, `1h30m` or `7d`.
    pub fn parse(text: &str) -> Result<Self, String> {
        parse(text).map(|ms| Self(Duration::from_millis(ms))).ok_or_else(|| problem(text))
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        Self::parse(&text).map_err(D::Error::custom)
    }
}

impl Serialize for Offset {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let sign = if self.0 < 0 { "-" } else { "" };
        s.serialize_str(&format!("{sign}{}", format(self.0.unsigned_abs())))
    }
}

impl<'de> Deserialize<'de> for Offset {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        let (sign, rest) = text.strip_prefix('-').map_or((1, &*text), |rest| (-1, rest));
        let ms = parse(rest).and_then(|ms| i64::try_from(ms).ok());
        ms.map(|ms| Self(sign * ms)).ok_or_else(|| D::Error::custom(problem(&text)))
    }
}

#[cfg(test)]
mod tests {
    use super::{format, parse};

    #[test]
    fn durations_are_read_and_written() {
        for (text, ms) in
            [("90s", 90_000), ("1h30m", 5_400_000), ("7d", 604_800_000), ("20ms", 20), ("1m1s1ms", 61_001)]
        {
            assert_eq!(parse(text), Some(ms), "{text}");
            assert_eq!(parse(&format(ms)), Some(ms), "{text}");
        }
        for text in ["", "5", "s", "-5s", "1.5h", "5 s", "99999999999d", "1w"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
