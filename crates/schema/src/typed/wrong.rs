//! Go's error messages for values of a wrong type: the struct of the field, the path without indexes and keys, and the name of the type in Go.

use super::{Step, Walk};
use crate::go_format;
use crate::types::{Field, Schema, Type};
use serde_json::Value;
use std::fmt;

/// A value of a wrong type.
#[derive(Debug)]
pub struct TypeError {
    /// The path of the value.
    pub path: String,
    /// The error message of Go's decoder.
    pub message: String,
    /// The message if upstream converts a value instead of decoding text, as after a strategic merge patch.
    pub of_value: String,
}

impl fmt::Display for TypeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for TypeError {}

impl Walk<'_> {
    pub(super) fn wrong(&self, v: &Value, schema: &Schema) -> TypeError {
        let alias = self.path.iter().rev().find_map(|s| match s {
            Step::Field(f, _) => Some(f.go.as_deref()),
            _ => None,
        });
        let want = type_name(schema, alias.flatten());
        TypeError { of_value: unconverted(v, schema.ty, &want), ..self.cannot(v, schema.ty, &want) }
    }

    /// The error of a value that its type decodes from another JSON type.
    pub(super) fn cannot(&self, v: &Value, ty: Type, want: &str) -> TypeError {
        let fields = self.path.iter().filter_map(|s| match s {
            Step::Field(f, of) => Some((*f, *of)),
            _ => None,
        });
        let fields: Vec<(&Field, &Schema)> = fields.collect();
        let have = have_instead(v, ty);
        let of_value = format!("json: cannot unmarshal {have} into Go value of type {want}");
        let Some((_, of)) = fields.last() else { return self.bad(of_value) };
        let owner = of.name.as_deref().and_then(|n| n.rsplit('.').next()).unwrap_or_default();
        let path: Vec<String> = fields.iter().map(|(f, _)| step(f)).collect();
        let path = path.join(".");
        let message = format!("json: cannot unmarshal {have} into Go struct field {owner}.{path} of type {want}");
        TypeError { path: self.path(None), message, of_value }
    }

    pub(super) fn bad(&self, message: impl Into<String>) -> TypeError {
        let message = message.into();
        TypeError { path: self.path(None), of_value: message.clone(), message }
    }
}

/// The error of a conversion (`k8s.io/apimachinery/pkg/runtime`, `DefaultUnstructuredConverter`).
fn unconverted(v: &Value, ty: Type, want: &str) -> String {
    let have = match v {
        Value::Null => "nil",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
    };
    let kind = match ty {
        Type::Struct => return format!("cannot restore struct from: {have}"),
        Type::Map => return format!("cannot restore map from {have}"),
        Type::Array | Type::Bytes => return format!("cannot restore slice from {have}"),
        Type::String => "string",
        Type::Boolean => "bool",
        Type::Int32 => "int32",
        Type::Int64 => "int64",
        Type::Double => "float64",
        _ => return format!("json: cannot unmarshal {} into Go value of type {want}", have_instead(v, ty)),
    };
    // Go could convert these, though the converter does not.
    match (have, ty) {
        ("int64", Type::String) | ("float64", Type::Int32 | Type::Int64) => format!("cannot convert {have} to {want}"),
        _ => format!("unrecognized type: {kind}"),
    }
}

