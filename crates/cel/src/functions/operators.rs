//! Operators on values. `&&`, `||` and `?:` are in `eval`.

use super::{Fault, Price, Result, Row, no_overload, row};
use crate::compare::{compare, equal};
use crate::time;
use crate::value::{Key, List, Map, Text, Val};
use crate::work;
use std::cmp::Ordering;
use std::rc::Rc;

const NUMBERS: &str = "int,int:int;uint,uint:uint;double,double:double";

pub(super) const ROWS: &[Row] = &[
    row(
        "_+_",
        "int,int:int;uint,uint:uint;double,double:double;string,string:string;bytes,bytes:bytes;list(A),list(A):list(A);time,dur:time;dur,time:time;dur,dur:dur",
        Price::Sum,
        add,
    ),
    row(
        "_-_",
        "int,int:int;uint,uint:uint;double,double:double;time,time:dur;time,dur:time;dur,dur:dur",
        Price::Fixed(1),
        subtract,
    ),
    row("_*_", NUMBERS, Price::Fixed(1), multiply),
    row("_/_", NUMBERS, Price::Fixed(1), divide),
    row("_%_", "int,int:int;uint,uint:uint", Price::Fixed(1), modulo),
    row("-_", "int:int;double:double", Price::Fixed(1), negate),
    row("!_", "bool:bool", Price::Fixed(1), not),
    row("_==_", "A,A:bool", Price::Least, |a| Ok(Val::Bool(equal(&a[0], &a[1])))),
    row("_!=_", "A,A:bool", Price::Least, |a| Ok(Val::Bool(!equal(&a[0], &a[1])))),
    row("_<_", ORDERED, Price::Least, |a| ordered(a, Ordering::is_lt)),
    row("_<=_", ORDERED, Price::Least, |a| ordered(a, Ordering::is_le)),
    row("_>_", ORDERED, Price::Least, |a| ordered(a, Ordering::is_gt)),
    row("_>=_", ORDERED, Price::Least, |a| ordered(a, Ordering::is_ge)),
    row("@in", "A,list(A):bool;A,map(A,B):bool", Price::Items(1), contains),
    row("_[_]", "list(A),int:A;map(A,B),A:B;opt(list(A)),int:opt(A);opt(map(A,B)),A:opt(B)", Price::Fixed(1), index),
    row(
        "_[?_]",
        "list(A),int:opt(A);map(A,B),A:opt(B);opt(list(A)),int:opt(A);opt(map(A,B)),A:opt(B)",
        Price::Fixed(1),
        optional_index,
    ),
];

const ORDERED: &str = "bool,bool:bool;int,int:bool;int,double:bool;int,uint:bool;uint,uint:bool;uint,double:bool;uint,int:bool;double,double:bool;double,int:bool;double,uint:bool;string,string:bool;bytes,bytes:bool;time,time:bool;dur,dur:bool";

fn ordered<'a>(args: &[Val<'a>], is: fn(Ordering) -> bool) -> Result<'a> {
    match (&args[0], &args[1]) {
        // NaN has no order, and comparing it is no error.
        (Val::Double(d), Val::Double(_) | Val::Int(_) | Val::Uint(_)) if d.is_nan() => Ok(Val::Bool(false)),
        (Val::Int(_) | Val::Uint(_) | Val::Double(_), Val::Double(d)) if d.is_nan() => Ok(Val::Bool(false)),
        (a, b) => compare(a, b).map_or_else(no_overload, |o| Ok(Val::Bool(is(o)))),
    }
}

fn int<'a>(n: Option<i64>) -> Result<'a> {
    n.map(Val::Int).ok_or_else(|| "integer overflow".into())
}

fn uint<'a>(n: Option<u64>) -> Result<'a> {
    n.map(Val::Uint).ok_or_else(|| "unsigned integer overflow".into())
}

fn timestamp<'a>(n: i128) -> Result<'a> {
    time::in_range(n).map(Val::Timestamp).ok_or_else(|| "timestamp overflow".into())
}

fn duration<'a>(n: Option<i64>) -> Result<'a> {
    n.map(Val::Duration).ok_or_else(|| "duration overflow".into())
}

