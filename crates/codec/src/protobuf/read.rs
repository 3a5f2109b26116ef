//! From messages to values.

use super::wire::{Reader, Wire};
use super::{DEPTH_LIMIT, Error, MAGIC, MOST_MESSAGES};
use base64::Engine as _;
use meta::{Map, Object, Value};
use schema::types::Presence;
use schema::{Field, Schema, Type};
use std::cell::Cell;

/// Reads an object with its envelope. `schema_of` finds the schema of an API version and kind.
pub fn decode<'a>(bytes: &[u8], schema_of: impl Fn(&str, &str) -> Option<&'a Schema>) -> Result<Object, Error> {
    let mut r = Reader(bytes.strip_prefix(MAGIC).ok_or(Error::NoMagic)?);
    let (mut api_version, mut kind, mut raw, mut encoding) = (String::new(), String::new(), &[][..], String::new());
    while let Some((n, w)) = r.field()? {
        match n {
            1 => {
                let mut t = Reader(w.bytes(n)?);
                while let Some((n, w)) = t.field()? {
                    match n {
                        1 => api_version = text(n, w)?,
                        2 => kind = text(n, w)?,
                        _ => {}
                    }
                }
            }
            2 => raw = w.bytes(n)?,
            3 => encoding = text(n, w)?,
            _ => {}
        }
    }
    if !encoding.is_empty() {
        return Err(Error::ContentEncoding(encoding));
    }
    let Some(s) = schema_of(&api_version, &kind) else { return Err(Error::UnknownKind { api_version, kind }) };
    let mut m = decode_message(raw, s)?;
    m.insert("apiVersion".to_owned(), api_version.into());
    m.insert("kind".to_owned(), kind.into());
    Ok(Object(m))
}

/// Reads a bare message.
pub fn decode_message(bytes: &[u8], schema: &Schema) -> Result<Map<String, Value>, Error> {
    let mut m = Map::new();
    let left = Cell::new(MOST_MESSAGES);
    message(&mut m, bytes, schema, None, At { depth: 0, left: &left })?;
    Ok(m)
}

fn text(field: u32, w: Wire<'_>) -> Result<String, Error> {
    String::from_utf8(w.bytes(field)?.to_vec()).map_err(|_| Error::Invalid { field, what: "UTF-8" })
}

/// Where in an object we are.
#[derive(Clone, Copy)]
struct At<'a> {
    depth: usize,
    /// Messages that may still come.
    left: &'a Cell<usize>,
}

impl At<'_> {
    fn deeper(self) -> Self {
        Self { depth: self.depth + 1, ..self }
    }

    fn check(self) -> Result<(), Error> {
        if self.depth > DEPTH_LIMIT {
            return Err(Error::Depth);
        }
        let left = self.left.get().checked_sub(1).ok_or(Error::Many)?;
        self.left.set(left);
        Ok(())
    }
}

/// Reads a message into an object. If its fields lie in a parent object, `inline` is the path of the message: names and numbers, the
/// outermost first.
fn message(
    m: &mut Map<String, Value>,
    bytes: &[u8],
    s: &Schema,
    inline: Option<&str>,
    at: At<'_>,
) -> Result<(), Error> {
    at.check()?;
    let mut r = Reader(bytes);
    while let Some((n, w)) = r.field()? {
        if let Some(f) = s.fields.iter().find(|f| f.number == n && n != 0 && f.inline_of.as_deref() == inline) {
            field(m, f, n, w, at)?;
        } else if let Some(within) = s.fields.iter().find_map(|f| inner(f, inline).filter(|i| i.1 == n)) {
            message(m, w.bytes(n)?, s, Some(within.0), at.deeper())?;
        }
    }
    Ok(())
}

/// The next message on the way to a field that lies further inside, and its number.
pub(super) fn inner<'a>(f: &'a Field, inline: Option<&str>) -> Option<(&'a str, u32)> {
    let whole = f.inline_of.as_deref()?;
    let start = match inline {
        None => 0,
        Some(i) => whole.strip_prefix(i)?.starts_with('/').then_some(i.len() + 1)?,
    };
    let end = whole[start..].find('/').map_or(whole.len(), |e| start + e);
    let number = whole[start..end].rsplit_once('#')?.1.parse().ok()?;
    Some((&whole[..end], number))
}

