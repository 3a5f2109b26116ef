//! What a scalar means.

use super::Error;
use base64::Engine as _;
use serde_json::{Number, Value};

pub const STR: &str = "tag:yaml.org,2002:str";
const BINARY: &str = "tag:yaml.org,2002:binary";
const INT: &str = "tag:yaml.org,2002:int";
const FLOAT: &str = "tag:yaml.org,2002:float";
const BOOL: &str = "tag:yaml.org,2002:bool";
const NULL: &str = "tag:yaml.org,2002:null";
const TIMESTAMP: &str = "tag:yaml.org,2002:timestamp";
pub const MERGE: &str = "tag:yaml.org,2002:merge";

/// The version of go-yaml: they read booleans and dates differently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    #[default]
    V2,
    V3,
}

/// A scalar's meaning before it becomes JSON.
#[derive(Clone, Debug, PartialEq)]
pub enum Scalar {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    Timestamp,
    Str,
}

impl Scalar {
    fn tag(&self) -> &'static str {
        match self {
            Self::Null => NULL,
            Self::Bool(_) => BOOL,
            Self::Int(_) | Self::Uint(_) => INT,
            Self::Float(_) => FLOAT,
            Self::Timestamp => TIMESTAMP,
            Self::Str => STR,
        }
    }
}

/// The meaning of an untagged plain scalar.
pub fn plain(text: &str) -> Scalar {
    lookup(text, true)
}

fn lookup(text: &str, timestamps: bool) -> Scalar {
    let Some(&first) = text.as_bytes().first() else { return Scalar::Null };
    match first {
        b'~' if text == "~" => Scalar::Null,
        b'y' | b'Y' | b'n' | b'N' | b't' | b'T' | b'f' | b'F' | b'o' | b'O' => match text {
            "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Scalar::Bool(true),
            "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Scalar::Bool(false),
            "null" | "Null" | "NULL" => Scalar::Null,
            _ => Scalar::Str,
        },
        b'.' | b'+' | b'-' | b'0'..=b'9' => match text {
            ".nan" | ".NaN" | ".NAN" => Scalar::Float(f64::NAN),
            ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Scalar::Float(f64::INFINITY),
            "-.inf" | "-.Inf" | "-.INF" => Scalar::Float(f64::NEG_INFINITY),
            _ if first == b'.' => go_float(text).map_or(Scalar::Str, Scalar::Float),
            _ => number(text, timestamps),
        },
        _ => Scalar::Str,
    }
}

