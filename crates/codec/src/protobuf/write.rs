//! From values to messages.

use super::read::inner;
use super::wire::{FIXED64, put_bytes, put_int, put_key};
use super::{DEPTH_LIMIT, Error, MAGIC};
use base64::Engine as _;
use meta::{Map, Object, Value};
use schema::{Schema, Type};
use std::collections::BTreeMap;

/// An object with its envelope.
pub fn encode(o: &Object, schema: &Schema) -> Result<Vec<u8>, Error> {
    let mut raw = Vec::new();
    message(&mut raw, &o.0, schema, 0)?;
    Ok(envelope(o.api_version(), o.kind(), &raw))
}

/// Puts a message of a kind into the envelope.
pub fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let type_meta = fields(&[(1, api_version.as_bytes()), (2, kind.as_bytes())]);
    let mut out = Vec::with_capacity(raw.len() + type_meta.len() + 24);
    out.extend_from_slice(MAGIC);
    put_bytes(&mut out, 1, &type_meta);
    put_bytes(&mut out, 2, raw);
    put_bytes(&mut out, 3, b"");
    put_bytes(&mut out, 4, b"");
    out
}

/// A message with fields that are strings, bytes or messages.
pub fn fields(list: &[(u32, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, bytes) in list {
        put_bytes(&mut out, *number, bytes);
    }
    out
}

/// An event of a watch as it goes over the wire (`k8s.io/apimachinery/pkg/util/framer`): the length in four bytes, then a bare
/// `WatchEvent` around an object in its envelope.
pub fn watch_event(kind: &str, object: &[u8]) -> Vec<u8> {
    let event = fields(&[(1, kind.as_bytes()), (2, &fields(&[(1, object)]))]);
    let length = u32::try_from(event.len()).unwrap_or(u32::MAX);
    let mut out = length.to_be_bytes().to_vec();
    out.extend_from_slice(&event);
    out
}

/// A bare message.
pub fn encode_message(v: &Map<String, Value>, schema: &Schema) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    message(&mut out, v, schema, 0)?;
    Ok(out)
}

fn message(out: &mut Vec<u8>, m: &Map<String, Value>, s: &Schema, depth: usize) -> Result<(), Error> {
    level(out, m, s, None, depth)
}

/// The fields of a message, and those of embedded messages with fields in the same JSON object.
fn level(
    out: &mut Vec<u8>,
    m: &Map<String, Value>,
    s: &Schema,
    inline: Option<&str>,
    depth: usize,
) -> Result<(), Error> {
    if depth > DEPTH_LIMIT {
        return Err(Error::Depth);
    }
    let mut own: Vec<&schema::Field> = s.fields.iter().filter(|f| f.inline_of.as_deref() == inline).collect();
    own.sort_by_key(|f| f.number);
    for f in own.into_iter().filter(|f| f.number != 0) {
        let Some(v) = m.get(&*f.name).filter(|v| !v.is_null()) else { continue };
        let written = if f.boxed {
            let mut list = Vec::new();
            field(&mut list, 1, v, f.schema.get(), depth).map(|()| put_bytes(out, f.number, &list))
        } else {
            field(out, f.number, v, f.schema.get(), depth)
        };
        written.map_err(|e| e.below(format_args!(".{}", f.name)))?;
    }
    let inside: BTreeMap<u32, &str> = s.fields.iter().filter_map(|f| inner(f, inline)).map(|(i, n)| (n, i)).collect();
    for (number, within) in inside {
        let mut bytes = Vec::new();
        level(&mut bytes, m, s, Some(within), depth + 1)?;
        if !bytes.is_empty() {
            put_bytes(out, number, &bytes);
        }
    }
    Ok(())
}

