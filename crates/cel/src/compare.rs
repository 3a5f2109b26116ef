//! Equality and order of values.

use crate::value::{List, ListKind, Opaque, Val};
use crate::work;
use std::borrow::Borrow;
use std::cmp::Ordering;

/// CEL's equality: numbers by value, whatever their types; values of different types are not equal.
pub fn equal(a: &Val<'_>, b: &Val<'_>) -> bool {
    work::count(PAIR);
    match (a, b) {
        (Val::Null, Val::Null) => true,
        (Val::Bool(a), Val::Bool(b)) => a == b,
        (Val::Str(a), Val::Str(b)) | (Val::Type(a), Val::Type(b)) => {
            equal_bytes(a.as_str().as_bytes(), b.as_str().as_bytes())
        }
        (Val::Bytes(a), Val::Bytes(b)) => equal_bytes(a, b),
        (Val::Timestamp(a), Val::Timestamp(b)) => a == b,
        (Val::Duration(a), Val::Duration(b)) => a == b,
        (Val::List(a), Val::List(b)) => equal_lists(a, b),
        (Val::Map(a), Val::Map(b)) => {
            a.len() == b.len() && a.iter().all(|(k, v)| !work::is_over() && b.get(&k).is_some_and(|w| equal(&v, &w)))
        }
        (Val::Optional(a), Val::Optional(b)) => match (a, b) {
            (Some(a), Some(b)) => equal(a.borrow(), b.borrow()),
            (None, None) => true,
            _ => false,
        },
        (Val::Opaque(a), Val::Opaque(b)) => match (&**a, &**b) {
            (Opaque::Url(a), Opaque::Url(b)) => a == b,
            (Opaque::Ip(a), Opaque::Ip(b)) => a == b,
            (Opaque::Cidr(a), Opaque::Cidr(b)) => a == b,
            (Opaque::Quantity(a), Opaque::Quantity(b)) => a == b,
            (Opaque::Semver(a), Opaque::Semver(b)) => a == b,
            (Opaque::Format(a), Opaque::Format(b)) => a.name == b.name,
            _ => false,
        },
        (a, b) => compare_numbers(a, b) == Some(Ordering::Equal),
    }
}

/// Work of comparing two values of any type.
const PAIR: usize = 8;

fn equal_bytes(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    work::scan(a.len());
    a == b
}

fn equal_lists<'a>(a: &List<'a>, b: &List<'a>) -> bool {
    let kind = if *a.kind() == ListKind::Atomic { b.kind() } else { a.kind() };
    a.len() == b.len()
        && match kind {
            ListKind::Atomic => a.iter().zip(b.iter()).all(|(x, y)| !work::is_over() && equal(&x, &y)),
            ListKind::Set => a.iter().all(|x| !work::is_over() && b.contains(&x)),
            ListKind::Map(keys) => {
                a.iter().all(|x| !work::is_over() && b.with_keys_of(&x, keys).is_some_and(|y| equal(&x, &y)))
            }
        }
}

impl<'a> List<'a> {
    /// Whether an item equals the value.
    pub fn contains(&self, v: &Val<'a>) -> bool {
        self.iter().any(|x| work::is_over() || equal(&x, v))
    }

    /// The item of a map-like list with the same keys.
    pub fn with_keys_of(&self, v: &Val<'a>, keys: &[Box<str>]) -> Option<Val<'a>> {
        self.iter().find(|x| work::is_over() || same_keys(x, v, keys))
    }
}

fn same_keys(a: &Val<'_>, b: &Val<'_>, keys: &[Box<str>]) -> bool {
    let (Val::Map(a), Val::Map(b)) = (a, b) else { return false };
    keys.iter().all(|k| match (a.field(k), b.field(k)) {
        (Some(x), Some(y)) => equal(&x, &y),
        (None, None) => true,
        _ => false,
    })
}

/// Compares numbers by value. None if one of them is no number or NaN.
pub fn compare_numbers(a: &Val<'_>, b: &Val<'_>) -> Option<Ordering> {
    let whole = |v: &Val<'_>| match v {
        Val::Int(n) => Some(i128::from(*n)),
        Val::Uint(n) => Some(i128::from(*n)),
        _ => None,
    };
    match (a, b) {
        (Val::Double(a), Val::Double(b)) => a.partial_cmp(b),
        (Val::Double(a), b) => against(*a, whole(b)?),
        (a, Val::Double(b)) => against(*b, whole(a)?).map(Ordering::reverse),
        (a, b) => Some(whole(a)?.cmp(&whole(b)?)),
    }
}

/// Compares a float with an integer exactly.
fn against(d: f64, n: i128) -> Option<Ordering> {
    if d.is_nan() {
        return None;
    }
    let whole = d.floor();
    // The cast saturates, far beyond the integers that it is compared with.
    let order = (whole as i128).cmp(&n);
    Some(if order == Ordering::Equal && d > whole { Ordering::Greater } else { order })
}

/// The order of two values of one type. None if the type has no order.
pub fn compare(a: &Val<'_>, b: &Val<'_>) -> Option<Ordering> {
    work::count(PAIR);
    if let (Val::Str(_), Val::Str(_)) | (Val::Bytes(_), Val::Bytes(_)) = (a, b) {
        work::scan(usize::try_from(a.most().min(b.most())).unwrap_or(usize::MAX));
    }
    match (a, b) {
        (Val::Bool(a), Val::Bool(b)) => Some(a.cmp(b)),
        (Val::Str(a), Val::Str(b)) => Some(a.as_str().cmp(b.as_str())),
        (Val::Bytes(a), Val::Bytes(b)) => Some(a.cmp(b)),
        (Val::Timestamp(a), Val::Timestamp(b)) => Some(a.cmp(b)),
        (Val::Duration(a), Val::Duration(b)) => Some(a.cmp(b)),
        (a, b) => compare_numbers(a, b),
    }
}