fn add<'a>(args: &[Val<'a>]) -> Result<'a> {
    match (&args[0], &args[1]) {
        (Val::Int(a), Val::Int(b)) => int(a.checked_add(*b)),
        (Val::Uint(a), Val::Uint(b)) => uint(a.checked_add(*b)),
        (Val::Double(a), Val::Double(b)) => Ok(Val::Double(a + b)),
        (Val::Str(a), Val::Str(b)) => Ok(Val::string([a.as_str(), b.as_str()].concat())),
        (Val::Bytes(a), Val::Bytes(b)) => {
            work::count(a.len() + b.len());
            Ok(Val::Bytes([&a[..], &b[..]].concat().into()))
        }
        (Val::List(a), Val::List(b)) => Ok(join(a, b)),
        (Val::Timestamp(t), Val::Duration(d)) | (Val::Duration(d), Val::Timestamp(t)) => timestamp(t + i128::from(*d)),
        (Val::Duration(a), Val::Duration(b)) => duration(a.checked_add(*b)),
        _ => no_overload(),
    }
}

/// Concatenates lists. A set gets the items it lacks; in a map-like list, items replace those with the same keys.
fn join<'a>(a: &List<'a>, b: &List<'a>) -> Val<'a> {
    use crate::value::ListKind;
    work::items(a.len() + b.len());
    let mut out: Vec<Val<'a>> = a.iter().collect();
    match a.kind() {
        ListKind::Atomic => out.extend(b.iter()),
        ListKind::Set => {
            for v in b.iter() {
                if !work::is_over() && !out.iter().any(|x| equal(x, &v)) {
                    out.push(v);
                }
            }
        }
        ListKind::Map(keys) => {
            for v in b.iter() {
                let is = |x| work::is_over() || List::Own(Rc::new(vec![x])).with_keys_of(&v, keys).is_some();
                let place = a.iter().position(is);
                match place {
                    Some(i) => out[i] = v,
                    None => out.push(v),
                }
            }
        }
    }
    Val::list(out)
}

fn subtract<'a>(args: &[Val<'a>]) -> Result<'a> {
    match (&args[0], &args[1]) {
        (Val::Int(a), Val::Int(b)) => int(a.checked_sub(*b)),
        (Val::Uint(a), Val::Uint(b)) => uint(a.checked_sub(*b)),
        (Val::Double(a), Val::Double(b)) => Ok(Val::Double(a - b)),
        (Val::Timestamp(a), Val::Timestamp(b)) => duration(i64::try_from(a - b).ok()),
        (Val::Timestamp(t), Val::Duration(d)) => timestamp(t - i128::from(*d)),
        (Val::Duration(a), Val::Duration(b)) => duration(a.checked_sub(*b)),
        _ => no_overload(),
    }
}

fn multiply<'a>(args: &[Val<'a>]) -> Result<'a> {
    match (&args[0], &args[1]) {
        (Val::Int(a), Val::Int(b)) => int(a.checked_mul(*b)),
        (Val::Uint(a), Val::Uint(b)) => uint(a.checked_mul(*b)),
        (Val::Double(a), Val::Double(b)) => Ok(Val::Double(a * b)),
        _ => no_overload(),
    }
}

fn divide<'a>(args: &[Val<'a>]) -> Result<'a> {
    match (&args[0], &args[1]) {
        (Val::Int(_), Val::Int(0)) | (Val::Uint(_), Val::Uint(0)) => Err("division by zero".into()),
        (Val::Int(a), Val::Int(b)) => int(a.checked_div(*b)),
        (Val::Uint(a), Val::Uint(b)) => Ok(Val::Uint(a / b)),
        (Val::Double(a), Val::Double(b)) => Ok(Val::Double(a / b)),
        _ => no_overload(),
    }
}

fn modulo<'a>(args: &[Val<'a>]) -> Result<'a> {
    match (&args[0], &args[1]) {
        (Val::Int(_), Val::Int(0)) | (Val::Uint(_), Val::Uint(0)) => Err("modulus by zero".into()),
        (Val::Int(a), Val::Int(b)) => int(a.checked_rem(*b)),
        (Val::Uint(a), Val::Uint(b)) => Ok(Val::Uint(a % b)),
        _ => no_overload(),
    }
}