fn field(out: &mut Vec<u8>, n: u32, v: &Value, s: &Schema, depth: usize) -> Result<(), Error> {
    let bad = || Error::Value { path: String::new(), value: v.to_string(), ty: s.ty };
    let text = || v.as_str().ok_or_else(bad);
    let nested = |f: &dyn Fn(&mut Vec<u8>)| {
        let mut b = Vec::new();
        f(&mut b);
        b
    };
    match s.ty {
        Type::String => put_bytes(out, n, text()?.as_bytes()),
        Type::Bytes => {
            let b = base64::engine::general_purpose::STANDARD.decode(text()?).map_err(|_| bad())?;
            put_bytes(out, n, &b);
        }
        Type::Int32 | Type::Int64 => put_int(out, n, v.as_i64().ok_or_else(bad)?),
        Type::Boolean => put_int(out, n, i64::from(v.as_bool().ok_or_else(bad)?)),
        Type::Double => {
            put_key(out, n, FIXED64);
            out.extend_from_slice(&v.as_f64().ok_or_else(bad)?.to_le_bytes());
        }
        Type::Time | Type::MicroTime => {
            let t = meta::time::parse(text()?).ok_or_else(bad)?;
            let nanos = if s.ty == Type::Time { 0 } else { t.subsec_nanosecond() };
            put_bytes(
                out,
                n,
                &nested(&|b| {
                    put_int(b, 1, t.as_second());
                    put_int(b, 2, i64::from(nanos));
                }),
            );
        }
        Type::Duration => {
            let d = duration(text()?).ok_or_else(bad)?;
            put_bytes(out, n, &nested(&|b| put_int(b, 1, d)));
        }
        Type::Quantity => {
            let q = match v {
                Value::String(q) => q.clone(),
                Value::Number(q) => q.to_string(),
                _ => return Err(bad()),
            };
            put_bytes(out, n, &nested(&|b| put_bytes(b, 1, q.as_bytes())));
        }
        Type::IntOrString => {
            let b = match v {
                Value::String(t) => nested(&|b| {
                    put_int(b, 1, 1);
                    put_int(b, 2, 0);
                    put_bytes(b, 3, t.as_bytes());
                }),
                v => {
                    let i = v.as_i64().ok_or_else(bad)?;
                    nested(&|b| {
                        put_int(b, 1, 0);
                        put_int(b, 2, i);
                        put_bytes(b, 3, b"");
                    })
                }
            };
            put_bytes(out, n, &b);
        }
        Type::Any if !s.alternatives.is_empty() => {
            let mut b = Vec::new();
            alternative(&mut b, v, s, depth + 1)?;
            put_bytes(out, n, &b);
        }
        Type::Any | Type::Raw if v.is_null() => put_bytes(out, n, &[]),
        Type::Any | Type::Raw => {
            let json = crate::json::to_vec(v, crate::json::Html::Keep);
            put_bytes(out, n, &nested(&|b| put_bytes(b, 1, &json)));
        }
        Type::Array => {
            let items = s.items.as_deref().ok_or_else(bad)?;
            for (i, item) in v.as_array().ok_or_else(bad)?.iter().enumerate() {
                field(out, n, item, items, depth).map_err(|e| e.below(format_args!("[{i}]")))?;
            }
        }
        Type::Map => {
            let values = s.additional.as_deref().ok_or_else(bad)?;
            for (k, item) in v.as_object().ok_or_else(bad)? {
                let mut entry = Vec::new();
                put_bytes(&mut entry, 1, k.as_bytes());
                let written = if values.ty == Type::Array {
                    let mut list = Vec::new();
                    field(&mut list, 1, item, values, depth).map(|()| put_bytes(&mut entry, 2, &list))
                } else {
                    field(&mut entry, 2, item, values, depth)
                };
                written.map_err(|e| e.below(format_args!(".{k}")))?;
                put_bytes(out, n, &entry);
            }
        }
        Type::Struct => {
            let mut b = Vec::new();
            message(&mut b, v.as_object().ok_or_else(bad)?, s, depth + 1)?;
            put_bytes(out, n, &b);
        }
    }
    Ok(())
}

/// The message of a value of several possible shapes. A boolean beside a struct marks its presence, as in Go's types.
fn alternative(out: &mut Vec<u8>, v: &Value, s: &Schema, depth: usize) -> Result<(), Error> {
    let bad = || Error::Value { path: String::new(), value: v.to_string(), ty: s.ty };
    if depth > DEPTH_LIMIT {
        return Err(Error::Depth);
    }
    let flag = s.alternative(Type::Boolean);
    let shape = match v {
        Value::Null => return Ok(()),
        Value::Bool(_) => flag,
        Value::Array(_) => s.alternative(Type::Array),
        Value::Object(_) => s.alternative(Type::Struct),
        _ => None,
    };
    let shape = shape.ok_or_else(bad)?;
    if let Some(flag) = flag.filter(|_| v.is_object()) {
        put_int(out, flag.number, 1);
    }
    field(out, shape.number, v, &shape.schema, depth)
}

/// A Go duration in nanoseconds: `1h30m`, `-1.5s`, `0`.
pub(super) fn duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(r) => (true, r),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    let mut total = 0f64;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, next) = tail.split_at(end);
        let scale = match unit {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * scale;
        rest = next;
    }
    let nanos = total.round() as i64;
    Some(if negative { -nanos } else { nanos })
}
