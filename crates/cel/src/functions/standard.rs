//! Conversions, sizes and optionals.

use super::{Price, Result, Row, no_overload, row, short};
use crate::time;
use crate::value::{Map, Opaque, Text, Val};
use crate::work;

pub(super) const ROWS: &[Row] = &[
    row(
        "size",
        "string:int;bytes:int;list(A):int;map(A,B):int;.string:int;.bytes:int;.list(A):int;.map(A,B):int",
        Price::Fixed(1),
        size,
    ),
    row("type", "A:type", Price::Fixed(1), |a| Ok(Val::Type(Text::Ref(a[0].type_name())))),
    row("dyn", "A:dyn", Price::Fixed(1), |a| Ok(a[0].clone())),
    row("bool", "bool:bool;string:bool", Price::Fixed(1), boolean),
    row("int", "int:int;uint:int;double:int;string:int;time:int;dur:int", Price::Fixed(1), int),
    row("uint", "uint:uint;int:uint;double:uint;string:uint", Price::Fixed(1), uint),
    row("double", "double:double;int:double;uint:double;string:double", Price::Fixed(1), double),
    row(
        "string",
        "string:string;bool:string;bytes:string;double:string;dur:string;int:string;time:string;uint:string;ip:string;cidr:string",
        Price::Walk(0, 1.0),
        string,
    ),
    row("bytes", "bytes:bytes;string:bytes", Price::Walk(0, 1.0), bytes),
    row("optional.of", "A:opt(A)", Price::Fixed(1), |a| Ok(Val::some(a[0].clone()))),
    row("optional.ofNonZeroValue", "A:opt(A)", Price::Fixed(1), |a| {
        Ok(if is_zero(&a[0]) { Val::Optional(None) } else { Val::some(a[0].clone()) })
    }),
    row("optional.none", ":opt(A)", Price::Fixed(1), |_| Ok(Val::Optional(None))),
    row("hasValue", ".opt(A):bool", Price::Fixed(1), |a| match &a[0] {
        Val::Optional(o) => Ok(Val::Bool(o.is_some())),
        _ => no_overload(),
    }),
    row("value", ".opt(A):A", Price::Fixed(1), |a| match &a[0] {
        Val::Optional(Some(v)) => Ok((**v).clone()),
        Val::Optional(None) => Err("optional.none() dereference".into()),
        _ => no_overload(),
    }),
];

fn size<'a>(args: &[Val<'a>]) -> Result<'a> {
    match &args[0] {
        v @ (Val::Str(_) | Val::Bytes(_) | Val::List(_) | Val::Map(_)) => {
            Ok(Val::Int(i64::try_from(v.size()).unwrap_or(i64::MAX)))
        }
        _ => no_overload(),
    }
}

fn boolean<'a>(args: &[Val<'a>]) -> Result<'a> {
    match &args[0] {
        v @ Val::Bool(_) => Ok(v.clone()),
        Val::Str(s) => match s.as_str() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Val::Bool(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Val::Bool(false)),
            s => {
                work::count(s.len());
                Err(format!("strconv.ParseBool: parsing {s:?}: invalid syntax").into())
            }
        },
        _ => no_overload(),
    }
}

fn int<'a>(args: &[Val<'a>]) -> Result<'a> {
    let overflow = || "integer overflow".into();
    match &args[0] {
        v @ Val::Int(_) => Ok(v.clone()),
        Val::Uint(n) => i64::try_from(*n).map(Val::Int).map_err(|_| overflow()),
        Val::Double(d) if d.is_finite() && *d > i64::MIN as f64 && *d < i64::MAX as f64 => Ok(Val::Int(*d as i64)),
        Val::Double(_) => Err(overflow()),
        Val::Str(s) => {
            let bad = |s: &str| format!("strconv.ParseInt: parsing {s:?}: invalid syntax").into();
            let s = short(s.as_str()).map_err(bad)?;
            s.parse().map(Val::Int).map_err(|_| bad(s))
        }
        Val::Timestamp(t) => i64::try_from(t.div_euclid(1_000_000_000)).map(Val::Int).map_err(|_| overflow()),
        Val::Duration(d) => Ok(Val::Int(*d)),
        _ => no_overload(),
    }
}