fn negate<'a>(args: &[Val<'a>]) -> Result<'a> {
    match &args[0] {
        Val::Int(a) => int(a.checked_neg()),
        Val::Double(a) => Ok(Val::Double(-a)),
        _ => no_overload(),
    }
}

fn not<'a>(args: &[Val<'a>]) -> Result<'a> {
    args[0].as_bool().map_or_else(no_overload, |b| Ok(Val::Bool(!b)))
}

fn contains<'a>(args: &[Val<'a>]) -> Result<'a> {
    match &args[1] {
        Val::List(l) => Ok(Val::Bool(l.contains(&args[0]))),
        Val::Map(m) => Ok(Val::Bool(m.get(&args[0]).is_some())),
        _ => no_overload(),
    }
}

/// The value at an index or key, if there is one.
fn at<'a>(of: &Val<'a>, key: &Val<'a>) -> std::result::Result<std::result::Result<Val<'a>, String>, Fault> {
    match of {
        Val::List(l) => {
            let Some(Key::Int(i)) = Key::new(key).map(whole) else {
                return Err(format!("unsupported index type '{}' in list", key.type_name()).into());
            };
            let found = usize::try_from(i).ok().and_then(|i| l.get(i));
            Ok(found.ok_or_else(|| format!("index out of bounds: {i}")))
        }
        Val::Map(m) => Ok(m.get(key).ok_or_else(|| format!("no such key: {}", key_text(key)))),
        _ => Err(Fault::NoOverload),
    }
}

fn whole(k: Key<'_>) -> Key<'_> {
    match k {
        Key::Uint(n) => i64::try_from(n).map_or(k, Key::Int),
        k => k,
    }
}

fn key_text(key: &Val<'_>) -> String {
    match key {
        Val::Str(s) => {
            work::count(s.as_str().len());
            s.as_str().to_owned()
        }
        Val::Int(n) => n.to_string(),
        Val::Uint(n) => n.to_string(),
        Val::Bool(b) => b.to_string(),
        v => v.type_name().to_owned(),
    }
}

fn index<'a>(args: &[Val<'a>]) -> Result<'a> {
    match &args[0] {
        Val::Optional(_) => optional_index(args),
        of => at(of, &args[1])?.map_err(Fault::Text),
    }
}

fn optional_index<'a>(args: &[Val<'a>]) -> Result<'a> {
    match &args[0] {
        Val::Optional(None) => Ok(Val::Optional(None)),
        Val::Optional(Some(of)) => at(of, &args[1]).map(|v| Val::Optional(v.ok().map(Rc::new))),
        of => at(of, &args[1]).map(|v| Val::Optional(v.ok().map(Rc::new))),
    }
}

/// The field of a map, or of a map in an optional.
pub(crate) fn select<'a>(of: &Val<'a>, field: &str) -> Result<'a> {
    match of {
        Val::Map(m) => m.field(field).ok_or_else(|| format!("no such key: {field}").into()),
        Val::Optional(_) => Ok(optional_select(of, field)?),
        _ => no_overload(),
    }
}

pub(crate) fn optional_select<'a>(of: &Val<'a>, field: &str) -> Result<'a> {
    match of {
        Val::Map(m) => Ok(Val::Optional(m.field(field).map(Rc::new))),
        Val::Optional(None) => Ok(Val::Optional(None)),
        Val::Optional(Some(v)) => optional_select(v, field),
        _ => no_overload(),
    }
}

/// `has(of.field)`: whether the field is present.
pub(crate) fn has(of: &Val<'_>, field: &str) -> std::result::Result<bool, Fault> {
    match of {
        Val::Map(Map::Json(m, _)) => Ok(m.contains_key(field)),
        Val::Map(Map::Own(m)) => Ok(m.contains_key(&Key::Str(Text::Own(field.into())))),
        Val::Optional(Some(v)) => has(v, field),
        Val::Optional(None) => Ok(false),
        _ => Err(Fault::NoOverload),
    }
}