fn field(m: &mut Map<String, Value>, f: &Field, n: u32, w: Wire<'_>, at: At<'_>) -> Result<(), Error> {
    let s = f.schema.get();
    match s.ty {
        Type::Array => {
            let Some(items) = s.items.as_deref() else { return Ok(()) };
            let slot = m.entry(&*f.name).or_insert_with(|| Value::Array(Vec::new()));
            if let Value::Array(list) = slot {
                if f.boxed { boxed(list, w.bytes(n)?, items, at)? } else { repeated(list, n, w, items, at)? }
            }
        }
        Type::Map => {
            let Some(values) = s.additional.as_deref() else { return Ok(()) };
            let (k, v) = entry(n, w, values, at)?;
            let slot = m.entry(&*f.name).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(map) = slot {
                map.insert(k, v);
            }
        }
        _ => {
            let v = single(n, w, s, at)?;
            let zero = v == "" || v == false || v.as_f64() == Some(0.0);
            let absent = v.is_null() || zero && f.presence == Presence::OmitZero;
            if !absent {
                m.insert(f.name.to_string(), v);
            }
        }
    }
    Ok(())
}

fn repeated(list: &mut Vec<Value>, n: u32, w: Wire<'_>, items: &Schema, at: At<'_>) -> Result<(), Error> {
    // Numbers may be packed.
    if let (Type::Int32 | Type::Int64 | Type::Boolean, Wire::Bytes(b)) = (items.ty, w) {
        let mut r = Reader(b);
        while !r.0.is_empty() {
            let v = Wire::Varint(r.varint()?);
            list.push(single(n, v, items, at)?);
        }
        return Ok(());
    }
    list.push(single(n, w, items, at)?);
    Ok(())
}

/// Reads a list that is a message of its own.
fn boxed(list: &mut Vec<Value>, bytes: &[u8], items: &Schema, at: At<'_>) -> Result<(), Error> {
    let mut inner = Reader(bytes);
    while let Some((n, w)) = inner.field()? {
        if n == 1 {
            repeated(list, n, w, items, at)?;
        }
    }
    Ok(())
}

fn entry(n: u32, w: Wire<'_>, values: &Schema, at: At<'_>) -> Result<(String, Value), Error> {
    let mut r = Reader(w.bytes(n)?);
    let (mut key, mut value) = (String::new(), None);
    while let Some((n, w)) = r.field()? {
        match n {
            1 => key = text(n, w)?,
            2 if values.ty == Type::Array => {
                let mut list = Vec::new();
                if let Some(items) = values.items.as_deref() {
                    boxed(&mut list, w.bytes(n)?, items, at)?;
                }
                value = Some(Value::Array(list));
            }
            2 => value = Some(single(n, w, values, at)?),
            _ => {}
        }
    }
    let empty = || match values.ty {
        Type::String | Type::Bytes => Value::from(""),
        Type::Array => Value::Array(Vec::new()),
        Type::Struct | Type::Map => Value::Object(Map::new()),
        Type::Boolean => Value::Bool(false),
        Type::Int32 | Type::Int64 => Value::from(0),
        _ => Value::Null,
    };
    Ok((key, value.unwrap_or_else(empty)))
}

/// Whole numbers have no point, as Go writes them.
fn number(v: f64) -> Value {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if v.fract() == 0.0 && v.abs() < EXACT {
        return (v as i64).into();
    }
    serde_json::Number::from_f64(v).map_or(Value::Null, Value::Number)
}