fn number(text: &str, timestamps: bool) -> Scalar {
    if timestamps && is_timestamp(text) {
        return Scalar::Timestamp;
    }
    let plain: std::borrow::Cow<'_, str> = if text.contains('_') { text.replace('_', "").into() } else { text.into() };
    let (negative, digits) = match plain.as_bytes() {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        all => (false, all),
    };
    let signed = digits.len() != plain.len();
    let (radix, digits) = match digits {
        [b'0', b'x' | b'X', rest @ ..] => (16, rest),
        [b'0', b'o' | b'O', rest @ ..] => (8, rest),
        [b'0', b'b' | b'B', rest @ ..] => (2, rest),
        [b'0', rest @ ..] if !rest.is_empty() => (8, rest),
        all => (10, all),
    };
    let magnitude = std::str::from_utf8(digits)
        .ok()
        .filter(|d| d.bytes().all(|b| b.is_ascii_alphanumeric()))
        .and_then(|d| u64::from_str_radix(d, radix).ok());
    if let Some(m) = magnitude {
        if negative {
            if m <= i64::MAX as u64 + 1 {
                return Scalar::Int((m as i64).wrapping_neg());
            }
        } else if let Ok(i) = i64::try_from(m) {
            return Scalar::Int(i);
        } else if !signed {
            // Go's ParseUint takes no sign.
            return Scalar::Uint(m);
        }
    }
    go_float(&plain).map_or(Scalar::Str, Scalar::Float)
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`, in range.
fn go_float(text: &str) -> Option<f64> {
    let b = text.as_bytes();
    let mut i = usize::from(matches!(b.first(), Some(b'+' | b'-')));
    let digits = |i: &mut usize| {
        let from = *i;
        while b.get(*i).is_some_and(u8::is_ascii_digit) {
            *i += 1;
        }
        *i - from
    };
    let whole = digits(&mut i);
    if b.get(i) == Some(&b'.') {
        i += 1;
        if digits(&mut i) == 0 && whole == 0 {
            return None;
        }
    } else if whole == 0 {
        return None;
    }
    if matches!(b.get(i), Some(b'e' | b'E')) {
        i += 1;
        if matches!(b.get(i), Some(b'+' | b'-')) {
            i += 1;
        }
        if digits(&mut i) == 0 {
            return None;
        }
    }
    if i != b.len() {
        return None;
    }
    text.parse().ok().filter(|f: &f64| f.is_finite())
}

/// The four layouts that go-yaml takes for a timestamp.
fn is_timestamp(text: &str) -> bool {
    let b = text.as_bytes();
    if b.len() < 8 || b[4] != b'-' || !b[..4].iter().all(u8::is_ascii_digit) {
        return false;
    }
    let mut i = 0;
    let number = |i: &mut usize, max: usize| -> Option<u32> {
        let from = *i;
        while *i - from < max && b.get(*i).is_some_and(u8::is_ascii_digit) {
            *i += 1;
        }
        text.get(from..*i)?.parse().ok()
    };
    let literal = |i: &mut usize, c: u8| -> Option<()> { (b.get(*i) == Some(&c)).then(|| *i += 1) };
    let mut read = || -> Option<bool> {
        let year = number(&mut i, 4)?;
        literal(&mut i, b'-')?;
        let month = number(&mut i, 2)?;
        literal(&mut i, b'-')?;
        let day = number(&mut i, 2)?;
        let leap = year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
        let last = match month {
            2 if leap => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            1..=12 => 31,
            _ => return None,
        };
        if !(1..=last).contains(&day) {
            return None;
        }
        if i == b.len() {
            return Some(true);
        }
        let spaced = match b[i] {
            b' ' => true,
            b'T' | b't' => false,
            _ => return None,
        };
        i += 1;
        let hour = number(&mut i, 2)?;
        literal(&mut i, b':')?;
        let minute = number(&mut i, 2)?;
        literal(&mut i, b':')?;
        let second = number(&mut i, 2)?;
        if hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        if matches!(b.get(i), Some(b'.' | b',')) {
            i += 1;
            let from = i;
            while b.get(i).is_some_and(u8::is_ascii_digit) {
                i += 1;
            }
            if i == from {
                return None;
            }
        }
        if spaced {
            return Some(i == b.len());
        }
        Some(match &b[i..] {
            [b'Z'] => true,
            [b'+' | b'-', h1, h2, b':', m1, m2] => [h1, h2, m1, m2].iter().all(|c| c.is_ascii_digit()),
            _ => false,
        })
    };
    read().unwrap_or(false)
}

/// Base 60, which go-yaml does not read but quotes for the sake of other readers: `12:30`.
fn is_base60(text: &str) -> bool {
    let b = text.as_bytes();
    let mut i = usize::from(matches!(b.first(), Some(b'+' | b'-')));
    if !b.get(i).is_some_and(u8::is_ascii_digit) {
        return false;
    }
    while b.get(i).is_some_and(|c| c.is_ascii_digit() || *c == b'_') {
        i += 1;
    }
    let mut groups = 0;
    while b.get(i) == Some(&b':') {
        let two = matches!(b.get(i + 1), Some(b'0'..=b'5')) && b.get(i + 2).is_some_and(u8::is_ascii_digit);
        if two {
            i += 3;
        } else if b.get(i + 1).is_some_and(u8::is_ascii_digit) {
            i += 2;
        } else {
            return false;
        }
        groups += 1;
    }
    if groups > 0 && b.get(i) == Some(&b'.') {
        i += 1;
        while b.get(i).is_some_and(|c| c.is_ascii_digit() || *c == b'_') {
            i += 1;
        }
    }
    groups > 0 && i == b.len()
}

/// Whether a string may be written without quotes as far as its meaning goes.
pub fn reads_back_as_string(text: &str) -> bool {
    plain(text) == Scalar::Str && !is_base60(text)
}

/// A scalar event's value. `implicit`: a plain scalar without a tag.
pub fn value(
    tag: Option<&str>,
    implicit: bool,
    text: &str,
    line: u64,
    dialect: Dialect,
) -> Result<(Scalar, Value), Error> {
    let s = |text: &str| Ok((Scalar::Str, Value::String(text.to_owned())));
    let scalar = match tag {
        None if implicit => match (plain(text), dialect) {
            (Scalar::Bool(_), Dialect::V3) if !is_boolean_of_v3(text) => Scalar::Str,
            (Scalar::Timestamp, Dialect::V3) => return Ok((Scalar::Timestamp, Value::String(moment(text)))),
            (scalar, _) => scalar,
        },
        None | Some(STR) => return s(text),
        Some(BINARY) => {
            return match base64::engine::general_purpose::STANDARD.decode(text.replace(['\n', '\r'], "")) {
                Ok(bytes) => s(&String::from_utf8_lossy(&bytes)),
                Err(_) => Err(Error::Invalid { line, what: "!!binary value contains invalid base64 data".to_owned() }),
            };
        }
        Some(t @ (INT | FLOAT | BOOL | NULL | TIMESTAMP)) => {
            let got = lookup(text, t == TIMESTAMP);
            match (t, &got) {
                (FLOAT, Scalar::Int(i)) => Scalar::Float(*i as f64),
                (FLOAT, Scalar::Uint(u)) => Scalar::Float(*u as f64),
                _ if t == got.tag() => got,
                _ => {
                    let short = |t: &str| t.replace("tag:yaml.org,2002:", "!!");
                    let what = format!("cannot decode {} `{text}` as a {}", short(got.tag()), short(t));
                    return Err(Error::Invalid { line, what });
                }
            }
        }
        Some(_) => return s(text),
    };
    let v = match &scalar {
        Scalar::Null => Value::Null,
        Scalar::Bool(b) => Value::Bool(*b),
        Scalar::Int(i) => Value::from(*i),
        Scalar::Uint(u) => Value::from(*u),
        Scalar::Float(f) => json_float(*f)?,
        Scalar::Timestamp | Scalar::Str => Value::String(text.to_owned()),
    };
    Ok((scalar, v))
}

fn is_boolean_of_v3(text: &str) -> bool {
    matches!(text, "true" | "True" | "TRUE" | "false" | "False" | "FALSE")
}

/// A timestamp as Go's JSON encoder writes the time it stands for.
fn moment(text: &str) -> String {
    let (date, rest) = text.split_at(text.find(['T', 't', ' ']).unwrap_or(text.len()));
    let pad = |part: &str| format!("{part:0>2}");
    let date = date.split('-').map(pad).collect::<Vec<_>>().join("-");
    let rest = rest.trim_start_matches(['T', 't', ' ']);
    if rest.is_empty() {
        return format!("{date}T00:00:00Z");
    }
    let (clock, zone) = rest.split_at(rest.find(['Z', '+', '-', ' ']).unwrap_or(rest.len()));
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let clock = clock.split(':').map(pad).collect::<Vec<_>>().join(":");
    let fraction = match fraction.trim_end_matches('0') {
        "" => String::new(),
        digits => format!(".{digits}"),
    };
    let zone = match zone.trim() {
        "" | "Z" | "+00:00" | "-00:00" => "Z".to_owned(),
        zone => match zone.split_at(1) {
            (sign, hours) if hours.contains(':') => format!("{sign}{hours:0>5}"),
            (sign, hours) => format!("{sign}{hours:0>2}:00"),
        },
    };
    format!("{date}T{clock}{fraction}{zone}")
}

/// Formats a float like Go's `%g`, with the fewest digits that parse to the same value.
pub fn float(f: f64) -> String {
    if f.is_nan() {
        return ".nan".to_owned();
    }
    if f.is_infinite() {
        return if f > 0.0 { ".inf" } else { "-.inf" }.to_owned();
    }
    let scientific = format!("{f:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let exp: i32 = exponent.parse().unwrap_or_default();
    if !(-4..6).contains(&exp) {
        let sign = if exp < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exp.abs());
    }
    format!("{f}")
}

/// A float after its way through JSON text: a whole number that fits becomes an integer.
fn json_float(f: f64) -> Result<Value, Error> {
    if f.is_nan() {
        return Err(Error::Unsupported("NaN"));
    }
    if f.is_infinite() {
        return Err(Error::Unsupported(if f > 0.0 { "+Inf" } else { "-Inf" }));
    }
    // 2^63 is the first whole float that no i64 holds; -2^63 is held.
    if f.fract() == 0.0 && (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&f) {
        return Ok(Value::from(f as i64));
    }
    Ok(Number::from_f64(f).map_or(Value::Null, Value::Number))
}

/// The text of a key, as `sigs.k8s.io/yaml` turns keys into strings. `None` for a null key.
pub fn key(scalar: &Scalar, text: &str) -> Option<String> {
    Some(match scalar {
        Scalar::Null => return None,
        Scalar::Bool(b) => b.to_string(),
        Scalar::Int(i) => i.to_string(),
        Scalar::Uint(u) => u.to_string(),
        Scalar::Float(f) => float(*f),
        Scalar::Timestamp | Scalar::Str => text.to_owned(),
    })
}