/// The name of the JSON type of a value in the messages of Go's decoder.
pub fn have(v: &Value) -> &'static str {
    match v {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The value in a message: a number that does not fit is shown itself.
fn have_instead(v: &Value, want: Type) -> String {
    match v {
        Value::Number(n) if matches!(want, Type::Int32 | Type::Int64) => format!("number {n}"),
        v => have(v).into(),
    }
}

/// A field on the way, after the structs that are embedded around it.
fn step(f: &Field) -> String {
    let Some(embedded) = &f.inline_of else { return f.name.to_string() };
    let mut out = String::new();
    for e in embedded.split('/') {
        let name = e.split('#').next().unwrap_or_default();
        // Renamed since it got its name in protobuf.
        out.push_str(&if name == "handler" { "ProbeHandler".to_owned() } else { go_format::name(name) });
        out.push('.');
    }
    out + &f.name
}

fn type_name(schema: &Schema, alias: Option<&str>) -> String {
    let own = match schema.ty {
        Type::Struct => {
            let mut parts = schema.name.as_deref().unwrap_or_default().rsplit('.');
            let (name, version) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            return format!("{version}.{name}");
        }
        Type::Array => {
            return match schema.items.as_deref() {
                Some(items) => format!("[]{}", type_name(items, alias)),
                None => "[]interface {}".into(),
            };
        }
        Type::Map => match (alias, schema.additional.as_deref()) {
            (Some(alias), _) => return alias.into(),
            (None, Some(values)) => return format!("map[string]{}", type_name(values, None)),
            (None, None) => "map[string]interface {}",
        },
        Type::Bytes => "[]uint8",
        Type::Boolean => "bool",
        Type::Int32 => "int32",
        Type::Int64 => "int64",
        Type::Double => "float64",
        Type::Quantity => "resource.Quantity",
        Type::IntOrString => "intstr.IntOrString",
        Type::Time => "v1.Time",
        Type::MicroTime => "v1.MicroTime",
        Type::Duration => "v1.Duration",
        Type::String | Type::Any | Type::Raw => return alias.unwrap_or("string").into(),
    };
    own.into()
}

/// Decodes the URL alphabet of base64, without padding.
pub fn illegal_in_url(text: &str) -> usize {
    let inside: String = text
        .chars()
        .map(|c| match c {
            '-' => '+',
            '_' => '/',
            '+' | '/' | '=' => '!',
            c => c,
        })
        .collect();
    illegal(inside.as_bytes())
}

/// The offset of invalid base64: of the invalid byte, or of the incomplete group.
pub fn illegal(text: &[u8]) -> usize {
    let is_break = |b: u8| matches!(b, b'\n' | b'\r');
    let skip = |mut at: usize| {
        while text.get(at).is_some_and(|b| is_break(*b)) {
            at += 1;
        }
        at
    };
    let mut at = 0;
    loop {
        for digit in 0..4 {
            at = skip(at);
            match text.get(at) {
                None => return at - digit.min(at),
                Some(b'=') if digit == 2 => {
                    let next = skip(at + 1);
                    return if text.get(next) == Some(&b'=') { skip(next + 1) } else { next };
                }
                Some(b'=') if digit == 3 => return skip(at + 1),
                Some(b) if b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/') => at += 1,
                Some(_) => return at,
            }
        }
    }
}

/// Whether the seconds of a time in RFC 3339 have a fraction of six digits, which Go requires of a `MicroTime`.
pub(super) fn has_six_digits(time: &str) -> bool {
    let fraction = time.get("2006-01-02T15:04:05.".len()..).unwrap_or_default();
    fraction.bytes().take_while(u8::is_ascii_digit).count() == 6
}

/// The error of Go's time parser.
pub fn time(text: &str, micro: bool) -> String {
    let fraction = if micro { ".000000" } else { "" };
    let layout = format!("2006-01-02T15:04:05{fraction}Z07:00");
    let elements = [
        ("2006", 4),
        ("-", 0),
        ("01", 2),
        ("-", 0),
        ("02", 2),
        ("T", 0),
        ("15", 2),
        (":", 0),
        ("04", 2),
        (":", 0),
        ("05", 2),
    ];
    let mut rest = text;
    let stuck = |rest: &str, at: &str| format!("parsing time {text:?} as {layout:?}: cannot parse {rest:?} as {at:?}");
    for (element, digits) in elements {
        let n = if digits == 0 { element.len() } else { digits };
        let fits = match rest.get(..n) {
            Some(head) if digits == 0 => head == element,
            Some(head) => head.bytes().all(|b| b.is_ascii_digit()),
            None => false,
        };
        if !fits {
            return stuck(rest, element);
        }
        rest = &rest[n..];
    }
    let digits = rest.strip_prefix('.').map_or(0, |r| r.bytes().take_while(u8::is_ascii_digit).count());
    if micro && digits < 6 {
        return stuck(rest, fraction);
    }
    let read = if micro { 6 } else { digits };
    rest = if digits > 0 { &rest[read + 1..] } else { rest };
    let zone = match rest.as_bytes() {
        [b'Z', ..] => 1,
        [b'+' | b'-', a, b, b':', c, d, ..] if [a, b, c, d].iter().all(|b| b.is_ascii_digit()) => 6,
        _ => return stuck(rest, "Z07:00"),
    };
    match &rest[zone..] {
        "" => format!("parsing time {text:?}: day out of range"),
        extra => format!("parsing time {text:?}: extra text: {extra:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_up_to_what_is_wrong() {
        let whole = "2006-01-02T15:04:05Z07:00";
        let cases = [
            ("x", format!("parsing time \"x\" as {whole:?}: cannot parse \"x\" as \"2006\"")),
            ("2026-01", format!("parsing time \"2026-01\" as {whole:?}: cannot parse \"\" as \"-\"")),
            ("2026-01-01T00:00:00Zx", "parsing time \"2026-01-01T00:00:00Zx\": extra text: \"x\"".to_owned()),
            ("2026-02-30T00:00:00Z", "parsing time \"2026-02-30T00:00:00Z\": day out of range".to_owned()),
        ];
        for (text, want) in cases {
            assert_eq!(time(text, false), want);
        }
    }

    #[test]
    fn micro_times_have_six_digits() {
        let micro = "2006-01-02T15:04:05.000000Z07:00";
        let stuck = |text: &str, rest: &str, at: &str| {
            assert!(!has_six_digits(text), "{text}");
            let want = format!("parsing time {text:?} as {micro:?}: cannot parse {rest:?} as {at:?}");
            assert_eq!(time(text, true), want);
        };
        stuck("2026-01-01T00:00:00Z", "Z", ".000000");
        stuck("2026-01-01T00:00:00+01:00", "+01:00", ".000000");
        stuck("2026-01-01T00:00:00.12345Z", ".12345Z", ".000000");
        stuck("2026-01-01T00:00:00.1234567Z", "7Z", "Z07:00");
        assert!(has_six_digits("2026-01-01T00:00:00.123456+01:00"));
    }

    #[test]
    fn base64_is_read_up_to_what_is_wrong() {
        for (text, at) in [("a", 0), ("ab!d", 2), ("abcd=", 4), ("ab=", 3), ("-x", 0), ("abcde", 4)] {
            assert_eq!(illegal(text.as_bytes()), at, "{text}");
        }
    }
}