fn single(n: u32, w: Wire<'_>, s: &Schema, at: At<'_>) -> Result<Value, Error> {
    Ok(match s.ty {
        Type::String => text(n, w)?.into(),
        Type::Bytes => base64::engine::general_purpose::STANDARD.encode(w.bytes(n)?).into(),
        Type::Int32 => i64::from(w.varint(n)? as i32).into(),
        Type::Int64 => (w.varint(n)? as i64).into(),
        Type::Boolean => (w.varint(n)? != 0).into(),
        Type::Double => match w {
            Wire::Fixed64(b) => number(f64::from_bits(b)),
            Wire::Fixed32(b) => number(f64::from(f32::from_bits(b))),
            _ => return Err(Error::Invalid { field: n, what: "wire type" }),
        },
        Type::Time | Type::MicroTime => {
            // Only an empty message is no time: zero is the beginning of 1970.
            if w.bytes(n)?.is_empty() {
                return Ok(Value::Null);
            }
            let (seconds, nanos) = two(n, w)?;
            let nanos = if s.ty == Type::Time { 0 } else { nanos };
            let nanos = i32::try_from(nanos).map_err(|_| Error::Invalid { field: n, what: "time" })?;
            let t = jiff::Timestamp::new(seconds, nanos).map_err(|_| Error::Invalid { field: n, what: "time" })?;
            if s.ty == Type::Time { meta::time::format(t) } else { meta::time::format_micro(t) }.into()
        }
        Type::Duration => meta::time::go_duration(two(n, w)?.0).into(),
        Type::Quantity => inner_bytes(n, w, 1)?.map_or(Value::Null, |b| String::from_utf8_lossy(b).into_owned().into()),
        Type::IntOrString => {
            let (kind, int) = two(n, w)?;
            if kind == 1 {
                inner_bytes(n, w, 3)?.map_or_else(String::new, |b| String::from_utf8_lossy(b).into_owned()).into()
            } else {
                i64::from(int as i32).into()
            }
        }
        Type::Any if !s.alternatives.is_empty() => alternative(w.bytes(n)?, s, at.deeper())?,
        Type::Any | Type::Raw => match inner_bytes(n, w, 1)? {
            None | Some([]) => Value::Null,
            Some(b) => meta::depth::from_slice(b).map_err(|_| Error::Invalid { field: n, what: "JSON" })?,
        },
        Type::Struct => {
            let mut m = Map::new();
            message(&mut m, w.bytes(n)?, s, None, at.deeper())?;
            Value::Object(m)
        }
        Type::Array | Type::Map => return Err(Error::Invalid { field: n, what: "list of lists" }),
    })
}

/// Reads a value of several possible shapes: a list counts before a struct, and a struct before a boolean, which is `false` when
/// it is absent.
fn alternative(bytes: &[u8], s: &Schema, at: At<'_>) -> Result<Value, Error> {
    at.check()?;
    let (mut list, mut object) = (Vec::new(), None);
    let mut flag = s.alternative(Type::Boolean).map(|_| Value::Bool(false));
    let mut r = Reader(bytes);
    while let Some((n, w)) = r.field()? {
        let Some(shape) = s.alternatives.iter().find(|a| a.number == n).map(|a| a.schema.get()) else { continue };
        match (shape.ty, shape.items.as_deref()) {
            (Type::Array, Some(items)) => repeated(&mut list, n, w, items, at)?,
            (Type::Boolean, _) => flag = Some(single(n, w, shape, at)?),
            _ => object = Some(single(n, w, shape, at)?),
        }
    }
    if !list.is_empty() {
        return Ok(list.into());
    }
    Ok(object.or(flag).unwrap_or_default())
}

/// The numbers 1 and 2 of a small message.
fn two(n: u32, w: Wire<'_>) -> Result<(i64, i64), Error> {
    let (mut a, mut b) = (0, 0);
    let mut r = Reader(w.bytes(n)?);
    while let Some((n, w)) = r.field()? {
        match n {
            1 => a = w.varint(n)? as i64,
            2 => b = w.varint(n)? as i64,
            _ => {}
        }
    }
    Ok((a, b))
}

fn inner_bytes<'a>(n: u32, w: Wire<'a>, field: u32) -> Result<Option<&'a [u8]>, Error> {
    let mut r = Reader(w.bytes(n)?);
    let mut found = None;
    while let Some((n, w)) = r.field()? {
        if n == field {
            found = Some(w.bytes(n)?);
        }
    }
    Ok(found)
}