fn uint<'a>(args: &[Val<'a>]) -> Result<'a> {
    let overflow = || "unsigned integer overflow".into();
    match &args[0] {
        v @ Val::Uint(_) => Ok(v.clone()),
        Val::Int(n) => u64::try_from(*n).map(Val::Uint).map_err(|_| overflow()),
        Val::Double(d) if d.is_finite() && *d >= 0.0 && *d < u64::MAX as f64 => Ok(Val::Uint(*d as u64)),
        Val::Double(_) => Err(overflow()),
        Val::Str(s) => {
            let bad = |s: &str| format!("strconv.ParseUint: parsing {s:?}: invalid syntax").into();
            let s = short(s.as_str()).map_err(bad)?;
            s.parse().map(Val::Uint).map_err(|_| bad(s))
        }
        _ => no_overload(),
    }
}

fn double<'a>(args: &[Val<'a>]) -> Result<'a> {
    match &args[0] {
        v @ Val::Double(_) => Ok(v.clone()),
        Val::Int(n) => Ok(Val::Double(*n as f64)),
        Val::Uint(n) => Ok(Val::Double(*n as f64)),
        Val::Str(s) => {
            let bad = |s: &str| format!("strconv.ParseFloat: parsing {s:?}: invalid syntax").into();
            let s = short(s.as_str()).map_err(bad)?;
            s.parse().map(Val::Double).map_err(|_| bad(s))
        }
        _ => no_overload(),
    }
}

fn string<'a>(args: &[Val<'a>]) -> Result<'a> {
    Ok(match &args[0] {
        v @ Val::Str(_) => v.clone(),
        Val::Bool(b) => Val::string(b.to_string()),
        Val::Int(n) => Val::string(n.to_string()),
        Val::Uint(n) => Val::string(n.to_string()),
        Val::Double(d) => Val::string(double_text(*d)),
        Val::Timestamp(t) => Val::string(time::timestamp_text(*t)),
        Val::Duration(d) => Val::string(time::duration_text(*d)),
        Val::Bytes(b) => {
            work::count(b.len());
            let text = std::str::from_utf8(b);
            Val::string(text.map_err(|_| "invalid UTF-8 in bytes, cannot convert to string")?)
        }
        Val::Opaque(o) => match &**o {
            Opaque::Ip(ip) => Val::string(ip.to_string()),
            Opaque::Cidr(c) => Val::string(c.to_string()),
            _ => return no_overload(),
        },
        _ => return no_overload(),
    })
}

/// Formats a number as Go's `strconv.FormatFloat(d, 'g', -1, 64)`.
pub(super) fn double_text(d: f64) -> String {
    if d.is_nan() {
        return "NaN".into();
    }
    if d.is_infinite() {
        return if d > 0.0 { "+Inf" } else { "-Inf" }.into();
    }
    if d != 0.0 && (d.abs() >= 1e21 || d.abs() < 1e-4) {
        let text = format!("{d:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let n: i32 = exponent.parse().unwrap_or_default();
        return format!("{digits}e{}{:02}", if n < 0 { '-' } else { '+' }, n.abs());
    }
    format!("{d}")
}

fn bytes<'a>(args: &[Val<'a>]) -> Result<'a> {
    match &args[0] {
        v @ Val::Bytes(_) => Ok(v.clone()),
        Val::Str(s) => {
            work::count(s.as_str().len());
            Ok(Val::Bytes(s.as_str().as_bytes().into()))
        }
        _ => no_overload(),
    }
}

fn is_zero(v: &Val<'_>) -> bool {
    match v {
        Val::Null | Val::Optional(None) => true,
        Val::Bool(b) => !b,
        Val::Int(n) => *n == 0,
        Val::Uint(n) => *n == 0,
        Val::Double(d) => *d == 0.0,
        Val::Duration(d) => *d == 0,
        Val::Str(s) => s.as_str().is_empty(),
        Val::Bytes(b) => b.is_empty(),
        Val::List(l) => l.is_empty(),
        Val::Map(Map::Json(m, _)) => m.is_empty(),
        Val::Map(m) => m.is_empty(),
        _ => false,
    }
}
